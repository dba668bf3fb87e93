//! One log: its segments, and the append path into the newest of them.
//!
//! [`Positions`] says how far each step has come. When a write fails, the log rolls back to what was submitted; what
//! the committer already has may still become durable.
//!
//! A log is made of parts that own their state: [`Segments`], [`Tail`], [`Writer`], [`Tickets`], [`LogStart`],
//! [`Cleaning`], [`Upkeep`], [`Notes`]. Reading and compaction borrow the parts that they need:
//! [`SegmentReader`], [`Compactor`].

use std::io;

use mainstem_log::{BatchHeader, Durability, Error, Options, State, Ticket, ValidBatch};

use crate::cleaning::Cleaning;
use crate::compact::Compactor;
use crate::deferred::SealedIndex;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::group::Ack;
use crate::index::Index;
use crate::log_dir::LogDir;
use crate::log_start::LogStart;
use crate::new_log::Creation;
use crate::next_file::Created;
use crate::notes::Notes;
use crate::positions::Positions;
use crate::read::SegmentReader;
use crate::roller::Roller;
use crate::scan::Place;
use crate::segments::{Segment, Segments};
use crate::tail::Tail;
use crate::tickets::Tickets;
use crate::upkeep::Upkeep;
use crate::writer::Writer;

/// Maximum number of unwritten bytes per log. An append beyond it flushes immediately.
const UNWRITTEN_MAX: usize = 4 << 20;

/// One log of a store.
pub(crate) struct Log {
    pub(crate) dir: LogDir,
    pub(crate) options: Options,
    pub(crate) state: State,
    pub(crate) segments: Segments,
    pub(crate) positions: Positions,
    pub(crate) start: LogStart,
    pub(crate) tail: Tail,
    pub(crate) writer: Writer,
    pub(crate) cleaning: Cleaning,
    pub(crate) upkeep: Upkeep,
    pub(crate) tickets: Tickets,
    /// `None` if its first file exists.
    pub(crate) creation: Option<Box<Creation>>,
    notes: Notes,
    roller: Roller,
    /// Offset of the last read error that was logged.
    unreadable: Option<u64>,
    /// Whether the directory entry of its first segment may not be durable yet.
    pub(crate) is_new: bool,
}

impl Log {
    /// A log with these segments, and its end at `end`.
    pub(crate) fn new(dir: LogDir, options: &Options, segments: Segments, end: Place) -> Self {
        Self {
            dir,
            options: options.clone(),
            state: State::Ready,
            start: LogStart::new(segments[0].base),
            segments,
            positions: Positions::new(end),
            tail: Tail::default(),
            writer: Writer::new(end.position),
            cleaning: Cleaning::default(),
            upkeep: Upkeep::new(end.position > 0),
            tickets: Tickets::default(),
            creation: None,
            notes: Notes::default(),
            roller: Roller::default(),
            unreadable: None,
            is_new: false,
        }
    }

    /// Whether a segment may not have its name yet.
    pub(crate) fn has_unnamed(&self) -> bool {
        self.roller.has_unnamed()
    }

    /// Base offset of the newest segment that may not have its name yet.
    pub(crate) fn unnamed(&self) -> Option<u64> {
        self.roller.unnamed()
    }

    /// Why the log accepts no appends until its newest segment has its name.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.roller.refusal()
    }

    /// The newest segment cannot get its name now.
    pub(crate) fn refuse(&mut self, error: Error) {
        self.roller.refuse(error);
    }

    /// What reading needs.
    #[inline]
    pub(crate) fn reader(&mut self) -> SegmentReader<'_> {
        let Self { dir, segments, positions, tail, cleaning, start, .. } = self;
        SegmentReader { dir, segments, positions, tail, cleaning, start: start.offset() }
    }

    /// What compaction needs.
    pub(crate) fn compactor(&mut self) -> Compactor<'_> {
        let Self { dir, options, segments, positions, tail, cleaning, .. } = self;
        Compactor { dir, options, segments, positions, tail, cleaning }
    }

    /// Logs that a read failed, once per offset.
    pub(crate) fn log_unreadable(&mut self, offset: u64) {
        if self.unreadable != Some(offset) {
            self.unreadable = Some(offset);
            let segment = self.dir.segment(self.segments[self.segments.containing(offset)].base);
            log::error!("log {}: unreadable from offset {offset} on, {}", self.dir.name(), segment.display());
        }
    }

    /// Ticket of the appends since the last commit; `next` if there were none.
    #[inline]
    pub(crate) fn ticket_or(&mut self, next: impl FnOnce() -> Ticket) -> Ticket {
        self.tickets.current_or(next)
    }

    /// Syncs the next commit regardless of the options.
    pub(crate) fn force_sync(&mut self) {
        self.tickets.force_sync();
    }

    /// Stores a note. Returns whether that was possible.
    pub(crate) fn add_note(&mut self, disk: &mut Disk, note: &[u8]) -> bool {
        let is_committed = self.state == State::Ready && self.tail.unwritten().is_empty();
        is_committed && self.has_file() && self.notes.add(disk, &self.dir, self.positions.head().offset, note)
    }

    /// Returns the valid notes, concatenated. Call it before the first append or note.
    pub(crate) fn notes(&self, disk: &Disk) -> io::Result<Vec<u8>> {
        if !self.has_file() {
            return Ok(Vec::new());
        }
        self.notes.read(disk, &self.dir, self.positions.head().offset)
    }

    /// Invalidates all notes durably.
    pub(crate) fn forget_notes(&mut self, disk: &mut Disk) -> io::Result<()> {
        self.notes.forget(disk, &self.dir)
    }

    /// Deletes what is not needed after a clean shutdown: notes that are not valid, and a file for the next segment.
    pub(crate) fn clean_up(&mut self, disk: &mut Disk) {
        self.notes.close(disk, &self.dir, self.positions.head().offset);
        self.roller.close(disk);
    }

    /// Appends a batch to the tail and returns its base offset.
    #[inline]
    pub(crate) fn append(&mut self, disk: &mut Disk, batch: &ValidBatch<'_>) -> Result<u64, Error> {
        if self.state == State::Broken {
            return Err(Error::Broken);
        }
        if let Some(refusal) = self.roller.refusal() {
            return Err(refusal.clone());
        }
        let header = batch.header();
        let len = header.total_bytes as u64;
        if self.positions.head().position > 0
            && self.positions.head().position + len > self.options.segment_bytes
        {
            self.roll_full(disk, len)?;
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
        self.tail.push(batch.bytes(), base_offset, disk.settings.tail_bytes);
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
        if let Err(error) = self.create_file(disk) {
            return Err(self.fail_creation(disk, &error));
        }
        let Self { dir, options, positions, tail, writer, .. } = self;
        match writer.write(disk, dir, options, tail.unwritten(), positions.written(), positions.head()) {
            Ok(()) => {
                self.tail.mark_written(disk.settings.tail_bytes);
                self.positions.mark_written();
                self.state = State::Ready;
                Ok(())
            }
            Err(failure) => Err(self.fail_turn(disk, failure)),
        }
    }

    /// Makes place for an append of `len` bytes for which the newest segment has no room. While the file of the next
    /// one is being created, the newest segment may grow to twice its size; then the append waits for the file.
    #[cold]
    fn roll_full(&mut self, disk: &mut Disk, len: u64) -> Result<(), Error> {
        let may_grow = self.positions.head().position + len <= 2 * self.options.segment_bytes;
        if may_grow && !self.can_roll(disk) {
            return Ok(());
        }
        self.roll(disk)
    }

    /// Whether a roll need not wait for the file of the next segment. Requests it otherwise.
    pub(crate) fn can_roll(&mut self, disk: &mut Disk) -> bool {
        self.has_file() && self.roller.is_ready(disk, &self.dir, &self.options)
    }

    /// Closes the newest segment and starts another.
    pub(crate) fn roll(&mut self, disk: &mut Disk) -> Result<(), Error> {
        self.flush(disk)?;
        let base = self.positions.head().offset;
        let taken = self.roller.take(disk, &self.dir, &self.options);
        let (path, Created { file, reserved }) = taken.map_err(|error| match Failure::from(error) {
            Failure::Full(error) => {
                self.state = State::Full;
                error
            }
            Failure::Broken(error) => self.fail_turn(disk, Failure::Broken(error)),
        })?;
        let closed = self.writer.close(disk, &self.dir, self.positions.head());
        closed.map_err(|error| self.fail_turn(disk, Failure::Broken(error)))?;
        self.segments.close_newest();
        disk.files.hold_unnamed(self.dir.key(base), file);
        disk.group.add_segment(self.dir.id(), self.dir.path(), base, path);
        self.roller.start_segment(base);
        self.segments.push(Segment::new(base, 0, Some(Box::new(Index::new(base)))));
        let closed = self.segments.len() - 2;
        if self.segments[closed].index.is_some() {
            self.reader().touch_index(disk, closed);
        }
        let begin = self.positions.start_segment();
        self.writer.restart(0);
        self.writer.set_reserved(reserved);
        self.upkeep.newest_is_empty();
        // No ticket depends on this, but it advances `synced`: recovery skips what is before it, and truncation may
        // remove it.
        disk.group.acknowledge(Ack { is_synced: true, ..Ack::of(self.dir.id(), begin) });
        Ok(())
    }

    /// Schedules writing the sealed indexes of closed segments. Such an index is evidence that its segment and the
    /// directory entry of the next one are durable, so both must have been synced, and neither may be rolled back.
    pub(crate) fn seal_indexes(&mut self, disk: &mut Disk) {
        let durable = self.positions.synced().base.min(self.positions.submitted().base);
        for (base, bytes) in self.segments.take_unsealed(durable) {
            let (key, path) = (self.dir.key(base), self.dir.index(base));
            disk.group.deferred.indexes.push(SealedIndex { key, path, bytes });
        }
    }

    /// Submits the appends since the last commit. Returns the ticket if it is complete without the committer.
    pub(crate) fn commit(&mut self, disk: &mut Disk) -> Option<Ticket> {
        if self.state == State::Broken {
            self.acknowledge(disk, false, Err(Error::Broken));
            return None;
        }
        if !self.has_file() && self.hold(disk) || self.flush(disk).is_err() {
            return None;
        }
        let is_synced = self.options.durability == Durability::Fsync || self.tickets.forces_sync();
        if is_synced && let Err(error) = self.writer.submit(disk, &self.dir, self.positions.written()) {
            self.fail_turn(disk, Failure::from(error));
            return None;
        }
        self.tickets.sync_submitted();
        // A segment that was closed since the last commit is synced in any case.
        self.positions.mark_submitted();
        self.roller.request_early(disk, &self.dir, &self.options, self.positions.head().position);
        // A segment without its name is lost with the process.
        if !is_synced && !self.tickets.has_submitted() && !self.roller.has_unnamed() {
            self.positions.mark_committed();
            return self.tickets.take();
        }
        self.acknowledge(disk, is_synced, Ok(()));
        None
    }

    /// Queues the completion of the turn's ticket after everything submitted before.
    pub(crate) fn acknowledge(&mut self, disk: &mut Disk, is_synced: bool, outcome: Result<(), Error>) {
        let end = self.positions.submitted();
        if let Some(ack) = self.tickets.submit(self.dir.id(), end, is_synced, outcome) {
            disk.group.acknowledge(ack);
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
                log::error!("log {}: {error}; the log is now read-only", self.dir.name());
                // Submitted appends may still become durable and are reported by the committer.
                self.fail_at(self.positions.submitted());
                self.acknowledge(disk, false, Err(Error::Broken));
                Error::Broken
            }
        }
    }

    /// Makes the log read-only and ends it at the last committed position. Does not change its files.
    pub(crate) fn fail(&mut self) {
        self.roller.stop();
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
        // What was submitted names segments, and changes the length of the one that is to be written again.
        let log = self.dir.id();
        let waiting = disk.queue.wait_for(Some(log)).refused_names.take(log);
        if let Some(waiting) = waiting {
            let later = std::mem::replace(&mut disk.group, waiting);
            disk.group.merge(later);
        }
        disk.group.deferred.forget_reservation(self.dir.key(place.base));
        // Drop reports that a removed segment is on disk.
        disk.group.acks.retain(|ack| ack.log != log || ack.ticket.is_some() || ack.end <= place);
        while self.segments.len() > 1 && self.segments.newest().base > place.base {
            let base = self.segments.newest().base;
            self.segments.pop_newest();
            disk.files.close(self.dir.key(base));
            disk.group.ranges.remove(&self.dir.key(base));
            disk.group.deferred.reservations.remove(&self.dir.key(base));
            let unnamed = disk.group.take_segment(log, base);
            disk.fs.remove_file(&unnamed.unwrap_or_else(|| self.dir.segment(base)))?;
            disk.fs.sync_dir(self.dir.path())?;
        }
        self.roller.set_unnamed(disk.group.newest_unnamed(log));
        if has_rolled {
            if let Some(range) = disk.group.ranges.get_mut(&self.dir.key(place.base)) {
                range.releases_space = false;
            }
            Index::remove(&*disk.fs, &self.dir.index(place.base))?;
            disk.fs.sync_dir(self.dir.path())?;
        }
        // No batch, whole or partial, may reappear after the end.
        let file = self.dir.file(&mut disk.files, place.base)?;
        file.set_len(place.position)?;
        file.sync_data()?;
        if has_rolled {
            self.writer.restart(place.position);
        } else {
            self.writer.cut(place.position);
        }
        self.end_at(place);
        Ok(())
    }

    /// Ends the log at `place` in memory.
    pub(crate) fn end_at(&mut self, place: Place) {
        self.segments.end_at(place);
        if place.position == 0 {
            self.upkeep.newest_is_empty();
        }
        self.tail.clear();
        self.positions.end_at(place);
    }

    /// Processes a report of the committer about what it was given.
    pub(crate) fn on_report(&mut self, ack: &Ack) {
        self.tickets.on_report(ack);
        match &ack.outcome {
            Ok(()) => {
                self.is_new = false;
                self.roller.mark_named(ack.end.base);
                if let Some(base) = ack.removed {
                    self.start.confirm_removal(base);
                }
                self.positions.on_report(ack.end, ack.ticket.is_some(), ack.is_synced);
            }
            Err(Error::Broken) => self.fail(),
            Err(_) => {}
        }
    }
}
