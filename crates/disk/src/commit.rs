//! Group commit: makes the writes of a shard durable with as few syncs as possible.
//!
//! The shard submits one [`Group`] per turn. While the disk is busy, later groups merge. Whether a group goes through
//! the journal or syncs its segments directly is decided when it runs: see [`Syncer::run`]. A failed sync is never
//! retried, because the kernel may have dropped the dirty pages: its log is broken until it is recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::{Error, LogId};

use crate::batch::{Batch, Done};
use crate::deferred::Deferred;
use crate::directories::Directories;
use crate::failure::Failure;
use crate::files::Range;
use crate::fs::Fs;
use crate::group::{Ack, Group};
use crate::journal::{Journal, JournalError, Unsynced};
use crate::refused_names::RefusedNames;
use crate::report::Report;

/// Maximum bytes of one segment that go through the journal. Beyond it, writing them twice costs more than a
/// separate sync.
const JOURNALED_BYTES_MAX: u64 = 64 * 1024;

/// Makes groups durable in order. It deals in segments and byte ranges and is independent of their contents.
pub(crate) struct Syncer {
    directories: Arc<Directories>,
    pub(crate) journal: Journal,
    /// Logs with a failed write or sync.
    broken: BTreeSet<LogId>,
    /// Broken logs not yet reported.
    newly_broken: Vec<LogId>,
    /// Replacements of segments that were not reported yet, and how they went.
    replaced: Vec<(LogId, Result<(), Failure>)>,
    /// Maximum number of unsynced segments in the journal.
    journaled_max: usize,
    pub(crate) refused_names: RefusedNames,
}

impl Syncer {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, journal: Journal, journaled_max: usize) -> Self {
        let directories = Arc::new(Directories::new(fs, dir));
        let (broken, newly_broken) = (BTreeSet::new(), Vec::new());
        Self {
            directories,
            journal,
            broken,
            newly_broken,
            replaced: Vec::new(),
            journaled_max,
            refused_names: RefusedNames::default(),
        }
    }

    /// What works on the directories of this store.
    pub(crate) fn directories(&self) -> Arc<Directories> {
        Arc::clone(&self.directories)
    }

    /// Makes a group durable. Returns its acks and the deferred work.
    ///
    /// Large ranges and a single small range sync their segments directly. Two or more small ranges go into the journal
    /// together, with one sync.
    pub(crate) fn run(&mut self, group: Group) -> (Vec<Ack>, Deferred) {
        let mut group = self.refused_names.divide(group);
        group.dirs.retain(|log, _| !self.broken.contains(log));
        let failures = self.directories.name_segments(&mut group.dirs);
        let group = self.on_failures(failures, group);
        let is_small = |range: &&Range| !range.is_closed && range.to - range.from <= JOURNALED_BYTES_MAX;
        let live = group.ranges.values().filter(|range| !self.broken.contains(&range.key.0));
        let (mut small, mut direct): (Vec<&Range>, Vec<&Range>) = live.partition(is_small);
        let room = self.journaled_max.saturating_sub(self.journal.unsynced());
        direct.extend(small.drain(room.min(small.len())..));
        if small.len() < 2 || !self.write_journal(&small) {
            direct.append(&mut small);
        }
        for range in direct {
            if self.broken.contains(&range.key.0) {
                continue;
            }
            match range.sync() {
                Ok(()) => self.journal.synced(range.key),
                Err(error) => self.fail(range.key.0, &error),
            }
        }
        (self.mark_broken(group.acks), group.deferred)
    }

    /// Takes what cannot be given away out of a batch, and returns it: the work of logs that are broken, or whose
    /// segments wait for their names.
    pub(crate) fn admit(&mut self, batch: &mut Batch) -> Group {
        self.prepare_deferred(&mut batch.deferred);
        let mut changing = self.refused_names.divide(std::mem::take(&mut batch.changing));
        // Whatever waited for them is part of the batch now.
        changing.retries.clear();
        let mut back = Group::default();
        for log in changing.logs().filter(|log| self.broken.contains(log)) {
            back.merge(changing.take_log(log));
        }
        batch.changing = changing;
        back.dirs.clear();
        back
    }

    /// Takes over how a batch went.
    pub(crate) fn finish(&mut self, done: Done) -> Report {
        let Done { changed, failures, synced, removed, relieved, mut report } = done;
        for key in synced {
            self.journal.synced(key);
        }
        for (segment, outcome) in relieved {
            if let Err(((log, _), error)) = self.journal.synced_to(&segment, outcome) {
                self.fail(log, &error);
            }
        }
        let changed = self.on_failures(failures, changed);
        report.acks.append(&mut self.mark_broken(changed.acks));
        report.removed = self.on_removed(removed);
        self.replaced.append(&mut report.replaced);
        report.replaced = self.take_replaced();
        report.broken = self.newly_broken();
        report.refused = self.refused_names.take_unreported();
        report
    }

    /// Handles logs whose segments could not get their names, or could not be synced. Returns the rest of the group.
    fn on_failures(&mut self, failures: Vec<(LogId, Failure)>, group: Group) -> Group {
        let mut refused = Vec::new();
        for (log, failure) in failures {
            match failure {
                Failure::Full(error) => refused.push((log, error)),
                Failure::Broken(error) => self.fail(log, &error),
            }
        }
        if refused.is_empty() { group } else { self.refused_names.refuse(refused, group) }
    }

    /// Nothing of a broken log is acknowledged.
    fn mark_broken(&self, mut acks: Vec<Ack>) -> Vec<Ack> {
        for ack in &mut acks {
            if ack.outcome.is_ok() && self.broken.contains(&ack.log) {
                ack.outcome = Err(Error::Broken);
            }
        }
        acks
    }

    /// Runs the deferred part of a group. Returns what the shard should know of it.
    pub(crate) fn run_deferred(&mut self, mut deferred: Deferred) -> Report {
        if deferred.is_empty() {
            return Report::default();
        }
        self.prepare_deferred(&mut deferred);
        let removals = std::mem::take(&mut deferred.removals);
        let mut report = self.directories.run(deferred);
        self.replaced.append(&mut report.replaced);
        let removed = self.directories.remove_logs(removals);
        report.removed = self.on_removed(removed);
        report.replaced = self.take_replaced();
        report.broken = self.newly_broken();
        report
    }

    /// Takes out what must not be done for broken logs, and lets the journal forget the segments that are about to be
    /// replaced.
    fn prepare_deferred(&mut self, deferred: &mut Deferred) {
        deferred.indexes.retain(|index| !self.broken.contains(&index.key.0));
        for (log, replacement) in std::mem::take(&mut deferred.replacements) {
            if self.broken.contains(&log) {
                continue;
            }
            match self.journal.forget_before(&replacement.log, replacement.end) {
                Ok(()) => drop(deferred.replacements.insert(log, replacement)),
                Err(error) => self.replaced.push((log, Err(error.into()))),
            }
        }
    }

    /// Drains the replacements of segments since the last call. A log is broken if one of it failed halfway.
    fn take_replaced(&mut self) -> Vec<(LogId, Result<(), Failure>)> {
        let replaced = std::mem::take(&mut self.replaced);
        for (log, outcome) in &replaced {
            if let Err(Failure::Broken(error)) = outcome {
                self.fail(*log, error);
            }
        }
        replaced
    }

    /// Syncs a few segments that depend on the journal, so that it has room.
    pub(crate) fn pace(&mut self) {
        if let Err(((log, _), error)) = self.journal.pace(self.journaled_max) {
            self.fail(log, &error);
        }
    }

    /// Segments to sync now, so that the journal has room.
    pub(crate) fn due(&mut self) -> Vec<Unsynced> {
        self.journal.due(self.journaled_max)
    }

    /// The directories of these logs are gone. Returns the names of those of which nothing is left.
    ///
    /// Replay skips segments that do not exist. So the journal has to forget the names only before there are new logs
    /// with these names, and their last writes need no sync.
    fn on_removed(&mut self, removed: BTreeMap<LogId, Arc<str>>) -> Vec<Arc<str>> {
        if removed.is_empty() {
            return Vec::new();
        }
        for log in removed.keys() {
            self.journal.drop_log(*log);
            self.broken.remove(log);
            drop(self.refused_names.take(*log));
        }
        let names: Vec<&str> = removed.values().map(|name| &**name).collect();
        match self.journal.forget(&names) {
            Ok(()) => removed.into_values().collect(),
            Err(error) => {
                let error = io::Error::from(error);
                log::error!(
                    "store {}: the journal keeps removed logs: {error}",
                    self.directories.dir().display()
                );
                Vec::new()
            }
        }
    }

    /// Deletes what is left of logs whose segments no longer need the journal.
    ///
    /// # Errors
    /// Some files may remain.
    pub(crate) fn discard(&mut self, names: &[&str]) -> io::Result<()> {
        self.journal.forget(names)?;
        self.directories.remove_dirs(names)
    }

    /// Syncs every segment that depends on the journal.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        self.journal.sync_all().map_err(|((log, _), error)| {
            self.fail(log, &error);
            Error::Broken
        })
    }

    /// Drains the logs that broke since the last call.
    pub(crate) fn newly_broken(&mut self) -> Vec<LogId> {
        std::mem::take(&mut self.newly_broken)
    }

    /// Marks a log as broken. Its written data may or may not be on disk, and a later sync cannot establish which.
    pub(crate) fn fail(&mut self, log: LogId, error: &io::Error) {
        if self.broken.insert(log) {
            self.journal.mark_lost(log);
            log::error!(
                "store {}: log {}: {error}; the log is now read-only",
                self.directories.dir().display(),
                log.0
            );
            self.newly_broken.push(log);
        }
    }

    /// Writes ranges to the journal. Returns whether they are durable.
    fn write_journal(&mut self, ranges: &[&Range]) -> bool {
        match self.journal.write(ranges) {
            Ok(()) => true,
            Err(JournalError::DoesNotFit) => false,
            Err(JournalError::Unwritten(error) | JournalError::Failed(error)) => {
                log::error!(
                    "store {}: journal: {error}; it is off, segments are synced directly",
                    self.directories.dir().display()
                );
                self.abandon_journal();
                false
            }
            Err(JournalError::Segment(key, error)) => {
                self.fail(key.0, &error);
                false
            }
        }
    }

    /// Syncs every segment that depends on the journal and removes it. On failure the journal stays for recovery.
    fn abandon_journal(&mut self) {
        self.journal.disable();
        if let Err((key, error)) = self.journal.sync_all() {
            self.fail(key.0, &error);
        }
        if let Err(error) = self.journal.remove() {
            log::error!("store {}: cannot remove the journal: {error}", self.directories.dir().display());
        }
    }
}
