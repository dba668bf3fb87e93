//! The range assignor: each topic is split into one contiguous range per subscriber.
//!
//! The ranges of a topic follow the order of the members. If the partitions do not divide evenly, the first members
//! get one more. Members with equal subscriptions therefore get the same partition numbers of all topics that have
//! equally many partitions, so a member can join these topics locally.
//!
//! Targets are ignored, as in Kafka since 4.0: the ranges depend on the members alone. Only instance ids make them
//! stable across restarts.

use std::ops::Range;

use super::super::partitions::Partitions;
use super::GroupSpec;

/// The partitions of a topic that have no owner yet.
#[derive(Clone, Copy, Debug, Default)]
struct UnassignedRange {
    next_partition: i32,
    partition_count: i32,
    /// Subscribers that have no range yet.
    subscribers: i32,
}

impl UnassignedRange {
    /// Takes the range of the next subscriber. Rounding up gives the first subscribers one more.
    fn take(&mut self) -> Range<i32> {
        let start = self.next_partition;
        let remaining = self.partition_count - start;
        self.next_partition += (remaining / self.subscribers) + i32::from(remaining % self.subscribers > 0);
        self.subscribers -= 1;
        start..self.next_partition
    }
}

/// Returns the partitions of each member.
pub(super) fn assign(spec: &GroupSpec<'_>) -> Vec<Partitions> {
    let unassigned = |partition_count| UnassignedRange { partition_count, ..UnassignedRange::default() };
    let mut ranges: Vec<_> = spec.topics.iter().map(|topic| unassigned(topic.partition_count)).collect();
    for member in 0..spec.members.len() {
        for &topic in spec.subscription(member) {
            ranges[topic].subscribers += 1;
        }
    }
    let mut partitions_of = |member| {
        let mut partitions = Vec::new();
        for &topic in spec.subscription(member) {
            let range = ranges[topic].take();
            partitions.extend(range.map(|number| spec.topics[topic].partition(number)));
        }
        Partitions::from_iter(partitions)
    };
    (0..spec.members.len()).map(&mut partitions_of).collect()
}
