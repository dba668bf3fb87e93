//! Messages that have been seen: by the identifier their publisher gave them, and by who moved them here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::thin::thin;

/// Most identifiers.
const IDS_MAX: usize = 1_000_000;
/// Most queues' groups that move messages here.
const MOVERS_MAX: usize = 10_000;
/// Identifiers are kept for at least so long beyond the window, ms: messages are registered some time after they came.
const SLACK_MS: u64 = 60_000;

/// Identifiers that are forgotten when another one comes.
const FORGOTTEN_AT_ONCE: usize = 16;

/// What has been seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    ids: BTreeMap<Arc<[u8]>, u64>,
    /// The same in the order in which they came, with some that have been seen again since.
    ages: VecDeque<(u64, Arc<[u8]>)>,
    /// How many have gone from the front of it.
    forgotten: u64,
    movers: BTreeMap<Arc<str>, Mover>,
    /// Movers by when they were last heard of.
    uses: BTreeSet<(u64, Arc<str>)>,
    clock: u64,
}

#[derive(Debug)]
struct Mover {
    highest: u64,
    used: u64,
}

impl Seen {
    /// Remembers an identifier, unless it was seen within the window before: then this says that it is a duplicate.
    pub(crate) fn is_duplicate(&mut self, id: &[u8], timestamp_ms: u64, window_ms: u64) -> bool {
        self.prune(timestamp_ms, window_ms, FORGOTTEN_AT_ONCE);
        let seen = self.ids.get(id).is_some_and(|&seen_ms| timestamp_ms.saturating_sub(seen_ms) < window_ms);
        if !seen {
            self.know(id, timestamp_ms);
        }
        seen
    }

    /// Remembers an identifier.
    pub(crate) fn know(&mut self, id: &[u8], timestamp_ms: u64) {
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

    /// Remembers an identifier, unless it is remembered as that of another message.
    pub(crate) fn know_if_unknown(&mut self, id: &[u8], timestamp_ms: u64) {
        if !self.ids.contains_key(id) {
            self.know(id, timestamp_ms);
        }
    }

    /// Forgets identifiers whose window is over for messages of this time and later.
    fn prune(&mut self, timestamp_ms: u64, window_ms: u64, most: usize) {
        let is_over = |(seen_ms, _): &(u64, _)| seen_ms.saturating_add(window_ms) <= timestamp_ms;
        for _ in 0..most {
            if !self.ages.front().is_some_and(is_over) {
                return;
            }
            self.forget_oldest();
        }
    }

    /// The same long after, if no message comes; or at once, if none are to be remembered.
    pub(crate) fn tend(&mut self, now_ms: u64, window_ms: u64, most: usize) {
        if window_ms == 0 {
            (0..most.min(self.ages.len())).for_each(|_| self.forget_oldest());
        } else {
            self.prune(now_ms, window_ms.saturating_add(window_ms.max(SLACK_MS)), most);
        }
    }

    /// Forgets identifiers that were seen at these times.
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

    /// Forgets identifiers, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        while *most > 0 && self.ages.pop_front().is_some() {
            *most -= 1;
        }
        thin(&mut self.ids, most);
    }

    /// Remembers a move, unless one with that number or a later one of the same mover was seen: that is a duplicate.
    pub(crate) fn is_moved_again(&mut self, who: &str, number: u64) -> bool {
        let again = self.movers.get(who).is_some_and(|mover| number <= mover.highest);
        self.moved(who, number);
        again
    }

    /// Remembers a move.
    pub(crate) fn moved(&mut self, who: &str, number: u64) {
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

    /// How many identifiers it remembers, about.
    pub(crate) fn ids_len(&self) -> usize {
        self.ages.len()
    }

    /// Where the identifiers of now stand among all that there ever were.
    pub(crate) fn places(&self) -> Range<u64> {
        self.forgotten..self.forgotten + self.ages.len() as u64
    }

    /// Those of them that are remembered.
    pub(crate) fn ids_at(&self, places: Range<u64>) -> impl Iterator<Item = (&[u8], u64)> {
        let at = |place: u64| (place.saturating_sub(self.forgotten) as usize).min(self.ages.len());
        let ages = self.ages.range(at(places.start)..at(places.end));
        let current = ages.filter(|(seen_ms, id)| self.ids.get(id) == Some(seen_ms));
        current.map(|(seen_ms, id)| (&**id, *seen_ms))
    }

    /// All identifiers, oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.ids_at(self.places())
    }

    /// All movers with the highest number of each, those that were not heard of for longest first.
    pub(crate) fn movers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.uses.iter().filter_map(|(_, who)| Some((&**who, self.movers.get(who)?.highest)))
    }
}
