//! A message that a consumer has.

use std::sync::Arc;
use std::time::Duration;

use mainstem_queue::{Receipt, Settlement, Verdict};

use crate::error::Error;
use crate::queue::Side;

/// A message that a consumer has until it settles it, or the lease ends. Dropped, it goes back at once.
#[derive(Debug)]
pub struct Delivery {
    side: Arc<Side>,
    taken: mainstem_queue::Delivery,
    is_settled: bool,
}

impl Delivery {
    pub(crate) fn new(side: Arc<Side>, taken: mainstem_queue::Delivery) -> Self {
        Self { side, taken, is_settled: false }
    }

    /// What it says.
    pub fn value(&self) -> &[u8] {
        self.taken.payload.record().value.unwrap_or_default()
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.taken.payload.record().key
    }

    /// Its headers, encoded as [`mainstem_log::Headers`] reads them.
    pub fn headers(&self) -> &[u8] {
        self.taken.payload.record().headers
    }

    /// Its place in the queue, and how often it has been delivered.
    pub fn receipt(&self) -> Receipt {
        self.taken.receipt
    }

    /// It is done. Returns when that is durable.
    ///
    /// # Errors
    /// Somebody else has it by now, or the disk refuses.
    pub fn ack(self) -> Result<(), Error> {
        self.settle(Verdict::Ack)
    }

    /// It has failed: it is delivered again after this time, or after the queue's backoff.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn nack(self, after: Option<Duration>) -> Result<(), Error> {
        self.settle(Verdict::Nack(after.map(|after| after.as_millis() as u64)))
    }

    /// It is not worth another try: it becomes a dead letter.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn reject(self) -> Result<(), Error> {
        self.settle(Verdict::Reject)
    }

    /// More time is needed: so much from now on.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn extend(&self, by: Duration) -> Result<(), Error> {
        let verdict = Verdict::Extend(by.as_millis() as u64);
        self.side.settle(&[Settlement { receipt: self.receipt(), verdict }])
    }

    fn settle(mut self, verdict: Verdict) -> Result<(), Error> {
        self.is_settled = true;
        self.side.settle(&[Settlement { receipt: self.receipt(), verdict }])
    }

    pub(crate) fn into_ack(mut self) -> Settlement {
        self.is_settled = true;
        Settlement { receipt: self.receipt(), verdict: Verdict::Ack }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_settled {
            let settlement = Settlement { receipt: self.receipt(), verdict: Verdict::Release };
            if let Err(error) = self.side.settle(&[settlement]) {
                log::debug!("a delivery is not given back: {error}");
            }
        }
    }
}
