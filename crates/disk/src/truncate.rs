//! Truncation of a log at either end, and its clean shutdown.
//!
//! Segments are removed one at a time with a directory sync in between, so that a crash at any point leaves a log
//! without holes. The committer removes those at the beginning.

use std::io;

use crate::disk::Disk;
use crate::failure::Failure;
use crate::index::Index;
use crate::journal::Journal;
use crate::removal::{forget_journal, forget_unsealed, remove_segment};
use crate::scan::Place;
use crate::single::Log;

impl Log {
    /// Advances the log start to `offset`, capped at the log end, and lets the committer remove the segments before it.
    pub(crate) fn truncate_prefix(&mut self, disk: &mut Disk, offset: u64) {
        self.start.advance_to(offset.min(self.positions.head().offset));
        self.remove_truncated(disk);
    }

    /// Lets the committer remove the segments before the log start that are left: those whose next one is only now
    /// known to be on disk, and those that it could not remove.
    pub(crate) fn remove_truncated(&mut self, disk: &mut Disk) {
        self.resume_removal(disk);
        // Remove a segment only once the next one is known to be on disk. Otherwise a crash could leave nothing.
        // One that is being replaced goes after that.
        while self.segments.len() > 1
            && !self.cleaning.is_replacing(self.segments[0].base)
            && self.segments[1].base <= self.start.offset().min(self.positions.synced().base)
        {
            let base = self.segments[0].base;
            forget_unsealed(&self.dir, &mut self.segments, disk, |unsealed| unsealed == base);
            let file = disk.files.take(self.dir.key(base));
            disk.group.deferred.remove_segment(self.dir.id(), self.dir.path(), base, file);
            self.start.remove(base);
            self.segments.pop_oldest();
            self.cleaning.stop();
        }
    }

    /// Lets the committer try again to remove the segments that it could not remove.
    fn resume_removal(&mut self, disk: &mut Disk) {
        for base in self.start.take_stalled() {
            disk.group.deferred.remove_segment(self.dir.id(), self.dir.path(), *base, None);
        }
    }

    /// Lowest offset at which the log may start after a crash.
    pub(crate) fn start_after_crash(&self) -> u64 {
        self.start.after_crash(self.segments[0].base)
    }

    /// Ends the log at `place` durably. The committer must be idle.
    ///
    /// # Errors
    /// [`Failure::Full`]: the log is as it was. [`Failure::Broken`]: the contents of the files are unknown.
    pub(crate) fn truncate_suffix(
        &mut self,
        disk: &mut Disk,
        journal: &mut Journal,
        place: Place,
    ) -> Result<(), Failure> {
        // Nothing is removed before this, and nothing after it takes space.
        forget_journal(&self.dir, &self.segments, disk, journal)?;
        self.cut(disk, journal, place).map_err(Failure::Broken)
    }

    /// Removes everything behind `place`.
    fn cut(&mut self, disk: &mut Disk, journal: &mut Journal, place: Place) -> io::Result<()> {
        // The notes belong to a log end that is removed, or could match a new one.
        self.forget_notes(disk)?;
        // A sealed index claims that the next segment exists, so it goes first.
        forget_unsealed(&self.dir, &mut self.segments, disk, |base| base >= place.base);
        for segment in self.segments.iter().filter(|segment| segment.base >= place.base) {
            Index::remove(&*disk.fs, &self.dir.index(segment.base))?;
        }
        disk.fs.sync_dir(self.dir.path())?;
        // Newest first, one at a time, so that a crash leaves no hole.
        while self.segments.newest().base > place.base {
            let base = self.segments.newest().base;
            remove_segment(&self.dir, disk, base)?;
            disk.fs.sync_dir(self.dir.path())?;
            journal.synced(self.dir.key(base));
            self.segments.pop_newest();
        }
        self.cleaning.truncate(place.offset);
        let file = self.dir.file(&mut disk.files, place.base)?;
        file.set_len(place.position)?;
        file.sync_data()?;
        self.end_at(place);
        self.writer.restart(place.position);
        Ok(())
    }

    /// Prepares a log for a start without recovery. Returns whether that succeeded.
    pub(crate) fn close(&mut self, disk: &mut Disk) -> bool {
        if self.state == mainstem_log::State::Broken {
            return false;
        }
        if !self.has_file() {
            // It could not be created, and nothing was acknowledged.
            return true;
        }
        if let Some(refusal) = self.refusal() {
            // The file without a name was not acknowledged. Recovery removes it.
            log::warn!("log {}: not closed cleanly: {refusal}", self.dir.name());
            return false;
        }
        let Place { base, position, .. } = self.positions.written();
        let closed = self.dir.file(&mut disk.files, base).and_then(|file| {
            let is_shorter = self.writer.release(&*file, position)?;
            if is_shorter || self.positions.synced() < self.positions.written() {
                file.sync_data()?;
            }
            Ok(())
        });
        if let Err(error) = closed {
            log::warn!("log {}: not closed cleanly: {error}", self.dir.name());
            return false;
        }
        self.writer.set_reserved(position);
        self.positions.mark_synced();
        self.reader().save_index(disk);
        self.clean_up(disk);
        true
    }
}
