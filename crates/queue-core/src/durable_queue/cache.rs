//! A cache of message batches: those appended or read recently. Most messages are delivered soon after they arrive,
//! so that they need not be read again. A batch is dropped when all its messages are settled.

use std::collections::BTreeMap;

use crate::request::{Payload, UncompressedBatch};

/// Limit of cached bytes.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The lowest limit that a caller can set, for a broker with very many queues.
const BYTES_MIN: usize = 16 * 1024;
/// Approximate overhead of a batch.
const OVERHEAD_BYTES: usize = 150;

#[derive(Debug)]
pub(super) struct Cache {
    /// Batches by the offset of their first record.
    batches: BTreeMap<u64, CachedBatch>,
    bytes: usize,
    bytes_max: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, bytes_max: BYTES_MAX }
    }
}

#[derive(Debug)]
struct CachedBatch {
    plain: UncompressedBatch,
    base: u64,
    end: u64,
    records: u32,
    /// All its records have been parsed.
    is_read: bool,
    /// Records that are not known to be settled.
    left: u32,
    /// Offset and position of each record. Filled at the first lookup; empty for a batch of one record.
    positions: Vec<(u64, u32)>,
}

impl CachedBatch {
    /// Size in memory after the first lookup.
    fn bytes(&self) -> usize {
        let positions = if self.is_one() { 0 } else { self.records as usize };
        self.plain.bytes().len() + positions * size_of::<(u64, u32)>() + OVERHEAD_BYTES
    }

    fn is_one(&self) -> bool {
        self.records == 1
    }

    fn get(&mut self, offset: u64) -> Option<Payload> {
        if self.is_one() {
            // The record was parsed and can have no other offset, so it need not be parsed again.
            let is_it = self.is_read && offset + 1 == self.end && self.base + 1 == self.end;
            return if is_it {
                Some(Payload::only(&self.plain))
            } else {
                Payload::first_at(&self.plain, offset)
            };
        }
        if self.positions.is_empty() {
            self.positions = positions(&self.plain);
        }
        let at = self.positions.binary_search_by_key(&offset, |(known, _)| *known).ok()?;
        Payload::new(&self.plain, self.positions[at].1 as usize)
    }
}

fn positions(plain: &UncompressedBatch) -> Vec<(u64, u32)> {
    let mut positions = Vec::with_capacity(plain.header().records as usize);
    let mut records = plain.records();
    loop {
        let at = plain.bytes().len() - records.rest().len();
        let Some(Ok(record)) = records.next() else { return positions };
        positions.push((record.offset, at as u32));
    }
}

impl Cache {
    /// Whether a batch of this size fits without evicting others.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes + OVERHEAD_BYTES <= self.bytes_max
    }

    /// Drops batches that end after this offset.
    pub(super) fn forget_from(&mut self, offset: u64) {
        while self.batches.last_key_value().is_some_and(|(_, last)| last.end > offset) {
            let gone = self.batches.pop_last();
            self.bytes -= gone.map_or(0, |(_, gone)| gone.bytes());
        }
    }

    /// Adds a batch that was read, evicting others if necessary.
    pub(super) fn put(&mut self, plain: UncompressedBatch) {
        let base = plain.header().base_offset;
        if self.batches.contains_key(&base) {
            return;
        }
        self.insert(plain);
        // The new batch stays whatever its size, because the caller is about to read messages from it. The batches
        // farthest from it are evicted first.
        while self.bytes > self.bytes_max && self.batches.len() > 1 {
            let first = self.batches.first_key_value().map_or(base, |(first, _)| *first);
            let last = self.batches.last_key_value().map_or(base, |(last, _)| *last);
            let gone =
                if base - first < last - base { self.batches.pop_last() } else { self.batches.pop_first() };
            self.bytes -= gone.map_or(0, |(_, gone)| gone.bytes());
        }
    }

    /// Adds a batch that is not cached.
    pub(super) fn insert(&mut self, plain: UncompressedBatch) {
        let header = plain.header();
        let (end, records) = (header.end_offset(), header.records);
        let base = header.base_offset;
        let cached =
            CachedBatch { plain, base, end, records, is_read: false, left: records, positions: Vec::new() };
        self.bytes += cached.bytes();
        self.batches.insert(header.base_offset, cached);
    }

    /// Cached bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the limit of cached bytes.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.clamp(BYTES_MIN, BYTES_MAX);
        while self.bytes > self.bytes_max
            && let Some((_, gone)) = self.batches.pop_first()
        {
            self.bytes -= gone.bytes();
        }
    }

    /// The records of this batch have been parsed.
    pub(super) fn read(&mut self, base: u64) {
        if let Some(cached) = self.batches.get_mut(&base) {
            cached.is_read = true;
        }
    }

    /// The batch with this base offset.
    pub(super) fn batch(&self, base: u64) -> Option<&UncompressedBatch> {
        self.batches.get(&base).map(|cached| &cached.plain)
    }

    pub(super) fn get(&mut self, offset: u64) -> Option<Payload> {
        let (_, cached) = self.batches.range_mut(..=offset).next_back()?;
        cached.get(offset)
    }

    /// A message is settled in all groups.
    pub(super) fn settled(&mut self, offset: u64) {
        let Some((&base, cached)) = self.batches.range_mut(..=offset).next_back() else { return };
        if cached.end <= offset {
            return;
        }
        cached.left = cached.left.saturating_sub(1);
        if cached.left == 0
            && let Some(gone) = self.batches.remove(&base)
        {
            self.bytes -= gone.bytes();
        }
    }
}
