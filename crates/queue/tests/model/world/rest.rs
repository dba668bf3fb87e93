//! All messages are settled in the end, and nothing of them is remembered.

use mainstem_queue::{Settlement, Verdict};

use super::World;
use crate::rules::Broken;

/// Rounds after which there is nothing left, each of which lets a lease end and every delay. A round moves a message of
/// each key on, and what one of the small limits holds up.
const ROUNDS: usize = 400;
/// Longer than leases and delays of these worlds.
const LONG_MS: u64 = 100_000;

impl World {
    /// Settles whatever there is, with no regard for what the simple version says.
    pub(crate) fn come_to_rest(mut self) -> Broken {
        self.register(usize::MAX);
        self.flush();
        self.become_durable(usize::MAX);
        for _ in 0..ROUNDS {
            self.now_ms += LONG_MS;
            self.queue.tend(self.now_ms);
            while let Some(from) = self.queue.learns_from() {
                let messages: Vec<_> = self.log.range(from..).take(3).map(|(_, meta)| meta.clone()).collect();
                let to = messages.last().map_or(self.queue.registered_to(), |meta| meta.offset + 1);
                self.queue.learn(from..to, &messages, self.now_ms);
            }
            for group in self.queue.groups().collect::<Vec<_>>() {
                let mut leases = Vec::new();
                self.queue.lease(group, 9, usize::MAX, None, self.now_ms, &mut leases);
                for lease in leases {
                    let settlement = Settlement { receipt: lease.receipt, verdict: Verdict::Ack };
                    let settled = self.queue.settle(group, &settlement, self.now_ms, 0);
                    settled.map_err(|refusal| refusal.to_string())?;
                }
                // Also what was taken and has not arrived.
                self.queue.give_back_leaving(group, 0);
            }
            for leaving in self.queue.take_leaving(usize::MAX) {
                self.queue.left(leaving.group, leaving.number);
            }
            let mut events = Vec::new();
            if let Some(flush) = self.queue.flush(&mut events) {
                self.queue.durable(flush, self.now_ms);
            }
            if self.queue.unfinished().is_empty() {
                return Ok(());
            }
        }
        Err(format!("all is over, and it remembers {}", self.queue.unfinished().join(", ")))
    }
}
