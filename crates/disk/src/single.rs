//! One log: its segments, and the way of an append into the newest of them.
//!
//! ```text
//!  start           committed      submitted      written        head
//!    │  on disk        │  committer    │  file        │  memory    │
//!  ──┴─────────────────┴───────────────┴──────────────┴────────────┘
//! ```
//! The four places never overtake one another. An append moves the head, a flush what is written, a commit what is
//! submitted, and the report of the committer what is committed.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::{BatchHeader, Durability, Error, LogId, Options, Sound, State, Ticket, batches};

use crate::commit::{Ack, Group, Range};
use crate::compact::Compaction;
use crate::files::{Files, Recent, SegmentKey};
use crate::fs::{File, Fs, Mode};
use crate::index::Index;
use crate::mapped::MAPPED_AHEAD_BYTES;
use crate::name;
use crate::notes::Notes;
use crate::scan::{Gaps, Place, Scan};
use crate::settings::Settings;
use crate::space::Space;

/// What may wait in memory for the end of the turn, for one log. Beyond it is written at once.
const UNWRITTEN_MAX: usize = 4 << 20;

/// What logs need of their store.
pub(crate) struct Disk {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) settings: Settings,
    pub(crate) files: Files,
    /// Indexes in memory of segments that are complete.
    pub(crate) indexes: Recent,
    /// What this turn has written.
    pub(crate) group: Group,
}

/// One file of a log.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Offset that its first record has, or would have.
    pub(crate) base: u64,
    /// Size of what is in it. The file may be larger, by zeros.
    pub(crate) bytes: u64,
    /// Made when it is first needed.
    pub(crate) index: Option<Box<Index>>,
    /// The checksums of so many bytes have been compared since the store was opened.
    pub(crate) checked: u64,
}

/// Size of all segments but the newest.
pub(crate) fn closed_bytes(segments: &VecDeque<Segment>) -> u64 {
    segments.iter().rev().skip(1).map(|segment| segment.bytes).sum()
}

/// Why nothing more was written.
pub(crate) enum Failure {
    /// No space, or no more open files: it may be tried again.
    Full,
    /// What is in the file is unsure.
    Broken(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use rustix::io::Errno;
        let passes = [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE];
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if is_full || Errno::from_io_error(&error).is_some_and(|errno| passes.contains(&errno)) {
            return Self::Full;
        }
        Self::Broken(error)
    }
}

pub(crate) struct Log {
    pub(crate) id: LogId,
    pub(crate) name: Arc<str>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    /// Oldest first; there is always one, which is appended to.
    pub(crate) segments: VecDeque<Segment>,
    /// Size of all segments but the newest.
    pub(crate) closed_bytes: u64,
    pub(crate) start: u64,
    /// The name of its first segment need not be on disk yet.
    pub(crate) is_new: bool,
    /// Base of the segment that was removed last, if the directory was not synced since: it may come back.
    pub(crate) removed: Option<u64>,
    /// How far it is as durable as it is to be.
    pub(crate) committed: Place,
    /// How far it is known to be on disk.
    pub(crate) synced: Place,
    pub(crate) submitted: Place,
    pub(crate) written: Place,
    pub(crate) head: Place,
    /// What is reserved in the newest segment.
    pub(crate) space: Space,
    /// What of the newest segment the committer has been told of, bytes.
    pub(crate) covered: u64,
    pub(crate) tail: crate::tail::Tail,
    pub(crate) notes: Notes,
    /// How old that is, and how much, as far as the store cares.
    pub(crate) cached: Option<(u64, usize)>,
    pub(crate) state: State,
    /// Of what was appended since the last commit.
    pub(crate) ticket: Option<Ticket>,
    /// Whether the next commit is synced, whatever the options say.
    pub(crate) syncs_next: bool,
    /// Reports that are to come.
    pub(crate) awaited: usize,
    /// Compaction has seen all before this offset.
    pub(crate) cleaned: u64,
    /// Segments that begin before this offset may have gaps.
    pub(crate) sparse: u64,
    pub(crate) compaction: Option<Box<Compaction>>,
    /// Where the newest segment began when the last compaction did. The next is begun when there is more.
    pub(crate) compacted_to: u64,
    /// Not to be tended before, since that failed; ms since 1970.
    pub(crate) tend_after_ms: u64,
    /// Where readers are expected next.
    pub(crate) cursors: [Place; 4],
    pub(crate) next_cursor: usize,
}

impl Log {
    pub(crate) fn key(&self, base: u64) -> SegmentKey {
        (self.id, base)
    }

    pub(crate) fn path(&self, base: u64) -> PathBuf {
        self.dir.join(name::segment(base))
    }

    /// The file of a segment.
    pub(crate) fn file(&self, files: &mut Files, base: u64) -> io::Result<Arc<dyn File>> {
        files.get(self.key(base), || self.path(base))
    }

    /// Whether the segment that begins at `base` may have gaps.
    pub(crate) fn gaps(&self, base: u64) -> Gaps {
        if base < self.sparse { Gaps::Allowed } else { Gaps::None }
    }

    /// Size of what is in it, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        debug_assert_eq!(self.closed_bytes, closed_bytes(&self.segments), "{}", self.name);
        self.closed_bytes + self.segments.back().map_or(0, |newest| newest.bytes)
    }

    /// To be called when there are other segments.
    pub(crate) fn count_closed(&mut self) {
        self.closed_bytes = closed_bytes(&self.segments);
    }

    pub(crate) fn newest(&mut self) -> &mut Segment {
        self.segments.back_mut().expect("there is always a segment")
    }

    /// Takes in a batch, and returns its base offset.
    #[inline]
    pub(crate) fn append(&mut self, disk: &mut Disk, batch: &Sound<'_>) -> Result<u64, Error> {
        if self.state == State::Broken {
            return Err(Error::Broken);
        }
        let header = batch.header();
        let len = header.total_bytes as u64;
        if self.head.position > 0 && self.head.position + len > self.options.segment_bytes {
            self.roll(disk)?;
        }
        let base_offset = self.head.offset;
        let header = BatchHeader { base_offset, ..header };
        let place = self.head;
        self.head = place.behind(&header);
        let bytes = self.head.position;
        let newest = self.newest();
        newest.bytes = bytes;
        if let Some(index) = &mut newest.index {
            index.note(place, &header);
        }
        self.tail.push(batch.bytes(), base_offset);
        if self.tail.unwritten().len() >= UNWRITTEN_MAX {
            self.flush(disk)?;
        }
        Ok(base_offset)
    }

    /// Hands what was appended to the operating system.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Broken`]: nothing of what was appended since the last commit is part of the log
    /// any more, and whoever waits for it is told.
    pub(crate) fn flush(&mut self, disk: &mut Disk) -> Result<(), Error> {
        if self.tail.unwritten().is_empty() {
            return Ok(());
        }
        match self.write(disk) {
            Ok(()) => {
                self.tail.wrote(disk.settings.tail_bytes);
                self.written = self.head;
                self.state = State::Ready;
                Ok(())
            }
            Err(failure) => Err(self.fail_turn(disk, failure)),
        }
    }

    fn write(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let base = self.head.base;
        let file = disk.files.borrow((self.id, base), || self.path(base))?;
        let is_mapped = disk.settings.mapped_writes && self.options.durability == Durability::Os;
        let ahead = if is_mapped { MAPPED_AHEAD_BYTES } else { 0 };
        self.space.reserve(&**file, self.head.position, ahead, self.options.segment_bytes)?;
        let (bytes, at) = (self.tail.unwritten(), self.written.position);
        if is_mapped {
            file.append_at(bytes, at)?;
        } else {
            file.write_at(bytes, at)?;
        }
        Ok(())
    }

    /// Closes the newest segment and begins another.
    pub(crate) fn roll(&mut self, disk: &mut Disk) -> Result<(), Error> {
        self.flush(disk)?;
        let base = self.head.offset;
        let path = self.path(base);
        // After a crash nothing may be found that begins with the second segment.
        let first_is_there = if self.is_new { disk.fs.sync_dir(&self.dir) } else { Ok(()) };
        first_is_there.map_err(|error| self.fail_turn(disk, Failure::Broken(error)))?;
        self.is_new = false;
        let begun = match disk.fs.open(&path, Mode::New) {
            // Left by an append that was taken back.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.fs.open(&path, Mode::Existing).and_then(|file| file.set_len(0).map(|()| file))
            }
            outcome => outcome,
        };
        let index = self.dir.join(name::index(base));
        let begun = begun.and_then(|file| Index::remove(&*disk.fs, &index).map(|()| file));
        let file = begun.map_err(|error| match Failure::from(error) {
            Failure::Full => {
                self.state = State::Full;
                Error::Full
            }
            Failure::Broken(error) => self.fail_turn(disk, Failure::Broken(error)),
        })?;
        self.close_newest(disk)?;
        disk.files.hold(self.key(base), file);
        disk.group.note_names(self.id, &self.dir);
        self.segments.push_back(Segment {
            base,
            bytes: 0,
            index: Some(Box::new(Index::new(base))),
            checked: 0,
        });
        self.count_closed();
        let closed = self.segments.len() - 2;
        if self.segments[closed].index.is_some() {
            self.note_index(disk, closed);
        }
        self.head = Place::beginning(base);
        self.written = self.head;
        self.space.restart(0);
        self.covered = 0;
        // Nobody waits for it, but what is before this need not be read by a recovery, and may be removed.
        disk.group.acknowledge(Ack {
            log: self.id,
            ticket: None,
            end: self.head,
            is_synced: true,
            outcome: Ok(()),
            earlier: 0,
        });
        Ok(())
    }

    /// The newest segment is complete: what it was given too much is taken back, and it is synced.
    fn close_newest(&mut self, disk: &mut Disk) -> Result<(), Error> {
        let Place { base, position, .. } = self.head;
        let closed = self.file(&mut disk.files, base).and_then(|file| {
            if self.space.end > position {
                file.set_len(position)?;
            }
            Ok(file)
        });
        let file = closed.map_err(|error| self.fail_turn(disk, Failure::Broken(error)))?;
        self.keep_index(disk);
        let (key, name, from) = (self.key(base), self.name.clone(), self.covered);
        disk.group.add(Range { key, name, file, from, to: position, is_closed: true });
        Ok(())
    }

    /// Submits what was appended since the last commit. Returns the ticket if that is all there is to it.
    pub(crate) fn commit(&mut self, disk: &mut Disk) -> Option<Ticket> {
        if self.state == State::Broken {
            self.acknowledge(disk, false, Err(Error::Broken));
            return None;
        }
        if self.flush(disk).is_err() {
            return None;
        }
        let is_synced = self.options.durability == Durability::Fsync || self.syncs_next;
        if is_synced && let Err(error) = self.submit_newest(disk) {
            let error = self.fail_turn(disk, Failure::from(error));
            debug_assert!(self.ticket.is_none(), "{error} has been reported");
            return None;
        }
        self.syncs_next = false;
        // A segment that was closed on the way is synced in any case.
        self.submitted = self.written;
        if !is_synced && self.awaited == 0 {
            self.committed = self.written;
            return self.ticket.take();
        }
        self.acknowledge(disk, is_synced, Ok(()));
        None
    }

    /// Asks for what was written to the newest segment to become durable.
    fn submit_newest(&mut self, disk: &mut Disk) -> io::Result<()> {
        let Place { base, position: to, .. } = self.written;
        if to > self.covered {
            let file = self.file(&mut disk.files, base)?;
            let (key, name, from) = (self.key(base), self.name.clone(), self.covered);
            disk.group.add(Range { key, name, file, from, to, is_closed: false });
            self.covered = to;
        }
        Ok(())
    }

    /// Lets the turn's ticket be reported, behind what was submitted before.
    fn acknowledge(&mut self, disk: &mut Disk, is_synced: bool, outcome: Result<(), Error>) {
        if let Some(ticket) = self.ticket.take() {
            self.awaited += 1;
            disk.group.acknowledge(Ack {
                log: self.id,
                ticket: Some(ticket),
                end: self.submitted,
                is_synced,
                outcome,
                earlier: 0,
            });
        }
    }

    /// Takes back what was appended since the last commit.
    fn fail_turn(&mut self, disk: &mut Disk, failure: Failure) -> Error {
        match failure {
            Failure::Full => {
                if let Err(error) = self.go_back(disk, self.submitted) {
                    return self.fail_turn(disk, Failure::Broken(error));
                }
                self.state = State::Full;
                self.acknowledge(disk, false, Err(Error::Full));
                Error::Full
            }
            Failure::Broken(error) => {
                log::error!("log {}: {error}; it is read only now", self.name);
                // What was submitted may yet become durable, and whoever waits for it is told so.
                self.fail_at(self.submitted);
                self.acknowledge(disk, false, Err(Error::Broken));
                Error::Broken
            }
        }
    }

    /// Ends the log where it was committed last, for reading only. The files are left as they are.
    pub(crate) fn fail(&mut self) {
        self.fail_at(self.committed);
    }

    fn fail_at(&mut self, end: Place) {
        self.state = State::Broken;
        self.compaction = None;
        self.end_at(end);
    }

    /// Ends the log at `place`, in its files too.
    ///
    /// # Errors
    /// If what is no part of the log may come back after a crash.
    fn go_back(&mut self, disk: &mut Disk, place: Place) -> io::Result<()> {
        let has_rolled = place.base < self.head.base;
        // Nobody is to hear that a segment is on disk which is there no more.
        let log = self.id;
        disk.group.acks.retain(|ack| ack.log != log || ack.ticket.is_some() || ack.end <= place);
        while self.segments.len() > 1 && self.newest().base > place.base {
            let base = self.newest().base;
            self.segments.pop_back();
            disk.files.close(self.key(base));
            disk.group.ranges.remove(&self.key(base));
            disk.fs.remove_file(&self.path(base))?;
            disk.fs.sync_dir(&self.dir)?;
        }
        if has_rolled {
            Index::remove(&*disk.fs, &self.dir.join(name::index(place.base)))?;
            disk.fs.sync_dir(&self.dir)?;
        }
        // Nor may anything come back behind the end, half a batch or a whole one.
        let file = self.file(&mut disk.files, place.base)?;
        file.set_len(place.position)?;
        file.sync_data()?;
        self.space.restart(place.position);
        self.covered = if has_rolled { place.position } else { self.covered.min(place.position) };
        self.end_at(place);
        Ok(())
    }

    /// Ends the log at `place`, in memory.
    pub(crate) fn end_at(&mut self, place: Place) {
        while self.segments.len() > 1 && self.newest().base > place.base {
            self.segments.pop_back();
        }
        self.count_closed();
        let newest = self.newest();
        newest.bytes = place.position;
        newest.checked = newest.checked.min(place.position);
        if let Some(index) = &mut newest.index {
            index.cut(place);
        }
        self.tail.clear();
        self.head = place;
        self.written = self.written.min(place);
        self.submitted = self.submitted.min(place);
        self.committed = self.committed.min(place);
        self.synced = self.synced.min(place);
        self.cursors = [Place::default(); 4];
    }

    /// Takes note of a report that the log is as durable up to its end as was asked for.
    pub(crate) fn advance(&mut self, ack: &Ack) {
        let end = ack.end.min(self.written);
        self.is_new = false;
        if ack.ticket.is_some() {
            self.committed = self.committed.max(end);
        }
        if ack.is_synced {
            self.synced = self.synced.max(end);
        }
    }

    /// Keeps the index of the newest segment in a file, if there is one.
    pub(crate) fn keep_index(&self, disk: &Disk) {
        let Some(Segment { base, index: Some(index), .. }) = self.segments.back() else { return };
        if let Err(error) = index.store(&*disk.fs, &self.dir.join(name::index(*base))) {
            log::debug!("log {}: no index for segment {base}: {error}", self.name);
        }
    }

    /// The index of a segment, made if it is not there.
    pub(crate) fn index(&mut self, disk: &mut Disk, at: usize) -> io::Result<&Index> {
        if self.segments[at].index.is_none() {
            let index = self.make_index(disk, at)?;
            self.segments[at].index = Some(Box::new(index));
        }
        self.note_index(disk, at);
        let segment = &mut self.segments[at];
        Ok(segment.index.as_deref().expect("it has just been made"))
    }

    /// Takes note that the index of a segment is in use, if it is one of those that are bounded.
    pub(crate) fn note_index(&self, disk: &mut Disk, at: usize) {
        if at + 1 < self.segments.len() {
            disk.indexes.note(self.key(self.segments[at].base));
        }
    }

    fn make_index(&self, disk: &mut Disk, at: usize) -> io::Result<Index> {
        let base = self.segments[at].base;
        let is_newest = at + 1 == self.segments.len();
        let limit = self.segments.get(at + 1).map_or(self.head.offset, |next| next.base);
        let position = if is_newest { self.written.position } else { self.segments[at].bytes };
        let end = Place { base, position, offset: if is_newest { self.written.offset } else { limit } };
        let path = self.dir.join(name::index(base));
        let mut index = match Index::load(&*disk.fs, &path, end) {
            Some(kept) if kept.end() == end && !is_newest => return Ok(kept),
            Some(kept) => kept,
            None => Index::new(base),
        };
        let file = self.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, position, limit, self.gaps(base));
        index.extend(&mut scan, end)?;
        if is_newest {
            for batch in batches(self.tail.unwritten()) {
                index.note(index.end(), &batch.header);
            }
        } else if let Err(error) = index.store(&*disk.fs, &path) {
            log::debug!("log {}: no index for segment {base}: {error}", self.name);
        }
        Ok(index)
    }
}
