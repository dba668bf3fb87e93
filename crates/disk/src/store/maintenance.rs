//! Maintenance: rolling by age, retention, compaction.
//!
//! Each call does a bounded amount of work, so that the shard stays responsive: it processes a few logs of the current
//! round and runs at most one compaction step. A log with more work waits for the next round, so that no log starves
//! the others. A log that fails is skipped for a minute.

use std::io;

use mainstem_log::{Cleanup, Error, LogId, State};

use super::{SegmentStore, fail_log, open_log, store_error};
use crate::checkpoint;
use crate::compact::Progress;
use crate::disk::Disk;
use crate::single::Log;

/// Maximum number of logs per call.
const LOGS_MAX: usize = 64;
/// Maximum number of segments removed from one log per call.
const SEGMENTS_MAX: usize = 8;
/// Delay before retrying a log after an error, ms.
const RETRY_DELAY_MS: u64 = 60_000;

/// Progress of a round through all logs.
#[derive(Default)]
pub(super) struct Maintenance {
    next: usize,
    /// When the next round is due, according to the logs processed so far.
    due_ms: Option<u64>,
    /// When the next retention check is due.
    check_at_ms: Option<u64>,
    /// Whether this round checks retention.
    checks: bool,
}

/// The earlier of two optional times; `None` is never.
fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn time(timestamp_ms: i64, later_ms: u64) -> u64 {
    u64::try_from(timestamp_ms).unwrap_or(0).saturating_add(later_ms)
}

impl SegmentStore {
    /// Implements [`mainstem_log::LogAdmin::maintain`].
    pub(super) fn run_maintenance(&mut self, unix_ms: u64) -> Option<u64> {
        let check_ms = self.disk.settings.retention_check_ms;
        if self.maintenance.next == 0 {
            let check_at_ms =
                *self.maintenance.check_at_ms.get_or_insert(unix_ms.saturating_add(check_ms / 10));
            self.maintenance.checks = check_at_ms <= unix_ms;
            if self.maintenance.checks {
                self.maintenance.check_at_ms = Some(unix_ms.saturating_add(check_ms));
            }
        }
        let mut is_busy = false;
        for _ in 0..LOGS_MAX {
            if self.maintenance.next >= self.logs.len() {
                break;
            }
            let log = LogId(self.maintenance.next as u32);
            let due_ms = self.maintain_log(log, unix_ms);
            if due_ms.is_some_and(|due_ms| due_ms <= unix_ms) {
                // The log has more work, in the next round: the other logs come first.
                is_busy = true;
            }
            self.maintenance.due_ms = earlier(self.maintenance.due_ms, due_ms);
            self.maintenance.next += 1;
            if is_busy {
                break;
            }
        }
        self.trim_indexes();
        let group = std::mem::take(&mut self.disk.group);
        self.queue.submit(group);
        self.process_reports();
        if self.maintenance.next < self.logs.len() {
            return Some(unix_ms);
        }
        self.maintenance.next = 0;
        let due_ms = std::mem::take(&mut self.maintenance.due_ms);
        if self.maintenance.checks && due_ms.is_some_and(|due_ms| due_ms <= unix_ms.saturating_add(1)) {
            // Some logs have not finished their retention check.
            self.maintenance.check_at_ms = Some(unix_ms);
        }
        due_ms
    }

    /// Maintains one log. Returns when its next maintenance is due.
    fn maintain_log(&mut self, log: LogId, unix_ms: u64) -> Option<u64> {
        let Self { logs, disk, maintenance, .. } = self;
        let (checks, check_at_ms) = (maintenance.checks, maintenance.check_at_ms);
        let to = logs[log.0 as usize].as_deref_mut()?;
        if to.state == State::Broken {
            return None;
        }
        if unix_ms < to.maintain_after_ms {
            return Some(to.maintain_after_ms);
        }
        let cleanup = to.options.cleanup;
        let deletes = matches!(cleanup, Cleanup::Delete | Cleanup::CompactAndDelete);
        let compacts = matches!(cleanup, Cleanup::Compact | Cleanup::CompactAndDelete);
        let rolled = if checks { to.roll_aged(disk, unix_ms) } else { Ok(check_at_ms) };
        let maintained = rolled.and_then(|rolled| {
            let expired = if deletes && checks { to.apply_retention(disk, unix_ms)? } else { None };
            Ok(earlier(rolled, expired))
        });
        let maintained = maintained.and_then(|due_ms| {
            let more = compacts && self.compact_log(log, unix_ms)?;
            Ok(if more { Some(unix_ms) } else { due_ms })
        });
        maintained.unwrap_or_else(|error| {
            let to = open_log(&mut self.logs, log);
            log::warn!(
                "log {}: maintenance failed: {error}; next attempt in {} s",
                to.name,
                RETRY_DELAY_MS / 1000
            );
            to.cleaning.fail();
            to.maintain_after_ms = unix_ms.saturating_add(RETRY_DELAY_MS);
            Some(to.maintain_after_ms)
        })
    }

    /// Runs one compaction step. Returns whether there is more to do.
    fn compact_log(&mut self, log: LogId, unix_ms: u64) -> Result<bool, Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        if !to.cleaning.is_running() {
            if !to.is_dirty() {
                return Ok(false);
            }
            to.start_compaction(unix_ms);
        }
        let explain = |error: io::Error| match store_error(&error) {
            Error::System(what) => Error::System(format!("compaction: {what}")),
            error => error,
        };
        match to.compact(disk).map_err(explain)? {
            Progress::More => return Ok(true),
            Progress::Done => return Ok(to.is_dirty()),
            Progress::Checkpoint => {
                self.settle();
                let bytes = self.checkpoint();
                let syncer = self.queue.wait_idle();
                checkpoint::store(&*self.disk.fs, &self.dir, &bytes).map_err(explain)?;
                drop(syncer);
            }
            Progress::Replace => {
                self.settle();
                let Self { logs, disk, queue, .. } = self;
                let to = open_log(logs, log);
                let mut syncer = queue.wait_idle();
                let outcome = to.replace_group(disk, &mut syncer.journal);
                outcome.map_err(|failure| fail_log(to, queue, &mut syncer, failure))?;
            }
        }
        Ok(true)
    }
}

impl Log {
    /// Rolls the newest segment if it is old enough. Returns when it will be otherwise.
    fn roll_aged(&mut self, disk: &mut Disk, unix_ms: u64) -> Result<Option<u64>, Error> {
        let Some(segment_ms) = self.options.segment_ms else { return Ok(None) };
        if self.positions.head().position == 0 {
            return Ok(None);
        }
        let newest = self.segments.len() - 1;
        let index = self.index(disk, newest).map_err(|error| store_error(&error))?;
        let Some(first_ms) = index.first_timestamp_ms() else { return Ok(None) };
        let due_ms = time(first_ms, segment_ms);
        if due_ms > unix_ms {
            return Ok(Some(due_ms));
        }
        self.roll(disk)?;
        Ok(None)
    }

    /// Removes the oldest segments beyond the retention limits. Returns when the next check is due.
    fn apply_retention(&mut self, disk: &mut Disk, unix_ms: u64) -> Result<Option<u64>, Error> {
        for _ in 0..SEGMENTS_MAX {
            let oldest = self.segments[0].bytes;
            let exceeds = |bound: u64| self.segments.len() > 1 && self.segments.bytes() - oldest >= bound;
            if !self.options.retention_bytes.is_some_and(exceeds) {
                match self.oldest_expiry(disk)? {
                    Some(due_ms) if due_ms <= unix_ms => {}
                    due_ms => return Ok(due_ms),
                }
            }
            if self.segments.len() == 1 && self.positions.committed().offset < self.positions.head().offset {
                // Appends in flight must be committed before they are removed.
                return Ok(Some(unix_ms.saturating_add(1)));
            }
            if self.segments.len() == 1 {
                // The newest segment has expired too.
                self.roll(disk)?;
            }
            let before = self.segments.len();
            let start = self.segments[1].base;
            if start > self.positions.committed().offset {
                // Uncommitted offsets could be reused after a crash.
                return Ok(Some(unix_ms.saturating_add(1)));
            }
            self.truncate_prefix(disk, start).map_err(|error| store_error(&error))?;
            if self.segments.len() == before {
                // The segment can be removed once the next one is known to be on disk.
                return Ok(Some(unix_ms.saturating_add(1)));
            }
        }
        Ok(Some(unix_ms))
    }

    /// When the oldest segment expires.
    fn oldest_expiry(&mut self, disk: &mut Disk) -> Result<Option<u64>, Error> {
        let Some(retention_ms) = self.options.retention_ms else { return Ok(None) };
        let has_next = self.segments.len() > 1;
        let index = self.index(disk, 0).map_err(|error| store_error(&error))?;
        // A closed segment without a batch has lost them. It must not keep the segments after it from expiring.
        let newest_ms = index.max_timestamp_ms().or(has_next.then_some(0));
        Ok(newest_ms.map(|newest_ms| time(newest_ms, retention_ms)))
    }
}
