//! Responses to heartbeats and descriptions of groups of the consumer protocol.

use super::partitions::{Partitions, TopicId};
use crate::Error;
use crate::group::state::State;

/// Why a heartbeat is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Error code.
    pub error: Error,
    /// For the client's log.
    pub message: &'static str,
}

/// Partitions of one topic, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPartitions {
    /// Topic id.
    pub topic_id: TopicId,
    /// Partition indexes.
    pub partitions: Vec<i32>,
}

/// To ConsumerGroupHeartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerHeartbeatResult {
    /// As in the request.
    pub member_id: String,
    /// The member's epoch from now on.
    pub member_epoch: i32,
    /// When the next heartbeat is expected, ms.
    pub heartbeat_interval_ms: u32,
    /// The partitions that the member may use; `None` if they have not changed.
    pub assignment: Option<Vec<TopicPartitions>>,
}

/// A group, as reported by ConsumerGroupDescribe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedConsumerGroup {
    /// State.
    pub state: State,
    /// Epoch of the group.
    pub epoch: i32,
    /// Epoch of the target.
    pub assignment_epoch: i32,
    /// Name of the assignor.
    pub assignor: &'static str,
    /// Members, ordered by member id.
    pub members: Vec<DescribedConsumerMember>,
}

/// A member, as reported by ConsumerGroupDescribe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedConsumerMember {
    /// Identifier.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// `client.rack`.
    pub rack_id: Option<String>,
    /// Epoch.
    pub epoch: i32,
    /// Client id.
    pub client_id: String,
    /// Client host.
    pub client_host: String,
    /// Names of the topics that it is subscribed to.
    pub topic_names: Vec<String>,
    /// Regular expression of further names; empty for none.
    pub topic_regex: String,
    /// The partitions that it holds, also those that it must give up.
    pub assignment: Vec<TopicPartitions>,
    /// Its target.
    pub target: Vec<TopicPartitions>,
    /// Whether the client uses the classic protocol.
    pub is_classic: bool,
}

/// Partitions by topic.
pub(super) fn by_topic(partitions: &Partitions) -> Vec<TopicPartitions> {
    let mut topics: Vec<TopicPartitions> = Vec::new();
    for partition in partitions {
        match topics.last_mut() {
            Some(topic) if topic.topic_id == partition.topic_id => topic.partitions.push(partition.partition),
            _ => topics.push(TopicPartitions {
                topic_id: partition.topic_id,
                partitions: vec![partition.partition],
            }),
        }
    }
    topics
}
