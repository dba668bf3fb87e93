//! A group: who is in it, what they have agreed on, and what it has read.
//!
//! Everything here is bookkeeping without time and without answers; the steps of the protocol are in the files of
//! their requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::member::Member;
use super::offsets::Offsets;
use super::request::JoinGroup;
use super::state::State;
use super::subscription;
use crate::Caller;

/// Protocol type of groups whose members read topics, as the coordinator can tell from their metadata.
const CONSUMER: &str = "consumer";

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: Arc<str>,
    pub(super) state: State,
    /// What it was doing before: a rebalance that began without members goes on in another way.
    pub(super) before: State,
    /// Since when it is in this state, ms since 1970.
    pub(super) since_ms: u64,
    pub(super) generation: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<Arc<str>>,
    pub(super) leader: Option<Arc<str>>,
    members: BTreeMap<Arc<str>, Member>,
    /// Instance identifier to member identifier.
    instances: BTreeMap<Arc<str>, Arc<str>>,
    /// Identifiers that were given out and have not come back (KIP-394), and when that is too late.
    pub(super) pending: BTreeMap<Arc<str>, u64>,
    /// Members that have not sent SyncGroup in this generation.
    pub(super) unsynced: BTreeSet<Arc<str>>,
    /// How many members speak each protocol.
    spoken: BTreeMap<Arc<str>, usize>,
    /// How many members wait for the answer to JoinGroup.
    joining: usize,
    /// Topics that its members read, if they are known.
    subscribed: Option<BTreeSet<String>>,
    pub(super) rebalance: Rebalance,
    /// Whether a record of it is kept.
    pub(super) kept: bool,
    /// What its members take.
    pub(super) bytes: usize,
    pub(super) offsets: Offsets,
}

/// The deadlines of a rebalance, and how far its first phase is.
#[derive(Debug, Default)]
pub(super) struct Rebalance {
    pub(super) join_deadline_ms: Option<u64>,
    pub(super) sync_deadline_ms: Option<u64>,
    pub(super) opening: Opening,
}

/// How an empty group gathers its first members.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Opening {
    /// Whether somebody has joined since the delay began.
    pub(super) grown: bool,
    /// For how long the delay may be repeated.
    pub(super) remaining_ms: u64,
    /// The delay is over; only members that were told to come back are waited for.
    pub(super) last_call: bool,
}

impl Group {
    pub(super) fn new(id: Arc<str>, now_ms: u64) -> Self {
        Self {
            id,
            state: State::Empty,
            before: State::Dead,
            since_ms: now_ms,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            spoken: BTreeMap::new(),
            joining: 0,
            subscribed: None,
            rebalance: Rebalance::default(),
            kept: false,
            bytes: 0,
            offsets: Offsets::default(),
        }
    }

    pub(super) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// To change what is not counted over all members: not who joins, nor protocols and assignment.
    pub(super) fn member_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    pub(super) fn member_ids(&self) -> Vec<Arc<str>> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn instance(&self, instance_id: &str) -> Option<&Arc<str>> {
        self.instances.get(instance_id)
    }

    /// How many members wait for the answer to JoinGroup.
    pub(super) fn joining(&self) -> usize {
        self.joining
    }

    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// Whether nothing would be lost with the group.
    pub(super) fn is_blank(&self) -> bool {
        self.state == State::Empty && !self.kept && self.pending.is_empty() && self.offsets.is_empty()
    }

    /// Who has waited for the answer to JoinGroup, which is `caller` from now on.
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

    /// The first member decides of which kind the group is; the first one that stays is its leader.
    pub(super) fn add(&mut self, member: Member, protocol_type: &str) {
        if self.members.is_empty() {
            self.protocol_type = Some(protocol_type.to_owned());
        }
        if let Some(instance_id) = &member.instance_id {
            self.instances.insert(instance_id.clone(), member.id.clone());
        }
        self.leader.get_or_insert_with(|| member.id.clone());
        self.pending.remove(&member.id);
        self.count(&member);
        let replaced = self.members.insert(member.id.clone(), member);
        debug_assert!(replaced.is_none(), "a member joined twice");
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        self.pending.remove(id);
        self.unsynced.remove(id);
        let member = self.members.remove(id)?;
        self.discount(&member);
        if let Some(instance_id) = &member.instance_id {
            self.instances.remove(instance_id);
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Changes a member, and all that is counted of members with it.
    pub(super) fn change(&mut self, id: &str, change: impl FnOnce(&mut Member)) {
        let Some(mut member) = self.members.remove(id) else { return };
        self.discount(&member);
        change(&mut member);
        self.count(&member);
        self.members.insert(member.id.clone(), member);
    }

    /// A static member has come back under another identifier: it takes the place of what it was (KIP-345).
    pub(super) fn rename(&mut self, old: &str, new: &Arc<str>) {
        let Some(mut member) = self.members.remove(old) else { return };
        self.discount(&member);
        member.id = new.clone();
        self.count(&member);
        if let Some(instance_id) = &member.instance_id {
            self.instances.insert(instance_id.clone(), new.clone());
        }
        if self.is_leader(old) {
            self.leader = Some(new.clone());
        }
        if self.unsynced.remove(old) {
            self.unsynced.insert(new.clone());
        }
        self.members.insert(new.clone(), member);
    }

    fn count(&mut self, member: &Member) {
        self.joining += usize::from(member.joining.is_some());
        self.bytes += member.bytes();
        for protocol in &member.protocols {
            *self.spoken.entry(protocol.name.clone()).or_default() += 1;
        }
    }

    fn discount(&mut self, member: &Member) {
        self.joining -= usize::from(member.joining.is_some());
        self.bytes -= member.bytes();
        for protocol in &member.protocols {
            if let Some(speakers) = self.spoken.get_mut(&protocol.name) {
                *speakers -= 1;
                if *speakers == 0 {
                    self.spoken.remove(&protocol.name);
                }
            }
        }
    }

    /// Whether somebody who asks to join has a protocol in common with all members.
    pub(super) fn understands(&self, request: &JoinGroup<'_>) -> bool {
        if self.members.is_empty() {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(request.protocol_type)
            && request.protocols.iter().any(|(name, _)| self.spoken.get(*name) == Some(&self.members.len()))
    }

    /// The protocol that most members like best among those all of them speak. Of equals it is the first by name.
    pub(super) fn favourite_protocol(&self) -> Option<Arc<str>> {
        let all = self.members.len();
        let mut votes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for member in self.members.values() {
            let liked =
                member.protocols.iter().find(|protocol| self.spoken.get(&protocol.name) == Some(&all));
            if let Some(protocol) = liked {
                *votes.entry(&protocol.name).or_default() += 1;
            }
        }
        votes.into_iter().rev().max_by_key(|(_, votes)| *votes).map(|(name, _)| name.clone())
    }

    /// A leader that has not joined again is replaced by somebody who has. False if nobody has.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let joined = |id: &Arc<str>| self.members.get(id).is_some_and(|member| member.joining.is_some());
        if self.leader.as_ref().is_some_and(joined) {
            return true;
        }
        let somebody = self.members.values().find(|member| member.joining.is_some());
        match somebody.map(|member| member.id.clone()) {
            Some(id) => {
                self.leader = Some(id);
                true
            }
            None => false,
        }
    }

    pub(super) fn enter(&mut self, state: State, now_ms: u64) {
        debug_assert!(self.state.leads_to(state), "{:?} does not lead to {state:?}", self.state);
        self.before = self.state;
        self.state = state;
        self.since_ms = now_ms;
    }

    pub(super) fn reads_topics(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// Whether members read this topic, or may do so as far as one can tell.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.reads_topics(),
        }
    }

    pub(super) fn knows_subscriptions(&self) -> bool {
        self.subscribed.is_some()
    }

    /// Finds out which topics the members read, as far as their metadata can be understood.
    pub(super) fn note_subscriptions(&mut self) {
        self.subscribed = self.subscriptions();
    }

    fn subscriptions(&self) -> Option<BTreeSet<String>> {
        if !self.reads_topics() {
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
