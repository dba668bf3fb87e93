//! One operation on a group: the group, the timers, the effects, and the helpers that need all of them.
//!
//! Membership and timers change together here: whoever adds or removes a member, or a pending member id, also sets or
//! clears its timer. So no timer outlives what it was set for.

use std::collections::VecDeque;
use std::sync::Arc;

use super::changes::{Changes, WriteId};
use super::configuration::GroupConfig;
use super::consumer_group::Group;
use super::records;
use super::response::{Effect, JoinResponse, Response};
use super::settings::Settings;
use super::timers::{TimerKind, Timers};
use super::tombstones::Tombstones;
use crate::{Caller, Error, Record};

/// Effects to perform, in order.
#[derive(Debug, Default)]
pub(super) struct Effects {
    queue: VecDeque<Effect>,
    /// Members and partitions of the assignments that were computed and are not charged to anyone yet.
    pub(super) assigned: usize,
    pub(super) changes: Changes,
    pub(super) tombstones: Tombstones,
}

impl Effects {
    pub(super) fn reply(&mut self, caller: Caller, answer: Response) {
        self.queue.push_back(Effect::Reply { caller, answer });
    }

    pub(super) fn reply_when_durable(&mut self, caller: Caller, answer: Response) {
        self.queue.push_back(Effect::ReplyWhenDurable { caller, answer });
    }

    /// If the records describe offsets, they must be in the order in which the changes were recorded.
    /// Returns the write, if there is anything to write.
    pub(super) fn persist(&mut self, records: Vec<Record>) -> Option<WriteId> {
        if records.is_empty() {
            return None;
        }
        let keep = self.changes.assign_write(records.len());
        self.tombstones.note_write(keep, &records);
        self.queue.push_back(Effect::Persist { keep, records });
        Some(keep)
    }

    pub(super) fn take(&mut self) -> Option<Effect> {
        self.queue.pop_front()
    }
}

pub(super) struct GroupContext<'a> {
    pub(super) group: &'a mut Group,
    pub(super) timers: &'a mut Timers,
    pub(super) effects: &'a mut Effects,
    pub(super) settings: &'a Settings,
    /// The configuration of the group.
    pub(super) config: GroupConfig,
    /// Memory charged to the members of all other groups.
    pub(super) other_groups_bytes: usize,
    pub(super) now_ms: u64,
}

impl GroupContext<'_> {
    /// Whether the group may take `bytes` more.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let total = self.group.bytes().saturating_add(bytes);
        total <= self.settings.group_bytes_max
            && self.other_groups_bytes.saturating_add(total) <= self.settings.groups_bytes_max
    }

    /// Checks member id and instance id of a request; a replaced static member is fenced (KIP-345).
    pub(super) fn check_member(&self, id: &str, instance_id: Option<&str>) -> Result<(), Error> {
        if let Some(instance_id) = instance_id {
            let known = self.group.static_member_id(instance_id).ok_or(Error::UnknownMemberId)?;
            if **known != *id {
                return Err(Error::FencedInstanceId);
            }
        }
        self.group.member(id).map(|_| ()).ok_or(Error::UnknownMemberId)
    }

    pub(super) fn reject_join(&mut self, caller: Caller, member_id: &str, error: Error) {
        let answer = JoinResponse { member_id: member_id.to_owned(), outcome: Err(error) };
        self.effects.reply(caller, Response::Join(answer));
    }

    /// Expires the member's session in `within_ms`. A timer that is set for an earlier time stays: when it fires it is
    /// set again, which is cheaper than moving it with every heartbeat.
    pub(super) fn set_session_deadline(&mut self, id: &str, within_ms: u64) {
        let Some((id, session)) = self.group.session_mut(id) else { return };
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        session.deadline_ms = deadline_ms;
        if session.timer_ms.is_some_and(|timer_ms| timer_ms <= deadline_ms) {
            return;
        }
        let kind = TimerKind::Member(id.clone());
        if let Some(timer_ms) = session.timer_ms.replace(deadline_ms) {
            self.timers.clear(timer_ms, self.group.id(), kind.clone());
        }
        self.timers.set(deadline_ms, self.group.id(), kind);
    }

    /// Renews a member's session.
    pub(super) fn renew_session(&mut self, id: &str) {
        if let Some(member) = self.group.member(id) {
            self.set_session_deadline(id, u64::from(member.session_timeout_ms));
        }
    }

    /// Waits for a member to rejoin with the member id it was assigned (KIP-394).
    pub(super) fn add_pending(&mut self, id: &Arc<str>, within_ms: u64) {
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        self.group.add_pending(id.clone(), deadline_ms);
        self.timers.set(deadline_ms, self.group.id(), TimerKind::Member(id.clone()));
    }

    /// Returns whether the member id was pending.
    pub(super) fn remove_pending(&mut self, id: &str) -> bool {
        let Some((id, deadline_ms)) = self.group.remove_pending(id) else { return false };
        self.timers.clear(deadline_ms, self.group.id(), TimerKind::Member(id));
        true
    }

    /// Removes a member. Its pending requests get `UNKNOWN_MEMBER_ID`, so that it joins anew.
    pub(super) fn remove_member(&mut self, id: &str) {
        let Some(member) = self.group.remove(id) else { return };
        if let Some(caller) = member.joining {
            self.reject_join(caller, "", Error::UnknownMemberId);
        }
        if let Some(caller) = member.syncing {
            self.effects.reply(caller, Response::Sync(Err(Error::UnknownMemberId)));
        }
        if let Some(timer_ms) = member.session.timer_ms {
            self.timers.clear(timer_ms, self.group.id(), TimerKind::Member(member.id));
        }
    }

    pub(super) fn set_join_timer(&mut self, within_ms: u64) {
        self.clear_join_timer();
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        self.group.rebalance_mut().set_join_deadline(deadline_ms);
        self.timers.set(deadline_ms, self.group.id(), TimerKind::Join);
    }

    pub(super) fn clear_join_timer(&mut self) {
        if let Some(deadline_ms) = self.group.rebalance_mut().take_join_deadline() {
            self.timers.clear(deadline_ms, self.group.id(), TimerKind::Join);
        }
    }

    pub(super) fn set_sync_timer(&mut self, within_ms: u64) {
        self.clear_sync_timer();
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        self.group.rebalance_mut().set_sync_deadline(deadline_ms);
        self.timers.set(deadline_ms, self.group.id(), TimerKind::Sync);
    }

    pub(super) fn clear_sync_timer(&mut self) {
        if let Some(deadline_ms) = self.group.rebalance_mut().take_sync_deadline() {
            self.timers.clear(deadline_ms, self.group.id(), TimerKind::Sync);
        }
    }

    /// Persists the current state of the group.
    pub(super) fn persist_group(&mut self) {
        self.group.set_persisted();
        self.effects.persist(vec![records::group(self.group)]);
    }

    /// Clears all timers and removes all members, before the group is removed.
    pub(super) fn clear_all_timers(&mut self) {
        self.clear_join_timer();
        self.clear_sync_timer();
        while let Some((id, deadline_ms)) = self.group.pop_pending() {
            self.timers.clear(deadline_ms, self.group.id(), TimerKind::Member(id));
        }
        for id in self.group.member_ids() {
            self.remove_member(&id);
        }
    }
}
