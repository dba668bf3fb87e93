//! A chunk of a ring: slots that are written once, and read without a lock.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::event::SharedMessage;

/// Consecutive messages, starting with number `first`.
pub(crate) struct Chunk<T> {
    pub(crate) first: u64,
    pub(crate) slots: Box<[Slot<T>]>,
}

/// Written once, and never moved while a reader holds the chunk.
pub(crate) type Slot<T> = OnceLock<Arc<SharedMessage<T>>>;

impl<T> Chunk<T> {
    /// Creates a full chunk whose numbers start at 0.
    pub(crate) fn of(messages: impl IntoIterator<Item = Arc<SharedMessage<T>>>) -> Self {
        Self { first: 0, slots: messages.into_iter().map(OnceLock::from).collect() }
    }

    /// Returns the slots with these numbers, which must be in this chunk. Only slots below the tail may be read.
    #[inline]
    pub(crate) fn slots(&self, numbers: Range<u64>) -> &[Slot<T>] {
        &self.slots[(numbers.start - self.first) as usize..(numbers.end - self.first) as usize]
    }

    pub(crate) const fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }
}

/// Returns the messages in slots below the tail.
#[inline]
pub(crate) fn read_slots<T>(slots: &[Slot<T>]) -> impl ExactSizeIterator<Item = &Arc<SharedMessage<T>>> {
    slots.iter().map(|slot| slot.get().expect("a slot below the tail is written"))
}
