//! Removing the ends of a log.

use std::io;

use crate::index::Index;
use crate::journal::Journal;
use crate::name;
use crate::scan::Place;
use crate::single::{Disk, Log};

impl Log {
    /// Lets the log start at `offset`, or at its end, and removes the segments before that.
    ///
    /// # Errors
    /// What the system says; the log starts there all the same.
    pub(crate) fn truncate_prefix(&mut self, disk: &mut Disk, offset: u64) -> io::Result<()> {
        self.start = self.start.max(offset.min(self.head.offset));
        // A segment goes only once the next one is known to be on disk: otherwise nothing might be left.
        while self.segments.len() > 1 && self.segments[1].base <= self.start.min(self.synced.base) {
            // And only once the one before it is known to have gone: it must not come back with a hole behind it.
            if self.removed.take().is_some() {
                disk.fs.sync_dir(&self.dir)?;
            }
            let base = self.segments[0].base;
            self.removed = Some(base);
            self.remove_segment(disk, base)?;
            self.segments.pop_front();
            self.count_closed();
            self.compaction = None;
        }
        Ok(())
    }

    /// Where the log may start after a crash, at the earliest.
    pub(crate) fn start_after_crash(&self) -> u64 {
        self.removed.unwrap_or(self.segments[0].base).min(self.start)
    }

    /// Removes the files of a segment that is not part of the log any more.
    pub(crate) fn remove_segment(&self, disk: &mut Disk, base: u64) -> io::Result<()> {
        disk.files.close(self.key(base));
        Index::remove(&*disk.fs, &self.dir.join(name::index(base)))?;
        disk.fs.remove_file(&self.path(base))
    }

    /// Ends the log at `place`, durably. Nothing may be on its way to the disk.
    ///
    /// # Errors
    /// What the system says; what the files hold is unsure then.
    pub(crate) fn truncate_suffix(
        &mut self,
        disk: &mut Disk,
        journal: &mut Journal,
        place: Place,
    ) -> io::Result<()> {
        self.forget_journal(disk, journal)?;
        // They stand behind what is to go, or behind what will stand in its place.
        self.forget_notes(disk)?;
        // One after the other, the newest first, so that no hole is left whenever this ends.
        while self.newest().base > place.base {
            let base = self.newest().base;
            self.remove_segment(disk, base)?;
            disk.fs.sync_dir(&self.dir)?;
            journal.synced(self.key(base));
            self.segments.pop_back();
        }
        self.compaction = None;
        Index::remove(&*disk.fs, &self.dir.join(name::index(place.base)))?;
        disk.fs.sync_dir(&self.dir)?;
        let file = self.file(&mut disk.files, place.base)?;
        file.set_len(place.position)?;
        file.sync_data()?;
        self.space.restart(place.position);
        self.covered = place.position;
        self.cleaned = self.cleaned.min(place.offset);
        self.end_at(place);
        Ok(())
    }

    /// Lets a replay of the journal leave this log alone: it would bring back what is to go. For that, the
    /// segments must not need it.
    pub(crate) fn forget_journal(&self, disk: &mut Disk, journal: &mut Journal) -> io::Result<()> {
        for segment in &self.segments {
            let key = self.key(segment.base);
            if journal.needs(key) {
                self.file(&mut disk.files, segment.base)?.sync_data()?;
                journal.synced(key);
            }
        }
        journal.forget(&[&self.name])
    }

    /// Makes a log ready for the next start without recovery. Says whether it is.
    pub(crate) fn close(&mut self, disk: &mut Disk) -> bool {
        if self.state == mainstem_log::State::Broken {
            return false;
        }
        let Place { base, position, .. } = self.written;
        let closed = self.file(&mut disk.files, base).and_then(|file| {
            if self.space.end > position {
                file.set_len(position)?;
            }
            if self.space.end > position || self.synced < self.written {
                file.sync_data()?;
            }
            Ok(())
        });
        if let Err(error) = closed {
            log::warn!("log {}: {error}", self.name);
            return false;
        }
        self.space.restart(position);
        self.synced = self.written;
        self.keep_index(disk);
        self.close_notes(disk);
        true
    }
}
