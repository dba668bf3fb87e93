//! Rebalance: from the first JoinGroup of a generation until the leader has assigned, and what happens on timeouts.
//!
//! A join phase ends when all known members have joined or the rebalance timeout has passed; those that have not joined
//! are removed. Static members are the exception: only their session timeout removes them (KIP-345). A group that was
//! empty delays the end of its first join phase, to collect more members.

use super::context::GroupContext;
use super::rebalance_state::AfterDelay;
use super::response::Response;
use super::settings::PENDING_WAIT_MS;
use super::state::State;
use super::timers::TimerKind;
use crate::Error;

impl GroupContext<'_> {
    /// Starts a rebalance, or completes the current one if all members have joined.
    pub(super) fn rebalance(&mut self) {
        if self.group.state().can_transition_to(State::PreparingRebalance) {
            self.prepare_rebalance();
        } else {
            self.try_complete_join();
        }
    }

    /// Enters the join phase: heartbeats get `REBALANCE_IN_PROGRESS` until the member has rejoined.
    pub(super) fn prepare_rebalance(&mut self) {
        if self.group.state() == State::CompletingRebalance {
            self.cancel_assignments(Error::RebalanceInProgress);
        }
        self.group.take_pending_sync();
        self.clear_sync_timer();
        let from = self.group.state();
        self.group.transition_to(State::PreparingRebalance, self.now_ms);
        if from == State::Empty {
            self.start_initial_delay();
        } else if self.group.all_have_joined() {
            self.complete_join();
        } else {
            self.set_join_timer(self.rebalance_timeout_ms());
        }
    }

    fn rebalance_timeout_ms(&self) -> u64 {
        self.group.rebalance_timeout_ms().max(1)
    }

    /// The first members of a group tend to arrive together: a short delay saves a rebalance for each of them.
    fn start_initial_delay(&mut self) {
        let delay_ms = u64::from(self.settings.initial_rebalance_delay_ms);
        let remaining_ms = self.group.rebalance_timeout_ms().saturating_sub(delay_ms);
        self.group.rebalance_mut().start_delay(remaining_ms);
        if delay_ms == 0 {
            self.on_initial_delay_elapsed();
        } else {
            self.set_join_timer(delay_ms);
        }
    }

    fn on_initial_delay_elapsed(&mut self) {
        let delay_ms = u64::from(self.settings.initial_rebalance_delay_ms);
        let has_pending = self.group.pending_count() > 0;
        match self.group.rebalance_mut().end_delay(delay_ms, has_pending) {
            AfterDelay::WaitMore(again_ms) => self.set_join_timer(again_ms),
            AfterDelay::WaitForPending => self.set_join_timer(PENDING_WAIT_MS),
            AfterDelay::Complete => self.complete_join(),
        }
    }

    pub(super) fn try_complete_join(&mut self) {
        let group = &self.group;
        let is_joining = group.state() == State::PreparingRebalance && !group.is_in_initial_delay();
        if is_joining && group.all_have_joined() {
            self.complete_join();
        }
    }

    /// The members that have joined form the next generation. Static members stay even if they have not joined; only
    /// their session timeout removes them (KIP-345).
    fn complete_join(&mut self) {
        self.clear_join_timer();
        let missing =
            |member: &&super::member::Member| member.joining.is_none() && member.instance_id.is_none();
        let absent: Vec<_> = self.group.members().filter(missing).map(|member| member.id.clone()).collect();
        for id in absent {
            self.remove_member(&id);
        }
        let has_members = self.group.members().len() > 0;
        if has_members && !self.group.elect_joined_leader() {
            // No member has joined, and only static members are left: they stay until their sessions expire.
            return self.set_join_timer(self.rebalance_timeout_ms());
        }
        self.group.begin_generation();
        if has_members {
            self.answer_joined();
        } else {
            self.become_empty();
        }
    }

    fn become_empty(&mut self) {
        self.group.become_empty(self.now_ms);
        // A group that was never persisted and has no offsets need not be.
        if self.group.needs_record() {
            self.persist_group();
        }
    }

    fn answer_joined(&mut self) {
        self.group.complete_join(self.now_ms);
        for id in self.group.member_ids() {
            if let Some(caller) = self.group.replace_joining(&id, None) {
                let answer = self.joined(&id, self.group.is_leader(&id));
                self.effects.reply(caller, Response::Join(answer));
            }
            if let Some(member) = self.group.member_mut(&id) {
                member.is_new = false;
            }
            self.renew_session(&id);
            self.group.await_sync(id);
        }
        self.set_sync_timer(self.rebalance_timeout_ms());
    }

    /// Drops all assignments of this generation and answers pending SyncGroup requests with `error`.
    pub(super) fn cancel_assignments(&mut self, error: Error) {
        for id in self.group.member_ids() {
            self.group.update_member(&id, |member| member.assignment.clear());
            let syncing = self.group.member_mut(&id).and_then(|member| member.syncing.take());
            if let Some(caller) = syncing {
                self.effects.reply(caller, Response::Sync(Err(error)));
                self.renew_session(&id);
            }
        }
    }

    /// Handles an expired timer.
    pub(super) fn on_timer(&mut self, kind: &TimerKind) {
        match kind {
            TimerKind::Join => {
                self.group.rebalance_mut().take_join_deadline();
                if self.group.was_empty() {
                    self.on_initial_delay_elapsed();
                } else {
                    self.complete_join();
                }
            }
            TimerKind::Sync => {
                self.group.rebalance_mut().take_sync_deadline();
                self.on_sync_timeout();
            }
            TimerKind::Member(id) => self.on_session_timeout(id),
            TimerKind::Revocation(id) => {
                if let Some(member) = self.group.consumer_member_mut(id) {
                    member.revocation_deadline_ms = None;
                }
                self.expire_consumer_member(id);
            }
        }
    }

    /// Removes members that have not sent SyncGroup in time: they would own partitions without processing them.
    fn on_sync_timeout(&mut self) {
        let late = self.group.take_pending_sync();
        if late.is_empty() {
            return;
        }
        for id in late {
            self.remove_member(&id);
        }
        self.prepare_rebalance();
    }

    fn on_session_timeout(&mut self, id: &str) {
        if self.group.remove_pending(id).is_some() {
            return self.try_complete_join();
        }
        let Some((_, session)) = self.group.session_mut(id) else { return };
        session.timer_ms = None;
        let deadline_ms = session.deadline_ms;
        if deadline_ms > self.now_ms {
            return self.set_session_deadline(id, deadline_ms - self.now_ms);
        }
        if self.group.consumer().is_some() {
            return self.expire_consumer_member(id);
        }
        if self.group.member(id).is_some_and(|member| !member.is_awaiting_response()) {
            self.remove_member(id);
            self.rebalance();
        }
    }
}
