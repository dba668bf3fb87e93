//! Timers of all groups, ordered by deadline.

use std::collections::BTreeSet;
use std::sync::Arc;

/// What to do in a group when a timer fires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKind {
    /// The join phase times out.
    Join,
    /// The sync phase times out.
    Sync,
    /// The session of a member, or the wait for a pending member id, times out.
    Member(Arc<str>),
    /// A member of the consumer protocol must have given up partitions.
    Revocation(Arc<str>),
}

/// All timers. A timer must be cleared when what it was set for goes away.
#[derive(Debug, Default)]
pub(super) struct Timers {
    entries: BTreeSet<(u64, Arc<str>, TimerKind)>,
}

impl Timers {
    pub(super) fn set(&mut self, at_ms: u64, group_id: &Arc<str>, kind: TimerKind) {
        self.entries.insert((at_ms, group_id.clone(), kind));
    }

    pub(super) fn clear(&mut self, at_ms: u64, group_id: &Arc<str>, kind: TimerKind) {
        let existed = self.entries.remove(&(at_ms, group_id.clone(), kind));
        debug_assert!(existed, "a timer was lost");
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.entries.first().map(|(at_ms, _, _)| *at_ms)
    }

    /// Removes and returns the first expired timer.
    pub(super) fn take(&mut self, now_ms: u64) -> Option<(Arc<str>, TimerKind)> {
        if self.next_ms()? > now_ms {
            return None;
        }
        self.entries.pop_first().map(|(_, group_id, kind)| (group_id, kind))
    }
}
