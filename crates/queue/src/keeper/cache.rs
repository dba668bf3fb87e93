//! Batches that came or were read lately, so that messages that are delivered soon after they came need not be read
//! again. A batch goes when all its messages are settled.

use std::collections::BTreeMap;

use crate::ask::{Payload, Plain};

/// Bytes of batches that are kept.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same where there are very many queues.
const BYTES_MIN: usize = 16 * 1024;
/// What a batch takes besides its bytes, about, bytes.
const OVERHEAD_BYTES: usize = 150;

#[derive(Debug)]
pub(super) struct Cache {
    /// By the offset of its first record.
    batches: BTreeMap<u64, Indexed>,
    bytes: usize,
    bytes_max: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, bytes_max: BYTES_MAX }
    }
}

#[derive(Debug)]
struct Indexed {
    plain: Plain,
    base: u64,
    end: u64,
    records: u32,
    /// All its records have been read.
    is_read: bool,
    /// Those of them that are not known to be settled.
    left: u32,
    /// For each record its offset and where it begins. Made when it is first asked for; a batch of one record has none.
    places: Vec<(u64, u32)>,
}

impl Indexed {
    /// What it takes as soon as it is asked for.
    fn bytes(&self) -> usize {
        let places = if self.is_one() { 0 } else { self.records as usize };
        self.plain.bytes().len() + places * size_of::<(u64, u32)>() + OVERHEAD_BYTES
    }

    fn is_one(&self) -> bool {
        self.records == 1
    }

    fn get(&mut self, offset: u64) -> Option<Payload> {
        if self.is_one() {
            // If that was read, and could stand nowhere else, it need not be read again.
            let is_it = self.is_read && offset + 1 == self.end && self.base + 1 == self.end;
            return if is_it {
                Some(Payload::only(&self.plain))
            } else {
                Payload::first_at(&self.plain, offset)
            };
        }
        if self.places.is_empty() {
            self.places = places(&self.plain);
        }
        let at = self.places.binary_search_by_key(&offset, |(known, _)| *known).ok()?;
        Payload::new(&self.plain, self.places[at].1 as usize)
    }
}

fn places(plain: &Plain) -> Vec<(u64, u32)> {
    let mut places = Vec::with_capacity(plain.header().records as usize);
    let mut records = plain.records();
    loop {
        let at = plain.bytes().len() - records.rest().len();
        let Some(Ok(record)) = records.next() else { return places };
        places.push((record.offset, at as u32));
    }
}

impl Cache {
    /// Whether a batch of so many bytes fits without others having to go.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes + OVERHEAD_BYTES <= self.bytes_max
    }

    /// Forgets batches that do not end at or before an offset.
    pub(super) fn forget_from(&mut self, offset: u64) {
        while self.batches.last_key_value().is_some_and(|(_, last)| last.end > offset) {
            let gone = self.batches.pop_last();
            self.bytes -= gone.map_or(0, |(_, gone)| gone.bytes());
        }
    }

    /// Puts in a batch that has been read.
    pub(super) fn put(&mut self, plain: Plain) {
        let base = plain.header().base_offset;
        if self.batches.contains_key(&base) {
            return;
        }
        self.insert(plain);
        // This one stays whatever its size: somebody is about to take messages out of it. Those that are farthest from
        // it go first.
        while self.bytes > self.bytes_max && self.batches.len() > 1 {
            let first = self.batches.first_key_value().map_or(base, |(first, _)| *first);
            let last = self.batches.last_key_value().map_or(base, |(last, _)| *last);
            let gone =
                if base - first < last - base { self.batches.pop_last() } else { self.batches.pop_first() };
            self.bytes -= gone.map_or(0, |(_, gone)| gone.bytes());
        }
    }

    /// Puts in a batch that is not here.
    pub(super) fn insert(&mut self, plain: Plain) {
        let header = plain.header();
        let (end, records) = (header.end_offset(), header.records);
        let base = header.base_offset;
        let indexed =
            Indexed { plain, base, end, records, is_read: false, left: records, places: Vec::new() };
        self.bytes += indexed.bytes();
        self.batches.insert(header.base_offset, indexed);
    }

    /// Keeps no more than so many bytes from now on.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.clamp(BYTES_MIN, BYTES_MAX);
        while self.bytes > self.bytes_max
            && let Some((_, gone)) = self.batches.pop_first()
        {
            self.bytes -= gone.bytes();
        }
    }

    /// All records of the batch that begins at an offset have been read.
    pub(super) fn read(&mut self, base: u64) {
        if let Some(indexed) = self.batches.get_mut(&base) {
            indexed.is_read = true;
        }
    }

    /// The batch that begins at an offset, if it is here.
    pub(super) fn batch(&self, base: u64) -> Option<&Plain> {
        self.batches.get(&base).map(|indexed| &indexed.plain)
    }

    pub(super) fn get(&mut self, offset: u64) -> Option<Payload> {
        let (_, indexed) = self.batches.range_mut(..=offset).next_back()?;
        indexed.get(offset)
    }

    /// Nobody needs a message any more.
    pub(super) fn settled(&mut self, offset: u64) {
        let Some((&base, indexed)) = self.batches.range_mut(..=offset).next_back() else { return };
        if indexed.end <= offset {
            return;
        }
        indexed.left = indexed.left.saturating_sub(1);
        if indexed.left == 0
            && let Some(gone) = self.batches.remove(&base)
        {
            self.bytes -= gone.bytes();
        }
    }
}
