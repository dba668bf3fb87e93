//! Commits of what sessions have appended: who waits for them, here and on other shards.
//!
//! All appends of a turn become durable together, so whoever must wait does so for a numbered commit and not for an
//! append. Commits complete in order; those who wait for one are taken when it or a later one is complete. What was
//! lost is taken back first, before anybody is answered.

use mainstem_runtime::{Clock, Io};

use super::SessionHost;
use crate::broker_state::Mail;
use crate::commits::{CompletedCommit, DurabilityWaiter};
use crate::message::SessionKey;
use crate::pending_acks::AckCondition;
use crate::timers::Timer;

impl SessionHost {
    /// Applies what the stores have completed. False if this shard has no journals.
    pub(crate) fn poll_stores(&mut self, clock: Clock) -> bool {
        if !self.persistence.is_enabled() {
            return false;
        }
        self.persistence.poll(clock);
        // Before anybody is answered: a publish that comes again must not be taken for complete.
        self.take_back_lost();
        self.persistence.settle_completions();
        true
    }

    /// The next commit that is over, and counts for ended sessions.
    pub(crate) fn next_completed(&mut self) -> Option<CompletedCommit> {
        let completed = self.persistence.next_completed()?;
        self.endings.on_commit(completed);
        Some(completed)
    }

    /// The next shard or publisher that waits for a commit.
    pub(crate) fn next_waiter(&mut self, commit: u64) -> Option<DurabilityWaiter> {
        self.persistence.commits_mut().next_waiter(commit)
    }

    /// The next session that waits for a commit.
    pub(crate) fn next_waiting(&mut self, commit: u64) -> Option<SessionKey> {
        self.persistence.commits_mut().next_waiting(commit)
    }

    /// Has a waiter notified when `condition` is met. Returns it if that is so now.
    pub(crate) fn notify_when_durable(
        &mut self,
        condition: AckCondition,
        waiter: DurabilityWaiter,
    ) -> Option<DurabilityWaiter> {
        if condition.is_met(self.persistence.durable_commit()) {
            return Some(waiter);
        }
        self.persistence.commits_mut().notify_when_durable(condition.commit, waiter);
        None
    }

    /// Closes sessions whose end is on disk, and records ends that may be recorded now. Returns whether there are some.
    pub(crate) fn end_completions(&mut self) -> bool {
        self.endings.close_durable(self.persistence.durable_commit());
        self.note_failures();
        let has_ends = !self.endings.is_empty() && self.append_session_ends();
        self.deliveries.set_queued_elsewhere(self.shared.queued_elsewhere(self.me));
        has_ends
    }

    /// Hands everything appended in this turn to the disk. True if some of it is complete already, or was lost.
    pub(crate) fn commit_turn(&mut self, io: &mut Io<'_, Mail>) -> bool {
        if !self.persistence.is_enabled() {
            return false;
        }
        self.continue_snapshots(io);
        self.persistence.commit_turn(io.clock.now_ms, self.deliveries.counters_mut())
    }

    /// Arms the timer of marks that wait for company.
    pub(crate) fn arm_marks(&mut self, io: &mut Io<'_, Mail>) {
        if let Some(due_ms) = self.persistence.next_marks_timer() {
            io.set_timer(due_ms, Timer::Marks.token());
        }
    }

    /// The process is to end: fan-outs are finished while their receivers are connected, and marks do not wait for
    /// company.
    pub(crate) fn begin_drain(&mut self, io: &mut Io<'_, Mail>) {
        self.finish_fan_outs(io);
        self.persistence.hurry_marks();
    }

    /// Appends the retained message of a topic, which has changed. Returns when that is durable.
    pub(crate) fn append_retained(&mut self, clock: Clock, topic: &str) -> AckCondition {
        let before = self.persistence.position();
        self.persistence.push_retained(clock, topic, &self.shared.retained);
        self.persistence.condition_since(before)
    }

    /// The condition under which everything appended so far on this shard is durable.
    pub(crate) fn fence_here(&mut self) -> AckCondition {
        self.persistence.fence()
    }

    /// A number for what other shards send receipts for.
    pub(crate) fn next_receipt_number(&mut self) -> u64 {
        self.persistence.next_ack()
    }

    /// Wakes a session with the commit of this turn, which is made in any case. Returns its number.
    pub(crate) fn commit_session(&mut self, slot: u32) -> u64 {
        self.persistence.wake_with_current(self.sessions.key(slot));
        self.persistence.request_commit();
        self.persistence.current_commit()
    }
}
