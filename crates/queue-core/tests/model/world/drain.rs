//! In the end all messages are settled, and the queue remembers nothing of them.

use mainstem_queue_core::{Disposition, Settlement};

use super::World;
use crate::rules::Broken;

/// Enough rounds to settle everything. Each one ends all leases and delays, moves one message of each key on, and
/// frees memory for lagging groups.
const ROUNDS: usize = 400;
/// Longer than any lease and delay of these worlds.
const LONG_MS: u64 = 100_000;

impl World {
    /// Settles all messages, without comparing with the naive implementation.
    pub(crate) fn drain(mut self) -> Broken {
        self.register(usize::MAX);
        self.flush();
        self.become_durable(usize::MAX);
        for _ in 0..ROUNDS {
            self.now_ms += LONG_MS;
            self.queue.maintain(self.now_ms);
            while let Some(from) = self.queue.next_to_load() {
                let messages: Vec<_> = self.log.range(from..).take(3).map(|(_, meta)| meta.clone()).collect();
                let to = messages.last().map_or(self.queue.registered_to(), |meta| meta.offset + 1);
                self.queue.load_missed(from..to, &messages, self.now_ms);
            }
            for group in self.queue.groups().collect::<Vec<_>>() {
                let mut leases = Vec::new();
                self.queue.lease(group, 9, usize::MAX, None, self.now_ms, &mut leases);
                for lease in leases {
                    let settlement = Settlement { receipt: lease.receipt, disposition: Disposition::Ack };
                    let settled = self.queue.settle(group, &settlement, self.now_ms, 0);
                    settled.map_err(|refusal| refusal.to_string())?;
                }
                // Also the transfers that were handed out and have not arrived.
                self.queue.return_pending_transfer(group, 0);
            }
            for leaving in self.queue.take_pending_transfers(usize::MAX) {
                self.queue.complete_transfer(leaving.group, leaving.number);
            }
            let mut events = Vec::new();
            if let Some(flush) = self.queue.flush(&mut events) {
                self.queue.durable(flush, self.now_ms);
            }
            if self.queue.unfinished().is_empty() {
                return Ok(());
            }
        }
        Err(format!(
            "all messages are settled, and the queue remembers {}",
            self.queue.unfinished().join(", ")
        ))
    }
}
