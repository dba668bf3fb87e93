//! When messages expire, in order. A queue that gives messages another time to live goes through them some at a time:
//! until it has come to a message, that stands here at its old time, and is looked at then.

use std::collections::{BTreeSet, VecDeque};

use crate::pool::Known;
use crate::thin::thin_set;

/// Which time to live a message stands in [`Expiry`] by.
pub(crate) type Era = u8;
/// Times to live by which messages can stand there.
const ERAS_MAX: usize = 1 << Era::BITS;

/// Messages that expire.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// By when, each by the time to live of its era.
    times: BTreeSet<(u64, u64)>,
    /// Times to live, ms, of the eras from `first_era` on. The last one is the queue's.
    ttls: VecDeque<u64>,
    first_era: Era,
    /// Messages from this offset on may be of an older era.
    next: Option<u64>,
}

impl Expiry {
    /// In a queue that gives messages so long; 0 for ever.
    pub(crate) fn new(ttl_ms: u64) -> Self {
        Self { ttls: VecDeque::from([ttl_ms]), ..Self::default() }
    }

    /// What the queue gives messages, ms; 0 for ever.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttls.back().copied().unwrap_or(0)
    }

    /// Gives messages so long from now on: a new era begins, in which those that are there are to be
    /// [put in](Self::put_again) again. Does nothing while there are as many eras as there can be.
    pub(crate) fn set_ttl(&mut self, ttl_ms: u64) {
        if ttl_ms != self.ttl_ms() && self.ttls.len() < ERAS_MAX {
            self.ttls.push_back(ttl_ms);
            self.next = Some(0);
        }
    }

    fn era(&self) -> Era {
        self.first_era.wrapping_add(self.ttls.len().saturating_sub(1) as Era)
    }

    /// When it expires, by the time to live of its era.
    fn time_of(&self, known: &Known) -> u64 {
        let ttl_ms = self.ttls.get(usize::from(known.era.wrapping_sub(self.first_era)));
        known.expires_ms(ttl_ms.copied().unwrap_or(0))
    }

    /// A message that is not there.
    pub(crate) fn put(&mut self, offset: u64, known: &mut Known) {
        known.era = self.era();
        let at = self.time_of(known);
        if at != u64::MAX {
            self.times.insert((at, offset));
        }
    }

    pub(crate) fn remove(&mut self, offset: u64, known: &Known) {
        let at = self.time_of(known);
        if at != u64::MAX {
            self.times.remove(&(at, offset));
        }
    }

    /// A message that may be of an older era.
    pub(crate) fn put_again(&mut self, offset: u64, known: &mut Known) {
        if known.era != self.era() {
            self.remove(offset, known);
            self.put(offset, known);
        }
    }

    /// Those from where on are to be put in again.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    /// That has been done up to an offset, or with all: then no message is of an older era.
    pub(crate) fn went_on(&mut self, next: Option<u64>) {
        self.next = next;
        if next.is_none() {
            self.first_era = self.era();
            self.ttls.drain(..self.ttls.len().saturating_sub(1));
        }
    }

    /// When the first message is to be looked at.
    pub(crate) fn first(&self) -> Option<u64> {
        self.times.first().map(|&(at, _)| at)
    }

    /// Takes out the first message if its time has come by then.
    pub(crate) fn take(&mut self, now_ms: u64) -> Option<u64> {
        let &(at, offset) = self.times.first().filter(|&&(at, _)| at <= now_ms)?;
        self.times.remove(&(at, offset));
        Some(offset)
    }

    /// Forgets what it knows, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        thin_set(&mut self.times, most);
    }
}
