//! Group commit: makes the writes of a shard durable with as few syncs as possible.
//!
//! The shard submits one [`Group`] per turn. While the disk is busy, later groups merge. Whether a group goes through
//! the journal or syncs its segments directly is decided when it runs: see [`Syncer::run`]. A failed sync is never
//! retried, because the kernel may have dropped the dirty pages: its log is broken until it is recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{Error, LogId, Ticket};

use crate::checkpoint;
use crate::deferred::{CheckpointRequest, Deferred, Removals, SealedIndex};
use crate::files::{Range, SegmentKey};
use crate::fs::Fs;
use crate::index::{self, Index};
use crate::journal::{Journal, JournalError};
use crate::name;
use crate::scan::Place;

/// Maximum bytes of one segment that go through the journal. Beyond it, writing them twice costs more than a
/// separate sync.
const JOURNALED_BYTES_MAX: u64 = 64 * 1024;

/// Report of one log, delivered when its group is durable or has failed.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) log: LogId,
    /// `None` if no append depends on it.
    pub(crate) ticket: Option<Ticket>,
    /// Durable end of the log after this group.
    pub(crate) end: Place,
    /// Whether everything up to `end` is synced.
    pub(crate) is_synced: bool,
    pub(crate) outcome: Result<(), Error>,
    /// Number of earlier acks merged into this one.
    pub(crate) earlier: usize,
    /// Base of a removed segment that cannot reappear any more.
    pub(crate) removed: Option<u64>,
}

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
}

impl Report {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { acks, broken, stalled, removed, checkpoint, created } = self;
        acks.is_empty()
            && broken.is_empty()
            && stalled.is_empty()
            && removed.is_empty()
            && checkpoint.is_none()
            && created.is_empty()
    }

    pub(crate) fn append(&mut self, later: &mut Self) {
        self.acks.append(&mut later.acks);
        self.broken.append(&mut later.broken);
        self.stalled.append(&mut later.stalled);
        self.removed.append(&mut later.removed);
        self.checkpoint = later.checkpoint.or(self.checkpoint);
        self.created.append(&mut later.created);
    }
}

impl Ack {
    /// A report about a log that ends at `end`, on which no ticket depends.
    pub(crate) fn of(log: LogId, end: Place) -> Self {
        Self { log, ticket: None, end, is_synced: false, outcome: Ok(()), earlier: 0, removed: None }
    }

    fn can_merge(&self, later: &Self) -> bool {
        let has_ticket = |ack: &Self| ack.ticket.is_some();
        self.log == later.log
            && has_ticket(self) == has_ticket(later)
            && self.outcome.is_ok()
            && later.outcome.is_ok()
    }
}

/// A log directory with new entries to sync.
pub(crate) struct DirSync {
    pub(crate) dir: PathBuf,
    /// Whether the directory itself is new, with the first segment in it.
    pub(crate) is_new: bool,
    /// Base offsets of new segments, oldest first, and the paths of their files, which get the names of segments.
    pub(crate) segments: Vec<(u64, PathBuf)>,
}

/// Writes of one or more turns.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) dirs: BTreeMap<LogId, DirSync>,
    pub(crate) ranges: BTreeMap<SegmentKey, Range>,
    pub(crate) acks: Vec<Ack>,
    pub(crate) deferred: Deferred,
}

impl DirSync {
    /// Gives files the names of segments.
    fn name_segments(&self, fs: &dyn Fs) -> io::Result<()> {
        if self.is_new && !self.segments.is_empty() {
            // The second segment must not become durable before the first one.
            fs.sync_dir(&self.dir)?;
        }
        for (base, path) in &self.segments {
            // Left by an append that was rolled back.
            Index::remove(fs, &self.dir.join(name::index(*base)))?;
            fs.rename(path, &self.dir.join(name::segment(*base)))?;
        }
        Ok(())
    }
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { dirs, ranges, acks, deferred } = self;
        dirs.is_empty() && ranges.is_empty() && acks.is_empty() && deferred.is_empty()
    }

    /// Gives the file at `path` the name of the segment with base offset `base`.
    pub(crate) fn add_segment(&mut self, log: LogId, dir: &Path, base: u64, path: PathBuf) {
        let new = || DirSync { dir: dir.to_owned(), is_new: false, segments: Vec::new() };
        self.dirs.entry(log).or_insert_with(new).segments.push((base, path));
    }

    /// Takes back the name of a segment. Returns the path of its file if it was not submitted.
    pub(crate) fn take_segment(&mut self, log: LogId, base: u64) -> Option<PathBuf> {
        let segments = &mut self.dirs.get_mut(&log)?.segments;
        let at = segments.iter().position(|(known, _)| *known == base)?;
        Some(segments.remove(at).1)
    }

    /// Schedules the removal of a log and drops its unsubmitted writes.
    pub(crate) fn remove(&mut self, log: LogId, name: Arc<str>) {
        self.dirs.remove(&log);
        self.ranges.retain(|(owner, _), _| *owner != log);
        self.acks.retain(|ack| ack.log != log);
        self.deferred.forget_log(log);
        self.deferred.removals.insert(log, name);
    }

    /// Adds changes of the directory of a log.
    pub(crate) fn change_dir(&mut self, log: LogId, mut names: DirSync) {
        match self.dirs.get_mut(&log) {
            Some(known) => known.segments.append(&mut names.segments),
            None => {
                self.dirs.insert(log, names);
            }
        }
    }

    pub(crate) fn add(&mut self, range: Range) {
        if range.is_closed {
            // It would follow the release of the reserved space.
            self.deferred.forget_reservation(range.key);
        }
        match self.ranges.get_mut(&range.key) {
            Some(known) => {
                known.from = known.from.min(range.from);
                known.to = known.to.max(range.to);
                known.is_closed |= range.is_closed;
                known.releases_space |= range.releases_space;
            }
            None => {
                self.ranges.insert(range.key, range);
            }
        }
    }

    pub(crate) fn acknowledge(&mut self, ack: Ack) {
        match self.acks.last_mut() {
            Some(last) if last.can_merge(&ack) && ack.ticket.is_none() => {
                last.end = last.end.max(ack.end);
                last.is_synced |= ack.is_synced;
                last.removed = ack.removed.or(last.removed);
                last.earlier += 1;
            }
            Some(last) if last.can_merge(&ack) => {
                *last = Ack { earlier: last.earlier + 1 + ack.earlier, ..ack }
            }
            _ => self.acks.push(ack),
        }
    }

    /// Merges a later group into this one.
    pub(crate) fn merge(&mut self, later: Self) {
        for (log, names) in later.dirs {
            self.change_dir(log, names);
        }
        for (_, range) in later.ranges {
            self.add(range);
        }
        for ack in later.acks {
            self.acknowledge(ack);
        }
        self.deferred.merge(later.deferred);
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
}

impl Syncer {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, journal: Journal, journaled_max: usize) -> Self {
        let (broken, newly_broken) = (BTreeSet::new(), Vec::new());
        Self { fs, dir, journal, broken, newly_broken, journaled_max, removals: Removals::default() }
    }

    /// Makes a group durable. Returns its acks and the deferred work.
    ///
    /// Large ranges and a single small range sync their segments directly. Two or more small ranges go into the journal
    /// together, with one sync.
    pub(crate) fn run(&mut self, group: Group) -> (Vec<Ack>, Deferred) {
        self.sync_dirs(&group.dirs);
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

    fn sync_dirs(&mut self, dirs: &BTreeMap<LogId, DirSync>) {
        if dirs.values().any(|names| names.is_new)
            && let Err(error) = self.fs.sync_dir(&self.dir)
        {
            for (log, _) in dirs.iter().filter(|(_, names)| names.is_new) {
                self.fail(*log, &error);
            }
        }
        for (log, names) in dirs {
            if !self.broken.contains(log)
                && let Err(error) = names.name_segments(&*self.fs).and_then(|()| self.fs.sync_dir(&names.dir))
            {
                self.fail(*log, &error);
            }
        }
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
        report
    }

    fn remove(&mut self, removals: &BTreeMap<LogId, Arc<str>>) -> io::Result<()> {
        for log in removals.keys() {
            // After a crash here the log is still complete.
            self.journal.sync_log(*log).map_err(|(_, error)| error)?;
            self.broken.remove(log);
            self.removals.forget(*log);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(log: LogId) -> Ack {
        let end = Place::default();
        Ack { log, ticket: Some(Ticket(1)), end, is_synced: true, outcome: Ok(()), earlier: 0, removed: None }
    }

    #[test]
    fn removal_drops_acks_of_the_log() {
        let mut group = Group::default();
        for log in [LogId(1), LogId(2)] {
            group.add_segment(log, Path::new("dir"), 0, "new".into());
            group.acknowledge(ack(log));
        }
        group.remove(LogId(1), "one".into());
        assert!(group.dirs.keys().eq([&LogId(2)]));
        assert!(group.acks.iter().all(|ack| ack.log == LogId(2)));
        assert!(group.deferred.removals.keys().eq([&LogId(1)]));
    }
}
