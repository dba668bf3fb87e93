//! An index of messages by expiry time.
//!
//! When the time to live of a queue changes, a million messages may have to move in the index. They are reindexed in
//! steps: each message records the *era* of the time to live that it is indexed by, so it can be found at its old
//! time until the reindexing reaches it.

use std::collections::{BTreeSet, VecDeque};

use crate::deferred_drop::drop_some_of_set;
use crate::message_entry::{Era, MessageEntry};

const ERAS_MAX: usize = 1 << Era::BITS;

#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// Time and offset, each by the time to live of the message's era.
    times: BTreeSet<(u64, u64)>,
    /// Times to live in ms, from `first_era` on. The last one is current.
    ttls: VecDeque<u64>,
    first_era: Era,
    /// Messages at or after this offset may be of an older era.
    next: Option<u64>,
}

impl Expiry {
    /// For a queue with this time to live; 0 for none.
    pub(crate) fn new(ttl_ms: u64) -> Self {
        Self { ttls: VecDeque::from([ttl_ms]), ..Self::default() }
    }

    /// Current time to live in ms; 0 for none.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttls.back().copied().unwrap_or(0)
    }

    /// Changes the time to live. A new era begins, and existing messages must be [reindexed](Self::reindex). Does
    /// nothing while all eras are in use; the caller tries again later.
    pub(crate) fn set_ttl(&mut self, ttl_ms: u64) {
        if ttl_ms != self.ttl_ms() && self.ttls.len() < ERAS_MAX {
            self.ttls.push_back(ttl_ms);
            self.next = Some(0);
        }
    }

    fn era(&self) -> Era {
        self.first_era.wrapping_add(self.ttls.len().saturating_sub(1) as Era)
    }

    /// Expiry by the time to live of the message's era.
    fn time_of(&self, known: &MessageEntry) -> u64 {
        let ttl_ms = self.ttls.get(usize::from(known.era.wrapping_sub(self.first_era)));
        known.expires_ms(ttl_ms.copied().unwrap_or(0))
    }

    /// Indexes a new message.
    pub(crate) fn put(&mut self, offset: u64, known: &mut MessageEntry) {
        known.era = self.era();
        let at = self.time_of(known);
        if at != u64::MAX {
            self.times.insert((at, offset));
        }
    }

    pub(crate) fn remove(&mut self, offset: u64, known: &MessageEntry) {
        let at = self.time_of(known);
        if at != u64::MAX {
            self.times.remove(&(at, offset));
        }
    }

    /// Reindexes a message if it is of an older era.
    pub(crate) fn reindex(&mut self, offset: u64, known: &mut MessageEntry) {
        if known.era != self.era() {
            self.remove(offset, known);
            self.put(offset, known);
        }
    }

    /// The offset from which messages must be reindexed.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    /// Messages below this offset have been reindexed, or all of them.
    pub(crate) fn reindexed_to(&mut self, next: Option<u64>) {
        self.next = next;
        if next.is_none() {
            self.first_era = self.era();
            self.ttls.drain(..self.ttls.len().saturating_sub(1));
        }
    }

    /// The first time in the index.
    pub(crate) fn first(&self) -> Option<u64> {
        self.times.first().map(|&(at, _)| at)
    }

    /// Removes and returns the first message whose time has come.
    pub(crate) fn take(&mut self, now_ms: u64) -> Option<u64> {
        let &(at, offset) = self.times.first().filter(|&&(at, _)| at <= now_ms)?;
        self.times.remove(&(at, offset));
        Some(offset)
    }

    /// Removes entries while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        drop_some_of_set(&mut self.times, budget);
    }
}
