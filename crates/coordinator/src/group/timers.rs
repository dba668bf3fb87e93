//! When something is due, over all groups.

use std::collections::BTreeSet;
use std::sync::Arc;

/// What is due in a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Its members have had their time to join.
    Join,
    /// Its members have had their time to sync.
    Sync,
    /// A member, or somebody who was told to come back, has been silent for long.
    Member(Arc<str>),
}

/// All timers there are, each of a group. None is left behind when what it was for is gone.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(u64, Arc<str>, Due)>,
}

impl Timers {
    pub(super) fn set(&mut self, at_ms: u64, group_id: &Arc<str>, due: Due) {
        self.due.insert((at_ms, group_id.clone(), due));
    }

    pub(super) fn clear(&mut self, at_ms: u64, group_id: &Arc<str>, due: Due) {
        let was_there = self.due.remove(&(at_ms, group_id.clone(), due));
        debug_assert!(was_there, "a timer was lost");
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _, _)| *at_ms)
    }

    /// Takes out the first that is due.
    pub(super) fn take(&mut self, now_ms: u64) -> Option<(Arc<str>, Due)> {
        if self.next_ms()? > now_ms {
            return None;
        }
        self.due.pop_first().map(|(_, group_id, due)| (group_id, due))
    }
}
