//! Writing and reading the notes of a log.

use std::io;
use std::sync::Arc;

use mainstem_log::State;

use super::{ALIGN, FILE_BYTES, FileState, HEAD_BYTES, KEY, NOTE_BYTES_MAX, Notes, checksum, read};
use crate::disk::Disk;
use crate::files::SegmentKey;
use crate::fs::{File, Mode};
use crate::name;
use crate::single::Log;

impl Log {
    fn notes_key(&self) -> SegmentKey {
        self.key(KEY)
    }

    /// Stores a note. Returns whether that was possible.
    pub(crate) fn add_note(&mut self, disk: &mut Disk, note: &[u8]) -> bool {
        let is_committed = self.state == State::Ready && self.tail.unwritten().is_empty();
        if !is_committed || note.len() > NOTE_BYTES_MAX || self.notes.state == FileState::Disabled {
            return false;
        }
        if self.notes.log_end != self.positions.head().offset || self.notes.state == FileState::Unknown {
            (self.notes.log_end, self.notes.position, self.notes.checksum) =
                (self.positions.head().offset, 0, 0);
        }
        let end = self.notes.position + (HEAD_BYTES + note.len()) as u64;
        if end > FILE_BYTES {
            return false;
        }
        let mut bytes = [0; HEAD_BYTES + NOTE_BYTES_MAX];
        let bytes = &mut bytes[..HEAD_BYTES + note.len()];
        bytes[4..8].copy_from_slice(&(note.len() as u32).to_be_bytes());
        bytes[8..HEAD_BYTES].copy_from_slice(&self.notes.log_end.to_be_bytes());
        bytes[HEAD_BYTES..].copy_from_slice(note);
        let checksum = checksum(self.notes.checksum, bytes);
        bytes[..4].copy_from_slice(&checksum.to_be_bytes());
        if let Err(error) = self.write_note(disk, bytes) {
            log::debug!("log {}: notes are disabled: {error}", self.name);
            self.notes.state = FileState::Disabled;
            return false;
        }
        self.notes.position = end.next_multiple_of(ALIGN);
        self.notes.checksum = checksum;
        true
    }

    fn write_note(&mut self, disk: &mut Disk, bytes: &[u8]) -> io::Result<()> {
        if self.notes.state == FileState::Unknown {
            self.open_notes(disk)?;
            self.notes.state = FileState::Open;
        }
        let file = disk.files.borrow(self.notes_key(), || self.dir.join(name::NOTES))?;
        if disk.settings.mapped_writes {
            file.overwrite_at(bytes, self.notes.position)
        } else {
            file.write_at(bytes, self.notes.position)
        }
    }

    fn open_notes(&self, disk: &mut Disk) -> io::Result<()> {
        let path = self.dir.join(name::NOTES);
        let file = match disk.fs.open(&path, Mode::New) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.fs.open(&path, Mode::Existing).and_then(|file| file.set_len(0).map(|()| file))
            }
            outcome => outcome,
        }?;
        if disk.settings.mapped_writes {
            file.map(FILE_BYTES)?;
        }
        disk.files.hold(self.notes_key(), file);
        Ok(())
    }

    /// Opens the notes file if it exists.
    fn find_notes(&self, disk: &Disk) -> io::Result<Option<Arc<dyn File>>> {
        match disk.fs.open(&self.dir.join(name::NOTES), Mode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Invalidates all notes durably.
    pub(crate) fn forget_notes(&mut self, disk: &mut Disk) -> io::Result<()> {
        disk.files.close(self.notes_key());
        self.notes = Notes::default();
        self.find_notes(disk)?.map_or(Ok(()), |file| erase(&file))
    }

    /// Returns the valid notes, concatenated. Call it before the first append or note.
    pub(crate) fn notes(&mut self, disk: &mut Disk) -> io::Result<Vec<u8>> {
        let Some(file) = self.find_notes(disk)? else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        file.read_into(&mut bytes, FILE_BYTES as usize, 0)?;
        let notes = read(&bytes, self.positions.head().offset);
        if notes.is_empty() && !bytes.is_empty() {
            erase(&file)?;
        }
        Ok(notes)
    }

    /// Deletes the file on a clean shutdown if its notes are not valid.
    pub(crate) fn close_notes(&self, disk: &mut Disk) {
        let is_valid = self.notes.log_end == self.positions.head().offset && self.notes.position > 0;
        if self.notes.state == FileState::Open && !is_valid {
            disk.files.close(self.notes_key());
            if let Err(error) = disk.fs.remove_file(&self.dir.join(name::NOTES)) {
                log::debug!("log {}: cannot remove the notes: {error}", self.name);
            }
        }
    }
}

/// Erases stale notes durably. A power failure may have shortened the log, and its end could reach the offset of
/// these notes again.
fn erase(file: &Arc<dyn File>) -> io::Result<()> {
    file.set_len(0)?;
    file.sync_data()
}
