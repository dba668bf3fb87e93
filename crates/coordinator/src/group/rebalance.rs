//! From one generation to the next: the steps between JoinGroup and SyncGroup, and what happens when time is up.

use super::answer::Answer;
use super::roster::Opening;
use super::settings::PENDING_WAIT_MS;
use super::state::State;
use super::timers::Due;
use super::visit::Visit;
use crate::Error;

impl Visit<'_> {
    /// Begins a rebalance, or sees whether the one that is on can go on.
    pub(super) fn rebalance(&mut self) {
        if self.group.state.leads_to(State::PreparingRebalance) {
            self.prepare_rebalance();
        } else {
            self.complete_join_if_all_are_there();
        }
    }

    /// From here on members hear `REBALANCE_IN_PROGRESS` until they have joined again.
    pub(super) fn prepare_rebalance(&mut self) {
        if self.group.state == State::CompletingRebalance {
            self.give_up_assigning(Error::RebalanceInProgress);
        }
        self.group.unsynced.clear();
        self.clear_sync_timer();
        let from = self.group.state;
        self.group.enter(State::PreparingRebalance, self.now_ms);
        if from == State::Empty {
            self.open();
        } else if self.group.all_have_joined() {
            self.complete_join();
        } else {
            self.set_join_timer(self.rebalance_timeout_ms());
        }
    }

    fn rebalance_timeout_ms(&self) -> u64 {
        self.group.rebalance_timeout_ms().max(1)
    }

    /// The first members of a group seldom come alone: waiting a little saves them a rebalance for each.
    fn open(&mut self) {
        let delay_ms = u64::from(self.settings.initial_rebalance_delay_ms);
        let remaining_ms = self.group.rebalance_timeout_ms().saturating_sub(delay_ms);
        self.group.rebalance.opening = Opening { grown: false, remaining_ms, last_call: false };
        if delay_ms == 0 {
            self.opening_is_over();
        } else {
            self.set_join_timer(delay_ms);
        }
    }

    fn opening_is_over(&mut self) {
        let delay_ms = u64::from(self.settings.initial_rebalance_delay_ms);
        let opening = &mut self.group.rebalance.opening;
        if opening.last_call {
            self.complete_join();
        } else if opening.grown && opening.remaining_ms > 0 && delay_ms > 0 {
            let again_ms = delay_ms.min(opening.remaining_ms);
            opening.grown = false;
            opening.remaining_ms -= again_ms;
            self.set_join_timer(again_ms);
        } else if self.group.pending.is_empty() {
            self.complete_join();
        } else {
            opening.last_call = true;
            self.set_join_timer(PENDING_WAIT_MS);
        }
    }

    pub(super) fn complete_join_if_all_are_there(&mut self) {
        let group = &self.group;
        let still_opening = group.before == State::Empty && !group.rebalance.opening.last_call;
        if group.state == State::PreparingRebalance && !still_opening && group.all_have_joined() {
            self.complete_join();
        }
    }

    /// Those that have joined are the next generation. Static members belong to it even if they have not: their
    /// session decides (KIP-345).
    fn complete_join(&mut self) {
        self.clear_join_timer();
        let missing =
            |member: &&super::member::Member| member.joining.is_none() && member.instance_id.is_none();
        let out: Vec<_> = self.group.members().filter(missing).map(|member| member.id.clone()).collect();
        for id in out {
            self.dismiss(&id);
        }
        let has_members = self.group.members().len() > 0;
        if has_members && !self.group.elect_joined_leader() {
            // Only static members are left, and none has joined: they have until their sessions end.
            return self.set_join_timer(self.rebalance_timeout_ms());
        }
        self.group.generation = self.group.generation.checked_add(1).unwrap_or(1);
        if has_members {
            self.answer_joined();
        } else {
            self.become_empty();
        }
    }

    fn become_empty(&mut self) {
        self.group.protocol = None;
        self.group.leader = None;
        self.group.note_subscriptions();
        self.group.enter(State::Empty, self.now_ms);
        // A group that was never heard of on disk, and has no offsets, may be forgotten.
        if self.group.kept || !self.group.offsets.is_empty() {
            self.keep_group();
        }
    }

    fn answer_joined(&mut self) {
        self.group.protocol = self.group.favourite_protocol();
        self.group.note_subscriptions();
        self.group.enter(State::CompletingRebalance, self.now_ms);
        for id in self.group.member_ids() {
            if let Some(caller) = self.group.replace_joining(&id, None) {
                let answer = self.joined(&id, self.group.is_leader(&id));
                self.out.reply(caller, Answer::Join(answer));
            }
            if let Some(member) = self.group.member_mut(&id) {
                member.is_new = false;
            }
            self.note_life(&id);
            self.group.unsynced.insert(id);
        }
        self.set_sync_timer(self.rebalance_timeout_ms());
    }

    /// Nobody gets anything in this generation.
    pub(super) fn give_up_assigning(&mut self, error: Error) {
        for id in self.group.member_ids() {
            self.group.change(&id, |member| member.assignment.clear());
            let syncing = self.group.member_mut(&id).and_then(|member| member.syncing.take());
            if let Some(caller) = syncing {
                self.out.reply(caller, Answer::Sync(Err(error)));
                self.note_life(&id);
            }
        }
    }

    /// Something that was waited for has not come.
    pub(super) fn on_due(&mut self, due: &Due) {
        match due {
            Due::Join => {
                self.group.rebalance.join_deadline_ms = None;
                if self.group.before == State::Empty {
                    self.opening_is_over();
                } else {
                    self.complete_join();
                }
            }
            Due::Sync => {
                self.group.rebalance.sync_deadline_ms = None;
                self.on_sync_overdue();
            }
            Due::Member(id) => self.on_silence(id),
        }
    }

    /// A member that does not sync would keep its part of the work to itself, and do none of it.
    fn on_sync_overdue(&mut self) {
        let out = std::mem::take(&mut self.group.unsynced);
        if out.is_empty() {
            return;
        }
        for id in out {
            self.dismiss(&id);
        }
        self.prepare_rebalance();
    }

    fn on_silence(&mut self, id: &str) {
        if self.group.pending.remove(id).is_some() {
            return self.complete_join_if_all_are_there();
        }
        let Some(member) = self.group.member_mut(id) else { return };
        member.session.timer_ms = None;
        let deadline_ms = member.session.deadline_ms;
        if deadline_ms > self.now_ms {
            self.expect_from(id, deadline_ms - self.now_ms);
        } else if !member.may_be_silent() {
            self.dismiss(id);
            self.rebalance();
        }
    }
}
