//! Partitions by topic id. The consumer protocol (KIP-848) names topics by id, so a topic that is deleted and created
//! again is another topic.

use std::collections::BTreeSet;

/// Id of a topic.
pub(in crate::group) type TopicId = [u8; 16];

/// A partition of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::group) struct TopicPartition {
    /// Id of the topic.
    pub topic_id: [u8; 16],
    /// Number of the partition, from 0.
    pub partition: i32,
}

/// Partitions, ordered by topic and number.
pub(in crate::group) type Partitions = BTreeSet<TopicPartition>;
