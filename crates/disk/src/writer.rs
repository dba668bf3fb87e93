//! Writes into the newest segment of a log: reserved space, and how much of it the committer has.
//!
//! The file is longer than its content: space is reserved ahead, so that an append changes no metadata which the sync
//! would have to write. What was written and what was submitted are separate positions, because a segment may be
//! written several times in a turn and is submitted once.

use std::io;
use std::sync::Arc;

use mainstem_log::{Durability, Options};

use crate::deferred::Reservation;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::files::Range;
use crate::fs::File;
use crate::log_dir::LogDir;
use crate::mapped::MAPPED_AHEAD_BYTES;
use crate::scan::Place;
use crate::space::Space;

/// State of the newest segment's file.
#[derive(Debug)]
pub(crate) struct Writer {
    space: Space,
    /// Bytes submitted to the committer.
    submitted_bytes: u64,
}

impl Writer {
    /// For a segment of which everything up to byte `position` is on disk.
    pub(crate) fn new(position: u64) -> Self {
        Self { space: Space::default(), submitted_bytes: position }
    }

    /// The newest segment is another one, or was truncated: everything up to byte `position` is on disk.
    pub(crate) fn restart(&mut self, position: u64) {
        self.space.restart(position);
        self.submitted_bytes = position;
    }

    /// The file has `bytes` bytes, reserved ones included.
    pub(crate) fn set_reserved(&mut self, bytes: u64) {
        self.space.restart(bytes);
    }

    /// The segment was truncated at byte `position`, in its file too.
    pub(crate) fn cut(&mut self, position: u64) {
        self.space.restart(position);
        self.submitted_bytes = self.submitted_bytes.min(position);
    }

    /// Writes the bytes between the places `from` and `to`.
    pub(crate) fn write(
        &mut self,
        disk: &mut Disk,
        dir: &LogDir,
        options: &Options,
        bytes: &[u8],
        from: Place,
        to: Place,
    ) -> Result<(), Failure> {
        let file = disk.files.borrow(dir.key(to.base), || dir.segment(to.base))?;
        let is_mapped = disk.settings.mapped_writes && options.durability == Durability::Os;
        if is_mapped {
            self.space.reserve(&**file, to.position, MAPPED_AHEAD_BYTES, options.segment_bytes)?;
            file.append_at(bytes, from.position)?;
        } else {
            if let Some(space) = self.space.next(to.position, options.segment_bytes) {
                let reservation = Reservation { file: file.clone(), from: space.start, to: space.end };
                disk.group.deferred.reserve(dir.key(to.base), reservation);
            }
            file.write_at(bytes, from.position)?;
        }
        Ok(())
    }

    /// Submits the unsynced bytes up to `to`.
    pub(crate) fn submit(&mut self, disk: &mut Disk, dir: &LogDir, to: Place) -> io::Result<()> {
        if to.position > self.submitted_bytes {
            let file = dir.file(&mut disk.files, to.base)?;
            disk.group.add(self.range(dir, file, to, false));
            self.submitted_bytes = to.position;
        }
        Ok(())
    }

    /// Submits a segment that ends at `end` as closed. The committer releases its unused reserved space.
    pub(crate) fn close(&mut self, disk: &mut Disk, dir: &LogDir, end: Place) -> io::Result<()> {
        let file = dir.file(&mut disk.files, end.base)?;
        let releases_space = self.space.end > end.position;
        disk.group.add(Range { releases_space, ..self.range(dir, file, end, true) });
        Ok(())
    }

    fn range(&self, dir: &LogDir, file: Arc<dyn File>, to: Place, is_closed: bool) -> Range {
        let (key, name, from) = (dir.key(to.base), dir.name().clone(), self.submitted_bytes);
        Range { key, name, file, from, to: to.position, is_closed, releases_space: false }
    }

    /// Releases the unused reserved space. Returns whether there was any.
    pub(crate) fn release(&self, file: &dyn File, position: u64) -> io::Result<bool> {
        let is_reserved = self.space.end > position;
        if is_reserved {
            file.set_len(position)?;
        }
        Ok(is_reserved)
    }
}
