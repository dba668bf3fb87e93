//! Maintenance: rolling by age, retention, compaction.
//!
//! Each log is visited when its [`Schedule`](super::schedule::Schedule) says so: at a time that its records and options
//! determine, or after a change that may move that time (its first record, a closed segment, new options). A visit does
//! one small piece of work at most, and a call ends after the first visit that did any, so that the caller can stop
//! between two of them. A log that fails is skipped for a minute.
//!
//! Timestamps come from producers, who may send old ones. So that such records do not close a segment per append, the
//! newest segment also counts from when it got its first record.

use std::io;

use mainstem_log::{Cleanup, Error, LogId, Maintained, State};

use super::naming::NAME_RETRY_MS;
use super::schedule::Due;
use super::{SegmentStore, open_log};
use crate::compact::{NextCompaction, Progress, STEP_BYTES};
use crate::disk::Disk;
use crate::failure::{Failure, store_error};
use crate::scan::{Place, Scan, Step};
use crate::segments::time;
use crate::single::Log;

/// Maximum number of logs visited per call.
const LOGS_MAX: usize = 64;
/// Delay before retrying a log after an error, ms.
const RETRY_DELAY_MS: u64 = 60_000;
/// Delay before retention looks again for a sync that it needs, ms.
const SYNC_RETRY_MS: u64 = 1_000;
/// Work of a visit that finds nothing to do, in units of about 100 ns.
const VISIT_UNITS: u32 = 10;
/// Work of creating or removing a segment, or of loading an index.
const FILE_UNITS: u32 = 2_000;
/// Work of reading and rewriting one piece of a compaction.
const STEP_UNITS: u32 = (STEP_BYTES / 128) as u32;

impl SegmentStore {
    /// Implements [`mainstem_log::LogAdmin::maintain`].
    pub(super) fn run_maintenance(&mut self, unix_ms: u64) -> Maintained {
        let mut units = 0;
        self.maintained_ms = unix_ms;
        for _ in 0..LOGS_MAX {
            let Some(log) = self.schedule.next(unix_ms) else { break };
            units += VISIT_UNITS;
            let before = units;
            let due = self.maintain_log(log, unix_ms, &mut units);
            self.schedule.set_no_later(log, due);
            if units > before {
                break;
            }
        }
        self.trim_indexes();
        let group = std::mem::take(&mut self.disk.group);
        self.queue.submit(group);
        self.process_reports();
        Maintained { due_ms: self.schedule.first(unix_ms), units }
    }

    /// Maintains one log. Returns when its next maintenance is due.
    fn maintain_log(&mut self, log: LogId, unix_ms: u64, units: &mut u32) -> Due {
        self.retry_names(log);
        let Some(to) = self.logs[log.0 as usize].as_deref_mut() else { return Due::Never };
        let next_name = to.refusal().map_or(Due::Never, |_| Due::At(unix_ms.saturating_add(NAME_RETRY_MS)));
        if to.state == State::Broken {
            return next_name;
        }
        if unix_ms < to.upkeep.retry_ms() {
            return next_name.min(Due::At(to.upkeep.retry_ms()));
        }
        let next = self.try_maintain_log(log, unix_ms, units).unwrap_or_else(|error| {
            let to = open_log(&mut self.logs, log);
            log::warn!(
                "log {}: maintenance failed: {error}; next attempt in {} s",
                to.dir.name(),
                RETRY_DELAY_MS / 1000
            );
            to.cleaning.fail();
            let retry_ms = unix_ms.saturating_add(RETRY_DELAY_MS);
            to.upkeep.retry_at(retry_ms);
            *units += FILE_UNITS;
            Due::At(retry_ms)
        });
        next.min(next_name)
    }

    fn try_maintain_log(&mut self, log: LogId, unix_ms: u64, units: &mut u32) -> Result<Due, Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        let cleanup = to.options.cleanup;
        // Retention gives space back. Everything else would take more.
        let is_refused = to.refusal().is_some();
        let truncated = to.finish_truncation(disk, unix_ms, units);
        let rolled = to.roll_aged(disk, unix_ms, units)?;
        let expired = match cleanup {
            Cleanup::Delete | Cleanup::CompactAndDelete => to.apply_retention(disk, unix_ms, units)?,
            Cleanup::Manual | Cleanup::Compact => Due::Never,
        };
        let compacted = match cleanup {
            Cleanup::Compact | Cleanup::CompactAndDelete if !is_refused => {
                self.compact_log(log, unix_ms, units)?
            }
            _ => Due::Never,
        };
        Ok(truncated.min(rolled).min(expired).min(compacted))
    }

    /// Runs one compaction step, if a compaction is running or due. Returns when the next one is due.
    fn compact_log(&mut self, log: LogId, unix_ms: u64, units: &mut u32) -> Result<Due, Error> {
        let Self { logs, disk, stored_checkpoint, .. } = self;
        let to = open_log(logs, log);
        let explain = |error: io::Error| match store_error(&error) {
            Error::System(what) => Error::System(format!("compaction: {what}")),
            error => error,
        };
        if let Some((_, requested_ms)) = to.cleaning.awaited_checkpoint(*stored_checkpoint) {
            if unix_ms.saturating_sub(requested_ms) >= RETRY_DELAY_MS {
                self.await_checkpoint(log, unix_ms);
            }
            return Ok(Due::At(unix_ms.saturating_add(1)));
        }
        if to.cleaning.has_replacing() {
            // The report makes the next visit due.
            return Ok(Due::Never);
        }
        if !to.cleaning.is_running() {
            match to.compactor().next_compaction(disk, unix_ms).map_err(explain)? {
                NextCompaction::Start { end } => to.compactor().start_compaction(unix_ms, end),
                NextCompaction::At(due_ms) => return Ok(due_ms.map_or(Due::Never, Due::At)),
                NextCompaction::Unknown => {
                    *units += FILE_UNITS;
                    return Ok(Due::Now);
                }
            }
        }
        let progress = to.compactor().compact(disk).map_err(explain)?;
        if progress == Progress::Syncing {
            return Ok(Due::At(unix_ms.saturating_add(1)));
        }
        *units += STEP_UNITS;
        if progress == Progress::Checkpoint {
            self.await_checkpoint(log, unix_ms);
        }
        Ok(Due::Now)
    }

    /// Lets the compaction of a log wait for a checkpoint.
    fn await_checkpoint(&mut self, log: LogId, unix_ms: u64) {
        let number = self.request_checkpoint();
        open_log(&mut self.logs, log).cleaning.await_checkpoint(number, unix_ms);
    }

    /// The committer has replaced segments of these logs by compacted ones, or could not.
    pub(super) fn on_replaced(&mut self, replaced: Vec<(LogId, Result<(), Failure>)>) {
        let Self { logs, disk, cached, schedule, maintained_ms, .. } = self;
        for (log, outcome) in replaced {
            let Some(to) = &mut logs[log.0 as usize] else { continue };
            to.compactor().finish_replacement(disk, outcome.is_ok());
            match outcome {
                Ok(()) => {
                    to.tail.forget_written(disk.settings.tail_bytes);
                    cached.note(log, &mut to.tail);
                }
                Err(Failure::Full(error)) => {
                    log::warn!("log {}: its compaction is put off: {error}", to.dir.name());
                    to.cleaning.fail();
                    to.upkeep.retry_at(maintained_ms.saturating_add(RETRY_DELAY_MS));
                }
                // The log is read-only.
                Err(Failure::Broken(_)) => to.cleaning.fail(),
            }
            schedule.set(log, Due::Now);
        }
    }
}

impl Log {
    /// Whether the log exceeds its size limit by a whole segment.
    pub(super) fn exceeds_retention_bytes(&self) -> bool {
        let Some(bound) = self.options.retention_bytes else { return false };
        let deletes = matches!(self.options.cleanup, Cleanup::Delete | Cleanup::CompactAndDelete);
        deletes && self.segments.len() > 1 && self.segments.bytes() - self.segments[0].bytes >= bound
    }

    /// Removes segments before the log start that could not be removed when it advanced. Returns when to look again.
    fn finish_truncation(&mut self, disk: &mut Disk, unix_ms: u64, units: &mut u32) -> Due {
        let before = self.segments.len();
        self.remove_truncated(disk);
        if self.segments.len() < before {
            *units += FILE_UNITS;
        }
        // A report makes a visit due. Nothing does after a removal that failed.
        let is_removing = self.start.removing().is_some();
        if is_removing { Due::At(unix_ms.saturating_add(SYNC_RETRY_MS)) } else { Due::Never }
    }

    /// Rolls the newest segment if it is old enough. Returns when it will be otherwise.
    fn roll_aged(&mut self, disk: &mut Disk, unix_ms: u64, units: &mut u32) -> Result<Due, Error> {
        if self.positions.head().position == 0 || self.refusal().is_some() {
            return Ok(Due::Never);
        }
        let since_ms = self.upkeep.see_newest(unix_ms);
        let compacts = matches!(self.options.cleanup, Cleanup::Compact | Cleanup::CompactAndDelete);
        let lag_ms = self.options.max_compaction_lag_ms.filter(|_| compacts);
        let Some(age_ms) = self.options.segment_ms.into_iter().chain(lag_ms).min() else {
            return Ok(Due::Never);
        };
        let Some(first_ms) = self.newest_first_ms(disk).map_err(|error| store_error(&error))? else {
            return Ok(Due::Never);
        };
        let due_ms = time(first_ms, age_ms).max(since_ms.saturating_add(age_ms));
        if due_ms > unix_ms {
            return Ok(Due::At(due_ms));
        }
        if !self.can_roll(disk) {
            return Ok(Due::At(unix_ms.saturating_add(1)));
        }
        *units += FILE_UNITS;
        self.roll(disk)?;
        Ok(Due::Never)
    }

    /// Max timestamp of the first batch in the newest segment.
    fn newest_first_ms(&mut self, disk: &mut Disk) -> io::Result<Option<i64>> {
        let newest = self.segments.newest();
        if newest.index.is_none() && self.positions.written().position > 0 {
            // After a restart: building the index would read the whole segment.
            let base = newest.base;
            let file = self.dir.file(&mut disk.files, base)?;
            let (bytes, end) = (self.positions.written().position, self.positions.written().offset);
            let first =
                Scan::new(&*file, bytes, end, self.cleaning.gaps(base)).step(Place::beginning(base))?;
            if let Step::Batch(header) = first {
                return Ok(Some(header.max_timestamp_ms));
            }
        }
        let newest = self.segments.len() - 1;
        Ok(self.reader().index(disk, newest)?.first_timestamp_ms())
    }

    /// Removes the oldest segment if it is beyond the retention limits. Returns when the next one will be.
    fn apply_retention(&mut self, disk: &mut Disk, unix_ms: u64, units: &mut u32) -> Result<Due, Error> {
        if !self.exceeds_retention_bytes() {
            match self.oldest_expiry(disk, unix_ms)? {
                Due::At(due_ms) if due_ms <= unix_ms => {}
                due => return Ok(due),
            }
        }
        let soon = Due::At(unix_ms.saturating_add(1));
        // The report of the committer comes first, unless it was lost with a rollback.
        let once_synced = Due::At(unix_ms.saturating_add(SYNC_RETRY_MS));
        if self.start.removing().is_some() {
            return Ok(once_synced);
        }
        if self.segments.len() == 1 {
            if self.positions.committed().offset < self.positions.head().offset {
                // Appends in flight must be committed before they are removed.
                return Ok(soon);
            }
            // The newest segment has expired too.
            if !self.can_roll(disk) {
                return Ok(soon);
            }
            *units += FILE_UNITS;
            self.roll(disk)?;
        }
        let before = self.segments.len();
        let start = self.segments[1].base;
        if start > self.positions.committed().offset {
            // Uncommitted offsets could be reused after a crash.
            return Ok(soon);
        }
        self.truncate_prefix(disk, start);
        if self.segments.len() == before {
            // The segment can be removed once the next one is known to be on disk.
            return Ok(once_synced);
        }
        *units += FILE_UNITS;
        Ok(Due::Now)
    }

    /// When the oldest segment expires.
    fn oldest_expiry(&mut self, disk: &mut Disk, unix_ms: u64) -> Result<Due, Error> {
        let Some(retention_ms) = self.options.retention_ms else { return Ok(Due::Never) };
        if self.segments.len() > 1 {
            // A closed segment without a batch has lost them. It must not keep the segments after it from expiring.
            let (_, newest_ms) = self.reader().closed_times(disk, 0).map_err(|error| store_error(&error))?;
            return Ok(Due::At(time(newest_ms, retention_ms)));
        }
        if self.positions.head().position == 0 {
            return Ok(Due::Never);
        }
        let hold_ms = retention_ms.min(disk.settings.retention_check_ms);
        let hold_until_ms =
            self.upkeep.newest_since_ms().map_or(0, |since_ms| since_ms.saturating_add(hold_ms));
        let first_ms = self.newest_first_ms(disk).map_err(|error| store_error(&error))?;
        let earliest_ms = first_ms.map_or(0, |first_ms| time(first_ms, retention_ms)).max(hold_until_ms);
        if earliest_ms > unix_ms {
            return Ok(Due::At(earliest_ms));
        }
        let mut reader = self.reader();
        let index = reader.index(disk, 0).map_err(|error| store_error(&error))?;
        let newest_ms = index.max_timestamp_ms();
        let due = |newest_ms| Due::At(time(newest_ms, retention_ms).max(hold_until_ms));
        Ok(newest_ms.map_or(Due::Never, due))
    }
}
