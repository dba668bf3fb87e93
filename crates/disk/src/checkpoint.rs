//! Checkpoints: the durable end of every log at one moment, so that recovery reads only what follows.
//!
//! A checkpoint is replaced atomically by a rename. It may claim less than is on disk, never more. The `clean` file
//! carries the checksum of the checkpoint of a clean shutdown; if they match, recovery reads nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::fs::{Fs, Mode};
use crate::name;
use crate::scan::Place;

const MAGIC: [u8; 4] = *b"MSCK";
const CLEAN_MAGIC: [u8; 4] = *b"MSOK";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 12;
/// Size of the clean mark, bytes.
pub(crate) const CLEAN_BYTES: usize = 8;

/// Checkpoint entry of one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Log start.
    pub(crate) start: u64,
    /// Offset up to which compaction has processed the log.
    pub(crate) cleaned: u64,
    /// Segments with a base below this offset may have offset gaps.
    pub(crate) sparse: u64,
    /// Durable end of the log.
    pub(crate) committed: Place,
}

impl Known {
    /// Of a log whose checkpoint was lost. Any of its segments may be compacted.
    pub(crate) const LOST: Self =
        Self { start: 0, cleaned: 0, sparse: u64::MAX, committed: Place { base: 0, position: 0, offset: 0 } };
}

/// Entries of all logs by name.
pub(crate) type Checkpoint = BTreeMap<String, Known>;

/// Encodes a checkpoint file.
pub(crate) fn encode<'a>(logs: impl Iterator<Item = (&'a str, Known)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let mut count = 0_u32;
    for (name, Known { start, cleaned, sparse, committed }) in logs {
        count += 1;
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
        for number in [start, cleaned, sparse, committed.base, committed.position, committed.offset] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
    }
    bytes[8..12].copy_from_slice(&count.to_be_bytes());
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Checkpoint> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    let (head, mut rest) = body.split_at_checked(HEAD_BYTES)?;
    let is_valid = head[..4] == MAGIC
        && head[4..8] == VERSION.to_be_bytes()
        && crc32c::crc32c(body) == u32::from_be_bytes(*checksum);
    if !is_valid {
        return None;
    }
    let mut logs = Checkpoint::new();
    while let Some((len, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(*len))?;
        let (numbers, after) = after.split_first_chunk::<48>()?;
        rest = after;
        let number = |at: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&numbers[at * 8..at * 8 + 8]);
            u64::from_be_bytes(value)
        };
        let committed = Place { base: number(3), position: number(4), offset: number(5) };
        let known = Known { start: number(0), cleaned: number(1), sparse: number(2), committed };
        logs.insert(str::from_utf8(name).ok()?.to_owned(), known);
    }
    Some(logs)
}

/// Replaces the checkpoint in `dir` durably.
pub(crate) fn store(fs: &dyn Fs, dir: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = dir.join(name::CHECKPOINT_NEW);
    let file = match fs.open(&new, Mode::New) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs.open(&new, Mode::Existing)?,
        outcome => outcome?,
    };
    file.write_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_data()?;
    fs.rename(&new, &dir.join(name::CHECKPOINT))?;
    fs.sync_dir(dir)
}

/// A checkpoint file as it was found.
pub(crate) enum Loaded {
    /// There is none: the store is new, or the file was lost.
    Missing,
    Damaged,
    Valid {
        logs: Checkpoint,
        /// Whether the store was closed cleanly after it.
        was_closed: bool,
    },
}

/// Loads the checkpoint in `dir`.
pub(crate) fn load(fs: &dyn Fs, dir: &Path) -> io::Result<Loaded> {
    let Some(bytes) = read(fs, &dir.join(name::CHECKPOINT))? else { return Ok(Loaded::Missing) };
    let Some(logs) = decode(&bytes) else { return Ok(Loaded::Damaged) };
    let mark = read(fs, &dir.join(name::CLEAN))?;
    Ok(Loaded::Valid { logs, was_closed: mark.is_some_and(|mark| mark == mark_of(&bytes)) })
}

/// Sets a damaged checkpoint in `dir` aside.
pub(crate) fn set_aside(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    fs.rename(&dir.join(name::CHECKPOINT), &dir.join(name::damaged(name::CHECKPOINT)))?;
    fs.sync_dir(dir)
}

/// Marks the store in `dir` as cleanly closed with this checkpoint.
pub(crate) fn mark_clean(fs: &dyn Fs, dir: &Path, checkpoint: &[u8]) -> io::Result<()> {
    let file = fs.open(&dir.join(name::CLEAN), Mode::New)?;
    file.write_at(&mark_of(checkpoint), 0)?;
    file.sync_data()?;
    fs.sync_dir(dir)
}

/// Writes the checkpoint of a store that was closed cleanly into a directory without one. Not synced.
pub(crate) fn write_clean(fs: &dyn Fs, dir: &Path, checkpoint: &[u8]) -> io::Result<()> {
    fs.open(&dir.join(name::CHECKPOINT), Mode::New)?.write_at(checkpoint, 0)?;
    fs.open(&dir.join(name::CLEAN), Mode::New)?.write_at(&mark_of(checkpoint), 0)
}

/// Removes the clean mark durably. Syncs even if there was none: an earlier process may have removed it and crashed
/// before its sync.
pub(crate) fn mark_open(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    match fs.remove_file(&dir.join(name::CLEAN)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs.sync_dir(dir),
    }
}

fn mark_of(checkpoint: &[u8]) -> [u8; CLEAN_BYTES] {
    let mut mark = [0; CLEAN_BYTES];
    mark[..4].copy_from_slice(&CLEAN_MAGIC);
    mark[4..].copy_from_slice(&checkpoint[checkpoint.len() - 4..]);
    mark
}

fn read(fs: &dyn Fs, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match fs.open(path, Mode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        outcome => outcome?,
    };
    let mut bytes = vec![0; file.len()? as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}
