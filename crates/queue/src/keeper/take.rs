//! Messages are taken: leased, looked at, and brought to other queues.

use mainstem_log::{Error, Store, batches};

use super::{Departure, Keeper, LEASES_AT_ONCE, PEEK_BYTES, READ_BYTES, size};
use crate::ask::{Delivery, Message, Payload, Settlement, Verdict};
use crate::machine::{GroupId, Lease};

/// What a consumer takes.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    /// Of which group.
    pub group: GroupId,
    /// Who takes it.
    pub consumer: u64,
    /// Most messages.
    pub max: usize,
    /// Bytes after which no further message is added.
    pub bytes_max: usize,
    /// How long the consumer has them, ms; the queue's own time if it says nothing.
    pub lease_ms: Option<u64>,
}

impl Keeper {
    /// Leases messages to a consumer, reads them, and hands them over one after the other, up to the first that cannot be
    /// read for now, or for which there is no room: that one and those behind it stay as they were. How many they are.
    ///
    /// # Errors
    /// What the store says, if nothing could be read.
    pub fn lease(
        &mut self,
        store: &mut dyn Store,
        taking: &Taking,
        now_ms: u64,
        mut each: impl FnMut(Delivery),
    ) -> Result<usize, Error> {
        let Taking { group, consumer, max, bytes_max, lease_ms } = *taking;
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
                    // It is not in the log any more: whoever brings away what leaves says so. Nobody else has it.
                    Ok(None) if goes_on => {
                        let settlement = Settlement { receipt, verdict: Verdict::Reject };
                        self.queue.settle(group, &settlement, now_ms, 0).ok();
                    }
                    unread => {
                        outcome = outcome.and(unread.map(drop));
                        self.queue.take_back(group, lease, now_ms);
                    }
                }
            }
        }
        self.leases = leases;
        if count == 0 { outcome.map(|()| 0) } else { Ok(count) }
    }

    /// The record at an offset; nothing if there is none any more.
    ///
    /// # Errors
    /// What the store says.
    pub fn payload(&mut self, store: &mut dyn Store, offset: u64) -> Result<Option<Payload>, Error> {
        if let Some(payload) = self.asides.get(&offset) {
            return Ok(Some(payload.clone()));
        }
        if let Some(payload) = self.cache.get(offset) {
            return Ok(Some(payload));
        }
        let status = store.status(self.messages);
        if offset < status.start || offset >= status.end {
            return Ok(None);
        }
        // Behind what is durable there may stand something else in a moment.
        let to = status.committed.max(offset + 1);
        self.read_messages(store, offset..to, READ_BYTES / 4, |keeper, bytes| {
            let mut found = None;
            for batch in batches(bytes) {
                if let Some(plain) = keeper.plain(&batch) {
                    keeper.cache.put(plain);
                    found = found.or_else(|| keeper.cache.get(offset));
                }
            }
            found
        })
    }

    /// Messages that nobody has settled in a group, from an offset on: up to `max`, and no further one once 4 MiB are
    /// together.
    ///
    /// # Errors
    /// What the store says.
    pub fn peek(
        &mut self,
        store: &mut dyn Store,
        group: GroupId,
        from: u64,
        max: usize,
    ) -> Result<Vec<Message>, Error> {
        let (mut found, mut messages) = (Vec::new(), Vec::new());
        self.queue.peek(group, from, max, &mut found);
        let mut bytes = 0;
        for (offset, count, state) in found {
            if bytes >= PEEK_BYTES {
                break;
            }
            if let Some(payload) = self.payload(store, offset)? {
                bytes += size(&payload.record());
                messages.push(Message { offset, count, state, payload });
            }
        }
        Ok(messages)
    }

    /// Takes messages that are to be brought to other queues, up to the first that cannot be read for now: that one and
    /// those behind it stay, and the error says why.
    pub fn take_departures(&mut self, store: &mut dyn Store, max: usize) -> (Vec<Departure>, Option<Error>) {
        let (mut departures, mut failed) = (Vec::new(), None);
        for leaving in self.queue.take_leaving(max) {
            let payload = if failed.is_none() { self.payload(store, leaving.offset) } else { Ok(None) };
            match payload {
                Ok(payload) if failed.is_none() => departures.push(Departure { leaving, payload }),
                Ok(_) => self.queue.give_back_leaving(leaving.group, leaving.number),
                Err(error) => {
                    self.queue.give_back_leaving(leaving.group, leaving.number);
                    failed = Some(error);
                }
            }
        }
        (departures, failed)
    }
}
