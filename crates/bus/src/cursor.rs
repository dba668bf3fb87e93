//! [`Cursor`]: the reader's handle to a shared ring, read in batches.
//!
//! The ring itself is in `ring.rs`. A cursor holds a reference to the chunk it reads from, so the messages of a batch
//! stay readable even after the ring has dropped them. Replayed retained messages belong to one cursor only and are
//! kept in a chunk of its own, ahead of the ring.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::chunk::{Chunk, Slot, read_slots};
use crate::error::RecvError;
use crate::event::{Event, View};
use crate::registration::{CursorStart, Registration};
use crate::ring::{Reader, Ring};
use crate::stats::SubscriptionStats;
use crate::sync::Deadline;

/// A subscription that reads batches from a ring shared with the other cursors of the same filter.
///
/// The ring stores each message once for all its cursors, which makes this the cheapest way to reach many readers.
/// Cursors share a ring if they have the same filter, capacity and overflow policy, the policy is
/// [`Overflow::Block`](crate::Overflow::Block) or [`Overflow::DropOldest`](crate::Overflow::DropOldest), and they are
/// not group members.
///
/// With `DropOldest`, missed messages are counted when the cursor next reads; they do not appear in the publisher's
/// [`Delivered::dropped`](crate::Delivered::dropped). Dropping the cursor unsubscribes.
pub struct Cursor<T: Send + Sync + 'static> {
    ring: Arc<Ring<T>>,
    reader: Arc<Reader>,
    /// Retained messages, read before those in the ring.
    replay: Chunk<T>,
    unread_replay: Range<u64>,
    chunk: Option<Arc<Chunk<T>>>,
    registration: Registration<T>,
}

impl<T: Send + Sync + 'static> Cursor<T> {
    pub(crate) fn new(registration: Registration<T>, start: CursorStart<T>) -> Self {
        let CursorStart { ring, reader, replay } = start;
        let unread_replay = 0..replay.len() as u64;
        Self { ring, reader, replay: Chunk::of(replay), unread_replay, chunk: None, registration }
    }

    /// Blocks until a message is available, then returns between 1 and `max` messages. A `max` of 0 counts as 1.
    ///
    /// The messages count as received immediately, and remain readable while the batch is held. A batch may be smaller
    /// than the backlog.
    ///
    /// # Errors
    /// No message is left to read, and the bus is closed or the subscription was disconnected.
    pub fn next_batch(&mut self, max: usize) -> Result<Batch<'_, T>, RecvError> {
        self.batch(max, Deadline::Never)
    }

    /// Returns up to `max` messages without blocking; an empty batch if there are none.
    ///
    /// # Errors
    /// As for [`next_batch`](Self::next_batch).
    pub fn try_batch(&mut self, max: usize) -> Result<Batch<'_, T>, RecvError> {
        self.batch(max, Deadline::Now)
    }

    /// Returns up to `max` messages, blocking for at most `timeout` for the first one; an empty batch on timeout.
    ///
    /// # Errors
    /// As for [`next_batch`](Self::next_batch).
    pub fn batch_timeout(&mut self, max: usize, timeout: Duration) -> Result<Batch<'_, T>, RecvError> {
        self.batch(max, Deadline::after(timeout))
    }

    fn batch(&mut self, max: usize, deadline: Deadline) -> Result<Batch<'_, T>, RecvError> {
        let metadata = self.reader.info.options.metadata;
        if !self.unread_replay.is_empty() {
            let first = self.unread_replay.start;
            let end = self.unread_replay.end.min(first.saturating_add(max.max(1) as u64));
            self.unread_replay.start = end;
            return Ok(Batch {
                slots: self.replay.slots(first..end),
                view: View { metadata, is_replay: true },
            });
        }
        let read = self.ring.read(&self.reader, &mut self.chunk, max, deadline);
        let numbers = read.inspect_err(|error| {
            if error.is_end() {
                self.registration.mark_ended();
            }
        })?;
        let chunk = self.chunk.as_ref().filter(|_| !numbers.is_empty());
        let slots = chunk.map_or(&[][..], |chunk| chunk.slots(numbers));
        Ok(Batch { slots, view: View { metadata, is_replay: false } })
    }

    /// Returns the statistics of this subscription.
    pub fn stats(&self) -> SubscriptionStats {
        let mut stats = self.registration.stats();
        stats.lag += self.unread_replay.clone().count();
        stats
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Cursor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cursor").field(&self.stats()).finish()
    }
}

/// Consecutive messages read by a [`Cursor`].
pub struct Batch<'a, T> {
    slots: &'a [Slot<T>],
    view: View,
}

impl<'a, T> Batch<'a, T> {
    /// Returns the number of messages.
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether the batch is empty.
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the messages in the order they were published.
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
