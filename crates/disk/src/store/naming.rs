//! Segments that cannot get their names for lack of space, and when the committer tries again.
//!
//! The committer has no clock, so maintenance asks for each attempt. What waits for the log ends anyway does so too.

use mainstem_log::{Error, LogId};

use super::SegmentStore;
use super::schedule::Due;

/// Delay before the next attempt, ms.
pub(super) const NAME_RETRY_MS: u64 = 1_000;

impl SegmentStore {
    /// The newest segments of these logs cannot get their names now.
    pub(super) fn on_refused(&mut self, refused: Vec<(LogId, Error)>) {
        for (log, error) in refused {
            let Some(to) = &mut self.logs[log.0 as usize] else { continue };
            if to.refusal().is_none() {
                log::warn!(
                    "log {}: its next segment cannot be created: {error}; it accepts no appends until that succeeds",
                    to.dir.name()
                );
                // Another attempt that fails must not cause the next one.
                self.schedule.set(log, Due::Now);
            }
            to.refuse(error);
        }
    }

    /// Lets the committer try again now, if the newest segment of this log could not get its name.
    pub(super) fn retry_names(&mut self, log: LogId) {
        if let Some(to) = &self.logs[log.0 as usize]
            && to.refusal().is_some()
        {
            self.disk.group.retry(log);
        }
    }

    /// Like [`SegmentStore::retry_names`], for all logs.
    pub(super) fn retry_all_names(&mut self) {
        for log in 0..self.logs.len() {
            self.retry_names(LogId(log as u32));
        }
    }
}
