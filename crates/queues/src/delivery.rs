//! A message that a consumer has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use mainstem_queue::{LEASE_MS_MAX, Receipt, Settlement, Verdict};

use crate::error::Error;
use crate::queue::Side;
use crate::time::{as_ms, now_ms, time_of};

/// A message that a consumer has until it settles it, or the lease ends. Dropped, it goes back at once.
#[derive(Debug)]
pub struct Delivery {
    side: Arc<Side>,
    taken: mainstem_queue::Delivery,
    /// Until when it is the consumer's, ms since 1970.
    lease_until_ms: AtomicU64,
    is_settled: bool,
}

impl Delivery {
    pub(crate) fn new(side: Arc<Side>, taken: mainstem_queue::Delivery) -> Self {
        let lease_until_ms = AtomicU64::new(taken.lease_until_ms);
        Self { side, taken, lease_until_ms, is_settled: false }
    }

    /// Whether it is one of that group of that queue.
    pub(crate) fn is_of(&self, side: &Arc<Side>) -> bool {
        Arc::ptr_eq(&self.side, side) || self.side.is(side)
    }

    /// What it says.
    pub fn value(&self) -> &[u8] {
        self.taken.payload.record().value.unwrap_or_default()
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.taken.payload.record().key
    }

    /// Its headers, encoded as [`Headers`](crate::Headers) reads them.
    pub fn headers(&self) -> &[u8] {
        self.taken.payload.record().headers
    }

    /// Its place in the queue, and how often it has been delivered.
    pub fn receipt(&self) -> Receipt {
        self.taken.receipt
    }

    /// The how manieth delivery of the message to its group this is, from 1 on.
    pub fn count(&self) -> u32 {
        self.taken.receipt.count
    }

    /// When the message was put in.
    pub fn enqueued_at(&self) -> SystemTime {
        time_of(self.taken.payload.record().timestamp_ms.max(0).cast_unsigned())
    }

    /// When the group had it for the first time.
    pub fn first_delivered_at(&self) -> SystemTime {
        time_of(self.taken.first_delivered_ms)
    }

    /// When the lease ends, by the system's clock: then it comes back, unless it is [extended](Self::extend) before.
    pub fn leased_until(&self) -> SystemTime {
        time_of(self.lease_until_ms.load(Ordering::Relaxed))
    }

    /// It is done. Returns when that is durable; while the disk is full that may take until it is not.
    ///
    /// # Errors
    /// [`Refusal::Stale`](crate::Refusal::Stale): somebody else has it by now, or had it and has settled it. Or the disk
    /// refuses.
    pub fn ack(self) -> Result<(), Error> {
        self.settle(Verdict::Ack)
    }

    /// It has failed: it is delivered again after this time, at most 12 hours, or after the queue's backoff.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn nack(self, after: Option<Duration>) -> Result<(), Error> {
        self.settle(Verdict::Nack(after.map(as_ms)))
    }

    /// It is not worth another try: it becomes a dead letter.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn reject(self) -> Result<(), Error> {
        self.settle(Verdict::Reject)
    }

    /// More time is needed: so much from now on, 1 ms to 12 hours.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn extend(&self, by: Duration) -> Result<(), Error> {
        let (by_ms, now_ms) = (as_ms(by).clamp(1, LEASE_MS_MAX), now_ms());
        let settlement = Settlement { receipt: self.receipt(), verdict: Verdict::Extend(by_ms) };
        self.side.settle(&[settlement], now_ms)?;
        self.lease_until_ms.store(now_ms.saturating_add(by_ms), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn settle(self, verdict: Verdict) -> Result<(), Error> {
        let side = Arc::clone(&self.side);
        side.settle(&[self.into_settlement(verdict)], now_ms())
    }

    pub(crate) fn into_settlement(mut self, verdict: Verdict) -> Settlement {
        self.is_settled = true;
        Settlement { receipt: self.receipt(), verdict }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_settled {
            self.side.release(self.receipt());
        }
    }
}
