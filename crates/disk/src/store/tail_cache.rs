//! The memory of the logs' tails, accounted per store ([`Tail::account`]), and which of them goes first.

use std::collections::BTreeMap;

use mainstem_log::LogId;

use crate::tail::Tail;

/// Number of commits per cache age. Logs written within one age are equally recent.
const COMMITS_PER_AGE: u32 = 64;

/// Tails by age; a higher age is more recent.
#[derive(Default)]
pub(super) struct TailCache {
    /// Tail bytes by age and log.
    by_age: BTreeMap<(u64, LogId), usize>,
    bytes: usize,
    age: u64,
    /// Commits in the current age.
    commits: u32,
}

impl TailCache {
    /// Counts a commit. Ages span several commits because a new age costs an update for each log written.
    pub(super) fn count_commit(&mut self) {
        self.commits += 1;
        if self.commits >= COMMITS_PER_AGE {
            (self.age, self.commits) = (self.age + 1, 0);
        }
    }

    /// Accounts for a write to a log.
    pub(super) fn note(&mut self, log: LogId, tail: &mut Tail) {
        let now = (self.age, tail.capacity());
        if tail.accounted() != Some(now) {
            self.forget(log, tail);
            self.by_age.insert((now.0, log), now.1);
            self.bytes += now.1;
            tail.account(Some(now));
        }
    }

    pub(super) fn forget(&mut self, log: LogId, tail: &mut Tail) {
        if let Some((age, bytes)) = tail.account(None) {
            self.by_age.remove(&(age, log));
            self.bytes -= bytes;
        }
    }

    /// Takes the least recently written log off the account if all together exceed `bound` bytes.
    pub(super) fn evict(&mut self, bound: usize) -> Option<LogId> {
        if self.bytes <= bound {
            return None;
        }
        // Start a new age, so that later writes outlive the current tails.
        self.commits = COMMITS_PER_AGE;
        let ((_, log), bytes) = self.by_age.pop_first()?;
        self.bytes -= bytes;
        Some(log)
    }
}
