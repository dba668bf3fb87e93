//! [`Mailbox`]: the reader's handle to the queue of one subscription.
//!
//! The queue itself is in `queue.rs`. This type adds the public receive methods and the registration, whose drop
//! unsubscribes. The first receive that returns an error marks the reader as ended, for `Bus::close_and_wait`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::{FusedStream, Stream};

use crate::error::{RecvError, TryRecvError};
use crate::event::Message;
use crate::queue::Queue;
use crate::registration::Registration;
use crate::stats::SubscriptionStats;
use crate::sync::Deadline;

/// A subscription with a bounded queue, read by blocking calls, by non-blocking calls, or as an async [`Stream`].
///
/// With [`replay`](crate::Subscribe::replay) the retained messages come first. Several threads may receive through a
/// shared reference; each message goes to one of them. As a stream, a mailbox works with any async runtime, and one
/// task may poll it at a time. Dropping the mailbox unsubscribes.
///
/// Receive methods return [`RecvError`] only when the queue is empty and no more messages can arrive, or for dropped
/// messages if the subscription [reports lag](crate::Subscribe::report_lag).
pub struct Mailbox<T: Send + Sync + 'static> {
    queue: Arc<Queue<T>>,
    registration: Registration<T>,
    has_ended: bool,
}

impl<T: Send + Sync + 'static> Mailbox<T> {
    pub(crate) const fn new(registration: Registration<T>, queue: Arc<Queue<T>>) -> Self {
        Self { queue, registration, has_ended: false }
    }

    /// Blocks until the next message arrives.
    ///
    /// # Errors
    /// The queue is empty, and the bus is closed or the subscription was disconnected; or messages were dropped, if the
    /// subscription [reports lag](crate::Subscribe::report_lag).
    pub fn recv(&self) -> Result<Message<T>, RecvError> {
        loop {
            if let Some(message) = self.mark_ended_on_error(self.queue.receive(Deadline::Never))? {
                return Ok(message);
            }
        }
    }

    /// Waits for the next message. Works with any async runtime; one task may wait at a time, as for
    /// [`poll_recv`](Self::poll_recv). A future that is dropped has received nothing.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<Message<T>, RecvError> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// Returns the next message without blocking.
    ///
    /// # Errors
    /// [`TryRecvError::Empty`] if the queue is empty; otherwise as for [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Message<T>, TryRecvError> {
        self.mark_ended_on_error(self.queue.receive(Deadline::Now))?.ok_or(TryRecvError::Empty)
    }

    /// Blocks until the next message arrives, for at most `timeout`. Returns `None` on timeout.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message<T>>, RecvError> {
        self.mark_ended_on_error(self.queue.receive(Deadline::after(timeout)))
    }

    /// Appends up to `max` queued messages to `into` without blocking, under a single lock. Returns their number.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv), if `max` is not 0.
    pub fn drain(&self, max: usize, into: &mut Vec<Message<T>>) -> Result<usize, RecvError> {
        self.mark_ended_on_error(self.queue.drain(max, into))
    }

    /// Polls for the next message. If the queue is empty, registers the waker, which is called when a message arrives
    /// or the subscription ends.
    ///
    /// Only the waker of the latest call is kept, so one task may wait at a time.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message<T>, RecvError>> {
        self.queue.poll(context).map(|received| self.mark_ended_on_error(received))
    }

    /// Returns an iterator that blocks for each message and stops at the end of the subscription.
    pub fn iter(&self) -> impl Iterator<Item = Message<T>> + '_ {
        std::iter::from_fn(|| {
            loop {
                match self.recv() {
                    Ok(message) => return Some(message),
                    Err(error) if error.is_end() => return None,
                    Err(_) => {}
                }
            }
        })
    }

    /// Returns the statistics of this subscription.
    pub fn stats(&self) -> SubscriptionStats {
        self.registration.stats()
    }

    fn mark_ended_on_error<R>(&self, received: Result<R, RecvError>) -> Result<R, RecvError> {
        if received.as_ref().is_err_and(|error| error.is_end()) {
            self.registration.mark_ended();
        }
        received
    }
}

/// The stream skips dropped messages, and ends when the bus is closed or the subscription is disconnected.
/// [`Mailbox::try_recv`] then returns the error that distinguishes the two.
impl<T: Send + Sync + 'static> Stream for Mailbox<T> {
    type Item = Message<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message<T>>> {
        loop {
            match ready!(self.poll_recv(context)) {
                Ok(message) => return Poll::Ready(Some(message)),
                Err(error) if error.is_end() => {
                    self.has_ended = true;
                    return Poll::Ready(None);
                }
                Err(_) => {}
            }
        }
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
