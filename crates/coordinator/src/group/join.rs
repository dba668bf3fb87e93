//! JoinGroup: new members, rejoining members, and static members that restarted.
//!
//! A new dynamic member is first assigned a member id and must join again with it (KIP-394). A static member (KIP-345)
//! that comes without a member id replaces its predecessor, without a rebalance if the group is stable and the protocol
//! choice stays the same.

use std::sync::Arc;

use super::consumer::Topics;
use super::context::GroupContext;
use super::member::{self, Member};
use super::request::JoinGroup;
use super::response::{JoinResponse, JoinResult, JoinedMember, Response};
use super::settings::NEW_MEMBER_JOIN_TIMEOUT_MS;
use super::state::State;
use super::timers::TimerKind;
use crate::{Caller, Error};

/// Maximum length of the client id or instance id at the start of a member id, bytes.
const PREFIX_MAX_BYTES: usize = 255;

impl GroupContext<'_> {
    pub(super) fn join(&mut self, request: &JoinGroup<'_>, topics: &dyn Topics, caller: Caller) {
        let member_id = request.member_id;
        if self.group.state() == State::Empty {
            self.leave_consumer_protocol();
        }
        if self.group.consumer().is_some() {
            return self.join_consumer_group(request, topics, caller);
        }
        if !self.is_within_size_limit(member_id) {
            self.remove_pending(member_id);
            self.remove_member(member_id);
            self.reject_join(caller, "", Error::GroupMaxSizeReached);
            self.try_complete_join();
        } else if !self.group.supports_protocols(request) {
            self.reject_join(caller, member_id, Error::InconsistentGroupProtocol);
        } else if !self.has_room_for(member::bytes_of(request)) {
            self.reject_join(caller, member_id, Error::PolicyViolation);
        } else if member_id.is_empty() {
            self.join_new_member(request, caller);
        } else {
            self.rejoin(request, caller);
        }
    }

    /// Whether the group may have this member. Existing members stay up to the limit. During a rebalance only those
    /// that have joined count, so if the limit was lowered the last ones to join are removed.
    fn is_within_size_limit(&self, member_id: &str) -> bool {
        let max = self.settings.members_max;
        let group = &self.group;
        let member = group.member(member_id);
        let within = |taken: usize| taken + group.pending_count() < max;
        if group.is_pending(member_id) {
            return true;
        }
        match group.state() {
            State::Empty | State::Dead => within(0),
            State::PreparingRebalance if member.is_some() => {
                member.is_some_and(|member| member.joining.is_some()) || group.joining() < max
            }
            State::PreparingRebalance => within(group.joining()),
            State::CompletingRebalance | State::Stable | State::Assigning | State::Reconciling => {
                member.is_some() || within(group.members().len())
            }
        }
    }

    /// Joins a member that has no member id.
    fn join_new_member(&mut self, request: &JoinGroup<'_>, caller: Caller) {
        let id = new_member_id(request);
        let known =
            request.instance_id.and_then(|instance_id| self.group.static_member_id(instance_id)).cloned();
        if let Some(old_id) = known {
            self.replace_static(request, &old_id, &id, caller);
        } else if request.instance_id.is_none() && request.needs_member_id {
            // A client that loses the response must not leave a phantom member behind (KIP-394).
            self.add_pending(&id, u64::from(request.session_timeout_ms.max(0).cast_unsigned()));
            self.reject_join(caller, &id, Error::MemberIdRequired);
        } else {
            self.add(&id, request, caller);
        }
    }

    /// Joins a member that has a member id.
    fn rejoin(&mut self, request: &JoinGroup<'_>, caller: Caller) {
        let id = request.member_id;
        if self.group.is_pending(id) {
            if request.instance_id.is_some() {
                // Static members are never asked to rejoin with an assigned id.
                return self.reject_join(caller, id, Error::InvalidRequest);
            }
            self.remove_pending(id);
            return self.add(&id.into(), request, caller);
        }
        if let Err(error) = self.check_member(id, request.instance_id) {
            return self.reject_join(caller, id, error);
        }
        let is_unchanged = self.group.member(id).is_some_and(|member| member.matches(request));
        // A leader rejoins to force a rebalance: something that affects its assignment has changed.
        let needs_no_rebalance = match self.group.state() {
            State::CompletingRebalance => is_unchanged,
            State::Stable => is_unchanged && !self.group.is_leader(id),
            _ => false,
        };
        if needs_no_rebalance {
            self.renew_session(id);
            let answer = self.joined(id, self.group.is_leader(id));
            return self.effects.reply(caller, Response::Join(answer));
        }
        self.update(id, request, caller);
        self.rebalance();
    }

    fn add(&mut self, id: &Arc<str>, request: &JoinGroup<'_>, caller: Caller) {
        let mut member = Member::new(id.clone(), request);
        member.is_new = true;
        member.joining = Some(caller);
        self.group.add(member, request.protocol_type);
        self.group.rebalance_mut().note_new_member();
        // A client does not send heartbeats before its first JoinGroup is answered.
        self.set_session_deadline(id, NEW_MEMBER_JOIN_TIMEOUT_MS);
        self.rebalance();
    }

    fn update(&mut self, id: &str, request: &JoinGroup<'_>, caller: Caller) {
        if let Some(superseded) = self.group.replace_joining(id, None) {
            // The client no longer waits for this response, but its connection may.
            self.reject_join(superseded, id, Error::RebalanceInProgress);
        }
        self.group.update_member(id, |member| {
            member.update_from(request);
            member.joining = Some(caller);
        });
    }

    /// A static member rejoined without its member id, as it does after a restart (KIP-345). It takes over the place of
    /// its predecessor, which is fenced.
    fn replace_static(&mut self, request: &JoinGroup<'_>, old_id: &str, id: &Arc<str>, caller: Caller) {
        let leader_before = self.group.leader().cloned();
        self.fence(old_id);
        self.group.replace_member_id(old_id, id);
        self.update(id, request, caller);
        self.renew_session(id);
        match self.group.state() {
            State::Stable if self.group.keeps_protocol() => {
                self.group.replace_joining(id, None);
                self.persist_group();
                let answer = self.rejoined(id, request, leader_before.as_deref());
                self.effects.reply_when_durable(caller, Response::Join(answer));
            }
            // The leader may compute an assignment for the old member id.
            State::Stable | State::CompletingRebalance => self.prepare_rebalance(),
            _ => self.try_complete_join(),
        }
    }

    fn fence(&mut self, id: &str) {
        if let Some(caller) = self.group.replace_joining(id, None) {
            self.reject_join(caller, id, Error::FencedInstanceId);
        }
        let Some(member) = self.group.member_mut(id) else { return };
        member.is_new = false;
        let syncing = member.syncing.take();
        if let Some(timer_ms) = member.session.timer_ms.take() {
            let kind = TimerKind::Member(member.id.clone());
            self.timers.clear(timer_ms, self.group.id(), kind);
        }
        if let Some(caller) = syncing {
            self.effects.reply(caller, Response::Sync(Err(Error::FencedInstanceId)));
        }
    }

    /// Response to a static member that kept its place and assignment. If it was the leader it must not assign again:
    /// newer clients get `skip_assignment` (KIP-814), older ones the old member id as leader.
    fn rejoined(&self, id: &str, request: &JoinGroup<'_>, leader_before: Option<&str>) -> JoinResponse {
        let leads = self.group.is_leader(id);
        let mut answer = self.joined(id, leads && request.can_skip_assignment);
        if let Ok(joined) = &mut answer.outcome {
            if request.can_skip_assignment {
                joined.skip_assignment = leads;
            } else {
                leader_before.unwrap_or_default().clone_into(&mut joined.leader);
            }
        }
        answer
    }

    /// JoinGroup response of a member of the current generation. `with_members` is set for the leader that is to
    /// assign.
    pub(super) fn joined(&self, id: &str, with_members: bool) -> JoinResponse {
        let group = &self.group;
        let protocol = group.protocol().unwrap_or_default();
        let describe = |member: &Member| JoinedMember {
            member_id: member.id.as_ref().to_owned(),
            instance_id: member.instance_id.as_deref().map(str::to_owned),
            metadata: member.metadata(protocol).to_vec(),
        };
        JoinResponse {
            member_id: id.to_owned(),
            outcome: Ok(JoinResult {
                generation: group.generation(),
                protocol_type: group.protocol_type().unwrap_or_default().to_owned(),
                protocol: protocol.to_owned(),
                leader: group.leader().map_or_else(String::new, |id| id.as_ref().to_owned()),
                skip_assignment: false,
                members: if with_members { group.members().map(describe).collect() } else { Vec::new() },
            }),
        }
    }
}

/// Instance id or client id, followed by a random UUID.
pub(super) fn new_member_id(request: &JoinGroup<'_>) -> Arc<str> {
    let name = request.instance_id.unwrap_or(request.client_id);
    let prefix = &name[..name.floor_char_boundary(PREFIX_MAX_BYTES)];
    let hex = format!("{:032x}", request.random);
    format!("{prefix}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]).into()
}
