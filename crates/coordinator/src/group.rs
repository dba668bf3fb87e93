//! Consumer groups: Kafka's classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup), the consumer protocol
//! (ConsumerGroupHeartbeat), and committed offsets.
//!
//! [`Groups`] holds all groups of a broker. Requests go in through `handle_*`, each with its [`Caller`].
//! [`poll`](Groups::poll) returns the effects in order: records to persist, and replies. JoinGroup is answered once all
//! members have joined, SyncGroup once the leader has assigned. A caller may wait long, but not forever, as long as
//! [`tick`](Groups::tick) is called at [`next_deadline_ms`](Groups::next_deadline_ms).
//!
//! # Invariants
//! - Each caller gets exactly one reply.
//! - A member of an old generation, or one fenced by a newer static member, cannot commit (KIP-345).
//! - Whatever a reply promises was handed out to be persisted before the reply. [`restore`](Groups::restore) rebuilds
//!   members, generations, assignments and offsets from these records. A rebalance in progress is not restored: its
//!   members find the previous generation and rejoin.
//! - An offset whose record could not be persisted reverts to its previous value.
//! - [`Settings`] bounds everything that clients can make grow.
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `request`, `answer`, `state`, `settings` | inputs and outputs |
//! | `context` | one operation on a group: the group, its timers, its effects |
//! | `join`, `rebalance`, `sync`, `leave` | the steps of the protocol |
//! | `commit`, `fetch`, `expire` | offsets: commit, fetch, expiry and deletion |
//! | `forget` | offsets of deleted topics |
//! | `transaction` | offsets of pending transactions |
//! | `changes`, `tombstones` | what failed writes of offsets change back, and tombstones that they have lost |
//! | `describe` | ListGroups, DescribeGroups |
//! | `consumer` | the consumer protocol (KIP-848) |
//! | `configuration` | configurations of groups |
//! | `consumer_group`, `member`, `rebalance_state`, `offsets`, `timers`, `subscription` | the data structures below |
//! | `records`, `restore` | encoding and replay of records |

mod changes;
mod commit;
mod configuration;
mod consumer;
mod consumer_group;
mod context;
mod describe;
mod expire;
mod fetch;
mod forget;
mod join;
mod leave;
mod member;
mod offsets;
mod rebalance;
mod rebalance_state;
mod records;
mod request;
mod response;
mod restore;
mod settings;
mod state;
mod subscription;
mod sync;
mod timers;
mod tombstones;
mod transaction;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Caller, Error};
pub use changes::WriteId;
pub use configuration::GroupConfig;
pub use consumer::{
    ConsumerHeartbeat, ConsumerHeartbeatResult, DescribedConsumerGroup, DescribedConsumerMember, OwnedTopic,
    Refusal, Topic, TopicPartitions, Topics,
};
pub use request::{
    GroupOffsetFetch, Heartbeat, JoinGroup, LeaveGroup, LeavingMember, OffsetCommit, OffsetDelete,
    OffsetFetch, OffsetToCommit, OffsetToDelete, SyncGroup, TopicRequest, TransactionEnd, TxnOffsetCommit,
};
pub use response::{
    CommittedOffset, DeletedGroup, DescribedGroup, DescribedMember, Effect, FetchedGroup, FetchedOffset,
    JoinResponse, JoinResult, JoinedMember, LeaveResult, ListedGroup, PartitionResult, Response, SyncResult,
    TopicResult,
};
pub use settings::Settings;
pub use state::State;

use configuration::Configurations;
use consumer_group::Group;
use context::{Effects, GroupContext};
use forget::Forgetting;
use member::PROTOCOLS_MAX;
use settings::NAME_MAX_BYTES;
use timers::Timers;

/// All groups of a broker. Times are milliseconds since 1970.
#[derive(Debug, Default)]
pub struct Groups {
    settings: Settings,
    configurations: Configurations,
    by_id: BTreeMap<Arc<str>, Group>,
    timers: Timers,
    effects: Effects,
    /// Memory charged to the members of all groups.
    bytes: usize,
    /// Offsets of all groups, pending ones included.
    offset_count: usize,
    /// Sequence number of the next offset, see [`offsets::Offset::order`].
    next_order: u64,
    /// Groups with offsets of a pending transaction, by producer id.
    transactions: BTreeMap<i64, BTreeSet<Arc<str>>>,
    /// Deleted topics whose offsets are being removed.
    forgetting: Forgetting,
    /// When offsets are next checked for expiry; 0 before the first check.
    next_check_ms: u64,
}

impl Groups {
    /// Creates an empty set of groups. [`restore`](Self::restore) replays persisted ones.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Returns the next effect, in order.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.take()
    }

    /// Number of members and partitions of the assignments that were computed since the last call: work to charge to
    /// who has caused it.
    pub fn take_assigned(&mut self) -> usize {
        std::mem::take(&mut self.effects.assigned)
    }

    /// Looks up what the members are subscribed to, after a restart.
    pub fn resolve_topics(&mut self, topics: &dyn Topics) {
        for group in self.by_id.values_mut() {
            let bytes_before = group.bytes();
            if let Some(consumer) = group.consumer_mut() {
                consumer.resolve_names(topics);
            }
            self.bytes = self.bytes - bytes_before + group.bytes();
        }
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// When [`tick`](Self::tick) must be called next, ms since 1970; `None` if nothing is pending.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let check_ms = (!self.by_id.is_empty()).then_some(self.next_check_ms);
        self.timers.next_ms().into_iter().chain(check_ms).min()
    }

    /// Advances time: expires silent members, completes overdue rebalances, expires old offsets.
    pub fn tick(&mut self, now_ms: u64) {
        while let Some((group_id, kind)) = self.timers.take(now_ms) {
            self.with_group(now_ms, &group_id, |context| context.on_timer(&kind));
        }
        if now_ms >= self.next_check_ms {
            self.next_check_ms = now_ms.saturating_add(self.settings.offsets_retention_check_interval_ms);
            self.expire_offsets(now_ms);
        }
    }

    /// JoinGroup. Answered once all members have joined, or the ones that have not are removed.
    pub fn handle_join(&mut self, now_ms: u64, request: &JoinGroup<'_>, topics: &dyn Topics, caller: Caller) {
        if let Err(error) = self.check_join(request) {
            let answer = JoinResponse { member_id: request.member_id.to_owned(), outcome: Err(error) };
            return self.effects.reply(caller, Response::Join(answer));
        }
        self.by_id
            .entry(request.group_id.into())
            .or_insert_with_key(|group_id| Group::new(group_id.clone(), now_ms));
        self.with_group(now_ms, request.group_id, |context| context.join(request, topics, caller));
    }

    fn check_join(&self, request: &JoinGroup<'_>) -> Result<(), Error> {
        check_group_id(request.group_id)?;
        let session_timeout_ms = u32::try_from(request.session_timeout_ms).unwrap_or(0);
        let allowed = self.settings.session_timeout_min_ms..=self.settings.session_timeout_max_ms;
        if !allowed.contains(&session_timeout_ms) {
            return Err(Error::InvalidSessionTimeout);
        }
        let instance_bytes = request.instance_id.map_or(0, str::len);
        if request.protocols.len() > PROTOCOLS_MAX
            || instance_bytes.max(request.member_id.len()) > NAME_MAX_BYTES
        {
            return Err(Error::InvalidRequest);
        }
        if !self.by_id.contains_key(request.group_id) {
            if !request.member_id.is_empty() {
                return Err(Error::UnknownMemberId);
            }
            self.check_group_limit()?;
        }
        Ok(())
    }

    fn check_group_limit(&self) -> Result<(), Error> {
        if self.by_id.len() < self.settings.groups_max { Ok(()) } else { Err(Error::PolicyViolation) }
    }

    /// SyncGroup. Answered once the leader has assigned and the assignment is durable.
    pub fn handle_sync(&mut self, now_ms: u64, request: &SyncGroup<'_>, caller: Caller) {
        let checked = check_group_id(request.group_id);
        let handled = checked.and_then(|()| {
            self.with_group(now_ms, request.group_id, |context| context.sync(request, caller))
                .ok_or(Error::UnknownMemberId)
        });
        if let Err(error) = handled {
            self.effects.reply(caller, Response::Sync(Err(error)));
        }
    }

    /// Heartbeat: renews a member's session.
    ///
    /// # Errors
    /// [`Error::UnknownMemberId`], [`Error::FencedInstanceId`], [`Error::IllegalGeneration`], or
    /// [`Error::RebalanceInProgress`] if the member must rejoin.
    pub fn handle_heartbeat(&mut self, now_ms: u64, request: &Heartbeat<'_>) -> Result<(), Error> {
        check_group_id(request.group_id)?;
        self.with_group(now_ms, request.group_id, |context| context.heartbeat(request))
            .unwrap_or(Err(Error::UnknownMemberId))
    }

    /// LeaveGroup.
    pub fn handle_leave(&mut self, now_ms: u64, request: &LeaveGroup<'_>, caller: Caller) {
        if let Err(error) = check_group_id(request.group_id) {
            return self.effects.reply(caller, Response::Leave(Err(error)));
        }
        if self.with_group(now_ms, request.group_id, |context| context.leave(request, caller)).is_none() {
            let unknown = |leaving: &LeavingMember<'_>| LeaveResult {
                member_id: leaving.member_id.to_owned(),
                instance_id: leaving.instance_id.map(str::to_owned),
                outcome: Err(Error::UnknownMemberId),
            };
            let left = request.members.iter().map(unknown).collect();
            self.effects.reply(caller, Response::Leave(Ok(left)));
        }
    }

    /// Answers all pending JoinGroup and SyncGroup requests with `error`. Called before the groups are dropped and
    /// replayed from the log.
    pub fn abandon(&mut self, error: Error) {
        for group in self.by_id.values_mut() {
            for id in group.member_ids() {
                if let Some(caller) = group.replace_joining(&id, None) {
                    let answer = JoinResponse { member_id: id.as_ref().to_owned(), outcome: Err(error) };
                    self.effects.reply(caller, Response::Join(answer));
                }
                let syncing = group.member_mut(&id).and_then(|member| member.syncing.take());
                if let Some(caller) = syncing {
                    self.effects.reply(caller, Response::Sync(Err(error)));
                }
            }
        }
    }

    /// Runs `operation` on a group, and removes the group if nothing worth keeping is left of it. Returns `None` if
    /// there is no such group.
    fn with_group<R>(
        &mut self,
        now_ms: u64,
        group_id: &str,
        operation: impl FnOnce(&mut GroupContext<'_>) -> R,
    ) -> Option<R> {
        let group = self.by_id.get_mut(group_id)?;
        let other_groups_bytes = self.bytes - group.bytes();
        let mut context = GroupContext {
            group,
            timers: &mut self.timers,
            effects: &mut self.effects,
            settings: &self.settings,
            config: self.configurations.get(group_id),
            other_groups_bytes,
            now_ms,
        };
        let result = operation(&mut context);
        self.bytes = other_groups_bytes + group.bytes();
        if group.is_unused() {
            self.by_id.remove(group_id);
        }
        Some(result)
    }
}

fn check_group_id(group_id: &str) -> Result<(), Error> {
    if group_id.is_empty() || group_id.len() > NAME_MAX_BYTES { Err(Error::InvalidGroupId) } else { Ok(()) }
}
