//! The notes file of a log.
//!
//! Notes are written in place, without a sync, and are worth something only for the log end that they were written for:
//! each contains it, and a checksum that continues that of the note before, so that notes of an earlier log end or a
//! torn write end the sequence. An error of the file disables notes; the log does not need them.

use std::io;
use std::sync::Arc;

use super::{ALIGN, FILE_BYTES, FileState, HEAD_BYTES, KEY, NOTE_BYTES_MAX, Notes, checksum, parse};
use crate::disk::Disk;
use crate::fs::{File, Mode};
use crate::log_dir::LogDir;
use crate::name;

impl Notes {
    /// Stores a note for the log end `log_end`. Returns whether that was possible.
    pub(crate) fn add(&mut self, disk: &mut Disk, dir: &LogDir, log_end: u64, note: &[u8]) -> bool {
        if note.len() > NOTE_BYTES_MAX || self.state == FileState::Disabled {
            return false;
        }
        if self.log_end != log_end || self.state == FileState::Unknown {
            (self.log_end, self.position, self.checksum) = (log_end, 0, 0);
        }
        let end = self.position + (HEAD_BYTES + note.len()) as u64;
        if end > FILE_BYTES {
            return false;
        }
        let mut bytes = [0; HEAD_BYTES + NOTE_BYTES_MAX];
        let bytes = &mut bytes[..HEAD_BYTES + note.len()];
        bytes[4..8].copy_from_slice(&(note.len() as u32).to_be_bytes());
        bytes[8..HEAD_BYTES].copy_from_slice(&self.log_end.to_be_bytes());
        bytes[HEAD_BYTES..].copy_from_slice(note);
        let checksum = checksum(self.checksum, bytes);
        bytes[..4].copy_from_slice(&checksum.to_be_bytes());
        if let Err(error) = self.write(disk, dir, bytes) {
            log::debug!("log {}: notes are disabled: {error}", dir.name());
            self.state = FileState::Disabled;
            return false;
        }
        self.position = end.next_multiple_of(ALIGN);
        self.checksum = checksum;
        true
    }

    fn write(&mut self, disk: &mut Disk, dir: &LogDir, bytes: &[u8]) -> io::Result<()> {
        if self.state == FileState::Unknown {
            open(disk, dir)?;
            self.state = FileState::Open;
        }
        let file = disk.files.borrow(dir.key(KEY), || dir.path().join(name::NOTES))?;
        if disk.settings.mapped_writes {
            file.overwrite_at(bytes, self.position)
        } else {
            file.write_at(bytes, self.position)
        }
    }

    /// Invalidates all notes durably.
    pub(crate) fn forget(&mut self, disk: &mut Disk, dir: &LogDir) -> io::Result<()> {
        disk.files.close(dir.key(KEY));
        *self = Self::default();
        find(disk, dir)?.map_or(Ok(()), |file| erase(&file))
    }

    /// Returns the notes in the file that are valid for the log end `log_end`, concatenated.
    pub(crate) fn read(&self, disk: &Disk, dir: &LogDir, log_end: u64) -> io::Result<Vec<u8>> {
        debug_assert!(self.state != FileState::Open, "notes are read before the first one is written");
        let Some(file) = find(disk, dir)? else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        file.read_into(&mut bytes, FILE_BYTES as usize, 0)?;
        let notes = parse(&bytes, log_end);
        if notes.is_empty() && !bytes.is_empty() {
            erase(&file)?;
        }
        Ok(notes)
    }

    /// Deletes the file on a clean shutdown if its notes are not valid for the log end `log_end`.
    pub(crate) fn close(&self, disk: &mut Disk, dir: &LogDir, log_end: u64) {
        let is_valid = self.log_end == log_end && self.position > 0;
        if self.state == FileState::Open && !is_valid {
            disk.files.close(dir.key(KEY));
            if let Err(error) = disk.fs.remove_file(&dir.path().join(name::NOTES)) {
                log::debug!("log {}: cannot remove the notes: {error}", dir.name());
            }
        }
    }
}

fn open(disk: &mut Disk, dir: &LogDir) -> io::Result<()> {
    let path = dir.path().join(name::NOTES);
    let file = match disk.fs.open(&path, Mode::New) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.fs.open(&path, Mode::Existing).and_then(|file| file.set_len(0).map(|()| file))
        }
        outcome => outcome,
    }?;
    if disk.settings.mapped_writes {
        file.map(FILE_BYTES)?;
    }
    disk.files.hold(dir.key(KEY), file);
    Ok(())
}

/// Opens the notes file if it exists.
fn find(disk: &Disk, dir: &LogDir) -> io::Result<Option<Arc<dyn File>>> {
    match disk.fs.open(&dir.path().join(name::NOTES), Mode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Erases stale notes durably. A power failure may have shortened the log, and its end could reach the offset of
/// these notes again.
fn erase(file: &Arc<dyn File>) -> io::Result<()> {
    file.set_len(0)?;
    file.sync_data()
}
