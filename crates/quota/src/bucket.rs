//! A token bucket that clients on several shards share.
//!
//! The bucket is one number: the time up to which what was taken is paid for at the quota's rate (the generic cell rate
//! algorithm). Taking units moves it forward; it is never further behind the clock than the burst. If it is ahead of
//! the clock, the bucket is in debt, and the distance is how long to wait. This is the throttle time of Kafka: what
//! exceeds the quota, divided by the quota.
//!
//! A user's clients may be on all shards, and one cache line that every message writes would move between their cores.
//! So each shard takes units in batches of a hundredth of a second into a cell that only it writes, and most messages
//! touch nothing else. Units in the cells are taken but not used: with `n` shards, a client may use `n` hundredths of a
//! second's units more than the bucket allows, once. The long-term rate is exact.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "rates are positive, and a unit in 2^53 more or less does not matter"
)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::QuotaKey;

/// Batches per second that a shard takes.
const BATCHES_PER_SECOND: f64 = 100.0;
const NS_PER_S: f64 = 1e9;
const NS_PER_MS: u64 = 1_000_000;

/// The bucket of one kind of quota, shared by those who have the quota together.
#[derive(Debug)]
pub struct Bucket {
    key: QuotaKey,
    /// Units per second, as bits of an `f64`.
    rate: AtomicU64,
    /// Units that a shard takes at least.
    batch: AtomicU64,
    burst_ns: u64,
    /// Until when what was taken is paid for, ns; the clock of the caller, and the burst.
    paid_until_ns: AtomicU64,
    /// Units that each shard has taken and not used. Empty if the clients are mostly on one shard.
    cells: Box<[AtomicU64]>,
}

impl Bucket {
    /// A full bucket. Each of `cells` shards has a cell; others take units one by one.
    pub(crate) fn new(key: QuotaKey, rate: f64, burst_s: f64, cells: usize) -> Self {
        Self {
            key,
            rate: AtomicU64::new(rate.to_bits()),
            batch: AtomicU64::new(batch(rate)),
            burst_ns: (burst_s * NS_PER_S) as u64,
            paid_until_ns: AtomicU64::new(0),
            cells: (0..cells).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The kind of quota.
    pub fn key(&self) -> QuotaKey {
        self.key
    }

    /// Units per second.
    pub fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed))
    }

    /// Units that a client that was idle may use at once.
    pub fn burst(&self) -> u64 {
        (self.rate() * self.burst_ns as f64 / NS_PER_S) as u64
    }

    /// Takes units, whether they are there or not. Returns how long to wait before more are taken, ms.
    #[inline]
    pub fn take(&self, shard: usize, units: u64, now_ms: u64) -> u64 {
        if self.take_from_cell(shard, units) { 0 } else { self.take_from_pool(shard, units, now_ms) }
    }

    /// Takes units unless the bucket is in debt: then returns how long to wait, ms.
    ///
    /// # Errors
    /// The bucket is in debt.
    #[inline]
    pub fn try_take(&self, shard: usize, units: u64, now_ms: u64) -> Result<(), u64> {
        if self.take_from_cell(shard, units) {
            return Ok(());
        }
        match self.wait_ms(now_ms) {
            0 => {
                self.take_from_pool(shard, units, now_ms);
                Ok(())
            }
            wait_ms => Err(wait_ms),
        }
    }

    /// How long to wait until the bucket is not in debt, ms.
    pub fn wait_ms(&self, now_ms: u64) -> u64 {
        self.wait_from(self.paid_until_ns.load(Ordering::Relaxed), now_ms)
    }

    #[inline]
    fn take_from_cell(&self, shard: usize, units: u64) -> bool {
        let Some(cell) = self.cells.get(shard) else { return false };
        let left = cell.load(Ordering::Relaxed);
        // Only this shard writes its cell.
        if left >= units {
            cell.store(left - units, Ordering::Relaxed);
        }
        left >= units
    }

    #[cold]
    fn take_from_pool(&self, shard: usize, units: u64, now_ms: u64) -> u64 {
        let mut units_taken = units;
        if let Some(cell) = self.cells.get(shard) {
            let missing = units - cell.load(Ordering::Relaxed).min(units);
            units_taken = missing.max(self.batch.load(Ordering::Relaxed));
            cell.store(units_taken - missing, Ordering::Relaxed);
        }
        let cost_ns = (units_taken as f64 / self.rate() * NS_PER_S) as u64;
        // A full bucket has the burst.
        let full_ns = now_ms.saturating_mul(NS_PER_MS);
        let add = |paid_until_ns: u64| Some(paid_until_ns.max(full_ns).saturating_add(cost_ns));
        let before = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let after = before.ok().and_then(add).unwrap_or_default();
        self.wait_from(after, now_ms)
    }

    fn wait_from(&self, paid_until_ns: u64, now_ms: u64) -> u64 {
        let empty_ns = now_ms.saturating_mul(NS_PER_MS).saturating_add(self.burst_ns);
        paid_until_ns.saturating_sub(empty_ns).div_ceil(NS_PER_MS)
    }

    /// Whether the bucket is full, so that nothing is lost if it is forgotten.
    pub(crate) fn is_full(&self, now_ms: u64) -> bool {
        self.paid_until_ns.load(Ordering::Relaxed) <= now_ms.saturating_mul(NS_PER_MS)
    }

    /// Changes the rate. What was taken stays taken: a debt is paid at the new rate.
    pub(crate) fn set_rate(&self, rate: f64, now_ms: u64) {
        let old = f64::from_bits(self.rate.swap(rate.to_bits(), Ordering::Relaxed));
        if old.to_bits() == rate.to_bits() {
            return;
        }
        self.batch.store(batch(rate), Ordering::Relaxed);
        let empty_ns = now_ms.saturating_mul(NS_PER_MS).saturating_add(self.burst_ns);
        let scale = |paid_until_ns: u64| {
            let debt_ns = paid_until_ns.checked_sub(empty_ns)?;
            Some(empty_ns.saturating_add((debt_ns as f64 * old / rate) as u64))
        };
        // Without debt, the bucket keeps the part that it is full.
        let _is_scaled = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, scale).is_ok();
    }
}

fn batch(rate: f64) -> u64 {
    (rate / BATCHES_PER_SECOND) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(rate: f64, burst_s: f64, cells: usize) -> Bucket {
        Bucket::new(QuotaKey::PublishRate, rate, burst_s, cells)
    }

    #[test]
    fn the_throttle_time_is_the_excess_divided_by_the_quota() {
        let bucket = bucket(1000.0, 10.0, 0);
        assert_eq!(bucket.take(0, 10_000, 5), 0);
        assert_eq!(bucket.take(0, 500, 5), 500);
        assert_eq!(bucket.take(0, 500, 5), 1000);
        assert_eq!(bucket.wait_ms(405), 600);
        assert_eq!(bucket.take(0, 1, 1005), 1);
        // Idle for long: the burst again, and no more.
        assert_eq!(bucket.take(0, 10_001, 1_000_000), 1);
    }

    #[test]
    fn a_bucket_in_debt_gives_nothing() {
        let bucket = bucket(10.0, 1.0, 1);
        let taken = |now_ms| (0..100).filter(|_| bucket.try_take(0, 1, now_ms).is_ok()).count();
        // One more than the burst, which makes the debt.
        assert_eq!(taken(0), 11);
        assert_eq!(bucket.try_take(0, 1, 0), Err(100));
        assert_eq!(taken(50), 0);
        assert_eq!(taken(100), 1);
        assert_eq!(taken(1000), 9);
        assert!(!bucket.is_full(1500));
        assert!(bucket.is_full(2_100));
    }

    #[test]
    fn another_rate_changes_how_long_a_debt_lasts() {
        let bucket = bucket(1.0, 1.0, 0);
        bucket.take(0, 1001, 0);
        assert_eq!(bucket.wait_ms(0), 1_000_000);
        bucket.set_rate(1000.0, 0);
        assert_eq!(bucket.wait_ms(0), 1000);
        bucket.set_rate(1000.0, 0);
        assert_eq!(bucket.wait_ms(0), 1000);
    }

    proptest! {
        /// Whatever the shards take, all together get no more than the quota, and the promised error.
        #[test]
        fn shards_together_keep_the_quota(
            rate in 1_u32..1_000_000,
            steps in proptest::collection::vec((0_usize..4, 1_u64..500, 0_u64..20), 1..400),
        ) {
            const SHARDS: usize = 4;
            let (rate, burst_s) = (f64::from(rate), 1.0);
            let bucket = bucket(rate, burst_s, SHARDS);
            let (mut now_ms, mut granted) = (0, 0);
            for (shard, units, pause_ms) in steps {
                now_ms += pause_ms;
                if bucket.try_take(shard, units, now_ms).is_ok() {
                    granted += units;
                }
                let allowed = rate * (burst_s + now_ms as f64 / 1000.0);
                let error = rate / BATCHES_PER_SECOND * SHARDS as f64 + 500.0;
                prop_assert!(granted as f64 <= allowed + error, "{granted} of {allowed} and {error}");
            }
        }
    }
}
