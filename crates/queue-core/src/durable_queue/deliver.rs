//! Reading messages: for leases, for peeks, and for transfers to other queues.
//!
//! The state of a message is in memory, its content mostly on disk. A lease is granted before the content is read, and
//! is undone if it cannot be read now, so that no message is skipped because of a slow or failing disk. A message that
//! the log no longer has can never be delivered: it is rejected, and the transfer that follows reports the loss.

use mainstem_log::{Error, Store, batches};

use super::{DurableQueue, LEASES_AT_ONCE, PEEK_BYTES, READ_BYTES, Transfer, size};
use crate::machine::{GroupId, Lease};
use crate::request::{Delivery, Disposition, Payload, PeekedMessage, Settlement};

/// A request for messages.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest {
    /// The group.
    pub group: GroupId,
    /// The consumer.
    pub consumer: u64,
    /// Limit of messages.
    pub max: usize,
    /// Bytes after which no further message is added.
    pub bytes_max: usize,
    /// Duration of the leases in ms. `None` for the lease time of the queue.
    pub lease_ms: Option<u64>,
}

impl DurableQueue {
    /// Leases messages to a consumer and passes each one to `each`. Stops at the first message that cannot be read
    /// now or exceeds the limits; that message and those after it stay ready. Returns the number of messages.
    ///
    /// # Errors
    /// Errors of the store, if no message could be read.
    pub fn lease(
        &mut self,
        store: &mut dyn Store,
        request: &LeaseRequest,
        now_ms: u64,
        mut each: impl FnMut(Delivery),
    ) -> Result<usize, Error> {
        let LeaseRequest { group, consumer, max, bytes_max, lease_ms } = *request;
        let mut leases = std::mem::take(&mut self.leases);
        let (mut count, mut bytes, mut outcome) = (0, 0, Ok(()));
        while count < max && bytes < bytes_max && outcome.is_ok() {
            let most = (max - count).min(LEASES_AT_ONCE);
            leases.clear();
            self.queue.lease(group, consumer, most, lease_ms, now_ms, &mut leases);
            if leases.is_empty() {
                break;
            }
            for lease in &leases {
                let Lease { receipt, first_delivered_ms, until_ms, .. } = *lease;
                let goes_on = outcome.is_ok() && bytes < bytes_max;
                let payload = if goes_on { self.payload(store, receipt.offset) } else { Ok(None) };
                match payload {
                    Ok(Some(payload)) => {
                        if bytes_max < usize::MAX {
                            bytes += size(&payload.record());
                        }
                        count += 1;
                        each(Delivery { receipt, first_delivered_ms, lease_until_ms: until_ms, payload });
                    }
                    // The message is not in the log any more. Nobody can get it, so it is rejected; the transfer
                    // reports the loss.
                    Ok(None) if goes_on => {
                        let settlement = Settlement { receipt, disposition: Disposition::Reject };
                        self.queue.settle(group, &settlement, now_ms, 0).ok();
                    }
                    unread => {
                        outcome = outcome.and(unread.map(drop));
                        self.queue.cancel_lease(group, lease, now_ms);
                    }
                }
            }
        }
        self.leases = leases;
        if count == 0 { outcome.map(|()| 0) } else { Ok(count) }
    }

    /// The record at an offset. `None` if it is not in the log any more.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn payload(&mut self, store: &mut dyn Store, offset: u64) -> Result<Option<Payload>, Error> {
        if let Some(payload) = self.relocated.get(&offset) {
            return Ok(Some(payload.clone()));
        }
        if let Some(payload) = self.cache.get(offset) {
            return Ok(Some(payload));
        }
        let status = store.status(self.messages);
        if offset < status.start || offset >= status.end {
            return Ok(None);
        }
        // Records that are not durable may be replaced.
        let to = status.committed.max(offset + 1);
        self.read_messages(store, offset..to, READ_BYTES / 4, |this, bytes| {
            let mut found = None;
            for batch in batches(bytes) {
                if let Some(plain) = this.plain(&batch) {
                    this.cache.put(plain);
                    found = found.or_else(|| this.cache.get(offset));
                }
            }
            found
        })
    }

    /// Unsettled messages of a group from an offset on: up to `max`, and no further one after 4 MiB.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn peek(
        &mut self,
        store: &mut dyn Store,
        group: GroupId,
        from: u64,
        max: usize,
    ) -> Result<Vec<PeekedMessage>, Error> {
        let (mut found, mut messages) = (Vec::new(), Vec::new());
        self.queue.peek(group, from, max, &mut found);
        let mut bytes = 0;
        for (offset, count, state) in found {
            if bytes >= PEEK_BYTES {
                break;
            }
            if let Some(payload) = self.payload(store, offset)? {
                bytes += size(&payload.record());
                messages.push(PeekedMessage { offset, count, state, payload });
            }
        }
        Ok(messages)
    }

    /// Takes messages for other queues. Stops at the first one that cannot be read now, and returns the error; that
    /// message and those after it are returned by a later call.
    pub fn take_transfers(&mut self, store: &mut dyn Store, max: usize) -> (Vec<Transfer>, Option<Error>) {
        let (mut transfers, mut failed) = (Vec::new(), None);
        for leaving in self.queue.take_pending_transfers(max) {
            let payload = if failed.is_none() { self.payload(store, leaving.offset) } else { Ok(None) };
            match payload {
                Ok(payload) if failed.is_none() => transfers.push(Transfer { leaving, payload }),
                Ok(_) => self.queue.return_pending_transfer(leaving.group, leaving.number),
                Err(error) => {
                    self.queue.return_pending_transfer(leaving.group, leaving.number);
                    failed = Some(error);
                }
            }
        }
        (transfers, failed)
    }
}
