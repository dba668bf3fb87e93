//! Sparse index of a segment: positions of some batches, by offset and by timestamp.
//!
//! An index is only a hint. It can be rebuilt from its segment at any time, and readers check each position against
//! the batch found there. Its size is bounded: when it is full, every other entry is dropped and the spacing doubles.
//!
//! A *sealed* index is also evidence: it was written after its whole segment and the directory entry of the next one
//! were synced. If either is incomplete or missing later, that is damage and not a torn write.

use std::io;
use std::path::Path;
use std::sync::Arc;

use mainstem_log::BatchHeader;

use crate::fs::{File, Fs, Mode};
use crate::scan::{Place, Scan, Step};

/// Maximum number of entries. A full index drops every other entry and doubles its spacing.
const ENTRIES_MAX: usize = 2048;
/// Initial distance between entries, bytes.
const EVERY_BYTES: u64 = 4096;

const MAGIC: [u8; 4] = *b"MSIX";
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 52;
/// Flag of a sealed index.
const SEALED: u32 = 1;
const ENTRY_BYTES: usize = 24;

/// Positions of some batches of a segment, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Index {
    entries: Vec<Entry>,
    every_bytes: u64,
    /// End of the indexed part.
    end: Place,
    /// Largest timestamp of the indexed batches.
    max_timestamp_ms: i64,
    /// Max timestamp of the first batch.
    first_timestamp_ms: i64,
    is_sealed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    offset: u64,
    position: u64,
    /// Largest timestamp of the batches before this one.
    max_before_ms: i64,
}

impl Index {
    /// Creates the index of an empty segment.
    pub(crate) fn new(base: u64) -> Self {
        Self {
            entries: Vec::new(),
            every_bytes: EVERY_BYTES,
            end: Place::beginning(base),
            max_timestamp_ms: i64::MIN,
            first_timestamp_ms: i64::MIN,
            is_sealed: false,
        }
    }

    /// Marks the index as sealed: the whole segment is synced, and so is the directory entry of the next one.
    pub(crate) fn seal(&mut self) {
        self.is_sealed = true;
    }

    pub(crate) fn end(&self) -> Place {
        self.end
    }

    /// Largest timestamp in the segment; `None` if it is empty.
    pub(crate) fn max_timestamp_ms(&self) -> Option<i64> {
        (self.end.position > 0).then_some(self.max_timestamp_ms)
    }

    /// Max timestamp of the first batch; `None` if there is none.
    pub(crate) fn first_timestamp_ms(&self) -> Option<i64> {
        (self.end.position > 0).then_some(self.first_timestamp_ms)
    }

    /// Extends the indexed part to `end`, with no batches in between.
    pub(crate) fn extend_to(&mut self, end: Place) {
        self.end = end;
    }

    /// Adds the batch at `place`, which must not be before the end.
    pub(crate) fn note(&mut self, place: Place, header: &BatchHeader) {
        let is_due =
            self.entries.last().is_none_or(|last| place.position - last.position >= self.every_bytes);
        if is_due {
            if self.entries.len() == ENTRIES_MAX {
                let mut keep = false;
                self.entries.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.every_bytes *= 2;
            }
            self.entries.push(Entry {
                offset: header.base_offset,
                position: place.position,
                max_before_ms: self.max_timestamp_ms,
            });
        }
        if self.end.position == 0 {
            self.first_timestamp_ms = header.max_timestamp_ms;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(header.max_timestamp_ms);
        self.end = place.after(header);
    }

    /// Removes everything from `place` on. The largest timestamp may stay too large.
    pub(crate) fn truncate(&mut self, place: Place) {
        self.entries.retain(|entry| entry.position < place.position);
        self.end = self.end.min(place);
        self.is_sealed = false;
    }

    fn place(&self, entry: Option<&Entry>) -> Place {
        let beginning = Place::beginning(self.end.base);
        entry.map_or(beginning, |entry| Place { position: entry.position, offset: entry.offset, ..beginning })
    }

    /// Position of a batch at or before the one that contains `offset`.
    pub(crate) fn before_offset(&self, offset: u64) -> Place {
        let after = self.entries.partition_point(|entry| entry.offset <= offset);
        self.place(after.checked_sub(1).map(|at| &self.entries[at]))
    }

    /// Position of a batch at or before byte `position`.
    pub(crate) fn before_position(&self, position: u64) -> Place {
        let after = self.entries.partition_point(|entry| entry.position <= position);
        self.place(after.checked_sub(1).map(|at| &self.entries[at]))
    }

    /// Position of a batch at or before the first one whose max timestamp is at least `timestamp_ms`.
    pub(crate) fn before_time(&self, timestamp_ms: i64) -> Place {
        let after = self.entries.partition_point(|entry| entry.max_before_ms < timestamp_ms);
        self.place(after.checked_sub(1).map(|at| &self.entries[at]))
    }

    /// Adds the batches between its end and `end` by their headers and skips damaged ones.
    pub(crate) fn extend(&mut self, scan: &mut Scan<'_>, end: Place) -> io::Result<()> {
        let mut place = self.end;
        while place.position < end.position {
            match scan.step(place)? {
                Step::Batch(header) => {
                    self.note(place, &header);
                    place = self.end;
                }
                Step::End => break,
                Step::Damaged => match scan.resume(place)? {
                    Some(next) => place = next,
                    None => break,
                },
            }
        }
        self.end = end;
        Ok(())
    }

    /// Whether each entry is one of these batches, given by position and offset in order.
    pub(crate) fn agrees_with(&self, batches: &[(u64, u64)]) -> bool {
        self.entries.iter().all(|entry| batches.binary_search(&(entry.position, entry.offset)).is_ok())
    }

    /// Encodes the index file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.entries.len() * ENTRY_BYTES + 4);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&self.every_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.end.position.to_be_bytes());
        bytes.extend_from_slice(&self.end.offset.to_be_bytes());
        bytes.extend_from_slice(&self.first_timestamp_ms.to_be_bytes());
        bytes.extend_from_slice(&self.max_timestamp_ms.to_be_bytes());
        bytes.extend_from_slice(&if self.is_sealed { SEALED } else { 0 }.to_be_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.offset.to_be_bytes());
            bytes.extend_from_slice(&entry.position.to_be_bytes());
            bytes.extend_from_slice(&entry.max_before_ms.to_be_bytes());
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// Decodes an index file of the segment with base offset `base`; `None` if it is damaged.
    pub(crate) fn decode(base: u64, bytes: &[u8]) -> Option<Self> {
        let (body, checksum) = bytes.split_last_chunk::<4>()?;
        let (head, entries) = body.split_at_checked(HEAD_BYTES)?;
        let is_valid = head[..4] == MAGIC
            && head[4..8] == VERSION.to_be_bytes()
            && entries.len().is_multiple_of(ENTRY_BYTES)
            && entries.len() / ENTRY_BYTES <= ENTRIES_MAX
            && crc32c::crc32c(body) == u32::from_be_bytes(*checksum);
        if !is_valid {
            return None;
        }
        let field = |bytes: &[u8], at: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&bytes[at..at + 8]);
            value
        };
        let number = |bytes: &[u8], at: usize| u64::from_be_bytes(field(bytes, at));
        let time = |bytes: &[u8], at: usize| i64::from_be_bytes(field(bytes, at));
        let entry = |bytes: &[u8]| Entry {
            offset: number(bytes, 0),
            position: number(bytes, 8),
            max_before_ms: time(bytes, 16),
        };
        Some(Self {
            every_bytes: number(head, 8),
            end: Place { base, position: number(head, 16), offset: number(head, 24) },
            first_timestamp_ms: time(head, 32),
            max_timestamp_ms: time(head, 40),
            is_sealed: head[48..52] == SEALED.to_be_bytes(),
            entries: entries.chunks_exact(ENTRY_BYTES).map(entry).collect(),
        })
    }

    /// Loads the index at `path` if it is valid and does not go beyond `end`.
    pub(crate) fn load(fs: &dyn Fs, path: &Path, end: Place) -> Option<Self> {
        let index = Self::load_any(fs, path, end.base).ok()??;
        (index.end.position <= end.position && index.end.offset <= end.offset).then_some(index)
    }

    /// Loads the index at `path` of the segment with base offset `base`, whatever it covers. `None` if it is missing
    /// or damaged.
    ///
    /// # Errors
    /// IO errors.
    pub(crate) fn load_any(fs: &dyn Fs, path: &Path, base: u64) -> io::Result<Option<Self>> {
        let file = match fs.open(path, Mode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            outcome => outcome?,
        };
        let len = file.len()?;
        if len > (HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES + 4) as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        let read = file.read_at(&mut bytes, 0)?;
        Ok(Self::decode(base, &bytes[..read]))
    }

    /// First offset of the next segment according to a sealed index at `path`. `None` if there is none.
    ///
    /// # Errors
    /// IO errors.
    pub(crate) fn sealed_end(fs: &dyn Fs, path: &Path, base: u64) -> io::Result<Option<u64>> {
        let index = Self::load_any(fs, path, base)?.filter(|index| index.is_sealed);
        Ok(index.map(|index| index.end.offset))
    }

    /// Saves the index at `path` without a sync: a lost index is rebuilt.
    pub(crate) fn store(&self, fs: &dyn Fs, path: &Path) -> io::Result<()> {
        write(fs, path, &self.encode()).map(|_| ())
    }

    /// Removes the index at `path` if it exists. The removal must be durable before the segment is truncated or its
    /// name is reused, since an index cannot detect that it describes other batches.
    pub(crate) fn remove(fs: &dyn Fs, path: &Path) -> io::Result<()> {
        match fs.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Writes an encoded index to `path`, without a sync.
fn write(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn File>> {
    let file = match fs.open(path, Mode::New) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs.open(path, Mode::Existing)?,
        outcome => outcome?,
    };
    file.write_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    Ok(file)
}

/// Writes an encoded, sealed index to `path` durably.
pub(crate) fn write_sealed(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(fs, path, bytes)?.sync_data()?;
    path.parent().map_or(Ok(()), |dir| fs.sync_dir(dir))
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Batch, BatchBuilder};
    use proptest::prelude::*;

    use super::*;

    /// Upper bound of the batch size in these tests.
    const BATCH_BYTES_MAX: u64 = 10_100;

    fn header(base_offset: u64, time_ms: i64, value_bytes: usize) -> BatchHeader {
        let mut builder = BatchBuilder::default();
        builder.push(time_ms, None, None);
        let header = Batch::parse(builder.finish()).unwrap().header;
        BatchHeader { base_offset, total_bytes: header.total_bytes + value_bytes, ..header }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn finds_a_batch_at_or_before(
            sizes in prop::collection::vec((1_usize..10_000, 0_i64..1000, 0_u64..3), 1..12_000),
            cut in any::<prop::sample::Index>(),
            queries in prop::collection::vec((any::<prop::sample::Index>(), 0_i64..1100), 50),
        ) {
            let mut index = Index::new(7);
            let mut all = Vec::new();
            let mut place = Place::beginning(7);
            for (value_bytes, time_ms, gap) in sizes {
                place.offset += gap;
                let header = header(place.offset, time_ms, value_bytes);
                index.note(place, &header);
                all.push((place, time_ms));
                place = place.after(&header);
            }
            prop_assert_eq!(index.end(), place);
            prop_assert_eq!(index.max_timestamp_ms(), all.iter().map(|(_, time_ms)| *time_ms).max());
            prop_assert_eq!(index.first_timestamp_ms(), Some(all[0].1));
            prop_assert_eq!(Index::decode(7, &index.encode()), Some(index.clone()));
            // No truncated batch may be found.
            all.truncate(cut.index(all.len()) + 1);
            if let Some((last, _)) = all.pop() {
                index.truncate(last);
                prop_assert_eq!(index.end(), last);
            }
            prop_assert!(index.entries.len() <= ENTRIES_MAX);
            // An entry is added with the first batch past the spacing, so it is late by less than one batch. Dropping
            // every other entry adds up the delays of two.
            let apart_max = index.every_bytes / EVERY_BYTES * (EVERY_BYTES + BATCH_BYTES_MAX);
            for (at, time_ms) in queries {
                let Some((place, _)) = all.get(at.index(all.len().max(1))) else { continue };
                for found in [index.before_offset(place.offset), index.before_position(place.position)] {
                    prop_assert!(found <= *place);
                    prop_assert!(found.position == 0 || all.iter().any(|(place, _)| *place == found));
                    prop_assert!(place.position - found.position < apart_max);
                }
                let first = all.iter().find(|(_, found_ms)| *found_ms >= time_ms);
                let found = index.before_time(time_ms);
                prop_assert!(first.is_none_or(|(first, _)| found <= *first));
            }
        }

        #[test]
        fn rejects_damaged_bytes(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut index = Index::new(0);
            index.note(Place::beginning(0), &header(0, 5, 100));
            let mut bytes = index.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Index::decode(0, &bytes), None);
        }
    }
}
