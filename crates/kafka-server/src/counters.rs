//! What the Kafka server counts, for other threads to read.
//!
//! Each shard has counters of its own. Only its thread changes them, so that an increment is a plain load and store;
//! any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// API keys from 0 that have counters. Kafka's have fewer than 100.
const KEYS: usize = 128;

/// Counters of one shard.
#[derive(Debug)]
pub(crate) struct Counters {
    /// By API key.
    requests: Box<[Counter; KEYS]>,
    request_bytes: Box<[Counter; KEYS]>,
    appended_records: Counter,
    appended_bytes: Counter,
    fetched_bytes: Counter,
}

/// A number that one thread changes.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    #[inline]
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the counters of one or more shards say.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Number of requests, by API key.
    pub(crate) requests: [u64; KEYS],
    /// Size of these requests, bytes.
    pub(crate) request_bytes: [u64; KEYS],
    pub(crate) appended_records: u64,
    pub(crate) appended_bytes: u64,
    pub(crate) fetched_bytes: u64,
}

impl Default for Counters {
    fn default() -> Self {
        let by_key = || Box::new(std::array::from_fn(|_| Counter::default()));
        Self {
            requests: by_key(),
            request_bytes: by_key(),
            appended_records: Counter::default(),
            appended_bytes: Counter::default(),
            fetched_bytes: Counter::default(),
        }
    }
}

impl Counters {
    /// Counts a request. Keys that no API can have are ignored.
    #[inline]
    pub(crate) fn count_request(&self, key: i16, bytes: usize) {
        let Ok(key) = usize::try_from(key) else { return };
        if let (Some(requests), Some(size)) = (self.requests.get(key), self.request_bytes.get(key)) {
            requests.add(1);
            size.add(bytes as u64);
        }
    }

    /// Counts a batch that was appended.
    #[inline]
    pub(crate) fn count_append(&self, records: u64, bytes: usize) {
        self.appended_records.add(records);
        self.appended_bytes.add(bytes as u64);
    }

    /// Counts batches that are sent.
    #[inline]
    pub(crate) fn count_fetched(&self, bytes: usize) {
        self.fetched_bytes.add(bytes as u64);
    }

    /// The sums over these shards.
    pub(crate) fn sum(shards: &[Self]) -> Counts {
        let sum = |of: &dyn Fn(&Self) -> &Counter| shards.iter().map(|shard| of(shard).get()).sum();
        Counts {
            requests: std::array::from_fn(|key| sum(&|shard| &shard.requests[key])),
            request_bytes: std::array::from_fn(|key| sum(&|shard| &shard.request_bytes[key])),
            appended_records: sum(&|shard| &shard.appended_records),
            appended_bytes: sum(&|shard| &shard.appended_bytes),
            fetched_bytes: sum(&|shard| &shard.fetched_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_added_up_by_key() {
        let shards = [Counters::default(), Counters::default()];
        shards[0].count_request(1, 10);
        shards[1].count_request(1, 20);
        shards[1].count_request(0, 5);
        for none in [-1, i16::MIN, 128, i16::MAX] {
            shards[0].count_request(none, 100);
        }
        shards[0].count_append(3, 100);
        shards[1].count_fetched(7);
        let sum = Counters::sum(&shards);
        assert_eq!((sum.requests[0], sum.requests[1], sum.requests[2]), (1, 2, 0));
        assert_eq!((sum.request_bytes[0], sum.request_bytes[1]), (5, 30));
        assert_eq!((sum.appended_records, sum.appended_bytes, sum.fetched_bytes), (3, 100, 7));
        assert_eq!(sum.requests.iter().sum::<u64>(), 3);
    }
}
