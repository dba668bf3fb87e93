//! Truncation of a log at either end, and its clean shutdown.
//!
//! Segments are removed one at a time with a directory sync in between, so that a crash at any point leaves a log
//! without holes.

use std::io;

use crate::commit::Ack;
use crate::disk::{Disk, Failure};
use crate::index::Index;
use crate::journal::Journal;
use crate::name;
use crate::scan::Place;
use crate::single::Log;

impl Log {
    /// Advances the log start to `offset`, capped at the log end, and removes the segments before it.
    ///
    /// # Errors
    /// IO errors; the log starts at `offset` regardless.
    pub(crate) fn truncate_prefix(&mut self, disk: &mut Disk, offset: u64) -> io::Result<()> {
        self.start = self.start.max(offset.min(self.positions.head().offset));
        // Remove a segment only once the next one is known to be on disk. Otherwise a crash could leave nothing.
        while self.segments.len() > 1 && self.segments[1].base <= self.start.min(self.positions.synced().base)
        {
            // The removal of the previous one must be durable. Otherwise it could reappear with a hole after it.
            if self.removed.take().is_some() {
                disk.fs.sync_dir(&self.dir)?;
            }
            let base = self.segments[0].base;
            self.removed = Some(base);
            self.forget_unsealed(disk, |unsealed| unsealed == base);
            self.remove_segment(disk, base)?;
            self.segments.pop_oldest();
            self.cleaning.stop();
        }
        Ok(())
    }

    /// Lets the committer make the removal of the last removed segment durable.
    pub(crate) fn submit_removal(&self, disk: &mut Disk) {
        disk.group.add_dir(self.id, &self.dir);
        disk.group.acknowledge(Ack {
            log: self.id,
            ticket: None,
            end: Place::default(),
            is_synced: false,
            outcome: Ok(()),
            earlier: 0,
            removed: self.removed,
        });
    }

    /// Lowest offset at which the log may start after a crash.
    pub(crate) fn start_after_crash(&self) -> u64 {
        self.removed.unwrap_or(self.segments[0].base).min(self.start)
    }

    /// Deletes the files of a segment that is no longer part of the log.
    pub(crate) fn remove_segment(&self, disk: &mut Disk, base: u64) -> io::Result<()> {
        disk.files.close(self.key(base));
        Index::remove(&*disk.fs, &self.dir.join(name::index(base)))?;
        disk.fs.remove_file(&self.path(base))
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
        self.forget_journal(disk, journal)?;
        self.cut(disk, journal, place).map_err(Failure::Broken)
    }

    /// Removes everything behind `place`.
    fn cut(&mut self, disk: &mut Disk, journal: &mut Journal, place: Place) -> io::Result<()> {
        // The notes belong to a log end that is removed, or could match a new one.
        self.forget_notes(disk)?;
        // A sealed index claims that the next segment exists, so it goes first.
        self.forget_unsealed(disk, |base| base >= place.base);
        for segment in self.segments.iter().filter(|segment| segment.base >= place.base) {
            Index::remove(&*disk.fs, &self.dir.join(name::index(segment.base)))?;
        }
        disk.fs.sync_dir(&self.dir)?;
        // Newest first, one at a time, so that a crash leaves no hole.
        while self.segments.newest().base > place.base {
            let base = self.segments.newest().base;
            self.remove_segment(disk, base)?;
            disk.fs.sync_dir(&self.dir)?;
            journal.synced(self.key(base));
            self.segments.pop_newest();
        }
        self.cleaning.truncate(place.offset);
        let file = self.file(&mut disk.files, place.base)?;
        file.set_len(place.position)?;
        file.sync_data()?;
        self.space.restart(place.position);
        self.end_at(place);
        self.mark_all_submitted();
        Ok(())
    }

    /// Excludes this log from journal replay, which would restore removed data. First syncs the segments that depend on
    /// the journal.
    ///
    /// # Errors
    /// The log is as it was after [`Failure::Full`], and broken otherwise.
    pub(crate) fn forget_journal(&self, disk: &mut Disk, journal: &mut Journal) -> Result<(), Failure> {
        for segment in self.segments.iter() {
            let key = self.key(segment.base);
            if journal.needs(key) {
                self.file(&mut disk.files, segment.base)?.sync_data().map_err(Failure::Broken)?;
                journal.synced(key);
            }
        }
        Ok(journal.forget(&[&self.name])?)
    }

    /// Prepares a log for a start without recovery. Returns whether that succeeded.
    pub(crate) fn close(&mut self, disk: &mut Disk) -> bool {
        if self.state == mainstem_log::State::Broken {
            return false;
        }
        let Place { base, position, .. } = self.positions.written();
        let closed = self.file(&mut disk.files, base).and_then(|file| {
            if self.space.end > position {
                file.set_len(position)?;
            }
            if self.space.end > position || self.positions.synced() < self.positions.written() {
                file.sync_data()?;
            }
            Ok(())
        });
        if let Err(error) = closed {
            log::warn!("log {}: not closed cleanly: {error}", self.name);
            return false;
        }
        self.space.restart(position);
        self.positions.mark_synced();
        self.save_index(disk);
        self.close_notes(disk);
        true
    }
}
