//! Which of a stream's messages came to one receiver, and how.

use std::collections::BTreeSet;

/// The messages of one stream at one receiver. They are numbered 0, 1, 2, ... in the order of their publishing.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    /// Those before it were published before the receiver's subscription was acknowledged: they need not come.
    from: u64,
    /// All before it came, but for the missing.
    next: u64,
    missing: BTreeSet<u64>,
    /// How many came for the first time.
    pub(super) first: u64,
}

/// What an arrival means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    First,
    /// For the first time, after a later one.
    Late,
    Again,
    /// Published before the subscription: it may come, and as often as it likes.
    Before,
}

impl Track {
    /// From message `from` on, all are to come.
    pub(super) fn new(from: u64) -> Self {
        Self { from, next: from, missing: BTreeSet::new(), first: 0 }
    }

    /// Message `number` came.
    pub(super) fn record(&mut self, number: u64) -> Arrival {
        if number < self.from {
            return Arrival::Before;
        }
        if number >= self.next {
            self.missing.extend(self.next..number);
            self.next = number + 1;
            self.first += 1;
            return Arrival::First;
        }
        if self.missing.remove(&number) {
            self.first += 1;
            return Arrival::Late;
        }
        Arrival::Again
    }

    /// Whether all before `end` came.
    pub(super) fn has_all_before(&self, end: u64) -> bool {
        (self.next >= end || self.from >= end) && self.missing.range(..end).next().is_none()
    }

    /// Those before `end` that did not come.
    pub(super) fn lost_before(&self, end: u64) -> Vec<u64> {
        self.missing.range(..end).copied().chain(self.next..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival::{Again, Before, First, Late};
    use super::*;

    #[test]
    fn what_is_lost_repeated_or_late_is_told_apart() {
        let mut track = Track::new(3);
        let arrivals: Vec<Arrival> = [1, 3, 6, 4, 4, 6].into_iter().map(|n| track.record(n)).collect();
        assert_eq!(arrivals, [Before, First, First, Late, Again, Again]);
        assert_eq!(track.lost_before(9), [5, 7, 8]);
        assert_eq!(track.first, 3);
        assert!(track.has_all_before(5) && !track.has_all_before(6));
    }

    #[test]
    fn a_receiver_that_came_late_lacks_nothing() {
        let track = Track::new(8);
        assert!(track.has_all_before(8) && track.has_all_before(2));
        assert!(track.lost_before(8).is_empty() && !track.has_all_before(9));
    }
}
