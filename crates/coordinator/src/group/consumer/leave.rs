//! Members of the consumer protocol that leave: by a heartbeat, by LeaveGroup, and the checks of their commits.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ConsumerGroup;
use super::heartbeat::{fenced_instance, unknown_member};
use super::member::{ConsumerMember, LEFT_STATIC, Progress};
use super::partitions::TopicPartition;
use super::request::ConsumerHeartbeat;
use super::response::{ConsumerHeartbeatResult, Refusal};
use crate::Error;
use crate::group::context::GroupContext;

impl GroupContext<'_> {
    /// A member leaves for good, or a static one for a while: then it keeps its partitions until its session ends.
    pub(super) fn consumer_leave(
        &mut self,
        request: &ConsumerHeartbeat<'_>,
    ) -> Result<(ConsumerHeartbeatResult, bool), Refusal> {
        let Some(consumer) = self.group.consumer_mut() else { return Err(unknown_member()) };
        if let Some(instance_id) = request.instance_id {
            let holder = consumer.static_member_id(instance_id).ok_or_else(unknown_member)?;
            if **holder != *request.member_id {
                return Err(fenced_instance());
            }
        }
        if consumer.member(request.member_id).is_none() {
            return Err(unknown_member());
        }
        if request.member_epoch == LEFT_STATIC && consumer.is_classic(request.member_id) {
            return Err(unknown_member());
        }
        if request.member_epoch == LEFT_STATIC {
            consumer.leave_temporarily(self.now_ms, request.member_id);
            self.set_revocation_timer(request.member_id, false);
        } else {
            self.clear_timers_of(Some(request.member_id));
            if let Some(consumer) = self.group.consumer_mut() {
                consumer.remove(self.now_ms, request.member_id);
            }
        }
        let has_records = self.persist_consumer_group(None);
        let result = ConsumerHeartbeatResult {
            member_id: request.member_id.to_owned(),
            member_epoch: request.member_epoch,
            heartbeat_interval_ms: 0,
            assignment: None,
        };
        Ok((result, has_records))
    }

    /// Checks that a committer is a member of the group at its current epoch.
    pub(in crate::group) fn check_consumer_member(&self, id: &str, epoch: i32) -> Result<(), Error> {
        self.group.consumer().map_or(Err(Error::UnknownMemberId), |consumer| consumer.check_epoch(id, epoch))
    }
}

impl ConsumerGroup {
    fn is_classic(&self, id: &str) -> bool {
        self.member(id).is_some_and(|member| member.classic.is_some())
    }

    /// Checks that a member is at an epoch.
    pub(in crate::group) fn check_epoch(&self, id: &str, epoch: i32) -> Result<(), Error> {
        let member = self.member(id).ok_or(Error::UnknownMemberId)?;
        match &member.classic {
            _ if member.epoch == epoch => Ok(()),
            Some(_) => Err(Error::IllegalGeneration),
            None => Err(Error::StaleMemberEpoch),
        }
    }

    /// The partitions that a member of the consumer protocol has had since an epoch before its current one; `None` for
    /// other members and epochs.
    pub(in crate::group) fn kept_since(&self, id: &str, epoch: i32) -> Option<BTreeSet<(&str, i32)>> {
        let member = self.member(id).filter(|member| member.classic.is_none())?;
        let kept = || member.since.iter().filter(|(_, since)| **since <= epoch);
        let named = |partition: &TopicPartition| {
            self.names.get(&partition.topic_id).map(|name| (&**name, partition.partition))
        };
        (1..member.epoch)
            .contains(&epoch)
            .then(|| kept().filter_map(|(partition, _)| named(partition)).collect())
    }

    /// The member that LeaveGroup names: an administrator removes it.
    pub(in crate::group) fn find_leaving(
        &self,
        id: &str,
        instance_id: Option<&str>,
    ) -> Result<Arc<str>, Error> {
        let holder = instance_id.and_then(|instance_id| self.static_member_id(instance_id));
        match (holder, instance_id) {
            (None, Some(_)) => Err(Error::UnknownMemberId),
            (Some(holder), _) if id.is_empty() || **holder == *id => Ok(holder.clone()),
            (Some(_), _) => Err(Error::FencedInstanceId),
            (None, None) => self.member(id).map(|member| member.id.clone()).ok_or(Error::UnknownMemberId),
        }
    }

    /// A static member has left for a while.
    fn leave_temporarily(&mut self, now_ms: u64, id: &str) {
        if let Some(member) = self.take(id) {
            let mut member = ConsumerMember { epoch: LEFT_STATIC, progress: Progress::Stable, ..member };
            member.revoking.clear();
            member.since.retain(|partition, _| member.assigned.contains(partition));
            self.put(now_ms, member);
        }
    }
}
