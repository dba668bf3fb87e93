//! The plain version of a log: a list of batches.

use std::ops::Range;

use crate::{Batch, BatchBuilder, Found};

/// A batch of so many records, of which `salt` decides what is in them, and `timestamp_ms` the time of the first.
/// The others follow at 1 ms each.
pub fn batch(salt: u64, records: u32, value_bytes: usize, timestamp_ms: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    let mut state = salt;
    for index in 0..records {
        let value: Vec<u8> = (0..value_bytes)
            .map(|_| {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                (state >> 56) as u8
            })
            .collect();
        let key = salt.to_be_bytes();
        builder.push(timestamp_ms + i64::from(index), Some(&key), Some(&value));
    }
    builder.finish().to_vec()
}

/// A log as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plain {
    /// First offset there is, or would be.
    pub start: u64,
    /// Offset that the next record will get.
    pub end: u64,
    /// In order. The first may begin before `start`.
    pub batches: Vec<Vec<u8>>,
}

fn offsets_of(batch: &[u8]) -> Range<u64> {
    let header = Batch::parse(batch).expect("only batches are put in").header;
    header.base_offset..header.end_offset()
}

impl Plain {
    /// Appends `batch`, and returns its base offset.
    pub fn append(&mut self, batch: &[u8]) -> u64 {
        let (base, mut bytes) = (self.end, batch.to_vec());
        Batch::place(&mut bytes, base, 0);
        self.end = offsets_of(&bytes).end;
        self.batches.push(bytes);
        base
    }

    /// What [`crate::Store::read`] gives; nothing if that is out of range.
    pub fn read(&self, offsets: Range<u64>, max_bytes: usize) -> Option<Vec<u8>> {
        if offsets.start < self.start || offsets.start > self.end {
            return None;
        }
        let mut read = Vec::new();
        for batch in &self.batches {
            let held = offsets_of(batch);
            if held.end <= offsets.start {
                continue;
            }
            if held.start >= offsets.end || (!read.is_empty() && read.len() + batch.len() > max_bytes) {
                break;
            }
            read.extend_from_slice(batch);
        }
        Some(read)
    }

    /// All its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.batches.concat()
    }

    /// The first record at or behind a time.
    pub fn find_time(&self, timestamp_ms: i64) -> Option<Found> {
        let batches = self.batches.iter().map(|bytes| Batch::parse(bytes).expect("a batch"));
        let mut records = batches.flat_map(|batch| batch.records().map(Result::unwrap).collect::<Vec<_>>());
        let found =
            records.find(|record| record.offset >= self.start && record.timestamp_ms >= timestamp_ms)?;
        Some(Found { offset: found.offset, timestamp_ms: found.timestamp_ms })
    }

    /// Lets it start at `offset`.
    pub fn truncate_prefix(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end));
        let start = self.start;
        self.batches.retain(|batch| offsets_of(batch).end > start);
    }

    /// Removes everything from `offset` on. Whether that can be.
    pub fn truncate_suffix(&mut self, offset: u64) -> bool {
        if offset < self.start || (offset != self.end && !self.bounds().any(|bound| bound == offset)) {
            return false;
        }
        self.batches.retain(|batch| offsets_of(batch).start < offset);
        self.end = offset;
        true
    }

    /// The base offsets of its batches.
    pub fn bounds(&self) -> impl Iterator<Item = u64> {
        self.batches.iter().map(|batch| offsets_of(batch).start)
    }
}
