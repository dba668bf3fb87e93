//! The store: all logs of one shard.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{
    Appended, Completion, Error, Found, LogId, Options, Piece, Sound, State, Status, Store, Ticket,
};

use crate::checkpoint::{self, Checkpoint, Known};
use crate::commit::{Group, NewNames, Syncer, remove_dir};
use crate::files::{Files, Recent};
use crate::fs::{Fs, Mode};
use crate::journal::{self, Journal};
use crate::name;
use crate::queue::Queue;
use crate::read::FileRange;
use crate::recover::Before;
use crate::settings::{Committer, Settings};
use crate::single::{Disk, Log};
use tend::Tending;

mod tend;

/// Removed logs that the checkpoint may speak of, at most, when a log is made.
const GONE_MAX: usize = 1000;
/// Logs that were written to within so many commits are of the same age.
const COMMITS_OF_AN_AGE: u32 = 64;

/// A store that keeps its logs in files below one directory. There must be no other store on it.
///
/// When it is dropped it syncs everything, and notes that nothing has to be recovered.
///
/// Where a log starts ([`Store::truncate_prefix`]) is noted with each checkpoint. After a crash a log may start
/// where it did at the last one, if what was before is still there.
pub struct SegmentStore {
    dir: PathBuf,
    disk: Disk,
    queue: Queue,
    /// Removed logs leave their place empty.
    logs: Vec<Option<Box<Log>>>,
    names: BTreeMap<String, Place>,
    /// What was known of logs when the store was opened.
    known: Checkpoint,
    was_closed: bool,
    /// Whether the last checkpoint speaks of the end of a log that was removed since: something else may come to
    /// stand behind it.
    is_checkpoint_wrong: bool,
    /// Logs that the last checkpoint may speak of and that were removed since. A new one must not be taken for the
    /// old.
    gone: BTreeSet<String>,
    /// Logs appended to since the last commit.
    dirty: Vec<LogId>,
    tickets: u64,
    completed: Vec<Completion>,
    /// Bytes committed since the last checkpoint.
    since_checkpoint: u64,
    checkpoint_bytes: u64,
    /// Logs with something in memory, in the order in which they were written to, and how much that is.
    cached: Cached,
    tending: Tending,
}

/// Whether a log is open.
#[derive(Clone, Copy, Debug)]
enum Place {
    Closed,
    Open(LogId),
}

/// The share of memory of each log's tail ([`Log::cached`]).
#[derive(Default)]
struct Cached {
    /// Greater ones were written to later.
    by_age: BTreeMap<(u64, LogId), usize>,
    bytes: usize,
    age: u64,
    /// Commits of this age.
    commits: u32,
}

impl SegmentStore {
    /// Opens the store in `dir`, and makes it if it is not there. What the journal has is written to where it
    /// belongs; each log is recovered when it is opened.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::System`].
    pub fn open(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        settings: Settings,
        committer: Committer,
    ) -> Result<Self, Error> {
        Self::try_open(fs, dir, settings, committer).map_err(|error| refused(&error))
    }

    fn try_open(fs: Arc<dyn Fs>, dir: PathBuf, settings: Settings, committer: Committer) -> io::Result<Self> {
        make_dir(&*fs, &dir)?;
        let (mut known, was_closed) = checkpoint::load(&*fs, &dir)?;
        if !was_closed {
            redo(&*fs, &dir)?;
        }
        journal::remove(&*fs, &dir)?;
        checkpoint::mark_open(&*fs, &dir)?;
        let mut names = BTreeMap::new();
        for found in fs.list(&dir)? {
            if let Some(name) = name::log_of(&found) {
                names.insert(name.to_owned(), Place::Closed);
            } else if name::is_gone(&found) {
                remove_dir(&*fs, &dir.join(found))?;
            }
        }
        let gone = known.extract_if(.., |name, _| !names.contains_key(name)).map(|(name, _)| name).collect();
        let journal = Journal::new(fs.clone(), dir.clone(), settings.journal_bytes);
        let syncer = Syncer::new(fs.clone(), dir.clone(), journal, settings.open_files);
        let queue = Queue::start(syncer, committer)?;
        let files = Files::new(fs.clone(), settings.open_files);
        let checkpoint_bytes = settings.checkpoint_bytes;
        let indexes = Recent::new(settings.indexes);
        let disk = Disk { fs, settings, files, indexes, group: Group::default() };
        Ok(Self {
            dir,
            disk,
            queue,
            logs: Vec::new(),
            names,
            known,
            was_closed,
            is_checkpoint_wrong: false,
            gone,
            dirty: Vec::new(),
            tickets: 0,
            completed: Vec::new(),
            since_checkpoint: 0,
            checkpoint_bytes,
            cached: Cached::default(),
            tending: Tending::default(),
        })
    }

    /// The bytes that [`Store::read`] would give for the same arguments, as they lie in files: for sending them
    /// without copying. Checksums are not compared; everything appended so far is written for it.
    ///
    /// # Errors
    /// Those of [`Store::read`], and [`Error::Full`] and [`Error::Broken`] if it could not be written.
    pub fn ranges(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: u64,
    ) -> Result<Vec<FileRange>, Error> {
        let Self { logs, disk, .. } = self;
        let ranges = open_log(logs, log).ranges(disk, &offsets, max_bytes);
        self.trim_indexes();
        ranges
    }

    fn log(&self, log: LogId) -> &Log {
        self.logs[log.0 as usize].as_deref().expect("the log has been removed")
    }

    /// Takes in what the committer has to say.
    fn take_reports(&mut self) {
        let Some(report) = self.queue.report() else { return };
        for ack in report.acks {
            let Some(log) = &mut self.logs[ack.log.0 as usize] else { continue };
            log.awaited -= usize::from(ack.ticket.is_some()) * (1 + ack.earlier);
            match &ack.outcome {
                Ok(()) => log.advance(&ack),
                Err(Error::Broken) => log.fail(),
                Err(_) => {}
            }
            if let Some(ticket) = ack.ticket {
                self.completed.push(Completion { log: ack.log, ticket, outcome: ack.outcome });
            }
        }
        for log in report.broken {
            if let Some(log) = &mut self.logs[log.0 as usize] {
                log.fail();
            }
        }
    }

    /// Waits until everything submitted has come to its end.
    fn settle(&mut self) {
        let group = std::mem::take(&mut self.disk.group);
        self.queue.submit(group);
        drop(self.queue.settled());
        self.take_reports();
    }

    /// Forgets the indexes that were not used lately, beyond the bound.
    fn trim_indexes(&mut self) {
        for (log, base) in self.disk.indexes.take_gone() {
            let Some(log) = &mut self.logs[log.0 as usize] else { continue };
            let at = log.segment_of(base);
            if at + 1 < log.segments.len() && log.segments[at].base == base {
                log.segments[at].index = None;
            }
        }
    }

    /// What is known of all logs at this moment.
    fn checkpoint(&self) -> Vec<u8> {
        let known = |(name, place): (&String, &Place)| match place {
            Place::Open(log) => {
                let log = self.log(*log);
                // What was not submitted may yet be taken back.
                let synced = log.synced.min(log.submitted);
                Some(Known {
                    start: log.start.min(synced.offset),
                    cleaned: log.cleaned.min(synced.offset),
                    sparse: log.sparse.min(synced.offset),
                    committed: synced,
                })
            }
            Place::Closed => self.known.get(name).copied(),
        };
        checkpoint::encode(self.names.iter().filter_map(|entry| Some((entry.0.as_str(), known(entry)?))))
    }

    /// Bounds the memory of the tails: those that were not written to for longest lose theirs.
    fn trim_cache(&mut self) {
        while self.cached.bytes > self.disk.settings.cache_bytes {
            // What is written to from here on is to stay longer than what is here.
            self.cached.commits = COMMITS_OF_AN_AGE;
            let Some(((_, log), bytes)) = self.cached.by_age.pop_first() else { break };
            self.cached.bytes -= bytes;
            if let Some(log) = &mut self.logs[log.0 as usize] {
                log.cached = None;
                log.tail.forget_written();
            }
        }
    }

    fn make_log(&mut self, name: &str, options: &Options) -> io::Result<LogId> {
        let dir = self.dir.join(name::log_dir(name));
        let is_new = !self.names.contains_key(name);
        if is_new {
            self.is_checkpoint_wrong |= self.gone.len() >= GONE_MAX || self.gone.contains(name);
            self.right_checkpoint()?;
            // One of that name may be on its way out: it must be gone for good before this one begins, or loss of power
            // brings it back in its place. Set aside under the other name it is until the disk knows.
            let gone = self.dir.join(name::gone_dir(name));
            let is_left = |fs: &dyn Fs| [&dir, &gone].iter().any(|dir| has_files(fs, dir));
            if is_left(&*self.disk.fs) {
                self.settle();
                if is_left(&*self.disk.fs) {
                    self.queue.settled().discard(&[name])?;
                }
            }
            self.disk.fs.create_dir(&dir)?;
        }
        let before = Before { is_new, known: self.known.get(name).copied(), was_closed: self.was_closed };
        let id = LogId(self.logs.len() as u32);
        let log = Log::open(&mut self.disk, id, name, dir, options, &before)?;
        self.is_checkpoint_wrong |= before.known.is_some_and(|known| log.synced < known.committed);
        if is_new {
            self.disk.group.dirs.insert(id, NewNames { dir: log.dir.clone(), is_new });
        }
        self.logs.push(Some(Box::new(log)));
        self.names.insert(name.to_owned(), Place::Open(id));
        self.right_checkpoint()?;
        Ok(id)
    }

    /// Sees to it that the last checkpoint speaks of nothing that is not there.
    fn right_checkpoint(&mut self) -> io::Result<()> {
        if self.is_checkpoint_wrong {
            let committer_rests = self.queue.settled();
            checkpoint::store(&*self.disk.fs, &self.dir, &self.checkpoint())?;
            drop(committer_rests);
            self.is_checkpoint_wrong = false;
            self.gone.clear();
        }
        Ok(())
    }

    /// Syncs everything and says so.
    fn close(&mut self) -> Result<(), Error> {
        self.commit();
        self.settle();
        self.queue.settled().settle()?;
        let mut is_sound = true;
        for log in self.logs.iter_mut().flatten() {
            is_sound &= log.close(&mut self.disk);
        }
        let bytes = self.checkpoint();
        let fs = &*self.disk.fs;
        let closed = checkpoint::store(fs, &self.dir, &bytes).and_then(|()| {
            if is_sound && (self.was_closed || self.all_open()) {
                self.queue.settled().journal.remove()?;
                checkpoint::mark_clean(fs, &self.dir, &bytes)?;
            }
            Ok(())
        });
        closed.map_err(|error| refused(&error))
    }

    /// Whether every log has been opened, and so recovered.
    fn all_open(&self) -> bool {
        self.names.values().all(|place| matches!(place, Place::Open(_)))
    }
}

fn open_log(logs: &mut [Option<Box<Log>>], log: LogId) -> &mut Log {
    logs[log.0 as usize].as_deref_mut().expect("the log has been removed")
}

/// What a caller is told of an error that concerns no batch.
fn refused(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full,
        _ => Error::System(error.to_string()),
    }
}

fn has_files(fs: &dyn Fs, dir: &Path) -> bool {
    fs.list(dir).is_ok_and(|files| !files.is_empty())
}

/// Makes a directory and those above it, durably.
fn make_dir(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    match fs.create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dir(fs, parent.ok_or(error)?)?;
            fs.create_dir(dir)?;
        }
        outcome => outcome?,
    }
    fs.sync_dir(parent.unwrap_or(Path::new(".")))
}

/// Writes to the segments what the journal has, and makes it durable there.
fn redo(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let mut touched = BTreeMap::new();
    journal::replay(fs, dir, |write| {
        let path = dir.join(name::log_dir(write.name)).join(name::segment(write.base));
        if !touched.contains_key(&path) {
            match fs.open(&path, Mode::Existing) {
                Ok(file) => touched.insert(path.clone(), file),
                // The segment has been removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        touched[&path].write_at(write.bytes, write.position)
    })?;
    touched.values().try_for_each(|file| file.sync_data())
}

impl Cached {
    /// There is one more commit. It costs something for each log that is in it to be of a new age.
    fn grow_older(&mut self) {
        self.commits += 1;
        if self.commits >= COMMITS_OF_AN_AGE {
            (self.age, self.commits) = (self.age + 1, 0);
        }
    }

    /// Takes note that a log has been written to and now has so much in memory.
    fn note(&mut self, log: &mut Log) {
        let now = (self.age, log.tail.capacity());
        if log.cached != Some(now) {
            self.forget(log);
            self.by_age.insert((now.0, log.id), now.1);
            self.bytes += now.1;
            log.cached = Some(now);
        }
    }

    fn forget(&mut self, log: &mut Log) {
        if let Some((age, bytes)) = log.cached.take() {
            self.by_age.remove(&(age, log.id));
            self.bytes -= bytes;
        }
    }
}

impl Store for SegmentStore {
    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        name::check(name)?;
        if let Some(Place::Open(log)) = self.names.get(name) {
            let log = *log;
            open_log(&mut self.logs, log).options = options.clone();
            return Ok(log);
        }
        self.make_log(name, options).map_err(|error| refused(&error))
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        let Some(mut gone) = self.logs[log.0 as usize].take() else { return Ok(()) };
        self.dirty.retain(|dirty| *dirty != log);
        self.completed.retain(|completion| completion.log != log);
        self.cached.forget(&mut gone);
        self.names.remove(&*gone.name);
        self.known.remove(&*gone.name);
        self.gone.insert(gone.name.to_string());
        self.disk.files.close_log(log);
        self.disk.group.remove(log, gone.name);
        Ok(())
    }

    #[inline]
    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        let base_offset = to.append(disk, &batch)?;
        let ticket = *to.ticket.get_or_insert_with(|| {
            self.tickets += 1;
            self.dirty.push(log);
            Ticket(self.tickets)
        });
        Ok(Appended { base_offset, ticket })
    }

    fn sync_next(&mut self, log: LogId) {
        open_log(&mut self.logs, log).syncs_next = true;
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        let Self { logs, disk, .. } = self;
        open_log(logs, log).keep_note(disk, note)
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        let Self { logs, disk, .. } = self;
        open_log(logs, log).notes(disk).map_err(|error| refused(&error))
    }

    fn commit(&mut self) {
        if self.dirty.is_empty() && self.disk.group.is_empty() {
            return;
        }
        self.cached.grow_older();
        let mut dirty = std::mem::take(&mut self.dirty);
        for log in dirty.drain(..) {
            let to = open_log(&mut self.logs, log);
            let before = to.submitted;
            if let Some(ticket) = to.commit(&mut self.disk) {
                self.completed.push(Completion { log, ticket, outcome: Ok(()) });
            }
            self.since_checkpoint += if before.base == to.submitted.base {
                to.submitted.position.saturating_sub(before.position)
            } else {
                to.submitted.position
            };
            self.cached.note(to);
        }
        self.dirty = dirty;
        self.trim_cache();
        if self.since_checkpoint >= self.checkpoint_bytes {
            let bytes = self.checkpoint();
            self.checkpoint_bytes = self.disk.settings.checkpoint_bytes.max(8 * bytes.len() as u64);
            self.since_checkpoint = 0;
            self.disk.group.rest.checkpoint = Some(bytes);
        }
        if !self.disk.group.is_empty() {
            let group = std::mem::take(&mut self.disk.group);
            self.queue.submit(group);
        }
        self.take_reports();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.take_reports();
        into.append(&mut self.completed);
    }

    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Self { logs, disk, .. } = self;
        let outcome = open_log(logs, log).read(disk, offsets, max_bytes, into);
        self.trim_indexes();
        outcome
    }

    /// What is in memory is read. Each [`Piece::source`] is an `Arc<dyn File>`.
    fn pieces(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<Piece>>, Error> {
        if self.log(log).tail.has(offsets.start) {
            return Ok(None);
        }
        let piece = |FileRange { file, position, len, end }: FileRange| Piece {
            source: Arc::new(file),
            position,
            len,
            end,
        };
        let ranges = self.ranges(log, offsets, max_bytes as u64)?;
        Ok(Some(ranges.into_iter().map(piece).collect()))
    }

    fn status(&self, log: LogId) -> Status {
        let log = self.log(log);
        Status {
            start: log.start,
            start_after_crash: log.start_after_crash(),
            committed: log.committed.offset.max(log.start),
            end: log.head.offset,
            bytes: log.bytes(),
            state: log.state,
        }
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        let Self { logs, disk, .. } = self;
        let found = open_log(logs, log).find_time(disk, timestamp_ms);
        self.trim_indexes();
        found
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        if offset > self.log(log).committed.offset {
            // Otherwise a crash might give these offsets again.
            self.commit();
            self.settle();
        }
        let Self { logs, disk, .. } = self;
        open_log(logs, log).truncate_prefix(disk, offset).map_err(|error| refused(&error))
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        let Self { logs, disk, .. } = self;
        let to = open_log(logs, log);
        if offset < to.start || offset > to.head.offset {
            return Err(Error::OutOfRange);
        }
        if to.state == State::Broken {
            return Err(Error::Broken);
        }
        to.flush(disk)?;
        let place = to.boundary(disk, offset).map_err(|_| Error::Corrupt { offset })?;
        let place = place.ok_or(Error::OutOfRange)?;
        if place == to.head {
            return Ok(());
        }
        self.settle();
        let to = open_log(&mut self.logs, log);
        if to.state == State::Broken {
            return Err(Error::Broken);
        }
        // Recovery must not count on what may be half gone.
        to.synced = to.synced.min(place);
        self.is_checkpoint_wrong = true;
        self.right_checkpoint().map_err(|error| refused(&error))?;
        let Self { logs, disk, queue, .. } = self;
        let mut syncer = queue.settled();
        let to = open_log(logs, log);
        if let Err(error) = to.truncate_suffix(disk, &mut syncer.journal, place) {
            syncer.fail(log, &error);
            queue.note_broken(syncer.newly_broken());
            to.fail();
            return Err(Error::Broken);
        }
        Ok(())
    }

    fn tend(&mut self, unix_ms: u64) -> Option<u64> {
        self.tend_some(unix_ms)
    }
}

impl Drop for SegmentStore {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.close() {
            log::warn!("{}: not closed in order: {error}", self.dir.display());
        }
    }
}
