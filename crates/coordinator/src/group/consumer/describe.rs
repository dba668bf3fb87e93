//! ConsumerGroupDescribe: read-only views of groups of the consumer protocol.

use super::ConsumerGroup;
use super::member::ConsumerMember;
use super::response::{DescribedConsumerGroup, DescribedConsumerMember, by_topic};
use crate::Error;
use crate::group::Groups;

impl Groups {
    /// Whether a group uses the consumer protocol; `None` if there is no such group.
    pub fn uses_consumer_protocol(&self, group_id: &str) -> Option<bool> {
        self.by_id.get(group_id).map(|group| group.consumer().is_some())
    }

    /// ConsumerGroupDescribe.
    ///
    /// # Errors
    /// [`Error::GroupIdNotFound`], also for a group of the classic protocol.
    pub fn describe_consumer_group(&self, group_id: &str) -> Result<DescribedConsumerGroup, Error> {
        let group = self.by_id.get(group_id).and_then(|group| group.consumer());
        group.map(ConsumerGroup::describe).ok_or(Error::GroupIdNotFound)
    }
}

impl ConsumerGroup {
    fn describe(&self) -> DescribedConsumerGroup {
        DescribedConsumerGroup {
            state: self.state(),
            epoch: self.epoch,
            assignment_epoch: self.assignment_epoch,
            assignor: self.assignor.name(),
            members: self.members.values().map(describe).collect(),
        }
    }
}

fn describe(member: &ConsumerMember) -> DescribedConsumerMember {
    DescribedConsumerMember {
        member_id: member.id.as_ref().to_owned(),
        instance_id: member.instance_id.as_deref().map(str::to_owned),
        rack_id: member.rack_id.clone(),
        epoch: member.epoch,
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        topic_names: member.subscription.names.iter().map(|name| name.as_ref().to_owned()).collect(),
        topic_regex: member.subscription.regex.as_deref().unwrap_or_default().to_owned(),
        assignment: by_topic(&member.held().copied().collect()),
        target: by_topic(&member.target),
        is_classic: member.classic.is_some(),
    }
}
