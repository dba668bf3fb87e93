//! Group commit: makes the writes of a shard durable with as few syncs as possible.
//!
//! The shard submits one [`Group`] per turn. While the disk is busy, later groups merge. Whether a group goes through
//! the journal or syncs its segments directly is decided when it runs: see [`Syncer::run`]. A failed sync is never
//! retried, because the kernel may have dropped the dirty pages: its log is broken until it is recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{Error, LogId};

use crate::checkpoint;
use crate::deferred::{CheckpointRequest, Deferred, Removals, SealedIndex};
use crate::failure::Failure;
use crate::files::Range;
use crate::fs::Fs;
use crate::group::{Ack, DirSync, Group};
use crate::index;
use crate::journal::{Journal, JournalError};
use crate::name;
use crate::refused_names::RefusedNames;
use crate::scan::Place;

/// Maximum bytes of one segment that go through the journal. Beyond it, writing them twice costs more than a
/// separate sync.
const JOURNALED_BYTES_MAX: u64 = 64 * 1024;

/// Results of groups.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) acks: Vec<Ack>,
    /// Logs that broke.
    pub(crate) broken: Vec<LogId>,
    /// Logs with old segments that could not be removed.
    pub(crate) stalled: Vec<LogId>,
    /// Names of logs of which nothing is left.
    pub(crate) removed: Vec<Arc<str>>,
    /// Number of the checkpoint that was stored last.
    pub(crate) checkpoint: Option<u64>,
    /// Logs whose files were created, or could not be.
    pub(crate) created: Vec<LogId>,
    /// Logs whose next segment cannot get its name now, and why.
    pub(crate) refused: Vec<(LogId, Error)>,
}

impl Report {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { acks, broken, stalled, removed, checkpoint, created, refused } = self;
        acks.is_empty()
            && broken.is_empty()
            && stalled.is_empty()
            && removed.is_empty()
            && checkpoint.is_none()
            && created.is_empty()
            && refused.is_empty()
    }

    pub(crate) fn append(&mut self, later: &mut Self) {
        self.acks.append(&mut later.acks);
        self.broken.append(&mut later.broken);
        self.stalled.append(&mut later.stalled);
        self.removed.append(&mut later.removed);
        self.checkpoint = later.checkpoint.or(self.checkpoint);
        self.created.append(&mut later.created);
        self.refused.append(&mut later.refused);
    }
}

/// Makes groups durable in order. It deals in segments and byte ranges and is independent of their contents.
pub(crate) struct Syncer {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    pub(crate) journal: Journal,
    /// Logs with a failed write or sync.
    broken: BTreeSet<LogId>,
    /// Broken logs not yet reported.
    newly_broken: Vec<LogId>,
    /// Maximum number of unsynced segments in the journal.
    journaled_max: usize,
    /// Removals of old segments.
    removals: Removals,
    pub(crate) refused_names: RefusedNames,
}

impl Syncer {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, journal: Journal, journaled_max: usize) -> Self {
        let (broken, newly_broken) = (BTreeSet::new(), Vec::new());
        let (removals, refused_names) = (Removals::default(), RefusedNames::default());
        Self { fs, dir, journal, broken, newly_broken, journaled_max, removals, refused_names }
    }

    /// Makes a group durable. Returns its acks and the deferred work.
    ///
    /// Large ranges and a single small range sync their segments directly. Two or more small ranges go into the journal
    /// together, with one sync.
    pub(crate) fn run(&mut self, group: Group) -> (Vec<Ack>, Deferred) {
        let mut group = self.refused_names.divide(group);
        let refused = self.sync_dirs(&mut group.dirs);
        if !refused.is_empty() {
            group = self.refused_names.refuse(refused, group);
        }
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
            let released = if range.releases_space { range.file.set_len(range.to) } else { Ok(()) };
            match released.and_then(|()| range.file.sync_data()) {
                Ok(()) => self.journal.synced(range.key),
                Err(error) => self.fail(range.key.0, &error),
            }
        }
        let mut acks = group.acks;
        for ack in &mut acks {
            if ack.outcome.is_ok() && self.broken.contains(&ack.log) {
                ack.outcome = Err(Error::Broken);
            }
        }
        (acks, group.deferred)
    }

    /// Returns the logs whose segments cannot get their names now.
    fn sync_dirs(&mut self, dirs: &mut BTreeMap<LogId, DirSync>) -> Vec<(LogId, Error)> {
        if dirs.values().any(|names| names.is_new)
            && let Err(error) = self.fs.sync_dir(&self.dir)
        {
            for (log, _) in dirs.iter().filter(|(_, names)| names.is_new) {
                self.fail(*log, &error);
            }
        }
        let mut refused = Vec::new();
        for (log, names) in dirs {
            if self.broken.contains(log) {
                continue;
            }
            match names.name_segments(&*self.fs) {
                Ok(()) => {}
                Err(Failure::Full(error)) => refused.push((*log, error)),
                Err(Failure::Broken(error)) => self.fail(*log, &error),
            }
        }
        refused
    }

    /// Runs the deferred part of a group. Returns what the shard should know of it.
    pub(crate) fn run_deferred(&mut self, deferred: Deferred) -> Report {
        let Deferred { checkpoint, removals, indexes, logs, files, reservations, segments, syncs } = deferred;
        let mut report = Report::default();
        for (log, request) in logs {
            request.run(&*self.fs);
            report.created.push(log);
        }
        for request in files {
            request.run(&*self.fs);
        }
        for reservation in reservations.values() {
            reservation.run();
        }
        for SealedIndex { key, path, bytes } in &indexes {
            if !self.broken.contains(&key.0)
                && let Err(error) = index::write_sealed(&*self.fs, path, bytes)
            {
                log::debug!("cannot save {}: {error}", path.display());
            }
        }
        for sync in syncs {
            sync.run();
        }
        for (log, removal) in segments {
            let acks = &mut report.acks;
            let removed = |base| acks.push(Ack { removed: Some(base), ..Ack::of(log, Place::default()) });
            if !self.removals.run(&*self.fs, log, removal, removed) {
                report.stalled.push(log);
            }
        }
        if !removals.is_empty() {
            match self.remove(&removals) {
                Ok(()) => report.removed.extend(removals.into_values()),
                Err(error) => {
                    log::error!("store {}: cannot delete removed logs: {error}", self.dir.display());
                }
            }
        }
        if let Err(((log, _), error)) = self.journal.pace(self.journaled_max) {
            self.fail(log, &error);
        }
        if let Some(CheckpointRequest { number, bytes }) = checkpoint {
            match checkpoint::store(&*self.fs, &self.dir, &bytes) {
                Ok(()) => report.checkpoint = Some(number),
                Err(error) => {
                    log::warn!("store {}: cannot write the checkpoint: {error}", self.dir.display());
                }
            }
        }
        report.broken = self.newly_broken();
        report.refused = self.refused_names.take_unreported();
        report
    }

    fn remove(&mut self, removals: &BTreeMap<LogId, Arc<str>>) -> io::Result<()> {
        for log in removals.keys() {
            // After a crash here the log is still complete.
            self.journal.sync_log(*log).map_err(|(_, error)| error)?;
            self.broken.remove(log);
            self.removals.forget(*log);
            drop(self.refused_names.take(*log));
        }
        let names: Vec<&str> = removals.values().map(|name| &**name).collect();
        self.discard(&names)
    }

    /// Deletes the files of logs whose segments no longer need the journal.
    ///
    /// # Errors
    /// Some files may remain.
    pub(crate) fn discard(&mut self, names: &[&str]) -> io::Result<()> {
        self.journal.forget(names)?;
        let mut outcome = Ok(());
        let mut set_aside = Vec::with_capacity(names.len());
        for name in names {
            let gone = self.dir.join(name::gone_dir(name));
            match self.set_aside(&self.dir.join(name::log_dir(name)), &gone) {
                Ok(true) => set_aside.push(gone),
                Ok(false) => {}
                Err(error) => outcome = Err(error),
            }
        }
        self.fs.sync_dir(&self.dir)?;
        set_aside.iter().fold(outcome, |outcome, gone| outcome.and(remove_dir(&*self.fs, gone)))
    }

    /// Renames the directory of a removed log. An earlier attempt may have renamed it already, or may have left
    /// nothing. Returns whether there is a renamed directory.
    fn set_aside(&self, dir: &Path, gone: &Path) -> io::Result<bool> {
        let exists = |dir: &Path| match self.fs.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|_| true),
        };
        if exists(gone)? {
            if !exists(dir)? {
                return Ok(true);
            }
            remove_dir(&*self.fs, gone)?;
        }
        match self.fs.rename(dir, gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|()| true),
        }
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
            log::error!("store {}: log {}: {error}; the log is now read-only", self.dir.display(), log.0);
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
                    self.dir.display()
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
            log::error!("store {}: cannot remove the journal: {error}", self.dir.display());
        }
    }
}

/// Removes a directory and its files.
pub(crate) fn remove_dir(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    for file in fs.list(dir)? {
        fs.remove_file(&dir.join(file))?;
    }
    fs.remove_dir(dir)
}
