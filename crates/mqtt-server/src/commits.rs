//! The commits of one shard, over all its journals: their numbers, and who waits for each.
//!
//! Each turn that appends something ends with one commit. It is over when the store of every journal has reported its
//! part, and commits are over in order.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::groups::Group;
use crate::message::SessionKey;
use crate::pending_acks::AckToken;

/// The commits of one shard that are in progress.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// Number of the last commit that has begun.
    begun: u64,
    /// The last commit that is over.
    durable: u64,
    in_flight: VecDeque<InFlightCommit>,
    /// Receipts to send, by the commit that they wait for.
    waiters: VecDeque<(u64, DurabilityWaiter)>,
    /// Sessions to wake, by commit.
    waiting: VecDeque<(u64, SessionKey)>,
}

/// A receipt to send when a commit is over.
#[derive(Clone, Debug)]
pub(crate) struct DurabilityWaiter {
    pub(crate) token: AckToken,
    /// See [`crate::pending_acks::RemoteCommitResult::group`].
    pub(crate) group: Option<Arc<Group>>,
}

#[derive(Debug)]
struct InFlightCommit {
    /// When its turn began, ms.
    began_ms: u64,
    parts: u32,
    has_failed: bool,
}

/// A commit that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedCommit {
    pub(crate) commit: u64,
    pub(crate) has_failed: bool,
}

impl Commits {
    /// Number of commits in progress, and of waiters.
    pub(crate) fn unfinished(&self) -> usize {
        self.in_flight.len() + self.waiters.len() + self.waiting.len()
    }

    /// Number of this turn's commit.
    pub(crate) fn current(&self) -> u64 {
        self.begun + 1
    }

    /// Number of the last commit that is over.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// The commit after which everything appended so far is durable; 0 if it is. `includes_turn` is whether that
    /// includes what this turn appends.
    pub(crate) fn latest(&self, includes_turn: bool) -> u64 {
        if includes_turn {
            self.current()
        } else if self.durable == self.begun {
            0
        } else {
            self.begun
        }
    }

    /// The turn's commit has begun in `parts` logs. `has_failed` if it failed in some at once.
    pub(crate) fn begin(&mut self, parts: u32, has_failed: bool, began_ms: u64) {
        self.begun += 1;
        self.in_flight.push_back(InFlightCommit { began_ms, parts, has_failed });
    }

    /// Whether the commit of everything appended at this time or before is over.
    pub(crate) fn are_over(&self, appended_ms: i64) -> bool {
        self.in_flight.front().is_none_or(|oldest| oldest.began_ms.cast_signed() > appended_ms)
    }

    /// One part of a commit is over.
    pub(crate) fn on_part_done(&mut self, commit: u64, is_durable: bool) {
        let first = self.durable + 1;
        if let Some(known) = commit.checked_sub(first).and_then(|at| self.in_flight.get_mut(at as usize)) {
            known.parts = known.parts.saturating_sub(1);
            known.has_failed |= !is_durable;
        }
    }

    /// Takes the next commit that is over, in order.
    pub(crate) fn next_completed(&mut self) -> Option<CompletedCommit> {
        let over = self.in_flight.pop_front_if(|commit| commit.parts == 0)?;
        self.durable += 1;
        Some(CompletedCommit { commit: self.durable, has_failed: over.has_failed })
    }

    /// Sends a receipt when `commit` is over.
    pub(crate) fn notify_when_durable(&mut self, commit: u64, waiter: DurabilityWaiter) {
        self.waiters.push_back((commit, waiter));
    }

    /// Takes the next receipt that waits for `commit` or an earlier one.
    pub(crate) fn next_waiter(&mut self, commit: u64) -> Option<DurabilityWaiter> {
        self.waiters.pop_front_if(|(due, _)| *due <= commit).map(|(_, waiter)| waiter)
    }

    /// Wakes a session when `commit` is over.
    pub(crate) fn wake_with(&mut self, commit: u64, session: SessionKey) {
        if self.waiting.back() != Some(&(commit, session)) {
            self.waiting.push_back((commit, session));
        }
    }

    /// Takes the next session that waits for `commit` or an earlier one.
    pub(crate) fn next_waiting(&mut self, commit: u64) -> Option<SessionKey> {
        self.waiting.pop_front_if(|(due, _)| *due <= commit).map(|(_, session)| session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_complete_in_order_when_all_parts_are_over() {
        let mut commits = Commits::default();
        assert_eq!(commits.latest(false), 0);
        assert_eq!(commits.latest(true), 1);
        commits.begin(1, false, 10);
        commits.begin(2, false, 20);
        assert!(commits.are_over(9) && !commits.are_over(10));
        assert_eq!(commits.latest(false), 2);
        commits.on_part_done(2, true);
        commits.on_part_done(2, false);
        assert_eq!(commits.next_completed(), None);
        commits.on_part_done(1, true);
        assert_eq!(commits.next_completed(), Some(CompletedCommit { commit: 1, has_failed: false }));
        assert_eq!(commits.next_completed(), Some(CompletedCommit { commit: 2, has_failed: true }));
        assert_eq!((commits.durable(), commits.latest(false)), (2, 0));
        assert!(commits.are_over(20));
    }
}
