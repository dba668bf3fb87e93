//! Consumer groups: the classic protocol of Kafka (JoinGroup, SyncGroup, Heartbeat, LeaveGroup), and their offsets.
//!
//! [`Groups`] is all groups of a broker. Requests go in by `handle_*`, each with its [`Caller`]; what is to be done
//! comes out of [`poll`](Groups::poll) in order: records to keep, and answers. The answer to JoinGroup comes when all
//! members have joined, that to SyncGroup when the leader has assigned; so a caller may wait long, but never for
//! ever as long as [`tick`](Groups::tick) is called at [`next_deadline_ms`](Groups::next_deadline_ms).
//!
//! # What it holds
//! - A caller gets one answer.
//! - A member of an old generation, or one whose place another has taken, commits nothing (KIP-345).
//! - What an answer promises has been handed out to be kept before the answer. Its members, generation and
//!   assignments, and all offsets are put back by [`restore`](Groups::restore) from these records. A rebalance that
//!   was on is not: its members find the generation before it, and join again.
//! - An offset whose record could not be kept is what it was before.
//! - All that clients can make grow is bounded by [`Settings`].
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `request`, `answer`, `state`, `settings` | what goes in and comes out |
//! | `visit` | one visit to a group: the group, its timers, answers |
//! | `join`, `rebalance`, `sync`, `leave` | the steps of the protocol |
//! | `commit`, `fetch`, `expire` | offsets: committed, asked for, forgotten |
//! | `transaction` | offsets of transactions that are not over |
//! | `changes` | offsets as they were before what is not kept yet |
//! | `show` | ListGroups, DescribeGroups |
//! | `roster`, `member`, `offsets`, `timers`, `subscription` | the bookkeeping below |
//! | `records`, `restore` | to records and back |

mod answer;
mod changes;
mod commit;
mod expire;
mod fetch;
mod join;
mod leave;
mod member;
mod offsets;
mod rebalance;
mod records;
mod request;
mod restore;
mod roster;
mod settings;
mod show;
mod state;
mod subscription;
mod sync;
mod timers;
mod transaction;
mod visit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Caller, Error};
pub use answer::{
    Answer, CommittedOffset, DeletedGroup, DescribedGroup, DescribedMember, Effect, FetchedGroup,
    FetchedOffset, JoinAnswer, Joined, JoinedMember, Left, ListedGroup, PartitionDone, Synced, TopicAnswer,
};
pub use changes::Keep;
pub use request::{
    Heartbeat, JoinGroup, LeaveGroup, Leaving, OffsetCommit, OffsetDelete, OffsetFetch, OffsetToCommit,
    OffsetToDelete, OffsetsOf, SyncGroup, Topic, TransactionEnd, TxnOffsetCommit,
};
pub use settings::Settings;
pub use state::State;

use member::PROTOCOLS_MAX;
use roster::Group;
use settings::NAME_MAX_BYTES;
use timers::Timers;
use visit::{Out, Visit};

/// All groups of a broker. Times are milliseconds since 1970.
#[derive(Debug, Default)]
pub struct Groups {
    settings: Settings,
    known: BTreeMap<Arc<str>, Group>,
    timers: Timers,
    out: Out,
    /// What the members of all groups keep here.
    bytes: usize,
    /// Offsets of all groups.
    offsets: usize,
    /// The number of the next offset.
    next_order: u64,
    /// Groups with offsets of a transaction that is not over, by producer identifier.
    transactions: BTreeMap<i64, BTreeSet<Arc<str>>>,
    /// When offsets are looked through next; 0 before the first time.
    next_check_ms: u64,
}

impl Groups {
    /// No groups yet. Those that are kept come back by [`restore`](Self::restore).
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Effect> {
        self.out.take()
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When [`tick`](Self::tick) is due.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let check_ms = (!self.known.is_empty()).then_some(self.next_check_ms);
        self.timers.next_ms().into_iter().chain(check_ms).min()
    }

    /// Time passes: silent members are out, rebalances go on, old offsets go.
    pub fn tick(&mut self, now_ms: u64) {
        while let Some((group_id, due)) = self.timers.take(now_ms) {
            self.visit(now_ms, &group_id, |visit| visit.on_due(&due));
        }
        if now_ms >= self.next_check_ms {
            self.next_check_ms = now_ms.saturating_add(self.settings.offsets_retention_check_interval_ms);
            self.expire_offsets(now_ms);
        }
    }

    /// JoinGroup. Answered when all members have joined, or those that have not are out.
    pub fn handle_join(&mut self, now_ms: u64, request: &JoinGroup<'_>, caller: Caller) {
        if let Err(error) = self.check_join(request) {
            let answer = JoinAnswer { member_id: request.member_id.to_owned(), outcome: Err(error) };
            return self.out.reply(caller, Answer::Join(answer));
        }
        self.known
            .entry(request.group_id.into())
            .or_insert_with_key(|group_id| Group::new(group_id.clone(), now_ms));
        self.visit(now_ms, request.group_id, |visit| visit.join(request, caller));
    }

    fn check_join(&self, request: &JoinGroup<'_>) -> Result<(), Error> {
        check_group_id(request.group_id)?;
        let session_timeout_ms = u32::try_from(request.session_timeout_ms).unwrap_or(0);
        let allowed = self.settings.session_timeout_min_ms..=self.settings.session_timeout_max_ms;
        if !allowed.contains(&session_timeout_ms) {
            return Err(Error::InvalidSessionTimeout);
        }
        let instance_bytes = request.instance_id.map_or(0, str::len);
        if request.protocols.len() > PROTOCOLS_MAX || instance_bytes > NAME_MAX_BYTES {
            return Err(Error::InvalidRequest);
        }
        if !self.known.contains_key(request.group_id) {
            if !request.member_id.is_empty() {
                return Err(Error::UnknownMemberId);
            }
            self.check_room_for_group()?;
        }
        Ok(())
    }

    fn check_room_for_group(&self) -> Result<(), Error> {
        if self.known.len() < self.settings.groups_max { Ok(()) } else { Err(Error::PolicyViolation) }
    }

    /// SyncGroup. Answered when the leader has assigned and that is kept.
    pub fn handle_sync(&mut self, now_ms: u64, request: &SyncGroup<'_>, caller: Caller) {
        let checked = check_group_id(request.group_id);
        let visited = checked.and_then(|()| {
            self.visit(now_ms, request.group_id, |visit| visit.sync(request, caller))
                .ok_or(Error::UnknownMemberId)
        });
        if let Err(error) = visited {
            self.out.reply(caller, Answer::Sync(Err(error)));
        }
    }

    /// Heartbeat: a member lives.
    ///
    /// # Errors
    /// If the group does not know it, is at another generation, or rebalances.
    pub fn handle_heartbeat(&mut self, now_ms: u64, request: &Heartbeat<'_>) -> Result<(), Error> {
        check_group_id(request.group_id)?;
        self.visit(now_ms, request.group_id, |visit| visit.heartbeat(request))
            .unwrap_or(Err(Error::UnknownMemberId))
    }

    /// LeaveGroup.
    pub fn handle_leave(&mut self, now_ms: u64, request: &LeaveGroup<'_>, caller: Caller) {
        if let Err(error) = check_group_id(request.group_id) {
            return self.out.reply(caller, Answer::Leave(Err(error)));
        }
        if self.visit(now_ms, request.group_id, |visit| visit.leave(request, caller)).is_none() {
            let unknown = |leaving: &Leaving<'_>| Left {
                member_id: leaving.member_id.to_owned(),
                instance_id: leaving.instance_id.map(str::to_owned),
                outcome: Err(Error::UnknownMemberId),
            };
            let left = request.members.iter().map(unknown).collect();
            self.out.reply(caller, Answer::Leave(Ok(left)));
        }
    }

    /// Everybody who waits is told `error`, since the groups go: they are about to be read from what is kept again.
    pub fn abandon(&mut self, error: Error) {
        for group in self.known.values_mut() {
            for id in group.member_ids() {
                if let Some(caller) = group.replace_joining(&id, None) {
                    let answer = JoinAnswer { member_id: id.as_ref().to_owned(), outcome: Err(error) };
                    self.out.reply(caller, Answer::Join(answer));
                }
                let syncing = group.member_mut(&id).and_then(|member| member.syncing.take());
                if let Some(caller) = syncing {
                    self.out.reply(caller, Answer::Sync(Err(error)));
                }
            }
        }
    }

    /// Nothing if there is no such group. A group that is left with nothing to remember is no more afterwards.
    fn visit<R>(
        &mut self,
        now_ms: u64,
        group_id: &str,
        during: impl FnOnce(&mut Visit<'_>) -> R,
    ) -> Option<R> {
        let group = self.known.get_mut(group_id)?;
        let others_bytes = self.bytes - group.bytes;
        let mut visit = Visit {
            group,
            timers: &mut self.timers,
            out: &mut self.out,
            settings: &self.settings,
            others_bytes,
            now_ms,
        };
        let result = during(&mut visit);
        self.bytes = others_bytes + group.bytes;
        if group.is_blank() {
            self.known.remove(group_id);
        }
        Some(result)
    }
}

fn check_group_id(group_id: &str) -> Result<(), Error> {
    if group_id.is_empty() || group_id.len() > NAME_MAX_BYTES { Err(Error::InvalidGroupId) } else { Ok(()) }
}
