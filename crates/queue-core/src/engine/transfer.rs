//! Transfers: dead letters, and redriven messages, move to another queue.
//!
//! The event that a message leaves is durable here, under a number of its group, before the message goes; it is settled
//! here after it is durable there. The destination discards numbers that it has seen. So a crash at any point leaves
//! the message in one of the two queues. A queue sends its transfers in order, one batch at a time.

use super::{Context, Effect, Engine, MessageLog};
use crate::durable_queue::Transfer;
use crate::machine::PendingTransfer;
use crate::request::Reply;
use crate::transferred::{Origin, TransferredMessage, destination};

/// Limits of one batch of transfers: messages, and about how many bytes.
const MESSAGES_MAX: usize = 256;
const BYTES_MAX: usize = 512 * 1024;
/// Time until a retry after a failure, ms.
const RETRY_MS: u64 = 1_000;

/// The transfers of one queue.
#[derive(Debug, Default)]
pub(super) struct TransferState {
    in_flight: Vec<PendingTransfer>,
    /// No transfer starts before this time, ms since 1970, because the last one failed.
    retry_ms: Option<u64>,
    /// A warning about the failure has been logged.
    has_warned: bool,
}

impl TransferState {
    pub(super) fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }
}

impl<R: Copy> Engine<R> {
    /// Whether transfers are in flight.
    pub fn is_transferring(&self) -> bool {
        !self.transfers.in_flight.is_empty()
    }

    /// Sends the next batch of transfers, if none is in flight.
    pub(super) fn start_transfers<L: MessageLog>(&mut self, cx: &mut Context<'_, L>) {
        let is_early = self.transfers.retry_ms.is_some_and(|at_ms| at_ms > cx.now_ms);
        if self.is_transferring() || is_early {
            return;
        }
        self.transfers.retry_ms = None;
        let (transfers, failed) = self.queue.take_transfers(cx.store, MESSAGES_MAX);
        if let Some(error) = failed {
            log::warn!("queue {}: a message to transfer cannot be read yet: {error}", self.name);
            self.transfers.retry_ms = Some(cx.now_ms + RETRY_MS);
        }
        let mut messages = Vec::new();
        let mut batch_to: Option<String> = None;
        let mut bytes = 0;
        let mut rest = transfers.into_iter();
        let mut unsent = None;
        for Transfer { leaving, payload } in rest.by_ref() {
            let Some(payload) = payload else {
                log::error!("queue {}: message {} cannot be read and is lost", self.name, leaving.offset);
                self.queue.machine_mut().complete_transfer(leaving.group, leaving.number);
                continue;
            };
            let (record, queue) = (payload.record(), self.queue.machine());
            let to = destination(queue.config(), &self.name, &record, leaving.reason);
            let size = record.value.map_or(0, <[u8]>::len) + record.headers.len();
            if batch_to.as_ref().is_some_and(|known| *known != to) || (bytes > 0 && bytes + size > BYTES_MAX)
            {
                unsent = Some(leaving);
                break;
            }
            bytes += size;
            let origin = Origin { id: &self.id, queue: &self.name, group: queue.group_name(leaving.group) };
            messages.push(TransferredMessage::new(&record, &leaving, origin));
            self.transfers.in_flight.push(leaving);
            batch_to = Some(to);
        }
        for leaving in unsent.into_iter().chain(rest.map(|transfer| transfer.leaving)) {
            self.queue.machine_mut().return_pending_transfer(leaving.group, leaving.number);
        }
        if let Some(queue) = batch_to {
            self.effects.push_back(Effect::Transfer { queue, messages, durability: self.durability });
        }
    }

    /// The transfers in flight are durable in the other queue, or not: its reply says so.
    pub fn on_transferred(&mut self, reply: &Reply, now_ms: u64) {
        let in_flight = std::mem::take(&mut self.transfers.in_flight);
        let queue = self.queue.machine_mut();
        if matches!(reply, Reply::Sent(outcomes) if outcomes.iter().all(Result::is_ok)) {
            self.transfers.has_warned = false;
            return in_flight
                .iter()
                .for_each(|leaving| queue.complete_transfer(leaving.group, leaving.number));
        }
        if !std::mem::replace(&mut self.transfers.has_warned, true) {
            log::warn!("queue {}: transfers to another queue wait: {reply:?}", self.name);
        }
        for leaving in in_flight {
            queue.return_pending_transfer(leaving.group, leaving.number);
        }
        self.transfers.retry_ms = Some(now_ms + RETRY_MS);
    }
}
