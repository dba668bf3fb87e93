//! Members of the classic protocol in a group of the consumer protocol, while its clients change over.
//!
//! Such a member is not asked for an assignment: the coordinator assigns, and the member never leads. Its JoinGroup
//! says what a heartbeat of the consumer protocol says, takes one step toward the target, and is answered at once, with
//! the member's epoch as generation. SyncGroup fetches the partitions. Heartbeats tell the member to join again when it
//! has something to give up or to get.

use std::sync::Arc;

use super::ConsumerGroup;
use super::heartbeat::AdmittedMember;
use super::member::{ClassicMember, ConsumerMember, Progress};
use super::partitions::{Partitions, TopicId};
use super::request::{ConsumerHeartbeat, JOINING, OwnedTopic};
use super::subscription::Topics;
use crate::group::consumer_group::CONSUMER;
use crate::group::context::GroupContext;
use crate::group::join::new_member_id;
use crate::group::member::{Protocol, bytes_of, protocols_of};
use crate::group::request::{Heartbeat, JoinGroup, SyncGroup};
use crate::group::response::{JoinResponse, JoinResult, Response, SyncResult};
use crate::group::subscription::{self, MemberSubscription};
use crate::{Caller, Error};

/// Who joins: its member id, and the member whose place it takes.
struct Joining {
    id: Arc<str>,
    replaced: Option<Arc<str>>,
}

impl GroupContext<'_> {
    /// JoinGroup in a group of the consumer protocol that has members.
    pub(in crate::group) fn join_consumer_group(
        &mut self,
        request: &JoinGroup<'_>,
        topics: &dyn Topics,
        caller: Caller,
    ) {
        let Some(consumer) = self.group.consumer() else { return };
        let joining = match consumer.admit_classic(request, self.settings.members_max) {
            Ok(joining) => joining,
            Err(error) => return self.reject_join(caller, request.member_id, error),
        };
        if request.member_id.is_empty() && request.instance_id.is_none() && request.needs_member_id {
            // A client that loses the response must not leave a phantom member behind (KIP-394).
            return self.reject_join(caller, &joining.id, Error::MemberIdRequired);
        }
        match self.apply_join(request, &joining, topics) {
            Ok(()) => {
                let answer = self.joined_consumer_group(&joining.id);
                self.effects.reply_when_durable(caller, Response::Join(answer));
            }
            Err(error) => self.reject_join(caller, request.member_id, error),
        }
        self.downgrade_without_consumers();
    }

    /// Takes a step with a member that joins.
    fn apply_join(
        &mut self,
        request: &JoinGroup<'_>,
        joining: &Joining,
        topics: &dyn Topics,
    ) -> Result<(), Error> {
        let subscribed = subscription_of(request).ok_or(Error::InconsistentGroupProtocol)?;
        if !self.has_room_for(bytes_of(request)) {
            return Err(Error::PolicyViolation);
        }
        let id_of =
            |(name, partitions): &(&str, Vec<i32>)| Some((topics.topic(name)?.id, partitions.clone()));
        let owned: Vec<(TopicId, Vec<i32>)> = subscribed.owned.iter().filter_map(id_of).collect();
        let owned = owned.iter().map(|(topic_id, partitions)| OwnedTopic { topic_id: *topic_id, partitions });
        let known = self.group.consumer().and_then(|consumer| consumer.member(&joining.id));
        let heartbeat = ConsumerHeartbeat {
            group_id: request.group_id,
            member_id: &joining.id,
            member_epoch: known.map_or(JOINING, |member| member.epoch),
            instance_id: request.instance_id,
            rack_id: None,
            rebalance_timeout_ms: request.rebalance_timeout_ms.max(0),
            topic_names: Some(subscribed.topics),
            topic_regex: Some(""),
            assignor: None,
            owned: Some(owned.collect()),
            client_id: request.client_id,
            client_host: request.client_host,
        };
        let classic = ClassicMember {
            session_timeout_ms: request.session_timeout_ms.max(0).cast_unsigned(),
            protocols: protocols_of(request),
        };
        let admitted = AdmittedMember {
            is_new: known.is_none(),
            replaced: joining.replaced.as_deref(),
            classic: Some(classic),
        };
        self.apply_heartbeat(&heartbeat, admitted, topics).map_err(|refusal| refusal.error)?;
        self.persist_consumer_group(Some(&joining.id));
        Ok(())
    }

    /// The response to a member that has joined. It does not lead, so it gets no members.
    fn joined_consumer_group(&self, id: &str) -> JoinResponse {
        let member = self.group.consumer().and_then(|consumer| consumer.member(id));
        let protocol = member.and_then(ConsumerMember::classic_protocol);
        JoinResponse {
            member_id: id.to_owned(),
            outcome: Ok(JoinResult {
                generation: member.map_or(0, |member| member.epoch),
                protocol_type: CONSUMER.to_owned(),
                protocol: protocol.map_or_else(String::new, |protocol| protocol.name.as_ref().to_owned()),
                leader: String::new(),
                skip_assignment: false,
                members: Vec::new(),
            }),
        }
    }

    /// SyncGroup in a group of the consumer protocol.
    pub(in crate::group) fn sync_consumer_group(&mut self, request: &SyncGroup<'_>, caller: Caller) {
        let synced = self.synced_consumer_group(request);
        match synced {
            Ok(synced) => self.effects.reply_when_durable(caller, Response::Sync(Ok(synced))),
            Err(error) => self.effects.reply(caller, Response::Sync(Err(error))),
        }
    }

    fn synced_consumer_group(&mut self, request: &SyncGroup<'_>) -> Result<SyncResult, Error> {
        self.renew_classic(request.member_id, request.instance_id, request.generation)?;
        let consumer = self.group.consumer().ok_or(Error::UnknownMemberId)?;
        let member = consumer.member(request.member_id).ok_or(Error::UnknownMemberId)?;
        let protocol = member.classic_protocol().ok_or(Error::UnknownMemberId)?;
        let differs = |asked: Option<&str>, ours: &str| asked.is_some_and(|asked| asked != ours);
        if differs(request.protocol_type, CONSUMER) || differs(request.protocol, &protocol.name) {
            return Err(Error::InconsistentGroupProtocol);
        }
        Ok(SyncResult {
            protocol_type: CONSUMER.to_owned(),
            protocol: protocol.name.as_ref().to_owned(),
            assignment: consumer.write_assignment(member, &member.assigned),
        })
    }

    /// Heartbeat in a group of the consumer protocol.
    pub(in crate::group) fn heartbeat_of_classic(&mut self, request: &Heartbeat<'_>) -> Result<(), Error> {
        self.renew_classic(request.member_id, request.instance_id, request.generation)?;
        let must_rejoin =
            self.group.consumer().is_some_and(|consumer| consumer.must_rejoin(request.member_id));
        if must_rejoin {
            self.set_revocation_timer(request.member_id, true);
            return Err(Error::RebalanceInProgress);
        }
        Ok(())
    }

    /// Checks a member of the classic protocol, and renews its session.
    fn renew_classic(&mut self, id: &str, instance_id: Option<&str>, generation: i32) -> Result<(), Error> {
        let consumer = self.group.consumer().ok_or(Error::UnknownMemberId)?;
        if let Some(instance_id) = instance_id {
            let holder = consumer.static_member_id(instance_id).ok_or(Error::UnknownMemberId)?;
            if **holder != *id {
                return Err(Error::FencedInstanceId);
            }
        }
        let member = consumer.member(id).ok_or(Error::UnknownMemberId)?;
        let classic = member.classic.as_ref().ok_or(Error::UnknownMemberId)?;
        if member.epoch != generation {
            return Err(Error::IllegalGeneration);
        }
        let session_timeout_ms = u64::from(classic.session_timeout_ms);
        self.set_session_deadline(id, session_timeout_ms);
        Ok(())
    }
}

impl ConsumerGroup {
    fn admit_classic(&self, request: &JoinGroup<'_>, members_max: usize) -> Result<Joining, Error> {
        if request.protocol_type != CONSUMER
            || subscription_of(request).is_none()
            || !self.shares_protocol(request)
        {
            return Err(Error::InconsistentGroupProtocol);
        }
        let known = self.members.get(request.member_id);
        let holder = request.instance_id.and_then(|instance_id| self.instances.get(instance_id));
        let new_id = || new_member_id(request);
        match (holder, request.member_id) {
            // A restarted client takes the place of its predecessor (KIP-345).
            (Some(holder), "") => Ok(Joining { id: new_id(), replaced: Some(holder.clone()) }),
            (Some(holder), id) if **holder != *id => Err(Error::FencedInstanceId),
            (None, _) if request.instance_id.is_some() && known.is_some() => Err(Error::UnknownMemberId),
            (_, id) if known.is_some() => Ok(Joining { id: id.into(), replaced: None }),
            (_, _) if self.members.len() >= members_max => Err(Error::GroupMaxSizeReached),
            (_, "") => Ok(Joining { id: new_id(), replaced: None }),
            (_, id) => Ok(Joining { id: id.into(), replaced: None }),
        }
    }

    /// Whether all members of the classic protocol support one that the client supports, so that they could go on
    /// alone.
    fn shares_protocol(&self, request: &JoinGroup<'_>) -> bool {
        let others = || {
            let others = self.members.values().filter(|member| *member.id != *request.member_id);
            others.filter_map(|member| member.classic.as_ref())
        };
        let supports = |classic: &ClassicMember, name: &str| {
            classic.protocols.iter().any(|protocol: &Protocol| &*protocol.name == name)
        };
        request.protocols.iter().any(|(name, _)| others().all(|classic| supports(classic, name)))
    }

    /// Partitions as an assignment of a member of the classic protocol, in the version of its subscription.
    pub(super) fn write_assignment(&self, member: &ConsumerMember, partitions: &Partitions) -> Vec<u8> {
        let subscribed =
            member.classic_protocol().and_then(|protocol| subscription::read(&protocol.metadata));
        subscription::write_assignment(
            subscribed.map_or(0, |subscribed| subscribed.version),
            &self.named_partitions(partitions),
        )
    }

    /// Whether a member of the classic protocol has something to give up or to get.
    fn must_rejoin(&self, id: &str) -> bool {
        let Some(member) = self.members.get(id) else { return false };
        let is_free = |partition| !self.holders.contains_key(partition);
        member.epoch < self.epoch
            || match member.progress {
                Progress::Stable => false,
                Progress::Revoking => true,
                Progress::Waiting => member.target.difference(&member.assigned).any(is_free),
            }
    }
}

/// The subscription of a client that joins.
fn subscription_of<'a>(request: &JoinGroup<'a>) -> Option<MemberSubscription<'a>> {
    request.protocols.first().and_then(|(_, metadata)| subscription::read(metadata))
}
