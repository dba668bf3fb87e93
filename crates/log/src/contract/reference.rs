//! The reference log: a list of batches that defines the expected behavior.

use std::ops::Range;

use crate::{Batch, BatchBuilder, TimestampOffset};

/// Builds a batch of `records` records. `salt` seeds their contents. The first record has timestamp `timestamp_ms`;
/// each later one is 1 ms newer.
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

/// Expected contents of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceLog {
    /// First offset. Equals `end` if the log is empty.
    pub start: u64,
    /// Offset of the next record.
    pub end: u64,
    /// Batches in offset order. The first may begin before `start`.
    pub batches: Vec<Vec<u8>>,
}

fn offsets_of(batch: &[u8]) -> Range<u64> {
    let header = Batch::parse(batch).expect("the reference log contains only valid batches").header;
    header.base_offset..header.end_offset()
}

impl ReferenceLog {
    /// Appends `batch` and returns its base offset.
    pub fn append(&mut self, batch: &[u8]) -> u64 {
        let (base, mut bytes) = (self.end, batch.to_vec());
        Batch::place(&mut bytes, base, 0);
        self.end = offsets_of(&bytes).end;
        self.batches.push(bytes);
        base
    }

    /// Expected result of [`crate::LogReader::read`]; `None` if out of range.
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

    /// Concatenated batches.
    pub fn bytes(&self) -> Vec<u8> {
        self.batches.concat()
    }

    /// Finds the first record whose timestamp is at least `timestamp_ms`.
    pub fn find_time(&self, timestamp_ms: i64) -> Option<TimestampOffset> {
        let batches = self.batches.iter().map(|bytes| Batch::parse(bytes).expect("a batch"));
        let mut records = batches.flat_map(|batch| batch.records().map(Result::unwrap).collect::<Vec<_>>());
        let found =
            records.find(|record| record.offset >= self.start && record.timestamp_ms >= timestamp_ms)?;
        Some(TimestampOffset { offset: found.offset, timestamp_ms: found.timestamp_ms })
    }

    /// Advances the start to `offset`.
    pub fn truncate_prefix(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end));
        let start = self.start;
        self.batches.retain(|batch| offsets_of(batch).end > start);
    }

    /// Removes everything from `offset` on. Returns `false` if `offset` is no batch boundary of the log.
    pub fn truncate_suffix(&mut self, offset: u64) -> bool {
        if offset < self.start || (offset != self.end && !self.bounds().any(|bound| bound == offset)) {
            return false;
        }
        self.batches.retain(|batch| offsets_of(batch).start < offset);
        self.end = offset;
        true
    }

    /// Base offsets of the batches.
    pub fn bounds(&self) -> impl Iterator<Item = u64> {
        self.batches.iter().map(|batch| offsets_of(batch).start)
    }
}
