//! One visit to a group: the group, and all it may do to the outside meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answer::{Answer, Effect, JoinAnswer};
use super::changes::Changes;
use super::records;
use super::roster::Group;
use super::settings::Settings;
use super::timers::{Due, Timers};
use crate::{Caller, Error, Record};

/// What is to be done, in this order.
#[derive(Debug, Default)]
pub(super) struct Out {
    effects: VecDeque<Effect>,
    pub(super) changes: Changes,
}

impl Out {
    pub(super) fn reply(&mut self, caller: Caller, answer: Answer) {
        self.effects.push_back(Effect::Reply { caller, answer });
    }

    pub(super) fn reply_when_kept(&mut self, caller: Caller, answer: Answer) {
        self.effects.push_back(Effect::ReplyWhenKept { caller, answer });
    }

    /// The offsets that they tell of, if they do, are those whose changes were noted first.
    pub(super) fn keep(&mut self, records: Vec<Record>) {
        if !records.is_empty() {
            let keep = self.changes.hand_out(records.len());
            self.effects.push_back(Effect::Keep { keep, records });
        }
    }

    pub(super) fn take(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}

pub(super) struct Visit<'a> {
    pub(super) group: &'a mut Group,
    pub(super) timers: &'a mut Timers,
    pub(super) out: &'a mut Out,
    pub(super) settings: &'a Settings,
    /// What the members of all other groups keep here.
    pub(super) others_bytes: usize,
    pub(super) now_ms: u64,
}

impl Visit<'_> {
    /// Whether the group may take so many bytes more.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let wanted = self.group.bytes.saturating_add(bytes);
        wanted <= self.settings.group_bytes_max
            && self.others_bytes.saturating_add(wanted) <= self.settings.groups_bytes_max
    }

    /// Whether a request comes from who it says it does (KIP-345).
    pub(super) fn check_member(&self, id: &str, instance_id: Option<&str>) -> Result<(), Error> {
        if let Some(instance_id) = instance_id {
            let known = self.group.instance(instance_id).ok_or(Error::UnknownMemberId)?;
            if **known != *id {
                return Err(Error::FencedInstanceId);
            }
        }
        self.group.member(id).map(|_| ()).ok_or(Error::UnknownMemberId)
    }

    pub(super) fn refuse_join(&mut self, caller: Caller, member_id: &str, error: Error) {
        let answer = JoinAnswer { member_id: member_id.to_owned(), outcome: Err(error) };
        self.out.reply(caller, Answer::Join(answer));
    }

    /// From now on a member may be silent for so long, and no longer.
    pub(super) fn expect_from(&mut self, id: &str, within_ms: u64) {
        let Some(member) = self.group.member_mut(id) else { return };
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        let session = &mut member.session;
        session.deadline_ms = deadline_ms;
        if session.timer_ms.is_some_and(|timer_ms| timer_ms <= deadline_ms) {
            return;
        }
        let due = Due::Member(member.id.clone());
        if let Some(timer_ms) = session.timer_ms.replace(deadline_ms) {
            self.timers.clear(timer_ms, &self.group.id, due.clone());
        }
        self.timers.set(deadline_ms, &self.group.id, due);
    }

    /// A member has been heard.
    pub(super) fn note_life(&mut self, id: &str) {
        if let Some(member) = self.group.member(id) {
            self.expect_from(id, u64::from(member.session_timeout_ms));
        }
    }

    /// An identifier was given out: it is waited for, and not for ever (KIP-394).
    pub(super) fn await_pending(&mut self, id: &Arc<str>, within_ms: u64) {
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        self.group.pending.insert(id.clone(), deadline_ms);
        self.timers.set(deadline_ms, &self.group.id, Due::Member(id.clone()));
    }

    /// True if it was waited for.
    pub(super) fn forget_pending(&mut self, id: &str) -> bool {
        let Some((id, deadline_ms)) = self.group.pending.remove_entry(id) else { return false };
        self.timers.clear(deadline_ms, &self.group.id, Due::Member(id));
        true
    }

    /// A member is out. Whoever still waits for an answer hears that nobody knows it, and may join anew.
    pub(super) fn dismiss(&mut self, id: &str) {
        let Some(member) = self.group.remove(id) else { return };
        if let Some(caller) = member.joining {
            self.refuse_join(caller, "", Error::UnknownMemberId);
        }
        if let Some(caller) = member.syncing {
            self.out.reply(caller, Answer::Sync(Err(Error::UnknownMemberId)));
        }
        if let Some(timer_ms) = member.session.timer_ms {
            self.timers.clear(timer_ms, &self.group.id, Due::Member(member.id));
        }
    }

    pub(super) fn set_join_timer(&mut self, within_ms: u64) {
        self.clear_join_timer();
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        self.group.rebalance.join_deadline_ms = Some(deadline_ms);
        self.timers.set(deadline_ms, &self.group.id, Due::Join);
    }

    pub(super) fn clear_join_timer(&mut self) {
        if let Some(deadline_ms) = self.group.rebalance.join_deadline_ms.take() {
            self.timers.clear(deadline_ms, &self.group.id, Due::Join);
        }
    }

    pub(super) fn set_sync_timer(&mut self, within_ms: u64) {
        self.clear_sync_timer();
        let deadline_ms = self.now_ms.saturating_add(within_ms);
        self.group.rebalance.sync_deadline_ms = Some(deadline_ms);
        self.timers.set(deadline_ms, &self.group.id, Due::Sync);
    }

    pub(super) fn clear_sync_timer(&mut self) {
        if let Some(deadline_ms) = self.group.rebalance.sync_deadline_ms.take() {
            self.timers.clear(deadline_ms, &self.group.id, Due::Sync);
        }
    }

    /// The group is to be found as it is when the process begins again.
    pub(super) fn keep_group(&mut self) {
        self.group.kept = true;
        self.out.keep(vec![records::group(self.group)]);
    }

    /// Nothing waits for the group any longer: it is about to be removed.
    pub(super) fn clear_all_timers(&mut self) {
        self.clear_join_timer();
        self.clear_sync_timer();
        while let Some((id, deadline_ms)) = self.group.pending.pop_first() {
            self.timers.clear(deadline_ms, &self.group.id, Due::Member(id));
        }
        for id in self.group.member_ids() {
            self.dismiss(&id);
        }
    }
}
