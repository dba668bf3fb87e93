//! JoinGroup: somebody wants to be part of the next generation.

use std::sync::Arc;

use super::answer::{Answer, JoinAnswer, Joined, JoinedMember};
use super::member::{self, Member};
use super::request::JoinGroup;
use super::settings::NEW_MEMBER_JOIN_TIMEOUT_MS;
use super::state::State;
use super::timers::Due;
use super::visit::Visit;
use crate::{Caller, Error};

/// Bytes of a client's or instance's own name that its member identifier begins with.
const PREFIX_MAX_BYTES: usize = 255;

impl Visit<'_> {
    pub(super) fn join(&mut self, request: &JoinGroup<'_>, caller: Caller) {
        let member_id = request.member_id;
        if !self.has_place_for(member_id) {
            self.forget_pending(member_id);
            self.dismiss(member_id);
            self.refuse_join(caller, "", Error::GroupMaxSizeReached);
            self.complete_join_if_all_are_there();
        } else if !self.group.understands(request) {
            self.refuse_join(caller, member_id, Error::InconsistentGroupProtocol);
        } else if !self.has_room_for(member::bytes_of(request)) {
            self.refuse_join(caller, member_id, Error::PolicyViolation);
        } else if member_id.is_empty() {
            self.join_anew(request, caller);
        } else {
            self.join_again(request, caller);
        }
    }

    /// Members that are there stay, up to what the group may have. While it rebalances, those count that have
    /// joined: the last ones to come are out if the bound is lower now than it was.
    fn has_place_for(&self, member_id: &str) -> bool {
        let max = self.settings.members_max;
        let group = &self.group;
        let member = group.member(member_id);
        let within = |taken: usize| taken + group.pending.len() < max;
        if group.pending.contains_key(member_id) {
            return true;
        }
        match group.state {
            State::Empty | State::Dead => within(0),
            State::PreparingRebalance if member.is_some() => {
                member.is_some_and(|member| member.joining.is_some()) || group.joining() < max
            }
            State::PreparingRebalance => within(group.joining()),
            State::CompletingRebalance | State::Stable => member.is_some() || within(group.members().len()),
        }
    }

    /// A member without identifier.
    fn join_anew(&mut self, request: &JoinGroup<'_>, caller: Caller) {
        let id = new_member_id(request);
        let known = request.instance_id.and_then(|instance_id| self.group.instance(instance_id)).cloned();
        if let Some(old_id) = known {
            self.replace_static(request, &old_id, &id, caller);
        } else if request.instance_id.is_none() && request.needs_member_id {
            // So that a client that does not get the answer leaves no member behind that nobody is (KIP-394).
            self.await_pending(&id, u64::from(request.session_timeout_ms.max(0).cast_unsigned()));
            self.refuse_join(caller, &id, Error::MemberIdRequired);
        } else {
            self.add(&id, request, caller);
        }
    }

    /// A member that has an identifier.
    fn join_again(&mut self, request: &JoinGroup<'_>, caller: Caller) {
        let id = request.member_id;
        if self.group.pending.contains_key(id) {
            if request.instance_id.is_some() {
                // Static members are never told to come back.
                return self.refuse_join(caller, id, Error::InvalidRequest);
            }
            self.forget_pending(id);
            return self.add(&id.into(), request, caller);
        }
        if let Err(error) = self.check_member(id, request.instance_id) {
            return self.refuse_join(caller, id, error);
        }
        let says_the_same = self.group.member(id).is_some_and(|member| member.matches(request));
        // A leader that joins again wants a rebalance: something that matters for its assignment has changed.
        let nothing_new = match self.group.state {
            State::CompletingRebalance => says_the_same,
            State::Stable => says_the_same && !self.group.is_leader(id),
            _ => false,
        };
        if nothing_new {
            let answer = self.joined(id, self.group.is_leader(id));
            return self.out.reply(caller, Answer::Join(answer));
        }
        self.update(id, request, caller);
        self.rebalance();
    }

    fn add(&mut self, id: &Arc<str>, request: &JoinGroup<'_>, caller: Caller) {
        let mut member = Member::new(id.clone(), request);
        member.is_new = true;
        member.joining = Some(caller);
        self.group.add(member, request.protocol_type);
        self.group.rebalance.opening.grown = true;
        // It cannot send heartbeats yet, and nobody sees whether its client is still there.
        self.expect_from(id, NEW_MEMBER_JOIN_TIMEOUT_MS);
        self.rebalance();
    }

    fn update(&mut self, id: &str, request: &JoinGroup<'_>, caller: Caller) {
        if let Some(older) = self.group.replace_joining(id, None) {
            // The client has asked again and waits for this answer no longer, but its connection may.
            self.refuse_join(older, id, Error::RebalanceInProgress);
        }
        self.group.change(id, |member| {
            member.take_over(request);
            member.joining = Some(caller);
        });
    }

    /// A static member has lost its identifier, which happens when its process starts again (KIP-345). It takes
    /// the place it had. Whoever else goes by the old identifier is fenced.
    fn replace_static(&mut self, request: &JoinGroup<'_>, old_id: &str, id: &Arc<str>, caller: Caller) {
        let leader_before = self.group.leader.clone();
        self.fence(old_id);
        self.group.rename(old_id, id);
        self.update(id, request, caller);
        self.note_life(id);
        match self.group.state {
            State::Stable if self.group.favourite_protocol() == self.group.protocol => {
                self.group.replace_joining(id, None);
                self.keep_group();
                let answer = self.rejoined(id, request, leader_before.as_deref());
                self.out.reply_when_kept(caller, Answer::Join(answer));
            }
            // The leader may have been given the old identifier to assign to.
            State::Stable | State::CompletingRebalance => self.prepare_rebalance(),
            _ => self.complete_join_if_all_are_there(),
        }
    }

    fn fence(&mut self, id: &str) {
        if let Some(caller) = self.group.replace_joining(id, None) {
            self.refuse_join(caller, id, Error::FencedInstanceId);
        }
        let Some(member) = self.group.member_mut(id) else { return };
        member.is_new = false;
        let syncing = member.syncing.take();
        if let Some(timer_ms) = member.session.timer_ms.take() {
            let due = Due::Member(member.id.clone());
            self.timers.clear(timer_ms, &self.group.id, due);
        }
        if let Some(caller) = syncing {
            self.out.reply(caller, Answer::Sync(Err(Error::FencedInstanceId)));
        }
    }

    /// What a static member is told that has its place and its assignment still. If it was the leader it must not
    /// assign anew: newer clients are told so (KIP-814), older ones that somebody else is the leader.
    fn rejoined(&self, id: &str, request: &JoinGroup<'_>, leader_before: Option<&str>) -> JoinAnswer {
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

    /// That a member is part of the generation. `with_members` is for whoever is to assign.
    pub(super) fn joined(&self, id: &str, with_members: bool) -> JoinAnswer {
        let group = &self.group;
        let protocol = group.protocol.as_deref().unwrap_or_default();
        let describe = |member: &Member| JoinedMember {
            member_id: member.id.as_ref().to_owned(),
            instance_id: member.instance_id.as_deref().map(str::to_owned),
            metadata: member.metadata(protocol).to_vec(),
        };
        JoinAnswer {
            member_id: id.to_owned(),
            outcome: Ok(Joined {
                generation: group.generation,
                protocol_type: group.protocol_type.clone().unwrap_or_default(),
                protocol: protocol.to_owned(),
                leader: group.leader.as_deref().unwrap_or_default().to_owned(),
                skip_assignment: false,
                members: if with_members { group.members().map(describe).collect() } else { Vec::new() },
            }),
        }
    }
}

/// The name of the instance or of the client, and what nobody else has.
fn new_member_id(request: &JoinGroup<'_>) -> Arc<str> {
    let name = request.instance_id.unwrap_or(request.client_id);
    let prefix = &name[..name.floor_char_boundary(PREFIX_MAX_BYTES)];
    let hex = format!("{:032x}", request.random);
    format!("{prefix}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]).into()
}
