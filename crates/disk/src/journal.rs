//! The journal: a second copy of the recent writes of many logs in one file, so that one sync covers them all.
//!
//! Two files alternate. When the active one is full, the other is reused, which requires that every segment it refers
//! to has been synced; those syncs are spread over the time in which the active file fills. Both files are filled
//! with zeros in advance: syncing allocated blocks is faster than syncing a growing file.
//!
//! Recovery replays the journal before it reads anything else (`redo.rs`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::LogId;

use crate::files::{Range, SegmentKey};
use crate::fs::{File, Fs, Mode};
use crate::name;

const MAGIC: [u8; 4] = *b"MSJ1";
/// Size of magic, length, generation, sequence number and checksum.
const HEAD_BYTES: usize = 28;
/// Records start at multiples of this, so that no write touches a sector of an earlier one.
const ALIGN_BYTES: usize = 512;
/// Bytes zeroed at a time.
const FILL_BYTES: u64 = 1 << 20;
/// Segments that are synced at once to make room for others.
const RELIEVED_MAX: usize = 4;
/// Segments of the inactive half that are synced at once.
const PACED_MAX: usize = 8;
const WRITE: u8 = 1;
const FORGET: u8 = 2;
const FORGET_BEFORE: u8 = 3;

/// Why ranges were not written. They are not durable.
#[derive(Debug)]
pub(crate) enum JournalError {
    /// The journal is off, or the ranges do not fit.
    DoesNotFit,
    /// Creating or writing the file failed. The journal has what it had before.
    Unwritten(io::Error),
    /// The journal failed.
    Failed(io::Error),
    /// Making room failed: a segment could not be synced.
    Segment(SegmentKey, io::Error),
}

impl From<JournalError> for io::Error {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Unwritten(error)
            | JournalError::Failed(error)
            | JournalError::Segment(_, error) => error,
            JournalError::DoesNotFit => Self::other("the journal is too small"),
        }
    }
}

/// Whether the journal is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Accepts no more writes.
    Off,
    /// Accepts no more writes and must not be removed: it holds data that a segment may have lost.
    Stuck,
}

pub(crate) struct Journal {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Size of each file.
    bytes: u64,
    halves: [Half; 2],
    /// Index of the half that receives writes.
    active: usize,
    generation: u64,
    state: State,
    record: Vec<u8>,
    /// Number of writes so far.
    writes: u64,
    /// The segment that was synced last to make room for others.
    relieved: SegmentKey,
}

/// A segment with writes that only the journal makes durable.
#[derive(Clone)]
pub(crate) struct Unsynced {
    pub(crate) key: SegmentKey,
    pub(crate) file: Arc<dyn File>,
    /// The journal's last write to it.
    pub(crate) write: u64,
}

#[derive(Default)]
struct Half {
    file: Option<Arc<dyn File>>,
    used: u64,
    /// Length of the zeroed prefix.
    filled: u64,
    /// Number of records in this generation.
    records: u64,
    generation: u64,
    /// Segments with writes in this half that were not synced since.
    unsynced: BTreeMap<SegmentKey, Unsynced>,
    /// Size of `unsynced` when the other half became active.
    unsynced_at_switch: usize,
    /// Names of the logs with writes in this half.
    names: BTreeSet<Arc<str>>,
}

impl Journal {
    /// Creates a journal without files; they are created on first use. `dir` must not contain any.
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, bytes: u64) -> Self {
        let state = if bytes < ALIGN_BYTES as u64 { State::Off } else { State::Ready };
        let halves = [Half { generation: 1, ..Half::default() }, Half::default()];
        Self {
            fs,
            dir,
            bytes,
            halves,
            active: 0,
            generation: 1,
            state,
            record: Vec::new(),
            writes: 0,
            relieved: (LogId(0), 0),
        }
    }

    /// Number of segments that depend on the journal.
    pub(crate) fn unsynced(&self) -> usize {
        self.halves.iter().map(|half| half.unsynced.len()).sum()
    }

    /// Whether a segment depends on the journal: it was not synced since a write to it was journaled.
    pub(crate) fn needs(&self, key: SegmentKey) -> bool {
        self.halves.iter().any(|half| half.unsynced.contains_key(&key))
    }

    /// Makes these ranges durable.
    pub(crate) fn write(&mut self, ranges: &[&Range]) -> Result<(), JournalError> {
        let bytes: u64 = ranges.iter().map(|range| range.to - range.from).sum();
        if self.state != State::Ready || bytes > self.bytes {
            return Err(JournalError::DoesNotFit);
        }
        let mut record = std::mem::take(&mut self.record);
        let written = encode_writes(&mut record, ranges).map_err(JournalError::Failed);
        let outcome = written.and_then(|()| self.write_record(&mut record));
        self.record = record;
        outcome?;
        self.writes += 1;
        let half = &mut self.halves[self.active];
        for range in ranges {
            let unsynced = Unsynced { key: range.key, file: range.file.clone(), write: self.writes };
            half.unsynced.insert(range.key, unsynced);
            if !half.names.contains(&range.name) {
                half.names.insert(range.name.clone());
            }
        }
        Ok(())
    }

    /// Excludes all writes so far of these logs from replay. Their segments must be synced or obsolete.
    ///
    /// # Errors
    /// The writes are still replayed. After [`JournalError::Unwritten`], the caller may try again.
    pub(crate) fn forget(&mut self, names: &[&str]) -> Result<(), JournalError> {
        let is_known = |name: &str| self.halves.iter().any(|half| half.names.contains(name));
        let names: Vec<&str> = names.iter().copied().filter(|name| is_known(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        if self.state != State::Ready {
            return Err(JournalError::Failed(io::Error::other("the journal has failed")));
        }
        let mut record = std::mem::take(&mut self.record);
        begin(&mut record);
        for name in &names {
            record.push(FORGET);
            put_name(&mut record, name);
        }
        let outcome = self.write_record(&mut record);
        self.record = record;
        outcome?;
        for half in &mut self.halves {
            half.names.retain(|name| !names.contains(&&**name));
        }
        Ok(())
    }

    /// Excludes all writes so far to the segments of this log with a base offset below `base` from replay. They must be
    /// synced.
    ///
    /// # Errors
    /// As [`Journal::forget`].
    pub(crate) fn forget_before(&mut self, name: &str, base: u64) -> Result<(), JournalError> {
        if !self.halves.iter().any(|half| half.names.contains(name)) {
            return Ok(());
        }
        if self.state != State::Ready {
            return Err(JournalError::Failed(io::Error::other("the journal has failed")));
        }
        let mut record = std::mem::take(&mut self.record);
        begin(&mut record);
        record.push(FORGET_BEFORE);
        put_name(&mut record, name);
        record.extend_from_slice(&base.to_be_bytes());
        let outcome = self.write_record(&mut record);
        self.record = record;
        outcome
    }

    /// Records that a segment was synced and no longer depends on the journal.
    pub(crate) fn synced(&mut self, key: SegmentKey) {
        for half in &mut self.halves {
            half.unsynced.remove(&key);
        }
    }

    /// Records how a sync went that began after this write to the segment. Later writes still depend on the journal.
    ///
    /// # Errors
    /// As [`Journal::pace`].
    pub(crate) fn synced_to(
        &mut self,
        to: &Unsynced,
        outcome: io::Result<()>,
    ) -> Result<(), (SegmentKey, io::Error)> {
        if let Err(error) = outcome {
            self.state = State::Stuck;
            return Err((to.key, error));
        }
        for half in &mut self.halves {
            if half.unsynced.get(&to.key).is_some_and(|known| known.write <= to.write) {
                half.unsynced.remove(&to.key);
            }
        }
        Ok(())
    }

    /// The segments of a log need the journal no longer: they are gone.
    pub(crate) fn drop_log(&mut self, log: LogId) {
        for half in &mut self.halves {
            half.unsynced.retain(|(owner, _), _| *owner != log);
        }
    }

    /// Segments to sync now: some of the inactive half, paced so that all are synced when the active half is three
    /// quarters full, and a few more if more than three quarters of `segments_max` depend on the journal. An append to
    /// a segment for which there is no room waits for a sync of its own.
    pub(crate) fn due(&mut self, segments_max: usize) -> Vec<Unsynced> {
        let mut due = Vec::new();
        if self.state == State::Stuck {
            return due;
        }
        if self.unsynced() > segments_max / 4 * 3 {
            self.add_relief(&mut due);
        }
        let used = self.halves[self.active].used;
        let inactive = &self.halves[1 - self.active];
        let at_switch = inactive.unsynced_at_switch as u64;
        let done_target = (at_switch * used * 4).div_ceil(self.bytes.max(1) * 3).min(at_switch);
        let late = inactive.unsynced.len().saturating_sub((at_switch - done_target) as usize);
        due.extend(inactive.unsynced.values().take(late.min(PACED_MAX)).cloned());
        due
    }

    /// Syncs the segments that are [due](Self::due).
    ///
    /// # Errors
    /// The segment that could not be synced. The journal then accepts no more writes and is retained for recovery.
    pub(crate) fn pace(&mut self, segments_max: usize) -> Result<(), (SegmentKey, io::Error)> {
        for segment in self.due(segments_max) {
            self.sync_segment(&segment)?;
        }
        Ok(())
    }

    /// Syncs every segment that depends on the journal.
    ///
    /// # Errors
    /// As [`Journal::pace`].
    pub(crate) fn sync_all(&mut self) -> Result<(), (SegmentKey, io::Error)> {
        self.sync_until(0, 0)?;
        self.sync_until(0, 1)
    }

    /// Removes the journal, which requires that all segments were synced.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        if self.state == State::Stuck || self.unsynced() > 0 {
            return Err(io::Error::other("the journal is still needed for recovery"));
        }
        self.state = State::Off;
        remove(&*self.fs, &self.dir)?;
        self.halves = [Half::default(), Half::default()];
        Ok(())
    }

    /// Stops accepting writes.
    pub(crate) fn disable(&mut self) {
        if self.state == State::Ready {
            self.state = State::Off;
        }
    }

    /// Records that a segment of this log could not be synced and may have lost writes. If the journal holds any of
    /// them, it is retained for recovery.
    pub(crate) fn mark_lost(&mut self, log: LogId) {
        if self.halves.iter().any(|half| half.unsynced.keys().any(|(owner, _)| *owner == log)) {
            self.state = State::Stuck;
        }
    }

    /// Adds the next segments, in the order of the keys. Segments that are written all the time have their turn like
    /// others, since nothing tells them apart.
    fn add_relief(&mut self, due: &mut Vec<Unsynced>) {
        for _ in 0..RELIEVED_MAX {
            let after = (Bound::Excluded(self.relieved), Bound::Unbounded);
            let next = |range: (Bound<SegmentKey>, Bound<SegmentKey>)| {
                let firsts = self.halves.iter().filter_map(move |half| half.unsynced.range(range).next());
                // Of a segment in both halves, the later write.
                firsts
                    .min_by_key(|(key, known)| (**key, Reverse(known.write)))
                    .map(|(_, known)| known.clone())
            };
            let found = next(after).or_else(|| next((Bound::Unbounded, Bound::Unbounded)));
            let Some(segment) = found else { return };
            self.relieved = segment.key;
            due.push(segment);
        }
    }

    fn sync_until(&mut self, remaining: usize, half: usize) -> Result<(), (SegmentKey, io::Error)> {
        while self.state != State::Stuck && self.halves[half].unsynced.len() > remaining {
            let Some((_, segment)) = self.halves[half].unsynced.first_key_value() else { break };
            let segment = segment.clone();
            self.sync_segment(&segment)?;
        }
        Ok(())
    }

    fn sync_segment(&mut self, segment: &Unsynced) -> Result<(), (SegmentKey, io::Error)> {
        if let Err(error) = segment.file.sync_data() {
            self.state = State::Stuck;
            return Err((segment.key, error));
        }
        // Nobody else writes meanwhile.
        self.synced(segment.key);
        Ok(())
    }

    /// Completes the head of a record, writes it and syncs.
    fn write_record(&mut self, record: &mut Vec<u8>) -> Result<(), JournalError> {
        let padded = record.len().next_multiple_of(ALIGN_BYTES);
        if padded as u64 > self.bytes {
            return Err(JournalError::DoesNotFit);
        }
        if self.halves[self.active].used + padded as u64 > self.bytes {
            self.switch_halves()?;
        }
        let half = &self.halves[self.active];
        let file = match &half.file {
            Some(file) => file.clone(),
            None => self.create_file().map_err(JournalError::Unwritten)?,
        };
        let bytes = self.bytes;
        let half = &mut self.halves[self.active];
        finish(record, half.generation, half.records);
        record.resize(padded, 0);
        let filled = half.fill(&*file, padded as u64, bytes);
        // What a failed write leaves is not a valid record, and the next record replaces it.
        filled.and_then(|()| file.write_at(record, half.used)).map_err(JournalError::Unwritten)?;
        file.sync_data().map_err(JournalError::Failed)?;
        half.used += padded as u64;
        half.records += 1;
        Ok(())
    }

    /// Switches to the other half and starts a new generation.
    fn switch_halves(&mut self) -> Result<(), JournalError> {
        let other = 1 - self.active;
        self.sync_until(0, other).map_err(|(key, error)| JournalError::Segment(key, error))?;
        if self.state == State::Stuck {
            return Err(JournalError::DoesNotFit);
        }
        let full = &mut self.halves[self.active];
        full.unsynced_at_switch = full.unsynced.len();
        self.generation += 1;
        let next = &mut self.halves[other];
        next.used = 0;
        next.records = 0;
        next.generation = self.generation;
        next.names.clear();
        self.active = other;
        Ok(())
    }

    /// Creates the file of the active half.
    fn create_file(&mut self) -> io::Result<Arc<dyn File>> {
        let path = self.dir.join(name::JOURNAL[self.active]);
        let file = match self.fs.open(&path, Mode::New) {
            // Left by a failed attempt.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.fs.open(&path, Mode::Existing)?
            }
            outcome => outcome?,
        };
        self.fs.sync_dir(&self.dir)?;
        let half = &mut self.halves[self.active];
        half.file = Some(file.clone());
        half.filled = 0;
        Ok(file)
    }
}

impl Half {
    /// Zeroes the file ahead of a record of `len` bytes, in larger steps.
    fn fill(&mut self, file: &dyn File, len: u64, bytes: u64) -> io::Result<()> {
        while self.filled < self.used + len {
            let zeros = vec![0; (bytes - self.filled).min(FILL_BYTES) as usize];
            file.write_at(&zeros, self.filled)?;
            self.filled += zeros.len() as u64;
        }
        Ok(())
    }
}

fn begin(record: &mut Vec<u8>) {
    record.clear();
    record.resize(HEAD_BYTES, 0);
}

fn put_name(record: &mut Vec<u8>, name: &str) {
    record.push(name.len() as u8);
    record.extend_from_slice(name.as_bytes());
}

fn encode_writes(record: &mut Vec<u8>, ranges: &[&Range]) -> io::Result<()> {
    begin(record);
    for range in ranges {
        let len = (range.to - range.from) as usize;
        record.push(WRITE);
        put_name(record, &range.name);
        record.extend_from_slice(&range.key.1.to_be_bytes());
        record.extend_from_slice(&range.from.to_be_bytes());
        record.extend_from_slice(&(len as u32).to_be_bytes());
        let at = record.len();
        record.resize(at + len, 0);
        if range.file.read_at(&mut record[at..], range.from)? != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn finish(record: &mut [u8], generation: u64, number: u64) {
    let len = record.len() as u32;
    record[..4].copy_from_slice(&MAGIC);
    record[4..8].copy_from_slice(&len.to_be_bytes());
    record[8..16].copy_from_slice(&generation.to_be_bytes());
    record[16..24].copy_from_slice(&number.to_be_bytes());
    let checksum = checksum(record);
    record[24..28].copy_from_slice(&checksum.to_be_bytes());
}

/// Checksum of a record except the checksum field.
fn checksum(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..24]), &record[HEAD_BYTES..])
}

/// A journaled write.
pub(crate) struct Write<'a> {
    /// Name of the log.
    pub(crate) name: &'a str,
    /// Base offset of the segment.
    pub(crate) base: u64,
    /// Position in the segment.
    pub(crate) position: u64,
    pub(crate) bytes: &'a [u8],
}

enum Entry<'a> {
    Write(Write<'a>),
    /// Earlier writes to segments of this log are not replayed, or to those with a base offset below the one given.
    Forget(&'a str, Option<u64>),
}

/// Takes a fixed number of bytes off the front.
fn number<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (value, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*value)
}

/// Parses the record at the start of `bytes`: generation, sequence number, entries, padded length.
fn record(bytes: &[u8]) -> Option<(u64, u64, &[u8], usize)> {
    let mut rest = bytes;
    let magic = number::<4>(&mut rest)?;
    let len = u32::from_be_bytes(number(&mut rest)?) as usize;
    let generation = u64::from_be_bytes(number(&mut rest)?);
    let sequence = u64::from_be_bytes(number(&mut rest)?);
    let expected = u32::from_be_bytes(number(&mut rest)?);
    let whole = bytes.get(..len).filter(|whole| whole.len() >= HEAD_BYTES)?;
    let is_valid = magic == MAGIC && checksum(whole) == expected;
    is_valid.then_some((generation, sequence, &whole[HEAD_BYTES..], len.next_multiple_of(ALIGN_BYTES)))
}

fn entry<'a>(rest: &mut &'a [u8]) -> Option<Entry<'a>> {
    let [kind, len] = number(rest)?;
    let (name, after) = rest.split_at_checked(len.into())?;
    *rest = after;
    let name = str::from_utf8(name).ok()?;
    match kind {
        FORGET => Some(Entry::Forget(name, None)),
        FORGET_BEFORE => Some(Entry::Forget(name, Some(u64::from_be_bytes(number(rest)?)))),
        WRITE => {
            let base = u64::from_be_bytes(number(rest)?);
            let position = u64::from_be_bytes(number(rest)?);
            let len = u32::from_be_bytes(number(rest)?) as usize;
            let (bytes, after) = rest.split_at_checked(len)?;
            *rest = after;
            Some(Entry::Write(Write { name, base, position, bytes }))
        }
        _ => None,
    }
}

/// What one file contains.
struct Contents<'a> {
    generation: u64,
    /// Entries up to the first record out of sequence.
    entries: Vec<Entry<'a>>,
    /// Whether later records of the same generation follow: the record in between is damaged, not incomplete.
    is_damaged: bool,
}

fn contents(bytes: &[u8]) -> Contents<'_> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    let mut first = None;
    let mut expected = 0;
    while let Some((generation, sequence, mut body, len)) = record(rest) {
        if *first.get_or_insert(generation) != generation || sequence != expected {
            break;
        }
        expected += 1;
        while let Some(entry) = entry(&mut body) {
            entries.push(entry);
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    let is_later = |at| record(&rest[at..]).is_some_and(|(generation, ..)| Some(generation) == first);
    let is_damaged = (0..rest.len()).step_by(ALIGN_BYTES).any(is_later);
    Contents { generation: first.unwrap_or(0), entries, is_damaged }
}

/// The journal files of a store, as a crash has left them.
pub(crate) struct Found {
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Found {
    /// Reads the journal files in `dir`.
    pub(crate) fn read(fs: &dyn Fs, dir: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for file in name::JOURNAL {
            match fs.open(&dir.join(file), Mode::Existing) {
                Ok(found) => {
                    let mut bytes = vec![0; found.len()? as usize];
                    let read = found.read_at(&mut bytes, 0)?;
                    bytes.truncate(read);
                    files.push((file, bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { files })
    }

    /// Names of the files that are damaged.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().filter(|(_, bytes)| contents(bytes).is_damaged).map(|(file, _)| *file)
    }

    /// Sets the damaged files aside.
    pub(crate) fn set_damaged_aside(&self, fs: &dyn Fs, dir: &Path) -> io::Result<()> {
        for file in self.damaged() {
            log::error!("{} is damaged; it is set aside", dir.join(file).display());
            fs.rename(&dir.join(file), &dir.join(name::damaged(file)))?;
        }
        Ok(())
    }

    /// Calls `redo` in order for each write that recovery must apply.
    ///
    /// # Errors
    /// Errors of `redo`.
    pub(crate) fn replay(&self, mut redo: impl FnMut(&Write<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut halves: Vec<Contents<'_>> = self.files.iter().map(|(_, bytes)| contents(bytes)).collect();
        halves.sort_by_key(|half| half.generation);
        let all: Vec<&Entry<'_>> = halves.iter().flat_map(|half| &half.entries).collect();
        let mut forgotten: BTreeMap<&str, Vec<(usize, Option<u64>)>> = BTreeMap::new();
        for (at, entry) in all.iter().enumerate() {
            if let Entry::Forget(name, before) = entry {
                forgotten.entry(*name).or_default().push((at, *before));
            }
        }
        for (at, entry) in all.iter().enumerate() {
            let Entry::Write(write) = entry else { continue };
            let is_of = |(later, before): &(usize, Option<u64>)| {
                at < *later && before.is_none_or(|base| write.base < base)
            };
            if !forgotten.get(write.name).is_some_and(|forgotten| forgotten.iter().any(is_of)) {
                redo(write)?;
            }
        }
        Ok(())
    }
}

/// Removes the journal from `dir`.
pub(crate) fn remove(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let mut was_there = false;
    for file in name::JOURNAL {
        match fs.remove_file(&dir.join(file)) {
            Ok(()) => was_there = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if was_there { fs.sync_dir(dir) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultFs;

    #[test]
    fn segments_leave_room_for_others() {
        const SEGMENTS_MAX: usize = 16;
        let fs: Arc<dyn Fs> = Arc::new(FaultFs::new(1));
        let mut journal = Journal::new(Arc::clone(&fs), "/".into(), 1 << 20);
        let range = |number: u32| {
            let file = fs.open(Path::new(&format!("/{number}")), Mode::New).unwrap();
            file.write_at(b"record", 0).unwrap();
            let key = (LogId(number), 0);
            Range { key, name: "log".into(), file, from: 0, to: 6, is_closed: false, releases_space: false }
        };
        let busy = [range(0), range(500)];
        for number in 1..400 {
            // Before and behind the busy ones, in no order.
            let new = range(number * 7919 % 1009);
            journal.write(&[&busy[0], &new, &busy[1]]).unwrap();
            journal.pace(SEGMENTS_MAX).unwrap();
            assert!(journal.unsynced() < SEGMENTS_MAX, "{number}: {}", journal.unsynced());
        }
    }
}
