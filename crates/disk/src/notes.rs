//! Notes: a few bytes stored beside a log until its next append, at a fraction of the cost of an append.
//!
//! Each note carries the log end for which it was written and is valid only while the log ends there. Notes are
//! therefore never deleted: the first note for another log end overwrites the earlier ones. Checksums are chained, so
//! that leftovers after an overwritten note do not count. `docs/formats/segment-log.md` specifies the bytes.

mod file;

/// Size of the file, bytes.
const FILE_BYTES: u64 = 4096;
/// Size of checksum, length and log end offset.
const HEAD_BYTES: usize = 16;
/// Maximum length of a note, bytes. Longer ones should be appended.
const NOTE_BYTES_MAX: usize = 112;
/// Notes start at multiples of this, bytes.
const ALIGN: u64 = 8;
/// Key of the notes file in the file cache, in place of a segment base.
const KEY: u64 = u64::MAX;

/// State of a log's notes.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Log end for which the last note was written.
    log_end: u64,
    /// Position of the next note in the file, bytes.
    position: u64,
    checksum: u32,
    state: FileState,
}

#[derive(Debug, Default, PartialEq)]
enum FileState {
    /// The file may exist and was not written since the log was opened.
    #[default]
    Unknown,
    Open,
    /// Writing failed. Notes are disabled for this log.
    Disabled,
}

/// Notes written for the log end `log_end`.
fn parse(mut bytes: &[u8], log_end: u64) -> Vec<u8> {
    let (mut notes, mut before) = (Vec::new(), 0);
    while let Some(([c0, c1, c2, c3, l0, l1, l2, l3], rest)) = bytes.split_first_chunk::<8>() {
        let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        let all = bytes.get(..HEAD_BYTES + len.min(NOTE_BYTES_MAX));
        let Some(all) = all.filter(|_| rest.starts_with(&log_end.to_be_bytes())) else { break };
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

/// Chained checksum of a note: it covers the checksum of the note before, so that a note after an overwritten one is
/// invalid.
fn checksum(before: u32, note: &[u8]) -> u32 {
    crc32c::crc32c_append(before, &note[4..])
}
