//! Deduplication: which messages the queue has seen, by the identifier of their publisher and by the queue that moved
//! them here.
//!
//! Identifiers are remembered for the configured window. Each queue group that moves messages here numbers them, so
//! its highest number is enough to recognize a repeated transfer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::deferred_drop::drop_some;

/// Limit of identifiers.
const IDS_MAX: usize = 1_000_000;
/// Limit of groups of other queues that move messages here.
const MOVERS_MAX: usize = 10_000;
/// Identifiers outlive the window by at least this time: messages are registered some time after they arrived.
const SLACK_MS: u64 = 60_000;

/// Expired identifiers that one new message removes at most.
const FORGOTTEN_AT_ONCE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct DedupIndex {
    ids: BTreeMap<Arc<[u8]>, u64>,
    /// The identifiers in order of arrival. Some were seen again later, and are here twice.
    ages: VecDeque<(u64, Arc<[u8]>)>,
    /// Number of entries removed from the front of `ages`.
    forgotten: u64,
    movers: BTreeMap<Arc<str>, Mover>,
    /// Movers in order of their last use.
    uses: BTreeSet<(u64, Arc<str>)>,
    clock: u64,
}

#[derive(Debug)]
struct Mover {
    highest: u64,
    used: u64,
}

impl DedupIndex {
    /// Returns whether an identifier was seen within the window, so that the message is a duplicate. Records it if
    /// not.
    pub(crate) fn is_duplicate(&mut self, id: &[u8], timestamp_ms: u64, window_ms: u64) -> bool {
        self.prune(timestamp_ms, window_ms, FORGOTTEN_AT_ONCE);
        let seen = self.ids.get(id).is_some_and(|&seen_ms| timestamp_ms.saturating_sub(seen_ms) < window_ms);
        if !seen {
            self.record(id, timestamp_ms);
        }
        seen
    }

    /// Records an identifier.
    pub(crate) fn record(&mut self, id: &[u8], timestamp_ms: u64) {
        if self.ids.get(id) == Some(&timestamp_ms) {
            return;
        }
        let id: Arc<[u8]> = id.into();
        self.ids.insert(Arc::clone(&id), timestamp_ms);
        self.ages.push_back((timestamp_ms, id));
        if self.ages.len() > IDS_MAX {
            self.forget_oldest();
        }
    }

    /// Records an identifier unless it is known, for whichever message.
    pub(crate) fn record_if_new(&mut self, id: &[u8], timestamp_ms: u64) {
        if !self.ids.contains_key(id) {
            self.record(id, timestamp_ms);
        }
    }

    /// Removes identifiers whose window ends at or before this time.
    fn prune(&mut self, timestamp_ms: u64, window_ms: u64, most: usize) {
        let is_over = |(seen_ms, _): &(u64, _)| seen_ms.saturating_add(window_ms) <= timestamp_ms;
        for _ in 0..most {
            if !self.ages.front().is_some_and(is_over) {
                return;
            }
            self.forget_oldest();
        }
    }

    /// Removes identifiers whose window has ended long ago, or all if deduplication is off.
    pub(crate) fn maintain(&mut self, now_ms: u64, window_ms: u64, most: usize) {
        if window_ms == 0 {
            (0..most.min(self.ages.len())).for_each(|_| self.forget_oldest());
        } else {
            self.prune(now_ms, window_ms.saturating_add(window_ms.max(SLACK_MS)), most);
        }
    }

    /// Removes identifiers that were seen in this range of times.
    pub(crate) fn forget_between(&mut self, times_ms: Range<u64>) {
        self.ids.retain(|_, seen_ms| !times_ms.contains(seen_ms));
    }

    fn forget_oldest(&mut self) {
        let Some((seen_ms, id)) = self.ages.pop_front() else { return };
        self.forgotten += 1;
        if self.ids.get(&id) == Some(&seen_ms) {
            self.ids.remove(&id);
        }
    }

    /// Removes identifiers, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        while *budget > 0 && self.ages.pop_front().is_some() {
            *budget -= 1;
        }
        drop_some(&mut self.ids, budget);
    }

    /// Records a transfer. Returns true for a duplicate: the mover has already sent this number or a higher one.
    pub(crate) fn is_repeated_transfer(&mut self, who: &str, number: u64) -> bool {
        let again = self.movers.get(who).is_some_and(|mover| number <= mover.highest);
        self.record_transfer(who, number);
        again
    }

    /// Records a transfer.
    pub(crate) fn record_transfer(&mut self, who: &str, number: u64) {
        self.clock += 1;
        let used = self.clock;
        if let Some((who, mover)) =
            self.movers.get_key_value(who).map(|(who, mover)| (Arc::clone(who), mover))
        {
            self.uses.remove(&(mover.used, Arc::clone(&who)));
            let highest = mover.highest.max(number);
            self.uses.insert((used, Arc::clone(&who)));
            self.movers.insert(who, Mover { highest, used });
            return;
        }
        if self.movers.len() >= MOVERS_MAX
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.movers.remove(&oldest);
        }
        let who: Arc<str> = who.into();
        self.uses.insert((used, Arc::clone(&who)));
        self.movers.insert(who, Mover { highest: number, used });
    }

    /// Approximate number of identifiers.
    pub(crate) fn ids_len(&self) -> usize {
        self.ages.len()
    }

    /// Positions of the current identifiers in the sequence of all identifiers ever recorded.
    pub(crate) fn positions(&self) -> Range<u64> {
        self.forgotten..self.forgotten + self.ages.len() as u64
    }

    /// The identifiers at these positions that are still current.
    pub(crate) fn ids_at(&self, positions: Range<u64>) -> impl Iterator<Item = (&[u8], u64)> {
        let at = |position: u64| (position.saturating_sub(self.forgotten) as usize).min(self.ages.len());
        let ages = self.ages.range(at(positions.start)..at(positions.end));
        let current = ages.filter(|(seen_ms, id)| self.ids.get(id) == Some(seen_ms));
        current.map(|(seen_ms, id)| (&**id, *seen_ms))
    }

    /// All identifiers, oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.ids_at(self.positions())
    }

    /// All movers with their highest number, least recently used first.
    pub(crate) fn movers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.uses.iter().filter_map(|(_, who)| Some((&**who, self.movers.get(who)?.highest)))
    }
}
