//! Arrival tracking of one stream at one receiver.

use std::collections::BTreeSet;

/// Arrivals of one stream at one receiver. Messages are numbered 0, 1, 2, ... in publishing order.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamTracker {
    /// First message after the receiver's SUBACK. Earlier messages are not required.
    from: u64,
    /// All messages before this one have arrived, except `missing`.
    next: u64,
    missing: BTreeSet<u64>,
    /// Number of first arrivals.
    pub(super) delivered: u64,
}

/// Classification of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    InOrder,
    /// First arrival, after a later message.
    OutOfOrder,
    Duplicate,
    /// Published before the subscription: may arrive any number of times.
    BeforeSubscription,
}

impl StreamTracker {
    /// Requires all messages from `from` on.
    pub(super) fn new(from: u64) -> Self {
        Self { from, next: from, missing: BTreeSet::new(), delivered: 0 }
    }

    /// Records the arrival of message `number`.
    pub(super) fn record(&mut self, number: u64) -> Arrival {
        if number < self.from {
            return Arrival::BeforeSubscription;
        }
        if number >= self.next {
            self.missing.extend(self.next..number);
            self.next = number + 1;
            self.delivered += 1;
            return Arrival::InOrder;
        }
        if self.missing.remove(&number) {
            self.delivered += 1;
            return Arrival::OutOfOrder;
        }
        Arrival::Duplicate
    }

    /// Whether all messages before `end` have arrived.
    pub(super) fn has_all_before(&self, end: u64) -> bool {
        (self.next >= end || self.from >= end) && self.missing.range(..end).next().is_none()
    }

    /// Messages before `end` that have not arrived.
    pub(super) fn lost_before(&self, end: u64) -> Vec<u64> {
        self.missing.range(..end).copied().chain(self.next..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival::{BeforeSubscription, Duplicate, InOrder, OutOfOrder};
    use super::*;

    #[test]
    fn classifies_lost_duplicate_and_late_messages() {
        let mut tracker = StreamTracker::new(3);
        let arrivals: Vec<Arrival> = [1, 3, 6, 4, 4, 6].into_iter().map(|n| tracker.record(n)).collect();
        assert_eq!(arrivals, [BeforeSubscription, InOrder, InOrder, OutOfOrder, Duplicate, Duplicate]);
        assert_eq!(tracker.lost_before(9), [5, 7, 8]);
        assert_eq!(tracker.delivered, 3);
        assert!(tracker.has_all_before(5) && !tracker.has_all_before(6));
    }

    #[test]
    fn late_receiver_requires_no_earlier_messages() {
        let tracker = StreamTracker::new(8);
        assert!(tracker.has_all_before(8) && tracker.has_all_before(2));
        assert!(tracker.lost_before(8).is_empty() && !tracker.has_all_before(9));
    }
}
