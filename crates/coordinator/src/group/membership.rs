//! A group: state, members, chosen protocol, leader, offsets.
//!
//! Pure bookkeeping without timers and replies; the protocol steps are in the files named after their requests. Totals
//! over all members (pending joins, memory, supporters of each protocol) are kept up to date incrementally, so a member
//! may only change through [`Group::update_member`] or one of the other methods that adjust them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::member::Member;
use super::offsets::Offsets;
use super::request::JoinGroup;
use super::state::State;
use super::subscription;
use crate::Caller;

/// Protocol type whose member metadata contains topic subscriptions.
const CONSUMER: &str = "consumer";

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: Arc<str>,
    pub(super) state: State,
    /// A rebalance that started from `Empty` begins with the initial delay.
    pub(super) previous_state: State,
    /// When it entered the current state, ms since 1970.
    pub(super) since_ms: u64,
    pub(super) generation: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<Arc<str>>,
    pub(super) leader: Option<Arc<str>>,
    members: BTreeMap<Arc<str>, Member>,
    /// Instance id to member id.
    instances: BTreeMap<Arc<str>, Arc<str>>,
    /// Assigned member ids that have not been used to join yet (KIP-394), and when they expire.
    pub(super) pending: BTreeMap<Arc<str>, u64>,
    /// Members that have not sent SyncGroup in this generation.
    pub(super) pending_sync: BTreeSet<Arc<str>>,
    /// Number of members that support each protocol.
    protocol_counts: BTreeMap<Arc<str>, usize>,
    /// Number of members with a pending JoinGroup.
    joining: usize,
    /// Topics that the members are subscribed to; `None` if unknown.
    subscribed: Option<BTreeSet<String>>,
    pub(super) rebalance: Rebalance,
    /// Whether the log has a record of the group.
    pub(super) is_persisted: bool,
    /// Memory charged to the members.
    pub(super) bytes: usize,
    pub(super) offsets: Offsets,
}

/// Deadlines and initial delay of a rebalance.
#[derive(Debug, Default)]
pub(super) struct Rebalance {
    pub(super) join_deadline_ms: Option<u64>,
    pub(super) sync_deadline_ms: Option<u64>,
    pub(super) initial_delay: InitialDelay,
}

/// Initial delay of a rebalance that starts from an empty group.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct InitialDelay {
    /// Whether a member joined since the delay was last started.
    pub(super) new_member_added: bool,
    /// How much longer the delay may be extended.
    pub(super) remaining_ms: u64,
    /// The delay is over; only pending member ids are waited for.
    pub(super) awaiting_pending: bool,
}

impl Group {
    pub(super) fn new(id: Arc<str>, now_ms: u64) -> Self {
        Self {
            id,
            state: State::Empty,
            previous_state: State::Dead,
            since_ms: now_ms,
            generation: 0,
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
            rebalance: Rebalance::default(),
            is_persisted: false,
            bytes: 0,
            offsets: Offsets::default(),
        }
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
        self.state == State::Empty && !self.is_persisted && self.pending.is_empty() && self.offsets.is_empty()
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
    pub(super) fn select_protocol(&self) -> Option<Arc<str>> {
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
        debug_assert!(self.state.can_transition_to(state), "{:?} does not lead to {state:?}", self.state);
        self.previous_state = self.state;
        self.state = state;
        self.since_ms = now_ms;
    }

    pub(super) fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// Whether members are subscribed to the topic, or may be if subscriptions are unknown.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    pub(super) fn has_known_subscriptions(&self) -> bool {
        self.subscribed.is_some()
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
