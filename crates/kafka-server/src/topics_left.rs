//! The topics of a request that is handled in parts, see `division.rs`, and their partitions.
//!
//! Topics stay whole if they can, because clients expect each of them once in a response. The partitions of a topic
//! that has too many for a part take several parts of their own, and are joined to one topic.

use std::fmt::Debug;
use std::vec;

use mainstem_kafka::api::add_partitions_to_txn::AddPartitionsToTxnTopic;
use mainstem_kafka::api::alter_partition_reassignments::{ReassignablePartition, ReassignableTopic};
use mainstem_kafka::api::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use mainstem_kafka::api::describe_producers::TopicRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use mainstem_kafka::api::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use mainstem_kafka::api::offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use mainstem_kafka::api::offset_fetch::OffsetFetchRequestTopics;
use mainstem_kafka::api::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use mainstem_kafka::api::produce::{PartitionProduceData, TopicProduceData};
use mainstem_kafka::api::txn_offset_commit::{TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic};

/// A topic in a request.
pub(crate) trait RequestedTopic: Clone + Debug {
    type Partition: Debug;

    fn partitions(&self) -> &[Self::Partition];

    fn partitions_mut(&mut self) -> &mut Vec<Self::Partition>;
}

macro_rules! requested_topics {
    ($($topic:ty: $partitions:ident of $partition:ty;)*) => {
        $(impl RequestedTopic for $topic {
            type Partition = $partition;

            fn partitions(&self) -> &[$partition] {
                &self.$partitions
            }

            fn partitions_mut(&mut self) -> &mut Vec<$partition> {
                &mut self.$partitions
            }
        })*
    };
}

requested_topics! {
    AddPartitionsToTxnTopic: partitions of i32;
    ReassignableTopic: partitions of ReassignablePartition;
    DeleteRecordsTopic: partitions of DeleteRecordsPartition;
    ListOffsetsTopic: partitions of ListOffsetsPartition;
    OffsetCommitRequestTopic: partitions of OffsetCommitRequestPartition;
    OffsetDeleteRequestTopic: partitions of OffsetDeleteRequestPartition;
    OffsetFetchRequestTopics: partition_indexes of i32;
    OffsetForLeaderTopic: partitions of OffsetForLeaderPartition;
    TopicProduceData: partition_data of PartitionProduceData;
    TopicRequest: partition_indexes of i32;
    TxnOffsetCommitRequestTopic: partitions of TxnOffsetCommitRequestPartition;
}

/// The topics that are left.
#[derive(Debug)]
pub(crate) struct TopicsLeft<T: RequestedTopic> {
    topics: vec::IntoIter<T>,
    /// A topic that takes several parts: without its partitions, and those that are left.
    large: Option<(T, vec::IntoIter<T::Partition>)>,
}

/// What a part has of its topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartTopics {
    Whole,
    /// Some partitions of one topic.
    Slice {
        is_last: bool,
    },
}

impl<T: RequestedTopic> TopicsLeft<T> {
    pub(crate) fn new(topics: Vec<T>) -> Self {
        Self { topics: topics.into_iter(), large: None }
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.len() == 0 && self.large.is_none()
    }

    /// Takes the topics of the next part; `None` if nothing is left. A part has at most `items_max` topics and
    /// partitions together, but one at least.
    pub(crate) fn take(&mut self, items_max: usize) -> Option<(Vec<T>, PartTopics)> {
        if let Some(slice) = self.take_slice(items_max) {
            return Some(slice);
        }
        let mut items = 0;
        let fits = |topic: &&T| {
            items += 1 + topic.partitions().len();
            items <= items_max
        };
        let count = self.topics.as_slice().iter().take_while(fits).count();
        if count > 0 {
            return Some((self.topics.by_ref().take(count).collect(), PartTopics::Whole));
        }
        let mut topic = self.topics.next()?;
        let partitions = std::mem::take(topic.partitions_mut());
        self.large = Some((topic, partitions.into_iter()));
        self.take_slice(items_max)
    }

    fn take_slice(&mut self, items_max: usize) -> Option<(Vec<T>, PartTopics)> {
        let (topic, left) = self.large.as_mut()?;
        let mut topic = topic.clone();
        *topic.partitions_mut() = left.by_ref().take(items_max).collect();
        let is_last = left.len() == 0;
        if is_last {
            self.large = None;
        }
        Some((vec![topic], PartTopics::Slice { is_last }))
    }
}

/// Number of topics and of their partitions.
pub(crate) fn items_of<T: RequestedTopic>(topics: &[T]) -> usize {
    topics.iter().map(|topic| 1 + topic.partitions().len()).sum()
}

/// Whether there are more topics and partitions than this. Looks at no more topics than needed, since there may be a
/// million.
pub(crate) fn has_more_items<T: RequestedTopic>(topics: &[T], items_max: usize) -> bool {
    topics.len() > items_max || items_of(topics) > items_max
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Topics with these numbers of partitions, taken in parts of ten items. Each topic of a part is its index, and the
    /// number of its partitions in the part.
    fn parts(lens: &[i32]) -> Vec<(Vec<(usize, usize)>, PartTopics)> {
        let topic = |(index, len): (usize, &i32)| TopicRequest {
            name: index.to_string(),
            partition_indexes: (0..*len).collect(),
        };
        let mut left = TopicsLeft::new(lens.iter().enumerate().map(topic).collect());
        let mut all = vec![Vec::new(); lens.len()];
        let mut parts = Vec::new();
        while let Some((topics, slice)) = left.take(10) {
            let mut part = Vec::new();
            for topic in topics {
                let index: usize = topic.name.parse().unwrap();
                part.push((index, topic.partition_indexes.len()));
                all[index].extend(topic.partition_indexes);
            }
            parts.push((part, slice));
        }
        let whole: Vec<Vec<i32>> = lens.iter().map(|len| (0..*len).collect()).collect();
        assert_eq!(all, whole, "in order, and nothing is lost");
        parts
    }

    #[test]
    fn small_topics_stay_whole_and_large_ones_take_parts_of_their_own() {
        use PartTopics::{Slice, Whole};
        assert_eq!(parts(&[]), []);
        assert_eq!(parts(&[0, 3, 4]), [(vec![(0, 0), (1, 3), (2, 4)], Whole)]);
        assert_eq!(parts(&[4, 4, 9]), [(vec![(0, 4), (1, 4)], Whole), (vec![(2, 9)], Whole)]);
        assert_eq!(
            parts(&[1, 25, 20, 1]),
            [
                (vec![(0, 1)], Whole),
                (vec![(1, 10)], Slice { is_last: false }),
                (vec![(1, 10)], Slice { is_last: false }),
                (vec![(1, 5)], Slice { is_last: true }),
                (vec![(2, 10)], Slice { is_last: false }),
                (vec![(2, 10)], Slice { is_last: true }),
                (vec![(3, 1)], Whole),
            ]
        );
    }
}
