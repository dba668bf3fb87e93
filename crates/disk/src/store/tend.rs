//! What is due by itself: rolling by age, retention, compaction.

use std::io;

use mainstem_log::{Cleanup, Error, LogId, State};

use super::{SegmentStore, open_log, refused};
use crate::checkpoint;
use crate::compact::Progress;
use crate::single::{Disk, Log};

/// Logs that are looked at in one call.
const LOGS_MAX: usize = 64;
/// Segments of one log that are removed in one call.
const SEGMENTS_MAX: usize = 8;
/// How long to wait after something failed, ms.
const PAUSE_MS: u64 = 60_000;

/// How far a round through all logs has come.
#[derive(Default)]
pub(super) struct Tending {
    next: usize,
    /// When the next round is due, by the logs that this one has looked at.
    due_ms: Option<u64>,
    /// When to look next for what is too old or too much.
    check_at_ms: Option<u64>,
    /// This round does.
    checks: bool,
}

/// The earlier of two times, either of which may be never.
fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn time(timestamp_ms: i64, later_ms: u64) -> u64 {
    u64::try_from(timestamp_ms).unwrap_or(0).saturating_add(later_ms)
}

impl SegmentStore {
    /// What [`mainstem_log::Store::tend`] does.
    pub(super) fn tend_some(&mut self, unix_ms: u64) -> Option<u64> {
        let check_ms = self.disk.settings.retention_check_ms;
        if self.tending.next == 0 {
            let check_at_ms = *self.tending.check_at_ms.get_or_insert(unix_ms.saturating_add(check_ms / 10));
            self.tending.checks = check_at_ms <= unix_ms;
            if self.tending.checks {
                self.tending.check_at_ms = Some(unix_ms.saturating_add(check_ms));
            }
        }
        let mut is_busy = false;
        for _ in 0..LOGS_MAX {
            if self.tending.next >= self.logs.len() {
                break;
            }
            let log = LogId(self.tending.next as u32);
            let due_ms = self.tend_log(log, unix_ms);
            if due_ms.is_some_and(|due_ms| due_ms <= unix_ms) {
                // It has more to do: it is the next again, but others come first.
                is_busy = true;
            }
            self.tending.due_ms = earlier(self.tending.due_ms, due_ms);
            self.tending.next += 1;
            if is_busy {
                break;
            }
        }
        self.trim_indexes();
        let group = std::mem::take(&mut self.disk.group);
        self.queue.submit(group);
        self.take_reports();
        if self.tending.next < self.logs.len() {
            return Some(unix_ms);
        }
        self.tending.next = 0;
        let due_ms = std::mem::take(&mut self.tending.due_ms);
        if self.tending.checks && due_ms.is_some_and(|due_ms| due_ms <= unix_ms.saturating_add(1)) {
            // Some have not come to the end of it.
            self.tending.check_at_ms = Some(unix_ms);
        }
        due_ms
    }

    /// Looks after one log. Returns when to do so again.
    fn tend_log(&mut self, log: LogId, unix_ms: u64) -> Option<u64> {
        let Self { logs, disk, tending, .. } = self;
        let (checks, check_at_ms) = (tending.checks, tending.check_at_ms);
        let to = logs[log.0 as usize].as_deref_mut()?;
        if to.state == State::Broken {
            return None;
        }
        if unix_ms < to.tend_after_ms {
            return Some(to.tend_after_ms);
        }
        let cleanup = to.options.cleanup;
        let deletes = matches!(cleanup, Cleanup::Delete | Cleanup::CompactAndDelete);
        let compacts = matches!(cleanup, Cleanup::Compact | Cleanup::CompactAndDelete);
        let rolled = if checks { to.roll_aged(disk, unix_ms) } else { Ok(check_at_ms) };
        let tended = rolled.and_then(|rolled| {
            let retired = if deletes && checks { to.retire(disk, unix_ms)? } else { None };
            Ok(earlier(rolled, retired))
        });
        let tended = tended.and_then(|due_ms| {
            let more = compacts && self.compact_log(log, unix_ms)?;
            Ok(if more { Some(unix_ms) } else { due_ms })
        });
        tended.unwrap_or_else(|error| {
            let to = open_log(&mut self.logs, log);
            log::warn!("log {}: {error}; tried again in {} s", to.name, PAUSE_MS / 1000);
            to.compaction = None;
            to.tend_after_ms = unix_ms.saturating_add(PAUSE_MS);
            Some(to.tend_after_ms)
        })
    }

    /// Goes on with compaction. Whether there is more to do.
    fn compact_log(&mut self, log: LogId, unix_ms: u64) -> Result<bool, Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        if to.compaction.is_none() {
            if !to.is_dirty() {
                return Ok(false);
            }
            to.begin_compaction(unix_ms);
        }
        let explain = |error: io::Error| match refused(&error) {
            Error::System(what) => Error::System(format!("compaction: {what}")),
            error => error,
        };
        match to.compact(disk).map_err(explain)? {
            Progress::More => return Ok(true),
            Progress::Done => return Ok(to.is_dirty()),
            Progress::Checkpoint => {
                self.settle();
                let bytes = self.checkpoint();
                let syncer = self.queue.settled();
                checkpoint::store(&*self.disk.fs, &self.dir, &bytes).map_err(explain)?;
                drop(syncer);
            }
            Progress::Replace => {
                self.settle();
                let Self { logs, disk, queue, .. } = self;
                let to = open_log(logs, log);
                let mut syncer = queue.settled();
                if let Err(error) = to.replace_group(disk, &mut syncer.journal) {
                    syncer.fail(log, &error);
                    queue.note_broken(syncer.newly_broken());
                    to.fail();
                    return Err(Error::Broken);
                }
            }
        }
        Ok(true)
    }
}

impl Log {
    /// Begins another segment if the newest is old enough. Returns when it will be.
    fn roll_aged(&mut self, disk: &mut Disk, unix_ms: u64) -> Result<Option<u64>, Error> {
        let Some(segment_ms) = self.options.segment_ms else { return Ok(None) };
        if self.head.position == 0 {
            return Ok(None);
        }
        let newest = self.segments.len() - 1;
        let index = self.index(disk, newest).map_err(|error| refused(&error))?;
        let Some(first_ms) = index.first_timestamp_ms() else { return Ok(None) };
        let due_ms = time(first_ms, segment_ms);
        if due_ms > unix_ms {
            return Ok(Some(due_ms));
        }
        self.roll(disk)?;
        Ok(None)
    }

    /// Removes the oldest segments that are too old, or too many. Returns when there will be more.
    fn retire(&mut self, disk: &mut Disk, unix_ms: u64) -> Result<Option<u64>, Error> {
        for _ in 0..SEGMENTS_MAX {
            let oldest = self.segments[0].bytes;
            let is_beyond = |bound: u64| self.segments.len() > 1 && self.bytes() - oldest >= bound;
            if !self.options.retention_bytes.is_some_and(is_beyond) {
                match self.oldest_due(disk)? {
                    Some(due_ms) if due_ms <= unix_ms => {}
                    due_ms => return Ok(due_ms),
                }
            }
            if self.segments.len() == 1 && self.committed.offset < self.head.offset {
                // What is on its way to the disk is not to be forgotten before it is there.
                return Ok(Some(unix_ms.saturating_add(1)));
            }
            if self.segments.len() == 1 {
                // All of it is too old, the newest segment too.
                self.roll(disk)?;
            }
            let before = self.segments.len();
            let start = self.segments[1].base;
            if start > self.committed.offset {
                // Offsets that were never committed might be given again after a crash.
                return Ok(Some(unix_ms.saturating_add(1)));
            }
            self.truncate_prefix(disk, start).map_err(|error| refused(&error))?;
            if self.segments.len() == before {
                // It has to wait until the next segment is known to be on disk.
                return Ok(Some(unix_ms.saturating_add(1)));
            }
        }
        Ok(Some(unix_ms))
    }

    /// When the oldest segment will be too old.
    fn oldest_due(&mut self, disk: &mut Disk) -> Result<Option<u64>, Error> {
        let Some(retention_ms) = self.options.retention_ms else { return Ok(None) };
        let index = self.index(disk, 0).map_err(|error| refused(&error))?;
        Ok(index.max_timestamp_ms().map(|newest_ms| time(newest_ms, retention_ms)))
    }
}
