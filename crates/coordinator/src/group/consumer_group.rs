//! A group: state, members, chosen protocol, leader, offsets.
//!
//! Pure bookkeeping without timers and replies; the protocol steps are in the files named after their requests. Totals
//! over all members (pending joins, memory, supporters of each protocol) are kept up to date incrementally, so a member
//! may only change through [`Group::update_member`] or one of the other methods that adjust them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::consumer::{ConsumerGroup, ConsumerMember};
use super::member::{Member, Session};
use super::offsets::Offsets;
use super::rebalance_state::RebalanceState;
use super::request::JoinGroup;
use super::state::State;
use super::{records, subscription};
use crate::{Caller, Record};

/// Protocol type whose member metadata contains topic subscriptions.
pub(super) const CONSUMER: &str = "consumer";

#[derive(Debug)]
pub(super) struct Group {
    id: Arc<str>,
    phase: Phase,
    generation: i32,
    /// Generation that the log has, if it is ahead.
    stored_generation: i32,
    protocol_type: Option<String>,
    protocol: Option<Arc<str>>,
    leader: Option<Arc<str>>,
    members: BTreeMap<Arc<str>, Member>,
    /// Instance id to member id.
    instances: BTreeMap<Arc<str>, Arc<str>>,
    /// Assigned member ids that have not been used to join yet (KIP-394), and when they expire.
    pending: BTreeMap<Arc<str>, u64>,
    /// Members that have not sent SyncGroup in this generation.
    pending_sync: BTreeSet<Arc<str>>,
    /// Number of members that support each protocol.
    protocol_counts: BTreeMap<Arc<str>, usize>,
    /// Number of members with a pending JoinGroup.
    joining: usize,
    /// Topics that the members are subscribed to; `None` if unknown.
    subscribed: Option<BTreeSet<String>>,
    rebalance: RebalanceState,
    /// Whether the log has a record of the group.
    is_persisted: bool,
    /// Memory charged to the members.
    bytes: usize,
    offsets: Offsets,
    /// Set while the group uses the consumer protocol; it then has no members of the classic one.
    consumer: Option<Box<ConsumerGroup>>,
}

/// The state of a group, and how it came to it.
#[derive(Debug)]
struct Phase {
    state: State,
    /// A rebalance that started from `Empty` begins with the initial delay.
    previous: State,
    /// When it entered the current state, ms since 1970.
    since_ms: u64,
}

/// The persisted part of a group.
#[derive(Debug)]
pub(super) struct StoredGroup {
    pub(super) generation: i32,
    pub(super) since_ms: u64,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<Arc<str>>,
    pub(super) leader: Option<Arc<str>>,
    pub(super) members: Vec<Member>,
}

impl Group {
    pub(super) fn new(id: Arc<str>, now_ms: u64) -> Self {
        Self {
            id,
            phase: Phase { state: State::Empty, previous: State::Dead, since_ms: now_ms },
            generation: 0,
            stored_generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            pending_sync: BTreeSet::new(),
            protocol_counts: BTreeMap::new(),
            joining: 0,
            subscribed: None,
            rebalance: RebalanceState::default(),
            is_persisted: false,
            bytes: 0,
            offsets: Offsets::default(),
            consumer: None,
        }
    }

    /// Replaces everything but what has records of its own: the offsets, and the consumer protocol.
    pub(super) fn restore(&mut self, stored: Option<StoredGroup>) {
        let (offsets, consumer) = (std::mem::take(&mut self.offsets), self.consumer.take());
        *self = Self { offsets, consumer, is_persisted: stored.is_some(), ..Self::new(self.id.clone(), 0) };
        let Some(stored) = stored else { return };
        self.generation = stored.generation;
        self.protocol = stored.protocol;
        self.phase.since_ms = stored.since_ms;
        if !stored.members.is_empty() {
            self.phase.state = State::Stable;
        }
        let protocol_type = stored.protocol_type.as_deref().unwrap_or_default();
        for member in stored.members {
            self.add(member, protocol_type);
        }
        self.leader = stored.leader;
        self.protocol_type = stored.protocol_type;
    }

    pub(super) fn id(&self) -> &Arc<str> {
        &self.id
    }

    pub(super) fn state(&self) -> State {
        self.consumer().map_or(self.phase.state, ConsumerGroup::state)
    }

    /// When it entered the current state, ms since 1970.
    pub(super) fn since_ms(&self) -> u64 {
        self.consumer().map_or(self.phase.since_ms, ConsumerGroup::since_ms)
    }

    /// The group as one of the consumer protocol; `None` if it uses the classic one.
    pub(super) fn consumer(&self) -> Option<&ConsumerGroup> {
        self.consumer.as_deref()
    }

    pub(super) fn consumer_mut(&mut self) -> Option<&mut ConsumerGroup> {
        self.consumer.as_deref_mut()
    }

    /// Changes to the consumer protocol, which [`Self::end_classic`] completes.
    pub(super) fn begin_consumer(&mut self, consumer: ConsumerGroup) {
        self.consumer = Some(Box::new(consumer));
    }

    /// Forgets what the group was in the classic protocol.
    pub(super) fn end_classic(&mut self) {
        let (offsets, consumer) = (std::mem::take(&mut self.offsets), self.consumer.take());
        *self = Self { offsets, consumer, ..Self::new(self.id.clone(), 0) };
    }

    /// Takes over the members of a group of the consumer protocol, as a stable group.
    pub(super) fn adopt(&mut self, members: Vec<Member>, generation: i32, now_ms: u64) {
        for member in members {
            self.add(member, CONSUMER);
        }
        self.generation = generation;
        self.protocol = self.select_protocol();
        self.update_subscriptions();
        self.phase = Phase { state: State::Stable, previous: State::Stable, since_ms: now_ms };
    }

    /// Record of the group as if it was one generation ahead.
    pub(super) fn record_of_next_generation(&mut self) -> Record {
        let generation = self.generation;
        self.begin_generation();
        let record = records::group(self);
        // The next generation is another one: a member that has joined it may not find the stored one after a crash.
        self.stored_generation = std::mem::replace(&mut self.generation, generation);
        self.is_persisted = true;
        record
    }

    /// Puts back what was taken to replay a record.
    pub(super) fn restore_consumer(&mut self, consumer: Box<ConsumerGroup>) {
        self.consumer = Some(consumer);
    }

    /// Takes what the group is in the consumer protocol.
    pub(super) fn take_consumer(&mut self) -> Option<Box<ConsumerGroup>> {
        self.consumer.take()
    }

    /// The members of the group, as far as they use the consumer protocol.
    pub(super) fn consumer_member_mut(&mut self, id: &str) -> Option<&mut ConsumerMember> {
        self.consumer_mut()?.member_mut(id)
    }

    /// The session of a member, of either protocol, and its id.
    pub(super) fn session_mut(&mut self, id: &str) -> Option<(&Arc<str>, &mut Session)> {
        if let Some(consumer) = &mut self.consumer {
            return consumer.member_mut(id).map(|member| (&member.id, &mut member.session));
        }
        self.members.get_mut(id).map(|member| (&member.id, &mut member.session))
    }

    pub(super) fn generation(&self) -> i32 {
        self.generation
    }

    pub(super) fn protocol_type(&self) -> Option<&str> {
        self.consumer.as_ref().map(|_| CONSUMER).or(self.protocol_type.as_deref())
    }

    pub(super) fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    pub(super) fn leader(&self) -> Option<&Arc<str>> {
        self.leader.as_ref()
    }

    /// Memory charged to the members.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.consumer().map_or(0, ConsumerGroup::bytes)
    }

    pub(super) fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    pub(super) fn offsets_mut(&mut self) -> &mut Offsets {
        &mut self.offsets
    }

    pub(super) fn rebalance_mut(&mut self) -> &mut RebalanceState {
        &mut self.rebalance
    }

    /// Whether the log has a record of the group, or needs one when the group becomes empty.
    pub(super) fn needs_record(&self) -> bool {
        self.is_persisted || !self.offsets.is_empty()
    }

    /// Whether the log has a record of the group as one of the classic protocol.
    pub(super) fn is_persisted(&self) -> bool {
        self.is_persisted
    }

    pub(super) fn set_persisted(&mut self) {
        self.is_persisted = true;
    }

    /// Returns whether the log had a record of the group, which a tombstone is about to delete.
    pub(super) fn take_persisted(&mut self) -> bool {
        std::mem::take(&mut self.is_persisted)
    }

    /// An id was assigned to a client, which joins with it until the deadline (KIP-394).
    pub(super) fn add_pending(&mut self, id: Arc<str>, deadline_ms: u64) {
        self.pending.insert(id, deadline_ms);
    }

    /// Returns the id and its deadline if it was pending.
    pub(super) fn remove_pending(&mut self, id: &str) -> Option<(Arc<str>, u64)> {
        self.pending.remove_entry(id)
    }

    pub(super) fn pop_pending(&mut self) -> Option<(Arc<str>, u64)> {
        self.pending.pop_first()
    }

    pub(super) fn is_pending(&self, id: &str) -> bool {
        self.pending.contains_key(id)
    }

    /// Number of assigned member ids that have not been used to join yet.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Waits for SyncGroup of a member.
    pub(super) fn await_sync(&mut self, id: Arc<str>) {
        self.pending_sync.insert(id);
    }

    /// A member has sent SyncGroup. Returns whether all have.
    pub(super) fn note_sync(&mut self, id: &str) -> bool {
        self.pending_sync.remove(id);
        self.pending_sync.is_empty()
    }

    /// Waits for no SyncGroup any more. Returns the members that have not sent it.
    pub(super) fn take_pending_sync(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.pending_sync)
    }

    /// Whether the first members of a group that was empty are still being collected.
    pub(super) fn is_in_initial_delay(&self) -> bool {
        self.phase.previous == State::Empty && !self.rebalance.is_awaiting_pending()
    }

    /// Whether the current rebalance has started from an empty group.
    pub(super) fn was_empty(&self) -> bool {
        self.phase.previous == State::Empty
    }

    pub(super) fn begin_generation(&mut self) {
        self.generation = self.generation.max(self.stored_generation).checked_add(1).unwrap_or(1);
        self.stored_generation = 0;
    }

    /// The members have joined, and wait for the leader's assignment.
    pub(super) fn complete_join(&mut self, now_ms: u64) {
        self.protocol = self.select_protocol();
        self.update_subscriptions();
        self.transition_to(State::CompletingRebalance, now_ms);
    }

    /// The last member has left.
    pub(super) fn become_empty(&mut self, now_ms: u64) {
        self.protocol = None;
        self.leader = None;
        self.update_subscriptions();
        self.transition_to(State::Empty, now_ms);
    }

    /// Whether the members would select the protocol that the group has.
    pub(super) fn keeps_protocol(&self) -> bool {
        self.select_protocol() == self.protocol
    }

    pub(super) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// For changes that do not affect the totals: not pending joins, protocols or assignment.
    pub(super) fn member_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    pub(super) fn member_ids(&self) -> Vec<Arc<str>> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn static_member_id(&self, instance_id: &str) -> Option<&Arc<str>> {
        self.instances.get(instance_id)
    }

    /// Number of members with a pending JoinGroup.
    pub(super) fn joining(&self) -> usize {
        self.joining
    }

    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// Whether the group can be dropped without losing anything.
    pub(super) fn is_unused(&self) -> bool {
        !self.is_persisted && self.consumer().is_none_or(|known| !known.is_persisted()) && self.is_idle()
    }

    /// Whether the group has no members, not even expected ones, and no offsets.
    pub(super) fn is_idle(&self) -> bool {
        self.state() == State::Empty && self.pending.is_empty() && self.offsets.is_empty()
    }

    /// Replaces the pending JoinGroup request of a member and returns the previous one.
    pub(super) fn replace_joining(&mut self, id: &str, caller: Option<Caller>) -> Option<Caller> {
        let member = self.members.get_mut(id)?;
        let before = std::mem::replace(&mut member.joining, caller);
        self.joining = self.joining + usize::from(caller.is_some()) - usize::from(before.is_some());
        before
    }

    pub(super) fn all_have_joined(&self) -> bool {
        self.members.len() == self.joining && self.pending.is_empty()
    }

    pub(super) fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|member| member.rebalance_timeout_ms).max().map_or(0, u64::from)
    }

    /// Adds a member. The first one determines the protocol type and becomes the leader.
    pub(super) fn add(&mut self, member: Member, protocol_type: &str) {
        if self.members.is_empty() {
            self.protocol_type = Some(protocol_type.to_owned());
        }
        if let Some(instance_id) = &member.instance_id {
            self.instances.insert(instance_id.clone(), member.id.clone());
        }
        self.leader.get_or_insert_with(|| member.id.clone());
        self.pending.remove(&member.id);
        self.add_to_totals(&member);
        let replaced = self.members.insert(member.id.clone(), member);
        debug_assert!(replaced.is_none(), "a member joined twice");
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        self.pending.remove(id);
        self.pending_sync.remove(id);
        let member = self.members.remove(id)?;
        self.remove_from_totals(&member);
        if let Some(instance_id) = &member.instance_id {
            self.instances.remove(instance_id);
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Changes a member and adjusts the totals.
    pub(super) fn update_member(&mut self, id: &str, update: impl FnOnce(&mut Member)) {
        let Some(mut member) = self.members.remove(id) else { return };
        self.remove_from_totals(&member);
        update(&mut member);
        self.add_to_totals(&member);
        self.members.insert(member.id.clone(), member);
    }

    /// Gives a static member a new member id (KIP-345).
    pub(super) fn replace_member_id(&mut self, old: &str, new: &Arc<str>) {
        let Some(mut member) = self.members.remove(old) else { return };
        self.remove_from_totals(&member);
        member.id = new.clone();
        self.add_to_totals(&member);
        if let Some(instance_id) = &member.instance_id {
            self.instances.insert(instance_id.clone(), new.clone());
        }
        if self.is_leader(old) {
            self.leader = Some(new.clone());
        }
        if self.pending_sync.remove(old) {
            self.pending_sync.insert(new.clone());
        }
        self.members.insert(new.clone(), member);
    }

    fn add_to_totals(&mut self, member: &Member) {
        self.joining += usize::from(member.joining.is_some());
        self.bytes += member.bytes();
        for protocol in &member.protocols {
            *self.protocol_counts.entry(protocol.name.clone()).or_default() += 1;
        }
    }

    fn remove_from_totals(&mut self, member: &Member) {
        self.joining -= usize::from(member.joining.is_some());
        self.bytes -= member.bytes();
        for protocol in &member.protocols {
            if let Some(count) = self.protocol_counts.get_mut(&protocol.name) {
                *count -= 1;
                if *count == 0 {
                    self.protocol_counts.remove(&protocol.name);
                }
            }
        }
    }

    /// Whether a joining client has a protocol in common with all members.
    pub(super) fn supports_protocols(&self, request: &JoinGroup<'_>) -> bool {
        if self.members.is_empty() {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(request.protocol_type)
            && request
                .protocols
                .iter()
                .any(|(name, _)| self.protocol_counts.get(*name) == Some(&self.members.len()))
    }

    /// Selects a protocol: each member votes for its most preferred one that all members support. Ties go to the first
    /// name.
    fn select_protocol(&self) -> Option<Arc<str>> {
        let all = self.members.len();
        let mut votes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for member in self.members.values() {
            let preferred = member
                .protocols
                .iter()
                .find(|protocol| self.protocol_counts.get(&protocol.name) == Some(&all));
            if let Some(protocol) = preferred {
                *votes.entry(&protocol.name).or_default() += 1;
            }
        }
        votes.into_iter().rev().max_by_key(|(_, votes)| *votes).map(|(name, _)| name.clone())
    }

    /// Replaces a leader that has not joined. Returns false if no member has joined.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let joined = |id: &Arc<str>| self.members.get(id).is_some_and(|member| member.joining.is_some());
        if self.leader.as_ref().is_some_and(joined) {
            return true;
        }
        let candidate = self.members.values().find(|member| member.joining.is_some());
        match candidate.map(|member| member.id.clone()) {
            Some(id) => {
                self.leader = Some(id);
                true
            }
            None => false,
        }
    }

    pub(super) fn transition_to(&mut self, state: State, now_ms: u64) {
        let previous = self.phase.state;
        debug_assert!(previous.can_transition_to(state), "{previous:?} does not lead to {state:?}");
        self.phase = Phase { state, previous, since_ms: now_ms };
    }

    pub(super) fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type() == Some(CONSUMER)
    }

    /// Whether members are subscribed to the topic, or may be if subscriptions are unknown.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        if let Some(consumer) = self.consumer() {
            return consumer.is_subscribed_to(topic);
        }
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    pub(super) fn has_known_subscriptions(&self) -> bool {
        self.consumer.is_some() || self.subscribed.is_some()
    }

    /// Recomputes subscriptions from the members' metadata.
    pub(super) fn update_subscriptions(&mut self) {
        self.subscribed = self.subscriptions();
    }

    fn subscriptions(&self) -> Option<BTreeSet<String>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        let mut topics = BTreeSet::new();
        if self.members.is_empty() {
            return Some(topics);
        }
        let protocol = self.protocol.as_deref()?;
        for member in self.members.values() {
            topics.extend(subscription::topics(member.metadata(protocol))?.map(str::to_owned));
        }
        Some(topics)
    }
}
