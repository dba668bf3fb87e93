//! The change of a group with members between the classic and the consumer protocol, while it works.
//!
//! The first member of the consumer protocol that joins turns a classic group into one of the consumer protocol. Its
//! members keep their partitions: their generation becomes the epoch, their assignments the target. When the last
//! member of the consumer protocol has gone and members of the classic one are left, the group is a classic one again,
//! and rebalances.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ConsumerGroup;
use super::member::{ClassicMember, ConsumerMember};
use super::partitions::{Partitions, TopicPartition};
use super::response::Refusal;
use super::subscription::{Subscription, Topics};
use crate::Error;
use crate::group::consumer_group::Group;
use crate::group::context::GroupContext;
use crate::group::member::{Member, Session};
use crate::group::records;
use crate::group::response::{JoinResponse, Response};
use crate::group::state::State;
use crate::group::subscription;
use crate::group::timers::TimerKind;

impl GroupContext<'_> {
    /// The group as one of the consumer protocol. Nothing changes before [`Self::end_classic`].
    ///
    /// # Errors
    /// The clients are not consumers, or their subscriptions cannot be read.
    pub(super) fn upgraded(&self, topics: &dyn Topics) -> Result<ConsumerGroup, Refusal> {
        let not_found = |message| Refusal { error: Error::GroupIdNotFound, message };
        let mut consumer = ConsumerGroup::new(self.now_ms, self.effects.changes.failed_writes());
        if self.group.is_persisted() {
            consumer.pending.tombstones.push(records::group_tombstone(self.group.id()));
        }
        if self.group.members().len() == 0 {
            return Ok(consumer);
        }
        if !self.group.uses_consumer_protocol() {
            return Err(not_found("The members of the group are not consumers."));
        }
        consumer.epoch = self.group.generation();
        consumer.assignment_epoch = consumer.epoch;
        for member in self.group.members() {
            let converted = converted(self.group, member, consumer.epoch, topics, &consumer);
            let converted = converted
                .ok_or_else(|| not_found("A member of the classic protocol cannot be converted."))?;
            consumer.put(self.now_ms, converted);
        }
        consumer.refresh_topics(topics);
        Ok(consumer)
    }

    /// The group uses the consumer protocol from now on: ends what is under way in the classic one.
    pub(super) fn end_classic(&mut self) {
        self.clear_join_timer();
        self.clear_sync_timer();
        while let Some((id, deadline_ms)) = self.group.pop_pending() {
            self.clear_classic_timer(deadline_ms, id);
        }
        for id in self.group.member_ids() {
            if let Some(caller) = self.group.replace_joining(&id, None) {
                let member_id = id.as_ref().to_owned();
                let answer = JoinResponse { member_id, outcome: Err(Error::RebalanceInProgress) };
                self.effects.reply(caller, Response::Join(answer));
            }
            let Some(member) = self.group.member_mut(&id) else { continue };
            if let Some(caller) = member.syncing.take() {
                self.effects.reply(caller, Response::Sync(Err(Error::RebalanceInProgress)));
            }
            if let Some(timer_ms) = member.session.timer_ms.take() {
                self.clear_classic_timer(timer_ms, id.clone());
            }
        }
        self.group.end_classic();
        self.resume_consumer_group();
    }

    /// Clears a timer of the classic protocol. A member of the consumer protocol with the same id and deadline has the
    /// same timer: it gets another one with its next session.
    fn clear_classic_timer(&mut self, timer_ms: u64, id: Arc<str>) {
        if let Some(member) = self.group.consumer_member_mut(&id) {
            member.session.timer_ms.take_if(|known| *known == timer_ms);
        }
        self.timers.clear(timer_ms, self.group.id(), TimerKind::Member(id));
    }

    /// Turns the group into a classic one if only members of the classic protocol are left. They join again.
    pub(super) fn downgrade_without_consumers(&mut self) {
        if self.group.consumer().is_none_or(|consumer| consumer.is_empty() || consumer.consumers > 0) {
            return;
        }
        let Some(consumer) = self.group.consumer() else { return };
        for id in consumer.member_ids() {
            self.clear_timers_of(Some(&id));
        }
        let Some(mut consumer) = self.group.take_consumer() else { return };
        // A member of the consumer protocol may join before all have joined again: then these count.
        let assignment_of = |member: &ConsumerMember| {
            let held = member.held().copied().collect();
            (member.id.clone(), consumer.write_assignment(member, &held))
        };
        let assignments: BTreeMap<Arc<str>, Vec<u8>> = consumer.members.values().map(assignment_of).collect();
        let mut new_records = consumer.take_tombstones(self.group.id());
        // Members of this generation learn by their heartbeats that they have to join again; others have an old one.
        let generation = consumer.members.values().map(|member| member.epoch).max().unwrap_or(0).max(0);
        let members = std::mem::take(&mut consumer.members).into_values();
        let classic = members.filter_map(|member| {
            let assignment = assignments.get(&member.id).cloned().unwrap_or_default();
            classic_member(member, assignment)
        });
        self.group.adopt(classic.collect(), generation, self.now_ms);
        for id in self.group.member_ids() {
            self.renew_session(&id);
        }
        // After a crash all must join again, also those of this generation: nobody has the partitions of who has left.
        new_records.push(self.group.record_of_next_generation());
        self.effects.persist(new_records);
        self.prepare_rebalance();
    }
}

/// A member of a classic group as one of the consumer protocol, with the partitions that it has.
fn converted(
    group: &Group,
    member: &Member,
    epoch: i32,
    topics: &dyn Topics,
    others: &ConsumerGroup,
) -> Option<ConsumerMember> {
    let protocol =
        group.protocol().and_then(|name| member.protocols.iter().find(|known| &*known.name == name));
    let subscribed = subscription::read(&protocol.or(member.protocols.first())?.metadata)?;
    let names: BTreeSet<Arc<str>> = subscribed.topics.iter().map(|name| Arc::from(*name)).collect();
    let mut assigned = Partitions::new();
    let mut held = subscription::read_assignment(&member.assignment)?;
    if group.state() != State::Stable {
        // A rebalance that was begun again has dropped the assignments; cooperative members say what they still own.
        held.extend(subscribed.owned);
    }
    for (name, partitions) in held {
        let Some(topic) = topics.topic(name) else { continue };
        let exists = |partition: &i32| (0..topic.partitions).contains(partition);
        let of_topic = |partition| TopicPartition { topic_id: topic.id, partition };
        assigned.extend(partitions.into_iter().filter(exists).map(of_topic));
    }
    // The leader of the group may have made a mistake.
    assigned.retain(|partition| !others.holders.contains_key(partition));
    let mut converted = ConsumerMember::new(member.id.clone());
    converted.instance_id.clone_from(&member.instance_id);
    converted.client_id.clone_from(&member.client_id);
    converted.client_host.clone_from(&member.client_host);
    converted.rebalance_timeout_ms = member.rebalance_timeout_ms;
    converted.subscription = Arc::new(Subscription { names, regex: None });
    (converted.epoch, converted.previous_epoch) = (epoch, epoch);
    converted.target = assigned.clone();
    converted.since = assigned.iter().map(|partition| (*partition, epoch)).collect();
    converted.assigned = assigned;
    converted.classic = Some(ClassicMember {
        session_timeout_ms: member.session_timeout_ms,
        protocols: member.protocols.clone(),
    });
    Some(converted)
}

/// A member of the classic protocol with what it is assigned.
fn classic_member(member: ConsumerMember, assignment: Vec<u8>) -> Option<Member> {
    let classic = member.classic?;
    Some(Member {
        id: member.id,
        instance_id: member.instance_id,
        client_id: member.client_id,
        client_host: member.client_host,
        rebalance_timeout_ms: member.rebalance_timeout_ms,
        session_timeout_ms: classic.session_timeout_ms,
        protocols: classic.protocols,
        assignment,
        is_new: false,
        joining: None,
        syncing: None,
        session: Session::default(),
    })
}
