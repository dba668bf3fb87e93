//! A group of the consumer protocol (KIP-848): the coordinator assigns partitions, and members reconcile one by one.
//!
//! Every change of members, of subscriptions or of the subscribed topics begins an epoch of the group. For each epoch
//! the coordinator computes a target: the partitions that each member is to have. A member follows at its own pace, in
//! its heartbeats: it gives up what is not in its target, confirms that, and gets the rest of its target as soon as
//! nobody else holds it. Nobody waits for the slowest member, and members that keep their partitions never stop.
//!
//! # Invariants
//! - A partition has at most one holder: a member that it is assigned to, or that has not confirmed its revocation.
//! - A member whose progress is `Stable` has its whole target of its own epoch.
//! - Each change marks what it changes; [`ConsumerGroup::take_records`] returns the records of all that is marked.
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `heartbeat`, `leave` | the steps of a heartbeat |
//! | `reconcile` | one step of a member toward its target |
//! | `classic`, `migrate` | members of the classic protocol, and the change between the protocols |
//! | `subscription` | subscriptions, and the topics that they select |
//! | `assignor`, `partitions` | the computation of targets |
//! | `member` | one member |
//! | `request`, `response`, `describe` | inputs and outputs |
//! | `records` | encoding of groups and members |

mod assignor;
mod classic;
mod describe;
mod heartbeat;
mod leave;
mod member;
mod migrate;
mod partitions;
mod reconcile;
mod records;
mod request;
mod response;
mod subscription;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use partitions::{Partitions, TopicId, TopicPartition};
pub use request::{ConsumerHeartbeat, OwnedTopic};
pub use response::{
    ConsumerHeartbeatResult, DescribedConsumerGroup, DescribedConsumerMember, Refusal, TopicPartitions,
};
pub use subscription::{Topic, Topics};

use super::state::State;
use crate::{Error, Record};
use assignor::{Assignor, Subscriber, assign};
pub(super) use member::ConsumerMember;
pub(super) use records::{read_group, read_member};
use subscription::{Matched, Resolved, Selection, Subscription, matching};

/// Memory charged for a partition that a subscription selects: it is in a target, an assignment and the table of
/// holders, bytes.
const PARTITION_BYTES: usize = 96;

/// Number of different regular expressions in a group.
const REGEXES_MAX: usize = 10;
/// Work of compiling a regular expression, in topics that are looked at.
const REGEX_WORK: usize = 6_000;

#[derive(Debug, Default)]
pub(super) struct ConsumerGroup {
    epoch: i32,
    /// Epoch of the target.
    assignment_epoch: i32,
    /// Who has computed the target.
    assignor: Assignor,
    /// When the last member left, or the first one came, ms since 1970.
    since_ms: u64,
    members: BTreeMap<Arc<str>, ConsumerMember>,
    /// Instance id to member id.
    instances: BTreeMap<Arc<str>, Arc<str>>,
    /// Who holds each partition.
    holders: BTreeMap<TopicPartition, Arc<str>>,
    /// The subscriptions of the members, and what they select.
    subscriptions: BTreeMap<Arc<Subscription>, Resolved>,
    /// Number of partitions of each subscribed topic that exists.
    topics: BTreeMap<TopicId, i32>,
    /// Names of these topics, and of those that members still hold partitions of.
    names: BTreeMap<TopicId, Arc<str>>,
    /// Fingerprint of `topics`, and the one that the epoch began with.
    topics_hash: u64,
    epoch_topics_hash: u64,
    /// Version of the topics that the subscriptions were resolved with; `None` after a restart.
    topics_version: Option<u64>,
    /// Number of members that use the consumer protocol themselves.
    consumers: usize,
    /// Number of members that prefer each assignor.
    votes: BTreeMap<Assignor, usize>,
    /// Memory charged to the members, and to what they have subscribed to.
    member_bytes: usize,
    subscription_bytes: usize,
    /// What the members select together.
    selection: Selection,
    /// Members have gone since the topics were collected.
    are_topics_outdated: bool,
    pending: PendingRecords,
}

/// What the log does not have yet.
#[derive(Debug, Default)]
struct PendingRecords {
    is_group: bool,
    members: BTreeSet<Arc<str>>,
    /// Tombstones of what the group was before.
    tombstones: Vec<Record>,
    /// Number of failed writes of all groups when everything was last handed out.
    failed_writes: u64,
    /// Whether the log has a record of the group.
    is_persisted: bool,
}

impl ConsumerGroup {
    pub(super) fn new(now_ms: u64, failed_writes: u64) -> Self {
        let pending = PendingRecords { failed_writes, ..PendingRecords::default() };
        Self { since_ms: now_ms, pending, ..Self::default() }
    }

    pub(super) fn state(&self) -> State {
        if self.members.is_empty() {
            State::Empty
        } else if self.epoch > self.assignment_epoch {
            State::Assigning
        } else if self.members.values().all(|member| member.has_reached(self.assignment_epoch)) {
            State::Stable
        } else {
            State::Reconciling
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Whether the log has a record of the group.
    pub(super) fn is_persisted(&self) -> bool {
        self.pending.is_persisted
    }

    pub(super) fn member(&self, id: &str) -> Option<&ConsumerMember> {
        self.members.get(id)
    }

    /// For changes that affect neither what the member holds nor its subscription.
    pub(super) fn member_mut(&mut self, id: &str) -> Option<&mut ConsumerMember> {
        self.members.get_mut(id)
    }

    pub(super) fn member_ids(&self) -> Vec<Arc<str>> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn static_member_id(&self, instance_id: &str) -> Option<&Arc<str>> {
        self.instances.get(instance_id)
    }

    /// Memory charged to the members and to what they have subscribed to.
    pub(super) fn bytes(&self) -> usize {
        self.member_bytes + self.subscription_bytes
    }

    /// Whether a member is subscribed to the topic, or may be: after a restart nobody knows what regular expressions
    /// select before the first heartbeat.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        self.subscriptions.iter().filter(|(_, resolved)| resolved.members > 0).any(
            |(subscription, resolved)| {
                subscription.names.contains(topic)
                    || resolved.names.contains(topic)
                    || subscription.regex.is_some() && self.topics_version.is_none()
            },
        )
    }

    /// Adds a member, or replaces the one with its id.
    fn put(&mut self, now_ms: u64, mut member: ConsumerMember) {
        if self.members.is_empty() {
            self.since_ms = now_ms;
        }
        let _before = self.take(&member.id);
        self.member_bytes += member.bytes();
        self.consumers += usize::from(member.classic.is_none());
        if let Some(assignor) = member.assignor {
            *self.votes.entry(assignor).or_default() += 1;
        }
        if let Some(instance_id) = &member.instance_id {
            self.instances.insert(instance_id.clone(), member.id.clone());
        }
        for partition in member.held() {
            self.holders.insert(*partition, member.id.clone());
        }
        if let Some((known, _)) = self.subscriptions.get_key_value(&member.subscription) {
            member.subscription = known.clone();
        }
        self.subscriptions.entry(member.subscription.clone()).or_default().members += 1;
        self.pending.members.insert(member.id.clone());
        self.members.insert(member.id.clone(), member);
    }

    /// Takes a member out, with all that it holds.
    fn take(&mut self, id: &str) -> Option<ConsumerMember> {
        let member = self.members.remove(id)?;
        self.member_bytes -= member.bytes();
        self.consumers -= usize::from(member.classic.is_none());
        if let Some(instance_id) = &member.instance_id {
            self.instances.remove(instance_id);
        }
        for partition in member.held() {
            self.holders.remove(partition);
        }
        if let Some(votes) = member.assignor.and_then(|assignor| self.votes.get_mut(&assignor)) {
            *votes -= 1;
        }
        // What it selects stays for a member that takes its place.
        if let Some(resolved) = self.subscriptions.get_mut(&member.subscription) {
            resolved.members -= 1;
        }
        self.pending.members.insert(member.id.clone());
        Some(member)
    }

    /// Removes a member for good. The others share its partitions from the next epoch on.
    pub(super) fn remove(&mut self, now_ms: u64, id: &str) -> Option<ConsumerMember> {
        let member = self.take(id)?;
        if self.members.is_empty() {
            self.since_ms = now_ms;
        }
        // The next heartbeat does the rest: many members may go at once.
        self.are_topics_outdated = true;
        if self.members.is_empty() {
            self.update_topics();
        }
        self.begin_epoch();
        Some(member)
    }

    fn begin_epoch(&mut self) {
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        self.epoch_topics_hash = self.topics_hash;
        self.pending.is_group = true;
    }

    /// Partitions by the names of their topics.
    fn named_partitions(&self, partitions: &Partitions) -> Vec<(String, Vec<i32>)> {
        let topics = response::by_topic(partitions).into_iter();
        let named = topics.filter_map(|topic| {
            let name = self.names.get(&topic.topic_id)?;
            Some((name.as_ref().to_owned(), topic.partitions))
        });
        named.collect()
    }

    /// Looks up the topics again if they have changed since, or members have gone. Returns the work of doing so.
    fn refresh_topics(&mut self, topics: &dyn Topics) -> usize {
        let is_current = self.topics_version == Some(topics.version());
        if is_current && !self.are_topics_outdated {
            return 0;
        }
        self.subscriptions.retain(|_, resolved| resolved.members > 0);
        let mut work = self.subscriptions.len();
        if !is_current {
            let regexes: BTreeSet<Arc<str>> =
                self.subscriptions.keys().filter_map(|subscription| subscription.regex.clone()).collect();
            work += regexes.len() * REGEX_WORK;
            let matched: BTreeMap<Arc<str>, Vec<Matched>> =
                regexes.into_iter().map(|pattern| (pattern.clone(), matching(&pattern, topics))).collect();
            self.resolve(topics, &matched);
            self.topics_version = Some(topics.version());
        }
        self.update_topics();
        work
    }

    /// Looks up the topics that members are subscribed to by name, after a restart. What regular expressions select
    /// depends on the rights of the members: their first heartbeat tells.
    pub(super) fn resolve_names(&mut self, topics: &dyn Topics) {
        self.resolve(topics, &BTreeMap::new());
        self.update_topics();
    }

    /// Resolves all subscriptions, up to the limits of a group.
    fn resolve(&mut self, topics: &dyn Topics, matched: &BTreeMap<Arc<str>, Vec<Matched>>) {
        let mut selection = Selection::default();
        for (subscription, resolved) in &mut self.subscriptions {
            selection.begin(resolved.members);
            let matched = subscription.regex.as_ref().and_then(|pattern| matched.get(pattern));
            let matched = matched.map_or(&[][..], Vec::as_slice);
            *resolved = Resolved {
                members: resolved.members,
                ..subscription.resolve(topics, matched, &mut selection)
            };
        }
    }

    /// Checks that the group may have another regular expression.
    fn check_regexes(&self, pattern: &str) -> Result<(), Refusal> {
        let known: BTreeSet<&str> =
            self.subscriptions.keys().filter_map(|subscription| subscription.regex.as_deref()).collect();
        if known.contains(pattern) || known.len() < REGEXES_MAX {
            return Ok(());
        }
        let message = "The members of the group use too many regular expressions.";
        Err(Refusal { error: Error::PolicyViolation, message })
    }

    /// Collects the topics that the members are subscribed to.
    fn update_topics(&mut self) {
        self.subscriptions.retain(|_, resolved| resolved.members > 0);
        let selected = self.subscriptions.values().flat_map(|resolved| &resolved.topics);
        self.topics = selected.map(|(id, (_, count))| (*id, *count)).collect();
        let Self { names, topics, holders, .. } = self;
        let is_held = |id: &TopicId| {
            let first = TopicPartition { topic_id: *id, partition: i32::MIN };
            holders.range(first..).next().is_some_and(|(partition, _)| partition.topic_id == *id)
        };
        names.retain(|id, _| topics.contains_key(id) || is_held(id));
        let selected = self.subscriptions.values().flat_map(|resolved| &resolved.topics);
        names.extend(selected.map(|(id, (name, _))| (*id, name.clone())));
        self.topics_hash = hash_of(&self.topics);
        self.selection = Selection::default();
        for resolved in self.subscriptions.values() {
            self.selection.begin(resolved.members);
            self.selection.add(resolved.topics.len());
        }
        self.are_topics_outdated = false;
        let partitions: usize = self.topics.values().map(|count| usize::try_from(*count).unwrap_or(0)).sum();
        let subscribed = self.subscriptions.iter().map(|(known, resolved)| known.bytes() + resolved.bytes());
        self.subscription_bytes = subscribed.sum::<usize>() + partitions * PARTITION_BYTES;
    }

    /// The assignor that most of the members that name one prefer.
    fn preferred_assignor(&self) -> Assignor {
        let votes = |assignor| self.votes.get(&assignor).copied().unwrap_or(0);
        if votes(Assignor::Range) > votes(Assignor::Uniform) { Assignor::Range } else { Assignor::Uniform }
    }

    /// Begins an epoch if something has changed that targets depend on, and computes the target of the epoch.
    /// Returns the number of its members and partitions.
    fn update_target(&mut self, is_subscription_new: bool) -> usize {
        let assignor = self.preferred_assignor();
        let has_changed =
            is_subscription_new || self.topics_hash != self.epoch_topics_hash || self.assignor != assignor;
        if has_changed && self.epoch == self.assignment_epoch {
            self.begin_epoch();
        }
        self.epoch_topics_hash = self.topics_hash;
        if self.epoch == self.assignment_epoch {
            return 0;
        }
        let targets = {
            let subscriber = |member| subscriber_of(member, &self.subscriptions);
            let subscribers: Vec<Subscriber<'_>> = self.members.values().map(subscriber).collect();
            assign(assignor, &subscribers, &self.topics)
        };
        for (member, target) in self.members.values_mut().zip(targets) {
            if member.target != target {
                member.target = target;
                self.pending.members.insert(member.id.clone());
            }
        }
        self.assignor = assignor;
        self.assignment_epoch = self.epoch;
        self.pending.is_group = true;
        self.members.values().map(|member| 1 + member.target.len()).sum()
    }

    /// Replaces the members and holders of a group that was restored record by record. Returns the keys of records that
    /// the log should not have.
    pub(super) fn finish_restore(&mut self, group_id: &str) -> Vec<Vec<u8>> {
        let mut members: Vec<ConsumerMember> = std::mem::take(&mut self.members).into_values().collect();
        self.holders.clear();
        self.instances.clear();
        self.subscriptions.clear();
        self.votes.clear();
        self.member_bytes = 0;
        self.consumers = 0;
        // If a write failed before the crash, an older record of a member may claim what a newer one has got.
        members.sort_by_key(|member| std::cmp::Reverse(member.epoch.max(member.previous_epoch)));
        let since_ms = self.since_ms;
        let mut stale = Vec::new();
        for mut member in members {
            let has_successor = member
                .instance_id
                .as_ref()
                .is_some_and(|instance_id| self.instances.contains_key(instance_id));
            if has_successor {
                stale.push(records::member_key(group_id, &member.id));
                continue;
            }
            let holders = &self.holders;
            member.assigned.retain(|partition| !holders.contains_key(partition));
            member.revoking.retain(|partition| !holders.contains_key(partition));
            member.since.retain(|partition, _| !holders.contains_key(partition));
            self.put(since_ms, member);
        }
        self.since_ms = since_ms;
        self.topics_version = None;
        self.pending =
            PendingRecords { is_persisted: self.pending.is_persisted, ..PendingRecords::default() };
        stale
    }
}

fn subscriber_of<'a>(
    member: &'a ConsumerMember,
    subscriptions: &'a BTreeMap<Arc<Subscription>, Resolved>,
) -> Subscriber<'a> {
    const NONE: &BTreeSet<TopicId> = &BTreeSet::new();
    Subscriber {
        member_id: &member.id,
        instance_id: member.instance_id.as_deref(),
        topics: subscriptions.get(&member.subscription).map_or(NONE, |resolved| &resolved.ids),
        target: &member.target,
    }
}

/// Fingerprint of topics and their numbers of partitions: 64-bit FNV-1a.
fn hash_of(topics: &BTreeMap<TopicId, i32>) -> u64 {
    let bytes = topics.iter().flat_map(|(id, count)| id.iter().copied().chain(count.to_le_bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
