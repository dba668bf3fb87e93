//! The mailbox: a subscription that waits to be read.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::{FusedStream, Stream};

use crate::error::RecvError;
use crate::event::Message;
use crate::queue::Queue;
use crate::stats::SubscriptionStats;
use crate::sync::Patience;
use crate::ticket::Ticket;

/// A subscription with a bounded queue, read by blocking, by trying, or as an async [`Stream`].
///
/// Retained messages that it asked for come first. Several threads may read through a reference, each message then
/// goes to one of them. A stream needs no particular runtime; one task may poll it at a time. Dropping the mailbox
/// unsubscribes.
pub struct Mailbox<T: Send + Sync + 'static> {
    queue: Arc<Queue<T>>,
    ticket: Ticket<T>,
    has_ended: bool,
}

impl<T: Send + Sync + 'static> Mailbox<T> {
    pub(crate) const fn new(ticket: Ticket<T>, queue: Arc<Queue<T>>) -> Self {
        Self { queue, ticket, has_ended: false }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn recv(&self) -> Result<Message<T>, RecvError> {
        loop {
            if let Some(message) = self.noting_end(self.queue.receive(Patience::Endless))? {
                return Ok(message);
            }
        }
    }

    /// The next message, if one waits.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn try_recv(&self) -> Result<Option<Message<T>>, RecvError> {
        self.noting_end(self.queue.receive(Patience::None))
    }

    /// Waits for the next message for as long as `timeout`; `None` if none has come.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message<T>>, RecvError> {
        self.noting_end(self.queue.receive(Patience::lasting(timeout)))
    }

    /// Moves up to `max` messages that wait to the end of `into`, and returns how many, under one lock.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn drain(&self, max: usize, into: &mut Vec<Message<T>>) -> Result<usize, RecvError> {
        self.noting_end(self.queue.drain(max, into))
    }

    /// The next message; where none waits, the task is woken once one does, or at the end. One task may wait at a time.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message<T>, RecvError>> {
        self.queue.poll(context).map(|received| self.noting_end(received))
    }

    /// Waits for one message after the other, until the end.
    pub fn iter(&self) -> impl Iterator<Item = Message<T>> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// This subscription's numbers.
    pub fn stats(&self) -> SubscriptionStats {
        self.ticket.stats()
    }

    fn noting_end<R>(&self, received: Result<R, RecvError>) -> Result<R, RecvError> {
        if received.is_err() {
            self.ticket.note_end();
        }
        received
    }
}

/// Ends with the bus, or when the subscription is disconnected; [`Mailbox::try_recv`] then tells which.
impl<T: Send + Sync + 'static> Stream for Mailbox<T> {
    type Item = Message<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message<T>>> {
        self.poll_recv(context).map(|received| {
            self.has_ended = received.is_err();
            received.ok()
        })
    }
}

impl<T: Send + Sync + 'static> FusedStream for Mailbox<T> {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mailbox").field(&self.stats()).finish()
    }
}
