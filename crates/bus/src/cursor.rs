//! The cursor: a subscription that reads a shared ring in batches.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::error::RecvError;
use crate::event::{Event, View};
use crate::ring::{Chunk, Reader, Ring, Slot, read_slots};
use crate::stats::SubscriptionStats;
use crate::sync::Patience;
use crate::ticket::{Start, Ticket};

/// A subscription that reads in batches out of a ring that it shares with the other cursors of its filter.
///
/// A message is stored in the ring once, however many cursors read it, so this is the cheapest way to many receivers.
/// Cursors share if their capacity and their overflow policy are the same, unless that policy is about the newest
/// message or they are members of a group. With [`Overflow::DropOldest`](crate::Overflow::DropOldest) a cursor learns
/// when it reads how many messages it has missed; publishers do not count them. Dropping the cursor unsubscribes.
pub struct Cursor<T: Send + Sync + 'static> {
    ring: Arc<Ring<T>>,
    reader: Arc<Reader>,
    /// Retained messages, which come before those in the ring.
    owed: Chunk<T>,
    /// Those of them that have not been read.
    unread_owed: Range<u64>,
    chunk: Option<Arc<Chunk<T>>>,
    ticket: Ticket<T>,
}

impl<T: Send + Sync + 'static> Cursor<T> {
    pub(crate) fn new(ticket: Ticket<T>, start: Start<T>) -> Self {
        let Start { ring, reader, owed } = start;
        let unread_owed = 0..owed.len() as u64;
        Self { ring, reader, owed: Chunk::of(owed), unread_owed, chunk: None, ticket }
    }

    /// Waits until there are messages, and returns some of those that wait, at most `max` of them and at least one.
    ///
    /// They count as received from now on. They stay readable for as long as the batch is held.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn next_batch(&mut self, max: usize) -> Result<Batch<'_, T>, RecvError> {
        self.batch(max, Patience::Endless)
    }

    /// Some of the messages that wait, at most `max` of them; none if none waits.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn try_batch(&mut self, max: usize) -> Result<Batch<'_, T>, RecvError> {
        self.batch(max, Patience::None)
    }

    /// The same, but waits for as long as `timeout` for the first one.
    ///
    /// # Errors
    /// Nothing waits, and nothing will come any more.
    pub fn batch_timeout(&mut self, max: usize, timeout: Duration) -> Result<Batch<'_, T>, RecvError> {
        self.batch(max, Patience::lasting(timeout))
    }

    fn batch(&mut self, max: usize, patience: Patience) -> Result<Batch<'_, T>, RecvError> {
        let metadata = self.reader.profile.options.metadata;
        if !self.unread_owed.is_empty() {
            let first = self.unread_owed.start;
            let end = self.unread_owed.end.min(first.saturating_add(max.max(1) as u64));
            self.unread_owed.start = end;
            return Ok(Batch {
                slots: self.owed.slots(first..end),
                view: View { metadata, is_replay: true },
            });
        }
        let read = self.ring.read(&self.reader, &mut self.chunk, max, patience);
        let numbers = read.inspect_err(|_| self.ticket.note_end())?;
        let chunk = self.chunk.as_ref().filter(|_| !numbers.is_empty());
        let slots = chunk.map_or(&[][..], |chunk| chunk.slots(numbers));
        Ok(Batch { slots, view: View { metadata, is_replay: false } })
    }

    /// This subscription's numbers.
    pub fn stats(&self) -> SubscriptionStats {
        let mut stats = self.ticket.stats();
        stats.lag += self.unread_owed.clone().count();
        stats
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Cursor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cursor").field(&self.stats()).finish()
    }
}

/// Messages that follow one another, as a [`Cursor`] reads them.
pub struct Batch<'a, T> {
    slots: &'a [Slot<T>],
    view: View,
}

impl<'a, T> Batch<'a, T> {
    /// The number of messages.
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The messages, in the order in which they were published.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event<'a, T>> + use<'a, T> {
        let view = self.view;
        read_slots(self.slots).map(move |message| Event::of(message, view))
    }
}

impl<T> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}
