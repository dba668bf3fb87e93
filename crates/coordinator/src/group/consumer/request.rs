//! `ConsumerGroupHeartbeat` without version differences, borrowing from the decoded message.

use super::assignor::Assignor;
use super::member::LEFT_STATIC;
use super::partitions::{Partitions, TopicId, TopicPartition};
use super::response::Refusal;
use crate::Error;
use crate::group::settings::NAME_MAX_BYTES;

/// Epoch with which a member joins.
pub(super) const JOINING: i32 = 0;
/// Epoch with which a member leaves for good.
pub(super) const LEAVING: i32 = -1;
/// Largest number of partitions that a member may report to own.
const OWNED_MAX: usize = 100_000;

/// Partitions of a topic that a member owns.
#[derive(Clone, Copy, Debug)]
pub struct OwnedTopic<'a> {
    /// Topic id.
    pub topic_id: TopicId,
    /// Partition indexes.
    pub partitions: &'a [i32],
}

/// ConsumerGroupHeartbeat. What is `None` has not changed since the last heartbeat of the member.
#[derive(Clone, Debug)]
pub struct ConsumerHeartbeat<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Member id, which the client has chosen.
    pub member_id: &'a str,
    /// The member's epoch; 0 to join, -1 to leave, -2 to leave as a static member that will return.
    pub member_epoch: i32,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// `client.rack`.
    pub rack_id: Option<&'a str>,
    /// How long the member may take to give up partitions, ms; -1 if it has not changed.
    pub rebalance_timeout_ms: i32,
    /// Names of the topics that it is subscribed to.
    pub topic_names: Option<Vec<&'a str>>,
    /// Regular expression of the names of further topics; empty for none.
    pub topic_regex: Option<&'a str>,
    /// The assignor that the member prefers.
    pub assignor: Option<&'a str>,
    /// The partitions that it owns.
    pub owned: Option<Vec<OwnedTopic<'a>>>,
    /// Client id from the request header.
    pub client_id: &'a str,
    /// Client address.
    pub client_host: &'a str,
}

impl<'a> ConsumerHeartbeat<'a> {
    /// Checks what can be checked without the group.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let invalid = |message| Err(Refusal { error: Error::InvalidRequest, message });
        let is_blank = |text: &str| text.trim().is_empty();
        let is_empty = |text: Option<&str>| text.is_some_and(is_blank);
        if is_blank(self.group_id) {
            return invalid("GroupId can't be empty.");
        }
        if is_blank(self.member_id) {
            return invalid("MemberId can't be empty.");
        }
        if is_empty(self.instance_id) {
            return invalid("InstanceId can't be empty.");
        }
        if is_empty(self.rack_id) {
            return invalid("RackId can't be empty.");
        }
        let texts =
            [Some(self.group_id), Some(self.member_id), self.instance_id, self.rack_id, self.topic_regex];
        if texts.into_iter().flatten().any(|text| text.len() > NAME_MAX_BYTES) {
            return invalid("A name is too long.");
        }
        if self.owned_count() > OWNED_MAX {
            return invalid("TopicPartitions has too many partitions.");
        }
        match self.member_epoch {
            JOINING => self.check_join()?,
            LEAVING | 1.. => {}
            LEFT_STATIC if self.instance_id.is_some() => {}
            LEFT_STATIC => return invalid("InstanceId must be set by a static member that leaves."),
            _ => return invalid("MemberEpoch is invalid."),
        }
        match self.assignor {
            Some(name) if Assignor::by_name(name).is_none() => Err(Refusal {
                error: Error::UnsupportedAssignor,
                message: "ServerAssignor is not supported. Supported assignors: uniform, range.",
            }),
            _ => Ok(()),
        }
    }

    fn check_join(&self) -> Result<(), Refusal> {
        let invalid = |message| Err(Refusal { error: Error::InvalidRequest, message });
        if self.rebalance_timeout_ms < 0 {
            return invalid("RebalanceTimeoutMs must be provided in the first request.");
        }
        if self.owned.is_none() || self.owned_count() > 0 {
            return invalid("TopicPartitions must be empty when (re-)joining.");
        }
        if self.topic_names.is_none() && self.topic_regex.is_none() {
            return invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be set when (re-)joining.",
            );
        }
        Ok(())
    }

    fn owned_count(&self) -> usize {
        self.owned.iter().flatten().map(|topic| topic.partitions.len()).sum()
    }

    /// The partitions that the member owns; `None` if they have not changed.
    pub(super) fn owned_partitions(&self) -> Option<impl Iterator<Item = TopicPartition>> {
        let of_topic = |topic: OwnedTopic<'a>| {
            topic
                .partitions
                .iter()
                .map(move |partition| TopicPartition { topic_id: topic.topic_id, partition: *partition })
        };
        Some(self.owned.as_ref()?.iter().copied().flat_map(of_topic))
    }

    /// Whether the member says that it owns other partitions than these.
    pub(super) fn owns_other(&self, partitions: &Partitions) -> bool {
        self.owned_partitions().is_some_and(|mut owned| {
            self.owned_count() != partitions.len() || owned.any(|owned| !partitions.contains(&owned))
        })
    }

    /// Whether the response has the assignment even if it has not changed: the member says everything about itself.
    pub(super) fn is_full(&self) -> bool {
        self.member_epoch == JOINING
            || self.rebalance_timeout_ms >= 0
                && (self.topic_names.is_some() || self.topic_regex.is_some())
                && self.owned.is_some()
    }
}
