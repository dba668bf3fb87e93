//! One log: its segments, and the append path into the newest of them.
//!
//! [`Positions`] says how far each step has come. When a write fails, the log rolls back to what was submitted; what
//! the committer already has may still become durable.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::{BatchHeader, Durability, Error, LogId, Options, State, Ticket, ValidBatch, batches};

use crate::cleaning::Cleaning;
use crate::commit::{Ack, SealedIndex};
use crate::cursors::Cursors;
use crate::disk::{Disk, Failure};
use crate::files::{Files, Range, SegmentKey};
use crate::fs::{File, Mode};
use crate::index::Index;
use crate::mapped::MAPPED_AHEAD_BYTES;
use crate::name;
use crate::notes::Notes;
use crate::positions::Positions;
use crate::scan::{Gaps, Place, Scan};
use crate::segments::{Segment, Segments};
use crate::space::Space;
use crate::tail::Tail;

/// Maximum number of unwritten bytes per log. An append beyond it flushes immediately.
const UNWRITTEN_MAX: usize = 4 << 20;

/// One log of a store.
pub(crate) struct Log {
    pub(crate) id: LogId,
    pub(crate) name: Arc<str>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) state: State,
    pub(crate) segments: Segments,
    pub(crate) positions: Positions,
    pub(crate) start: u64,
    /// Base of the last removed segment if the directory was not synced since. It may reappear after a crash.
    pub(crate) removed: Option<u64>,
    /// Space reserved in the newest segment.
    pub(crate) space: Space,
    pub(crate) tail: Tail,
    pub(crate) notes: Notes,
    pub(crate) cursors: Cursors,
    pub(crate) cleaning: Cleaning,
    /// Age and memory of the tail, as accounted in [`crate::store`].
    pub(crate) cached: Option<(u64, usize)>,
    /// Offset of the last read error that was logged.
    pub(crate) unreadable: Option<u64>,
    /// Closed segments whose index is not sealed yet, and its bytes.
    unsealed: Vec<(u64, Vec<u8>)>,
    /// Time of the next maintenance attempt after a failure, Unix time in ms.
    pub(crate) maintain_after_ms: u64,
    /// When maintenance first saw a record in the newest segment, Unix time in ms; 0 for a segment that was there when
    /// the log was opened.
    pub(crate) newest_since_ms: Option<u64>,
    /// Whether the directory entry of its first segment may not be durable yet.
    is_new: bool,
    /// Bytes of the newest segment submitted to the committer.
    submitted_bytes: u64,
    /// Ticket of the appends since the last commit.
    ticket: Option<Ticket>,
    /// Whether the next commit is synced regardless of the options.
    forces_sync: bool,
    /// Number of tickets submitted and not yet reported.
    pending_acks: usize,
}

impl Log {
    /// A log as recovery has found it, with its end at `end`.
    pub(crate) fn new(
        id: LogId,
        name: &str,
        dir: PathBuf,
        options: &Options,
        segments: Segments,
        end: Place,
    ) -> Self {
        Self {
            id,
            name: Arc::from(name),
            dir,
            options: options.clone(),
            state: State::Ready,
            start: segments[0].base,
            segments,
            positions: Positions::new(end),
            removed: None,
            space: Space::default(),
            tail: Tail::default(),
            notes: Notes::default(),
            cursors: Cursors::default(),
            cleaning: Cleaning::default(),
            cached: None,
            unreadable: None,
            unsealed: Vec::new(),
            maintain_after_ms: 0,
            newest_since_ms: (end.position > 0).then_some(0),
            is_new: false,
            submitted_bytes: end.position,
            ticket: None,
            forces_sync: false,
            pending_acks: 0,
        }
    }

    /// The directory entry of its first segment may not be durable yet.
    pub(crate) fn mark_new(&mut self) {
        self.is_new = true;
    }

    /// Whether the directory entry of its first segment may not be durable yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Reports that the directory entry of its first segment is durable.
    pub(crate) fn creation_ack(&self) -> Ack {
        let end = self.positions.head();
        Ack { log: self.id, ticket: None, end, is_synced: true, outcome: Ok(()), earlier: 0, removed: None }
    }

    pub(crate) fn key(&self, base: u64) -> SegmentKey {
        (self.id, base)
    }

    pub(crate) fn path(&self, base: u64) -> PathBuf {
        self.dir.join(name::segment(base))
    }

    pub(crate) fn file(&self, files: &mut Files, base: u64) -> io::Result<Arc<dyn File>> {
        files.get(self.key(base), || self.path(base))
    }

    /// Whether the segment with base offset `base` may have offset gaps.
    pub(crate) fn gaps(&self, base: u64) -> Gaps {
        self.cleaning.gaps(base)
    }

    /// Ticket of the appends since the last commit; `next` if there were none.
    #[inline]
    pub(crate) fn ticket_or(&mut self, next: impl FnOnce() -> Ticket) -> Ticket {
        *self.ticket.get_or_insert_with(next)
    }

    /// Syncs the next commit regardless of the options.
    pub(crate) fn force_sync(&mut self) {
        self.forces_sync = true;
    }

    /// Appends a batch to the tail and returns its base offset.
    #[inline]
    pub(crate) fn append(&mut self, disk: &mut Disk, batch: &ValidBatch<'_>) -> Result<u64, Error> {
        if self.state == State::Broken {
            return Err(Error::Broken);
        }
        let header = batch.header();
        let len = header.total_bytes as u64;
        if self.positions.head().position > 0
            && self.positions.head().position + len > self.options.segment_bytes
        {
            self.roll(disk)?;
        }
        let base_offset = self.positions.head().offset;
        let header = BatchHeader { base_offset, ..header };
        let place = self.positions.append(&header);
        let bytes = self.positions.head().position;
        let newest = self.segments.newest_mut();
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

    /// Writes the unwritten appends to the segment file.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Broken`]. All appends since the last commit are rolled back, and their ticket
    /// completes with the error.
    pub(crate) fn flush(&mut self, disk: &mut Disk) -> Result<(), Error> {
        if self.tail.unwritten().is_empty() {
            return Ok(());
        }
        match self.write(disk) {
            Ok(()) => {
                self.tail.mark_written(disk.settings.tail_bytes);
                self.positions.mark_written();
                self.state = State::Ready;
                Ok(())
            }
            Err(failure) => Err(self.fail_turn(disk, failure)),
        }
    }

    fn write(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let base = self.positions.head().base;
        let file = disk.files.borrow((self.id, base), || self.path(base))?;
        let is_mapped = disk.settings.mapped_writes && self.options.durability == Durability::Os;
        let ahead = if is_mapped { MAPPED_AHEAD_BYTES } else { 0 };
        self.space.reserve(&**file, self.positions.head().position, ahead, self.options.segment_bytes)?;
        let (bytes, at) = (self.tail.unwritten(), self.positions.written().position);
        if is_mapped {
            file.append_at(bytes, at)?;
        } else {
            file.write_at(bytes, at)?;
        }
        Ok(())
    }

    /// Closes the newest segment and starts another.
    pub(crate) fn roll(&mut self, disk: &mut Disk) -> Result<(), Error> {
        self.flush(disk)?;
        let base = self.positions.head().offset;
        let path = self.path(base);
        // The second segment must not become durable before the first one.
        let first_synced = if self.is_new { disk.fs.sync_dir(&self.dir) } else { Ok(()) };
        first_synced.map_err(|error| self.fail_turn(disk, Failure::Broken(error)))?;
        self.is_new = false;
        let opened = match disk.fs.open(&path, Mode::New) {
            // Left by an append that was rolled back.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.fs.open(&path, Mode::Existing).and_then(|file| file.set_len(0).map(|()| file))
            }
            outcome => outcome,
        };
        let index = self.dir.join(name::index(base));
        let opened = opened.and_then(|file| Index::remove(&*disk.fs, &index).map(|()| file));
        let file = opened.map_err(|error| match Failure::from(error) {
            Failure::Full(error) => {
                self.state = State::Full;
                error
            }
            Failure::Broken(error) => self.fail_turn(disk, Failure::Broken(error)),
        })?;
        self.close_newest(disk)?;
        disk.files.hold(self.key(base), file);
        disk.group.add_dir(self.id, &self.dir);
        self.segments.push(Segment::new(base, 0, Some(Box::new(Index::new(base)))));
        let closed = self.segments.len() - 2;
        if self.segments[closed].index.is_some() {
            self.touch_index(disk, closed);
        }
        let begin = self.positions.start_segment();
        self.space.restart(0);
        self.newest_since_ms = None;
        self.submitted_bytes = 0;
        // No ticket depends on this, but it advances `synced`: recovery skips what is before it, and truncation may
        // remove it.
        disk.group.acknowledge(Ack {
            log: self.id,
            ticket: None,
            end: begin,
            is_synced: true,
            outcome: Ok(()),
            earlier: 0,
            removed: None,
        });
        Ok(())
    }

    /// Closes the newest segment: releases the unused reserved space and submits it for a sync.
    fn close_newest(&mut self, disk: &mut Disk) -> Result<(), Error> {
        let Place { base, position, .. } = self.positions.head();
        let closed = self.file(&mut disk.files, base).and_then(|file| {
            if self.space.end > position {
                file.set_len(position)?;
            }
            Ok(file)
        });
        let file = closed.map_err(|error| self.fail_turn(disk, Failure::Broken(error)))?;
        if let Some(index) = &mut self.segments.newest_mut().index {
            index.seal();
            self.unsealed.push((base, index.encode()));
        }
        let (key, name, from) = (self.key(base), self.name.clone(), self.submitted_bytes);
        disk.group.add(Range { key, name, file, from, to: position, is_closed: true });
        Ok(())
    }

    /// Schedules writing the sealed indexes of closed segments. Such an index is evidence that its segment and the
    /// directory entry of the next one are durable, so both must have been synced, and neither may be rolled back.
    pub(crate) fn seal_indexes(&mut self, disk: &mut Disk) {
        let durable = self.positions.synced().base.min(self.positions.submitted().base);
        for (base, bytes) in self.unsealed.extract_if(.., |(base, _)| *base < durable) {
            let path = self.dir.join(name::index(base));
            disk.group.deferred.indexes.push(SealedIndex { key: (self.id, base), path, bytes });
        }
    }

    /// The index of these segments must not be written any more.
    pub(crate) fn forget_unsealed(&mut self, disk: &mut Disk, is_affected: impl Fn(u64) -> bool) {
        self.unsealed.retain(|(base, _)| !is_affected(*base));
        let log = self.id;
        disk.group.deferred.indexes.retain(|index| index.key.0 != log || !is_affected(index.key.1));
    }

    /// Submits the appends since the last commit. Returns the ticket if it is complete without the committer.
    pub(crate) fn commit(&mut self, disk: &mut Disk) -> Option<Ticket> {
        if self.state == State::Broken {
            self.acknowledge(disk, false, Err(Error::Broken));
            return None;
        }
        if self.flush(disk).is_err() {
            return None;
        }
        let is_synced = self.options.durability == Durability::Fsync || self.forces_sync;
        if is_synced && let Err(error) = self.submit_newest(disk) {
            let error = self.fail_turn(disk, Failure::from(error));
            debug_assert!(self.ticket.is_none(), "{error} has been reported");
            return None;
        }
        self.forces_sync = false;
        // A segment that was closed since the last commit is synced in any case.
        self.positions.mark_submitted();
        if !is_synced && self.pending_acks == 0 {
            self.positions.mark_committed();
            return self.ticket.take();
        }
        self.acknowledge(disk, is_synced, Ok(()));
        None
    }

    /// Submits the unsynced bytes of the newest segment.
    fn submit_newest(&mut self, disk: &mut Disk) -> io::Result<()> {
        let Place { base, position: to, .. } = self.positions.written();
        if to > self.submitted_bytes {
            let file = self.file(&mut disk.files, base)?;
            let (key, name, from) = (self.key(base), self.name.clone(), self.submitted_bytes);
            disk.group.add(Range { key, name, file, from, to, is_closed: false });
            self.submitted_bytes = to;
        }
        Ok(())
    }

    /// Everything in the newest segment is on disk: the committer has nothing to do for it.
    pub(crate) fn mark_all_submitted(&mut self) {
        self.submitted_bytes = self.positions.written().position;
    }

    /// Queues the completion of the turn's ticket after everything submitted before.
    fn acknowledge(&mut self, disk: &mut Disk, is_synced: bool, outcome: Result<(), Error>) {
        if let Some(ticket) = self.ticket.take() {
            self.pending_acks += 1;
            disk.group.acknowledge(Ack {
                log: self.id,
                ticket: Some(ticket),
                end: self.positions.submitted(),
                is_synced,
                outcome,
                earlier: 0,
                removed: None,
            });
        }
    }

    /// Rolls back the appends since the last commit.
    fn fail_turn(&mut self, disk: &mut Disk, failure: Failure) -> Error {
        match failure {
            Failure::Full(full) => {
                if let Err(error) = self.roll_back(disk, self.positions.submitted()) {
                    return self.fail_turn(disk, Failure::Broken(error));
                }
                self.state = State::Full;
                self.acknowledge(disk, false, Err(full.clone()));
                full
            }
            Failure::Broken(error) => {
                log::error!("log {}: {error}; the log is now read-only", self.name);
                // Submitted appends may still become durable and are reported by the committer.
                self.fail_at(self.positions.submitted());
                self.acknowledge(disk, false, Err(Error::Broken));
                Error::Broken
            }
        }
    }

    /// Makes the log read-only and ends it at the last committed position. Does not change its files.
    pub(crate) fn fail(&mut self) {
        self.fail_at(self.positions.committed());
    }

    fn fail_at(&mut self, end: Place) {
        self.state = State::Broken;
        self.cleaning.stop();
        self.end_at(end);
    }

    /// Rolls the log back to `place`, in its files too.
    ///
    /// # Errors
    /// If the removed part may reappear after a crash.
    fn roll_back(&mut self, disk: &mut Disk, place: Place) -> io::Result<()> {
        let has_rolled = place.base < self.positions.head().base;
        // Drop reports that a removed segment is on disk.
        let log = self.id;
        disk.group.acks.retain(|ack| ack.log != log || ack.ticket.is_some() || ack.end <= place);
        while self.segments.len() > 1 && self.segments.newest().base > place.base {
            let base = self.segments.newest().base;
            self.segments.pop_newest();
            disk.files.close(self.key(base));
            disk.group.ranges.remove(&self.key(base));
            disk.fs.remove_file(&self.path(base))?;
            disk.fs.sync_dir(&self.dir)?;
        }
        if has_rolled {
            Index::remove(&*disk.fs, &self.dir.join(name::index(place.base)))?;
            disk.fs.sync_dir(&self.dir)?;
        }
        // No batch, whole or partial, may reappear after the end.
        let file = self.file(&mut disk.files, place.base)?;
        file.set_len(place.position)?;
        file.sync_data()?;
        self.space.restart(place.position);
        self.submitted_bytes =
            if has_rolled { place.position } else { self.submitted_bytes.min(place.position) };
        self.end_at(place);
        Ok(())
    }

    /// Ends the log at `place` in memory.
    pub(crate) fn end_at(&mut self, place: Place) {
        while self.segments.len() > 1 && self.segments.newest().base > place.base {
            self.segments.pop_newest();
        }
        let newest = self.segments.newest_mut();
        newest.bytes = place.position;
        newest.checked = newest.checked.min(place.position);
        newest.times = None;
        if place.position == 0 {
            self.newest_since_ms = None;
        }
        let newest = self.segments.newest_mut();
        if let Some(index) = &mut newest.index {
            index.truncate(place);
        }
        self.unsealed.retain(|(base, _)| *base < place.base);
        self.tail.clear();
        self.positions.end_at(place);
        self.cursors.clear();
    }

    /// Processes a report of the committer about what it was given.
    pub(crate) fn on_report(&mut self, ack: &Ack) {
        let acknowledged = usize::from(ack.ticket.is_some()) * (1 + ack.earlier);
        assert!(self.pending_acks >= acknowledged, "log {}: a ticket completes once", self.name);
        self.pending_acks -= acknowledged;
        match &ack.outcome {
            Ok(()) => {
                self.is_new = false;
                if ack.removed.is_some() && ack.removed == self.removed {
                    self.removed = None;
                }
                self.positions.on_report(ack.end, ack.ticket.is_some(), ack.is_synced);
            }
            Err(Error::Broken) => self.fail(),
            Err(_) => {}
        }
    }

    /// Writes the index of the newest segment to a file, if the index is in memory.
    pub(crate) fn save_index(&self, disk: &Disk) {
        let Segment { base, index: Some(index), .. } = self.segments.newest() else { return };
        if let Err(error) = index.store(&*disk.fs, &self.dir.join(name::index(*base))) {
            log::debug!("log {}: cannot save the index of segment {base}: {error}", self.name);
        }
    }

    /// Returns the index of a segment, loading or building it if necessary.
    pub(crate) fn index(&mut self, disk: &mut Disk, at: usize) -> io::Result<&Index> {
        if self.segments[at].index.is_none() {
            let index = self.build_index(disk, at)?;
            self.segments[at].index = Some(Box::new(index));
        }
        self.touch_index(disk, at);
        let segment = &mut self.segments[at];
        Ok(segment.index.as_deref().expect("it has just been made"))
    }

    /// First and largest timestamp of a closed segment, ms; `i64::MIN` if it has lost its batches.
    pub(crate) fn closed_times(&mut self, disk: &mut Disk, at: usize) -> io::Result<(i64, i64)> {
        if let Some(times) = self.segments[at].times {
            return Ok(times);
        }
        let index = self.index(disk, at)?;
        let times = (index.first_timestamp_ms(), index.max_timestamp_ms());
        let times = (times.0.unwrap_or(i64::MIN), times.1.unwrap_or(i64::MIN));
        self.segments[at].times = Some(times);
        Ok(times)
    }

    /// Marks the index of a closed segment as recently used.
    pub(crate) fn touch_index(&self, disk: &mut Disk, at: usize) {
        if at + 1 < self.segments.len() {
            disk.indexes.note(self.key(self.segments[at].base));
        }
    }

    fn build_index(&self, disk: &mut Disk, at: usize) -> io::Result<Index> {
        let base = self.segments[at].base;
        let is_newest = at + 1 == self.segments.len();
        let limit = self.segments.get(at + 1).map_or(self.positions.head().offset, |next| next.base);
        let position = if is_newest { self.positions.written().position } else { self.segments[at].bytes };
        let end =
            Place { base, position, offset: if is_newest { self.positions.written().offset } else { limit } };
        let path = self.dir.join(name::index(base));
        let mut index = match Index::load(&*disk.fs, &path, end) {
            Some(saved) if saved.end() == end && !is_newest => return Ok(saved),
            Some(saved) => saved,
            None => Index::new(base),
        };
        let file = self.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, position, limit, self.gaps(base));
        index.extend(&mut scan, end)?;
        if is_newest {
            for batch in batches(self.tail.unwritten()) {
                index.note(index.end(), &batch.header);
            }
        } else if self.positions.synced().base.min(self.positions.submitted().base) > base {
            index.seal();
            if let Err(error) = index.store(&*disk.fs, &path) {
                log::debug!("log {}: cannot save the index of segment {base}: {error}", self.name);
            }
        }
        Ok(index)
    }
}
