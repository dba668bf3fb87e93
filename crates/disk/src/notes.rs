//! Notes beside a log: a few bytes that the operating system has at once and that go with the next append, for a
//! fraction of what an append costs.
//!
//! A note says behind which offset it stands, and counts as long as the log ends there. So none is ever removed: the first
//! one behind another offset overwrites those before. `docs/formats/segment-log.md` has the bytes.

use std::io;
use std::sync::Arc;

use mainstem_log::State;

use crate::files::SegmentKey;
use crate::fs::{File, Mode};
use crate::name;
use crate::single::{Disk, Log};

/// Size of the file, bytes.
const FILE_BYTES: u64 = 4096;
/// Checksum of a note, its length, and the offset behind which it stands.
const HEAD_BYTES: usize = 16;
/// The longest, bytes. A longer one is better appended.
const NOTE_BYTES_MAX: usize = 112;
/// Notes begin at multiples of this, bytes.
const ALIGN: u64 = 8;
/// Stands for the file among the open ones of a log, where segments have their base offset.
const KEY: u64 = u64::MAX;

/// What is known of a log's notes.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The offset behind which the last one stands.
    behind: u64,
    /// Where the next one begins in the file, bytes, and the checksum of the last one.
    position: u64,
    checksum: u32,
    state: Kept,
}

#[derive(Debug, Default, PartialEq)]
enum Kept {
    /// There may be a file, which nobody has written to since the log was opened.
    #[default]
    Unknown,
    Open,
    /// The disk has refused: there are none from now on.
    Refused,
}

impl Log {
    fn notes_key(&self) -> SegmentKey {
        self.key(KEY)
    }

    /// Keeps a note. False if it could not be, or would not be good for anything.
    pub(crate) fn keep_note(&mut self, disk: &mut Disk, note: &[u8]) -> bool {
        let is_sure = self.state == State::Ready && self.tail.unwritten().is_empty();
        if !is_sure || note.len() > NOTE_BYTES_MAX || self.notes.state == Kept::Refused {
            return false;
        }
        if self.notes.behind != self.head.offset || self.notes.state == Kept::Unknown {
            (self.notes.behind, self.notes.position, self.notes.checksum) = (self.head.offset, 0, 0);
        }
        let end = self.notes.position + (HEAD_BYTES + note.len()) as u64;
        if end > FILE_BYTES {
            return false;
        }
        let mut bytes = [0; HEAD_BYTES + NOTE_BYTES_MAX];
        let bytes = &mut bytes[..HEAD_BYTES + note.len()];
        bytes[4..8].copy_from_slice(&(note.len() as u32).to_be_bytes());
        bytes[8..HEAD_BYTES].copy_from_slice(&self.notes.behind.to_be_bytes());
        bytes[HEAD_BYTES..].copy_from_slice(note);
        let checksum = checksum(self.notes.checksum, bytes);
        bytes[..4].copy_from_slice(&checksum.to_be_bytes());
        if let Err(error) = self.write_note(disk, bytes) {
            log::debug!("log {}: no notes: {error}", self.name);
            self.notes.state = Kept::Refused;
            return false;
        }
        self.notes.position = end.next_multiple_of(ALIGN);
        self.notes.checksum = checksum;
        true
    }

    fn write_note(&mut self, disk: &mut Disk, bytes: &[u8]) -> io::Result<()> {
        if self.notes.state == Kept::Unknown {
            self.open_notes(disk)?;
            self.notes.state = Kept::Open;
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

    /// The file, if there is one.
    fn find_notes(&self, disk: &Disk) -> io::Result<Option<Arc<dyn File>>> {
        match disk.fs.open(&self.dir.join(name::NOTES), Mode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Lets no note count, whatever the log's end will be.
    pub(crate) fn forget_notes(&mut self, disk: &mut Disk) -> io::Result<()> {
        disk.files.close(self.notes_key());
        self.notes = Notes::default();
        self.find_notes(disk)?.map_or(Ok(()), |file| forget(&file))
    }

    /// The notes that count, one behind the other. To be asked before anything is appended or noted.
    pub(crate) fn notes(&mut self, disk: &mut Disk) -> io::Result<Vec<u8>> {
        let Some(file) = self.find_notes(disk)? else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        file.read_into(&mut bytes, FILE_BYTES as usize, 0)?;
        let notes = read(&bytes, self.head.offset);
        if notes.is_empty() && !bytes.is_empty() {
            forget(&file)?;
        }
        Ok(notes)
    }

    /// The log is closed in order: notes that do not count are removed.
    pub(crate) fn close_notes(&self, disk: &mut Disk) {
        let counts = self.notes.behind == self.head.offset && self.notes.position > 0;
        if self.notes.state == Kept::Open && !counts {
            disk.files.close(self.notes_key());
            if let Err(error) = disk.fs.remove_file(&self.dir.join(name::NOTES)) {
                log::debug!("log {}: notes are not removed: {error}", self.name);
            }
        }
    }
}

/// Loss of power may have taken the end of the log, so that it comes to another offset that these notes stand behind. They
/// are gone for good before that.
fn forget(file: &Arc<dyn File>) -> io::Result<()> {
    file.set_len(0)?;
    file.sync_data()
}

/// The notes that stand behind an offset.
fn read(mut bytes: &[u8], behind: u64) -> Vec<u8> {
    let (mut notes, mut before) = (Vec::new(), 0);
    while let Some(([c0, c1, c2, c3, l0, l1, l2, l3], rest)) = bytes.split_first_chunk::<8>() {
        let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        let all = bytes.get(..HEAD_BYTES + len.min(NOTE_BYTES_MAX));
        let Some(all) = all.filter(|_| rest.starts_with(&behind.to_be_bytes())) else { break };
        let found = checksum(before, all);
        if len > NOTE_BYTES_MAX || found != u32::from_be_bytes([*c0, *c1, *c2, *c3]) {
            break;
        }
        notes.extend_from_slice(&all[HEAD_BYTES..]);
        before = found;
        bytes = bytes.get(all.len().next_multiple_of(ALIGN as usize)..).unwrap_or_default();
    }
    notes
}

/// That of a note, behind one that has another: a note that others were overwritten in front of does not count.
fn checksum(before: u32, note: &[u8]) -> u32 {
    crc32c::crc32c_append(before, &note[4..])
}
