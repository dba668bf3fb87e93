//! The store: all logs of one shard, their directory and their shared committer.
//!
//! Appends go to the logs; a commit collects their writes in one group and submits it to the committer, whose reports
//! become completions. A checkpoint records the durable end of every log, so that recovery reads only what follows.
//! It must never claim more than is on disk: operations that shorten a log or reuse a name rewrite it first.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::{
    Appended, Completion, Error, FileSlice, LogAdmin, LogId, LogReader, LogWriter, Maintained, Options,
    State, Status, Store, StoreImage, Ticket, TimestampOffset, ValidBatch,
};

use crate::checkpoint::{self, Checkpoint, Loaded};
use crate::commit::Syncer;
use crate::directories::remove_dir;
use crate::disk::Disk;
use crate::failure::{Failure, store_error};
use crate::fs::{Fs, create_dir_durably};
use crate::image::Capturing;
use crate::journal::{self, Journal};
use crate::name;
use crate::queue::CommitQueue;
use crate::read::FileRange;
use crate::redo::redo;
use crate::settings::{Committer, Settings};
use crate::single::Log;
use checkpoints::replace_checkpoint;
use schedule::{Due, Schedule};
use tail_cache::TailCache;

mod checkpoints;
mod images;
mod maintenance;
mod naming;
mod opening;
mod schedule;
mod tail_cache;

/// A store whose logs are files below one directory, which no other store may use at the same time.
///
/// Dropping it syncs everything and marks the store as cleanly closed, so that the next open skips recovery.
///
/// Each checkpoint records the log starts ([`LogAdmin::truncate_prefix`]). After a crash a log may start where the last
/// checkpoint says, if the earlier segments still exist.
pub struct SegmentStore {
    dir: PathBuf,
    disk: Disk,
    queue: Arc<CommitQueue>,
    /// Indexed by [`LogId`]; `None` for a removed log.
    logs: Vec<Option<Box<Log>>>,
    names: BTreeMap<String, LogEntry>,
    /// Checkpoint from when the store was opened.
    known: Checkpoint,
    was_closed: bool,
    /// Whether the last checkpoint claims more of a log than exists. New data must not follow before it is rewritten.
    is_checkpoint_stale: bool,
    /// Removed logs that the checkpoint on disk may contain, and the number of checkpoints at their removal. A new log
    /// of the same name must not inherit their entry.
    gone: BTreeMap<String, u64>,
    /// Removed logs of which files may be left.
    removing: BTreeMap<Arc<str>, LogId>,
    /// Logs appended to since the last commit.
    dirty: Vec<LogId>,
    tickets: u64,
    completed: Vec<Completion>,
    /// Bytes committed since the last checkpoint.
    since_checkpoint: u64,
    checkpoint_bytes: u64,
    /// Number of logs removed since the last checkpoint.
    removed_since_checkpoint: usize,
    /// Number of checkpoints that the committer was given.
    checkpoints: u64,
    /// Number of the last checkpoint that the committer has stored.
    stored_checkpoint: u64,
    /// Time of the last maintenance, Unix time in ms.
    maintained_ms: u64,
    cached: TailCache,
    schedule: Schedule,
    /// An image that was not taken yet.
    capturing: Option<Capturing>,
}

/// Whether a log of the directory is open.
#[derive(Clone, Copy, Debug)]
enum LogEntry {
    Closed,
    Open(LogId),
}

impl SegmentStore {
    /// Opens the store in `dir`, creating it if it does not exist, and replays the journal. Each log is recovered when
    /// it is opened.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::System`].
    pub fn open(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        settings: Settings,
        committer: Committer,
    ) -> Result<Self, Error> {
        Self::try_open(fs, dir, settings, committer).map_err(|error| store_error(&error))
    }

    fn try_open(fs: Arc<dyn Fs>, dir: PathBuf, settings: Settings, committer: Committer) -> io::Result<Self> {
        create_dir_durably(&*fs, &dir)?;
        let loaded = checkpoint::load(&*fs, &dir)?;
        let was_closed = matches!(loaded, Loaded::Valid { was_closed: true, .. });
        if let Loaded::Valid { was_closed: false, logs } = &loaded {
            redo(&*fs, &dir, logs)?;
        } else if !was_closed {
            redo(&*fs, &dir, &Checkpoint::new())?;
        }
        journal::remove(&*fs, &dir)?;
        checkpoint::mark_open(&*fs, &dir)?;
        let mut names = BTreeMap::new();
        for found in fs.list(&dir)? {
            if let Some(name) = name::log_of(&found) {
                names.insert(name.to_owned(), LogEntry::Closed);
            } else if name::is_gone(&found) {
                remove_dir(&*fs, &dir.join(found))?;
            }
        }
        let mut known = match loaded {
            Loaded::Valid { logs, .. } => logs,
            lost => replace_checkpoint(&*fs, &dir, &lost, names.keys())?,
        };
        if was_closed {
            // Nothing can have removed these since.
            names.extend(known.keys().map(|name| (name.clone(), LogEntry::Closed)));
        }
        let gone =
            known.extract_if(.., |name, _| !names.contains_key(name)).map(|(name, _)| (name, 0)).collect();
        let journal = Journal::new(fs.clone(), dir.clone(), settings.journal_bytes);
        let syncer = Syncer::new(fs.clone(), dir.clone(), journal, settings.open_files);
        let queue = Arc::new(CommitQueue::start(syncer, committer, settings.on_committed.clone())?);
        let checkpoint_bytes = settings.checkpoint_bytes;
        let disk = Disk::new(fs, settings, queue.clone());
        Ok(Self {
            dir,
            disk,
            queue,
            logs: Vec::new(),
            names,
            known,
            was_closed,
            is_checkpoint_stale: false,
            gone,
            removing: BTreeMap::new(),
            dirty: Vec::new(),
            tickets: 0,
            completed: Vec::new(),
            since_checkpoint: 0,
            checkpoint_bytes,
            removed_since_checkpoint: 0,
            checkpoints: 0,
            stored_checkpoint: 0,
            maintained_ms: 0,
            cached: TailCache::default(),
            schedule: Schedule::default(),
            capturing: None,
        })
    }

    /// Like [`LogReader::read`], but returns file ranges for zero-copy sending. Flushes the log first and does not
    /// verify checksums.
    ///
    /// # Errors
    /// As for [`LogReader::read`]; [`Error::Full`] and [`Error::Broken`] if the flush failed.
    pub fn ranges(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: u64,
    ) -> Result<Vec<FileRange>, Error> {
        let Self { logs, disk, .. } = self;
        let from = open_log(logs, log);
        from.flush(disk)?;
        let ranges = from.reader().ranges(disk, &offsets, max_bytes);
        self.trim_indexes();
        ranges
    }

    fn log(&self, log: LogId) -> &Log {
        self.logs[log.0 as usize].as_deref().expect("the log has been removed")
    }

    /// Processes the reports of the committer.
    fn process_reports(&mut self) {
        let Some(report) = self.queue.report() else { return };
        // Before the reports of later attempts that succeeded.
        self.on_refused(report.refused);
        for ack in report.acks {
            let Some(log) = &mut self.logs[ack.log.0 as usize] else { continue };
            let (before, had_unnamed) =
                ((log.positions.synced().base, log.start.removing()), log.has_unnamed());
            log.on_report(&ack);
            if had_unnamed && !log.has_unnamed() {
                self.disk.files.mark_named(ack.log);
            }
            if (log.positions.synced().base, log.start.removing()) != before {
                // A closed segment may be removed or compacted once the next one is on disk, and the removal of the one
                // before.
                self.schedule.set(ack.log, Due::Now);
            }
            log.seal_indexes(&mut self.disk);
            if let Some(ticket) = ack.ticket {
                self.completed.push(Completion { log: ack.log, ticket, outcome: ack.outcome });
            }
        }
        self.on_created(&report.created);
        self.on_replaced(report.replaced);
        self.on_removed(&report.removed, report.checkpoint);
        for log in report.stalled {
            if let Some(log) = &mut self.logs[log.0 as usize] {
                log.start.stall();
            }
        }
        for log in report.broken {
            if let Some(log) = &mut self.logs[log.0 as usize] {
                if log.has_unnamed() {
                    // What waits for the name fails, too.
                    self.disk.group.retry(log.dir.id());
                }
                log.fail();
            }
        }
    }

    /// Submits the current group and waits until the committer has done what concerns this log. If its newest segment
    /// still cannot get its name, what was submitted since then is not done.
    fn settle(&mut self, log: LogId) {
        let submitted =
            |store: &Self| store.logs[log.0 as usize].as_ref().map(|log| log.positions.submitted());
        loop {
            let before = (self.has_file(log), submitted(self));
            self.retry_names(log);
            let group = std::mem::take(&mut self.disk.group);
            self.queue.submit(group);
            drop(self.queue.wait_for(Some(log)));
            self.process_reports();
            if (self.has_file(log), submitted(self)) == before {
                break;
            }
            // The appends that waited for the file were submitted just now.
        }
    }

    /// Submits the current group and waits until the committer is idle.
    fn settle_all(&mut self) {
        let group = std::mem::take(&mut self.disk.group);
        self.queue.submit(group);
        drop(self.queue.wait_idle());
        self.process_reports();
    }

    /// Submits the appends to a log since the last commit.
    #[inline]
    fn commit_log(&mut self, log: LogId) {
        let to = open_log(&mut self.logs, log);
        let before = to.positions.submitted();
        if let Some(ticket) = to.commit(&mut self.disk) {
            self.completed.push(Completion { log, ticket, outcome: Ok(()) });
        }
        self.since_checkpoint += if before.base == to.positions.submitted().base {
            to.positions.submitted().position.saturating_sub(before.position)
        } else {
            to.positions.submitted().position
        };
        if before.position == 0 || before.base < to.positions.submitted().base || to.exceeds_retention_bytes()
        {
            self.schedule.set(log, Due::Now);
        }
        self.cached.note(to.dir.id(), &mut to.tail);
    }

    /// Drops the least recently used indexes beyond the bound.
    fn trim_indexes(&mut self) {
        for (log, base) in self.disk.indexes.take_evicted() {
            let Some(log) = &mut self.logs[log.0 as usize] else { continue };
            let at = log.segments.containing(base);
            if at + 1 < log.segments.len() && log.segments[at].base == base {
                log.segments[at].index = None;
            }
        }
    }

    /// Evicts the tails of the least recently written logs beyond the memory bound.
    fn trim_cache(&mut self) {
        while let Some(log) = self.cached.evict(self.disk.settings.cache_bytes) {
            if let Some(log) = &mut self.logs[log.0 as usize] {
                log.tail.account(None);
                log.tail.drop_written();
            }
        }
    }

    /// Syncs everything and marks the store as cleanly closed.
    fn close(&mut self) -> Result<(), Error> {
        self.queue.release_files();
        self.retry_all_names();
        self.commit();
        self.settle_all();
        // Appends that waited for the files of their logs were submitted just now.
        self.settle_all();
        self.queue.wait_idle().settle()?;
        let mut is_clean = true;
        for log in self.logs.iter_mut().flatten() {
            is_clean &= log.close(&mut self.disk);
        }
        let bytes = self.checkpoint();
        let fs = &*self.disk.fs;
        let closed = checkpoint::store(fs, &self.dir, &bytes).and_then(|()| {
            if is_clean && (self.was_closed || self.all_open()) {
                self.queue.wait_idle().journal.remove()?;
                checkpoint::mark_clean(fs, &self.dir, &bytes)?;
            }
            Ok(())
        });
        closed.map_err(|error| store_error(&error))
    }

    /// Whether every log was opened, and therefore recovered.
    fn all_open(&self) -> bool {
        self.names.values().all(|place| matches!(place, LogEntry::Open(_)))
    }
}

fn open_log(logs: &mut [Option<Box<Log>>], log: LogId) -> &mut Log {
    logs[log.0 as usize].as_deref_mut().expect("the log has been removed")
}

/// Handles the failure of work that a log did with the syncer locked: it is broken, unless the disk was full.
fn fail_log(log: &mut Log, queue: &CommitQueue, syncer: &mut Syncer, failure: Failure) -> Error {
    let error = match failure {
        Failure::Full(error) => return error,
        Failure::Broken(error) => error,
    };
    syncer.fail(log.dir.id(), &error);
    queue.note_broken(syncer.newly_broken());
    log.fail();
    Error::Broken
}

impl LogReader for SegmentStore {
    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Self { logs, disk, .. } = self;
        let from = open_log(logs, log);
        let outcome = from.reader().read(disk, offsets, max_bytes, into);
        if let Err(Error::Corrupt { offset }) = outcome {
            from.log_unreadable(offset);
        }
        self.trim_indexes();
        outcome
    }

    /// Returns `None` if the data is in memory. Each [`FileSlice::source`] is an `Arc<dyn File>`.
    fn file_slices(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<FileSlice>>, Error> {
        if self.log(log).tail.has(offsets.start) {
            return Ok(None);
        }
        let to_slice = |FileRange { file, position, len, end }: FileRange| FileSlice {
            source: Arc::new(file),
            position,
            len,
            end,
        };
        let ranges = self.ranges(log, offsets, max_bytes as u64)?;
        Ok(Some(ranges.into_iter().map(to_slice).collect()))
    }

    fn status(&self, log: LogId) -> Status {
        let log = self.log(log);
        Status {
            start: log.start.offset(),
            start_after_crash: log.start_after_crash(),
            committed: log.positions.committed().offset.max(log.start.offset()),
            end: log.positions.head().offset,
            bytes: log.segments.bytes(),
            state: if log.state == State::Ready && log.refusal().is_some() { State::Full } else { log.state },
        }
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        let Self { logs, disk, .. } = self;
        let found = open_log(logs, log).reader().find_time(disk, timestamp_ms);
        self.trim_indexes();
        found
    }
}

impl LogWriter for SegmentStore {
    #[inline]
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        let base_offset = to.append(disk, &batch)?;
        let ticket = to.ticket_or(|| {
            self.tickets += 1;
            self.dirty.push(log);
            Ticket(self.tickets)
        });
        Ok(Appended { base_offset, ticket })
    }

    fn force_sync(&mut self, log: LogId) {
        open_log(&mut self.logs, log).force_sync();
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        let Self { logs, disk, .. } = self;
        open_log(logs, log).add_note(disk, note)
    }
}

impl LogAdmin for SegmentStore {
    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        name::check(name)?;
        if let Some(LogEntry::Open(log)) = self.names.get(name) {
            let log = *log;
            open_log(&mut self.logs, log).options = options.clone();
            self.schedule.set(log, Due::Now);
            return Ok(log);
        }
        self.open_closed(name, options).map_err(|error| store_error(&error))
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        let Some(mut gone) = self.logs[log.0 as usize].take() else { return Ok(()) };
        self.dirty.retain(|dirty| *dirty != log);
        self.schedule.set(log, Due::Never);
        self.completed.retain(|completion| completion.log != log);
        self.cached.forget(gone.dir.id(), &mut gone.tail);
        gone.release_held(&mut self.disk);
        let name = gone.dir.name();
        self.names.remove(&**name);
        self.known.remove(&**name);
        self.gone.insert(name.to_string(), self.checkpoints);
        self.removing.insert(name.clone(), log);
        self.removed_since_checkpoint += 1;
        self.disk.files.close_log(log);
        self.disk.group.remove(log, name.clone());
        Ok(())
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        let Self { logs, disk, .. } = self;
        open_log(logs, log).notes(disk).map_err(|error| store_error(&error))
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        if offset > self.log(log).positions.committed().offset {
            // Otherwise these offsets could be reused after a crash.
            self.commit();
            self.settle(log);
            if let Some(refusal) = self.log(log).refusal() {
                return Err(refusal.clone());
            }
        }
        self.schedule.set(log, Due::Now);
        let Self { logs, disk, .. } = self;
        open_log(logs, log).truncate_prefix(disk, offset);
        Ok(())
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        if offset < to.start.offset() || offset > to.positions.head().offset {
            return Err(Error::OutOfRange);
        }
        if to.state == State::Broken {
            return Err(Error::Broken);
        }
        to.flush(disk)?;
        let place = to.reader().boundary(disk, offset).map_err(|_| Error::Corrupt { offset })?;
        let place = place.ok_or(Error::OutOfRange)?;
        if place == to.positions.head() {
            return Ok(());
        }
        // The end of the log changes in its files.
        self.queue.break_hold();
        self.settle(log);
        let to = open_log(&mut self.logs, log);
        if to.state == State::Broken {
            return Err(Error::Broken);
        }
        if let Some(refusal) = to.refusal() {
            return Err(refusal.clone());
        }
        // Recovery must not rely on data that may be partly removed.
        to.positions.limit_synced(place);
        self.is_checkpoint_stale = true;
        self.refresh_checkpoint().map_err(|error| store_error(&error))?;
        self.schedule.set(log, Due::Now);
        let Self { logs, disk, queue, .. } = self;
        let mut syncer = queue.wait_for(Some(log));
        let to = open_log(logs, log);
        let outcome = to.truncate_suffix(disk, &mut syncer.journal, place);
        outcome.map_err(|failure| fail_log(to, queue, &mut syncer, failure))
    }

    fn maintain(&mut self, unix_ms: u64) -> Maintained {
        self.run_maintenance(unix_ms)
    }
}

impl Store for SegmentStore {
    fn commit(&mut self) {
        if self.dirty.is_empty() && self.disk.group.is_empty() {
            return;
        }
        self.cached.count_commit();
        let mut dirty = std::mem::take(&mut self.dirty);
        for log in dirty.drain(..) {
            self.commit_log(log);
        }
        self.dirty = dirty;
        self.trim_cache();
        self.request_checkpoint_if_due();
        if !self.disk.group.is_empty() {
            let group = std::mem::take(&mut self.disk.group);
            self.queue.submit(group);
        }
        self.process_reports();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.process_reports();
        into.append(&mut self.completed);
    }

    fn hold_files(&mut self) {
        // Files that are no longer part of a log need not stay.
        self.commit();
        self.queue.hold_files();
    }

    fn are_files_held(&mut self) -> bool {
        let are_held = self.queue.are_files_held();
        // What removed files before is in the reports now.
        self.process_reports();
        are_held
    }

    fn release_files(&mut self) -> bool {
        self.capturing = None;
        self.queue.release_files()
    }

    fn capture(&mut self) -> Result<(), Error> {
        self.capture_logs()
    }

    fn take_image(&mut self) -> Result<Option<Box<dyn StoreImage>>, Error> {
        self.take_captured()
    }
}

impl Drop for SegmentStore {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.close() {
            log::warn!("store {}: not closed cleanly: {error}", self.dir.display());
        }
    }
}
