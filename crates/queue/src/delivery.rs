//! A delivery: a message leased to a consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use mainstem_queue_core::{Disposition, LEASE_MS_MAX, Receipt, Settlement};

use crate::error::Error;
use crate::group_handle::GroupHandle;
use crate::time::{as_ms, now_ms, time_of};

/// A message leased to a consumer until it is settled or the lease expires. Dropping it releases it at once.
#[derive(Debug)]
pub struct Delivery {
    handle: Arc<GroupHandle>,
    taken: mainstem_queue_core::Delivery,
    /// Ms since 1970.
    lease_until_ms: AtomicU64,
    is_settled: bool,
}

impl Delivery {
    pub(crate) fn new(handle: Arc<GroupHandle>, taken: mainstem_queue_core::Delivery) -> Self {
        let lease_until_ms = AtomicU64::new(taken.lease_until_ms);
        Self { handle, taken, lease_until_ms, is_settled: false }
    }

    /// Whether this is a delivery of the same queue to the same group.
    pub(crate) fn is_of(&self, handle: &Arc<GroupHandle>) -> bool {
        Arc::ptr_eq(&self.handle, handle) || self.handle.is_same_group(handle)
    }

    /// The payload.
    pub fn value(&self) -> &[u8] {
        self.taken.payload.value()
    }

    /// The key.
    pub fn key(&self) -> Option<&[u8]> {
        self.taken.payload.record().key
    }

    /// The encoded headers; [`Headers`](crate::Headers) decodes them.
    pub fn headers(&self) -> &[u8] {
        self.taken.payload.record().headers
    }

    /// The receipt: offset, delivery count and incarnation of the queue.
    pub fn receipt(&self) -> Receipt {
        self.taken.receipt
    }

    /// Delivery attempt of this message in its group, starting at 1.
    pub fn count(&self) -> u32 {
        self.taken.receipt.count
    }

    /// When the message was enqueued.
    pub fn enqueued_at(&self) -> SystemTime {
        time_of(self.taken.payload.record().timestamp_ms.max(0).cast_unsigned())
    }

    /// When the group received the message first.
    pub fn first_delivered_at(&self) -> SystemTime {
        time_of(self.taken.first_delivered_ms)
    }

    /// When the lease expires, by the system's clock. [`Delivery::extend`] moves it.
    pub fn leased_until(&self) -> SystemTime {
        time_of(self.lease_until_ms.load(Ordering::Relaxed))
    }

    /// Acknowledges the message. Returns when the acknowledgement is durable; on a full disk, when there is space
    /// again.
    ///
    /// # Errors
    /// [`QueueError::Stale`](crate::QueueError::Stale): the message has been delivered again, or settled. Or a disk
    /// error.
    pub fn ack(self) -> Result<(), Error> {
        self.settle(Disposition::Ack)
    }

    /// Negative acknowledgement: redeliver after this delay, at most 12 hours, or after the queue's backoff.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn nack(self, after: Option<Duration>) -> Result<(), Error> {
        self.settle(Disposition::Nack(after.map(as_ms)))
    }

    /// Rejects the message: it becomes a dead letter.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn reject(self) -> Result<(), Error> {
        self.settle(Disposition::Reject)
    }

    /// Extends the lease: it expires after this time from now, 1 ms to 12 hours.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn extend(&self, by: Duration) -> Result<(), Error> {
        let (by_ms, now_ms) = (as_ms(by).clamp(1, LEASE_MS_MAX), now_ms());
        let settlement = Settlement { receipt: self.receipt(), disposition: Disposition::Extend(by_ms) };
        self.handle.settle(&[settlement], now_ms)?;
        self.lease_until_ms.store(now_ms.saturating_add(by_ms), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn settle(self, disposition: Disposition) -> Result<(), Error> {
        let handle = Arc::clone(&self.handle);
        handle.settle(&[self.into_settlement(disposition)], now_ms())
    }

    pub(crate) fn into_settlement(mut self, disposition: Disposition) -> Settlement {
        self.is_settled = true;
        Settlement { receipt: self.receipt(), disposition }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_settled {
            self.handle.release(self.receipt());
        }
    }
}
