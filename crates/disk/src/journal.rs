//! The journal: what many logs have written since they were synced, once more and in one place, so that one sync
//! covers them all.
//!
//! Two files take turns. When one is full the other begins anew, which it may as soon as every segment it speaks
//! of has been synced; that is done little by little while the first one fills. Both are written full of zeros
//! before: syncing what has its place on disk is quicker than syncing what grows.
//!
//! After a crash its writes are done again, before anything else is read ([`replay`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::LogId;

use crate::commit::Range;
use crate::files::SegmentKey;
use crate::fs::{File, Fs, Mode};
use crate::name;

const MAGIC: [u8; 4] = *b"MSJ1";
/// Magic, length, generation, number, checksum.
const HEAD_BYTES: usize = 28;
/// Records begin at multiples of this, so that no write touches what an earlier one has written.
const ALIGN_BYTES: usize = 512;
/// What is written full of zeros at once.
const FILL_BYTES: u64 = 1 << 20;
const WRITE: u8 = 1;
const FORGET: u8 = 2;

/// Why ranges were not taken in. They are as undurable as before.
#[derive(Debug)]
pub(crate) enum Refused {
    /// There is no journal, or they do not fit.
    Unfit,
    /// It has failed just now.
    Failed(io::Error),
    /// A segment could not be synced to make room.
    Segment(SegmentKey, io::Error),
}

/// Whether it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// It takes nothing in any more.
    Off,
    /// Neither that, nor may it be removed: it has what a segment may have lost.
    Stuck,
}

pub(crate) struct Journal {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Size of each file.
    bytes: u64,
    halves: [Half; 2],
    /// The one that is written to.
    active: usize,
    generation: u64,
    state: State,
    record: Vec<u8>,
}

#[derive(Default)]
struct Half {
    file: Option<Arc<dyn File>>,
    used: u64,
    /// So far it has been written full of zeros.
    filled: u64,
    /// Records since it began anew.
    records: u64,
    generation: u64,
    /// Segments it speaks of that were not synced since.
    unsynced: BTreeMap<SegmentKey, Arc<dyn File>>,
    /// How many there were when the other one took over.
    unsynced_at_turn: usize,
    /// Logs it speaks of.
    names: BTreeSet<Arc<str>>,
}

impl Journal {
    /// None yet: its files are made when they are needed. There must be none in `dir`.
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, bytes: u64) -> Self {
        let state = if bytes < ALIGN_BYTES as u64 { State::Off } else { State::Ready };
        let halves = [Half { generation: 1, ..Half::default() }, Half::default()];
        Self { fs, dir, bytes, halves, active: 0, generation: 1, state, record: Vec::new() }
    }

    /// Segments it has to remember.
    pub(crate) fn unsynced(&self) -> usize {
        self.halves.iter().map(|half| half.unsynced.len()).sum()
    }

    /// Whether a segment has not been synced since it was written here.
    pub(crate) fn needs(&self, key: SegmentKey) -> bool {
        self.halves.iter().any(|half| half.unsynced.contains_key(&key))
    }

    /// Makes what was written to these ranges durable.
    pub(crate) fn write(&mut self, ranges: &[&Range]) -> Result<(), Refused> {
        let bytes: u64 = ranges.iter().map(|range| range.to - range.from).sum();
        if self.state != State::Ready || bytes > self.bytes {
            return Err(Refused::Unfit);
        }
        let mut record = std::mem::take(&mut self.record);
        let written = encode_writes(&mut record, ranges).map_err(Refused::Failed);
        let outcome = written.and_then(|()| self.put(&mut record));
        self.record = record;
        outcome?;
        let half = &mut self.halves[self.active];
        for range in ranges {
            half.unsynced.insert(range.key, range.file.clone());
            if !half.names.contains(&range.name) {
                half.names.insert(range.name.clone());
            }
        }
        Ok(())
    }

    /// Lets a replay do nothing of what was written for logs so far. All their segments must have been synced, or
    /// must not be needed any more.
    pub(crate) fn forget(&mut self, names: &[&str]) -> io::Result<()> {
        let is_known = |name: &str| self.halves.iter().any(|half| half.names.contains(name));
        let names: Vec<&str> = names.iter().copied().filter(|name| is_known(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        if self.state != State::Ready {
            return Err(io::Error::other("the journal has failed"));
        }
        let mut record = std::mem::take(&mut self.record);
        begin(&mut record);
        for name in &names {
            record.push(FORGET);
            put_name(&mut record, name);
        }
        let outcome = self.put(&mut record);
        self.record = record;
        match outcome {
            Ok(()) => {}
            Err(Refused::Failed(error) | Refused::Segment(_, error)) => return Err(error),
            Err(Refused::Unfit) => return Err(io::Error::other("the journal is too small")),
        }
        for half in &mut self.halves {
            half.names.retain(|name| !names.contains(&&**name));
        }
        Ok(())
    }

    /// A segment has been synced: what was written to it before need not be kept.
    pub(crate) fn synced(&mut self, key: SegmentKey) {
        for half in &mut self.halves {
            half.unsynced.remove(&key);
        }
    }

    /// Syncs every segment of a log that it speaks of.
    ///
    /// # Errors
    /// As [`Journal::pace`].
    pub(crate) fn settle_log(&mut self, log: LogId) -> Result<(), (SegmentKey, io::Error)> {
        for half in 0..self.halves.len() {
            let of_log = self.halves[half].unsynced.range((log, 0)..=(log, u64::MAX));
            let mut files: Vec<_> = of_log.map(|(key, file)| (*key, file.clone())).collect();
            while self.state != State::Stuck
                && let Some((key, file)) = files.pop()
            {
                self.sync(key, &*file)?;
            }
        }
        Ok(())
    }

    /// Syncs some of the segments that the resting file speaks of: as many as it takes to be done when the active
    /// one is three quarters full.
    ///
    /// # Errors
    /// The segment that could not be synced. The journal is not used any more then, and stays as it is.
    pub(crate) fn pace(&mut self) -> Result<(), (SegmentKey, io::Error)> {
        let used = self.halves[self.active].used;
        let resting = &self.halves[1 - self.active];
        let at_turn = resting.unsynced_at_turn as u64;
        let done_by_now = (at_turn * used * 4).div_ceil(self.bytes.max(1) * 3).min(at_turn);
        self.settle((at_turn - done_by_now) as usize, 1 - self.active)
    }

    /// Syncs every segment that it speaks of.
    ///
    /// # Errors
    /// As [`Journal::pace`].
    pub(crate) fn settle_all(&mut self) -> Result<(), (SegmentKey, io::Error)> {
        self.settle(0, 0)?;
        self.settle(0, 1)
    }

    /// Ends it: once all segments have been synced, nothing in it is needed.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        if self.state == State::Stuck || self.unsynced() > 0 {
            return Err(io::Error::other("it is needed for the next recovery"));
        }
        self.state = State::Off;
        remove(&*self.fs, &self.dir)?;
        self.halves = [Half::default(), Half::default()];
        Ok(())
    }

    /// Takes nothing in any more.
    pub(crate) fn give_up(&mut self) {
        if self.state == State::Ready {
            self.state = State::Off;
        }
    }

    /// A segment of this log could not be synced, so that what was written to it may be lost. If it is here, it
    /// stays here for the next recovery.
    pub(crate) fn lost(&mut self, log: LogId) {
        if self.halves.iter().any(|half| half.unsynced.keys().any(|(owner, _)| *owner == log)) {
            self.state = State::Stuck;
        }
    }

    fn settle(&mut self, leave: usize, half: usize) -> Result<(), (SegmentKey, io::Error)> {
        while self.state != State::Stuck && self.halves[half].unsynced.len() > leave {
            let Some((key, file)) = self.halves[half].unsynced.first_key_value() else { break };
            let (key, file) = (*key, file.clone());
            self.sync(key, &*file)?;
        }
        Ok(())
    }

    fn sync(&mut self, key: SegmentKey, file: &dyn File) -> Result<(), (SegmentKey, io::Error)> {
        if let Err(error) = file.sync_data() {
            self.state = State::Stuck;
            return Err((key, error));
        }
        self.synced(key);
        Ok(())
    }

    /// Writes a finished record, but for its head, and syncs.
    fn put(&mut self, record: &mut Vec<u8>) -> Result<(), Refused> {
        let padded = record.len().next_multiple_of(ALIGN_BYTES);
        if padded as u64 > self.bytes {
            return Err(Refused::Unfit);
        }
        if self.halves[self.active].used + padded as u64 > self.bytes {
            self.turn()?;
        }
        let half = &self.halves[self.active];
        let file = match &half.file {
            Some(file) => file.clone(),
            None => self.make().map_err(Refused::Failed)?,
        };
        let bytes = self.bytes;
        let half = &mut self.halves[self.active];
        finish(record, half.generation, half.records);
        record.resize(padded, 0);
        let filled = half.fill(&*file, padded as u64, bytes);
        let written = filled.and_then(|()| file.write_at(record, half.used)).and_then(|()| file.sync_data());
        written.map_err(Refused::Failed)?;
        half.used += padded as u64;
        half.records += 1;
        Ok(())
    }

    /// Lets the other file begin anew.
    fn turn(&mut self) -> Result<(), Refused> {
        let other = 1 - self.active;
        self.settle(0, other).map_err(|(key, error)| Refused::Segment(key, error))?;
        if self.state == State::Stuck {
            return Err(Refused::Unfit);
        }
        let full = &mut self.halves[self.active];
        full.unsynced_at_turn = full.unsynced.len();
        self.generation += 1;
        let next = &mut self.halves[other];
        next.used = 0;
        next.records = 0;
        next.generation = self.generation;
        next.names.clear();
        self.active = other;
        Ok(())
    }

    /// Makes the active file.
    fn make(&mut self) -> io::Result<Arc<dyn File>> {
        let path = self.dir.join(name::JOURNAL[self.active]);
        let file = match self.fs.open(&path, Mode::New) {
            // Left by an attempt that failed.
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
    /// Writes zeros to where a record of `len` bytes is to come, and some more.
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

/// Of everything but itself.
fn checksum(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..24]), &record[HEAD_BYTES..])
}

/// A write that the journal has.
pub(crate) struct Write<'a> {
    /// Of the log.
    pub(crate) name: &'a str,
    /// Of the segment.
    pub(crate) base: u64,
    /// In the segment.
    pub(crate) position: u64,
    pub(crate) bytes: &'a [u8],
}

enum Entry<'a> {
    Write(Write<'a>),
    Forget(&'a str),
}

/// Reads a number off the front.
fn number<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (value, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*value)
}

/// The record that `bytes` begin with: generation, number, entries, and its length with padding.
fn record(bytes: &[u8]) -> Option<(u64, u64, &[u8], usize)> {
    let mut rest = bytes;
    let magic = number::<4>(&mut rest)?;
    let len = u32::from_be_bytes(number(&mut rest)?) as usize;
    let generation = u64::from_be_bytes(number(&mut rest)?);
    let place = u64::from_be_bytes(number(&mut rest)?);
    let expected = u32::from_be_bytes(number(&mut rest)?);
    let whole = bytes.get(..len).filter(|whole| whole.len() >= HEAD_BYTES)?;
    let is_sound = magic == MAGIC && checksum(whole) == expected;
    is_sound.then_some((generation, place, &whole[HEAD_BYTES..], len.next_multiple_of(ALIGN_BYTES)))
}

fn entry<'a>(rest: &mut &'a [u8]) -> Option<Entry<'a>> {
    let [kind, len] = number(rest)?;
    let (name, behind) = rest.split_at_checked(len.into())?;
    *rest = behind;
    let name = str::from_utf8(name).ok()?;
    match kind {
        FORGET => Some(Entry::Forget(name)),
        WRITE => {
            let base = u64::from_be_bytes(number(rest)?);
            let position = u64::from_be_bytes(number(rest)?);
            let len = u32::from_be_bytes(number(rest)?) as usize;
            let (bytes, behind) = rest.split_at_checked(len)?;
            *rest = behind;
            Some(Entry::Write(Write { name, base, position, bytes }))
        }
        _ => None,
    }
}

/// The entries of one file, as far as its records follow one another.
fn entries(bytes: &[u8]) -> (u64, Vec<Entry<'_>>) {
    let mut entries = Vec::new();
    let mut rest = bytes;
    let mut first = None;
    let mut expected = 0;
    while let Some((generation, place, mut body, len)) = record(rest) {
        if *first.get_or_insert(generation) != generation || place != expected {
            break;
        }
        expected += 1;
        while let Some(entry) = entry(&mut body) {
            entries.push(entry);
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    (first.unwrap_or(0), entries)
}

/// Calls `redo` for each write of the journal in `dir` that a recovery has to do again, in order.
///
/// # Errors
/// What the system says, or `redo`.
pub(crate) fn replay(
    fs: &dyn Fs,
    dir: &Path,
    mut redo: impl FnMut(&Write<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut files = Vec::new();
    for file in name::JOURNAL {
        match fs.open(&dir.join(file), Mode::Existing) {
            Ok(file) => {
                let mut bytes = vec![0; file.len()? as usize];
                let read = file.read_at(&mut bytes, 0)?;
                bytes.truncate(read);
                files.push(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let mut halves: Vec<_> = files.iter().map(|bytes| entries(bytes)).collect();
    halves.sort_by_key(|(generation, _)| *generation);
    let all: Vec<&Entry<'_>> = halves.iter().flat_map(|(_, entries)| entries).collect();
    let mut forgotten = BTreeMap::new();
    for (at, entry) in all.iter().enumerate() {
        if let Entry::Forget(name) = entry {
            forgotten.insert(*name, at);
        }
    }
    for (at, entry) in all.iter().enumerate() {
        if let Entry::Write(write) = entry
            && forgotten.get(write.name).is_none_or(|forgotten| *forgotten < at)
        {
            redo(write)?;
        }
    }
    Ok(())
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
