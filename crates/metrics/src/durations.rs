//! A histogram of durations that any thread may add to.
//!
//! It is for what takes longer than a few atomic additions: calls of the disk, requests. The turns of a shard are
//! counted without them, by the shard.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, microseconds. One more bucket holds everything above.
const BOUNDS_US: [u64; 16] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000,
];

/// Durations counted so far.
#[derive(Debug, Default)]
pub struct Durations {
    /// Not cumulative; the last one is above all bounds.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    /// Counts a duration.
    pub fn record(&self, duration: Duration) {
        let is_within = |bound_us: &u64| duration <= Duration::from_micros(*bound_us);
        let bucket = BOUNDS_US.iter().position(is_within).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Upper bound of each bucket in seconds with the number of durations in it, the number above all, and the sum in
    /// seconds.
    pub(crate) fn read(&self) -> (impl Iterator<Item = (f64, u64)>, u64, f64) {
        let counts = self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed));
        let sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        let bounds = BOUNDS_US.iter().map(|bound_us| Duration::from_micros(*bound_us).as_secs_f64());
        (bounds.zip(counts), counts[BOUNDS_US.len()], sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_the_bucket_of_their_bound() {
        let durations = Durations::default();
        for us in [0, 50, 51, 5_000_000, 5_000_001] {
            durations.record(Duration::from_micros(us));
        }
        let (buckets, above, sum) = durations.read();
        let counts: Vec<(f64, u64)> = buckets.filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(0.000_05, 2), (0.000_1, 1), (5.0, 1)]);
        assert_eq!((above, sum), (1, 10.000_102));
    }
}
