//! What a shard of the Kafka server charges to the memory budget of the process.

use std::sync::Arc;

use mainstem_runtime::{Io, MemoryBudget, MemoryMeter, MemoryOwner};

use crate::shard::Shard;
use crate::shard_message::Mail;

/// The owners that a shard counts for.
#[derive(Debug)]
pub(crate) struct MemoryUse {
    /// What is still to come of unfinished requests that have a reservation.
    pub(crate) requests: MemoryMeter,
    /// Complete requests that wait, and records on their way to their logs.
    records: MemoryOwner,
    /// Work queues: the state of their messages, and batches in memory.
    queues: MemoryOwner,
}

impl MemoryUse {
    pub(crate) fn new(shard: usize, budget: &Arc<MemoryBudget>) -> Self {
        Self {
            requests: budget.meter(shard, budget.owner("requests")),
            records: budget.owner("records"),
            queues: budget.owner("queues"),
        }
    }
}

impl Shard {
    /// Counts requests and records that wait for other requests, shards or turns.
    pub(crate) fn count_records(&self, io: &Io<'_, Mail>) {
        if let Some(memory) = &self.memory {
            let bytes = self.conns.queued_bytes() + self.jobs.mailed_bytes() + self.pending_work.bytes();
            io.memory().set(memory.records, bytes as u64);
        }
    }

    /// Counts the memory of the work queues. There may be thousands, so this is not for each turn.
    pub(crate) fn count_queues(&self, io: &Io<'_, Mail>) {
        if let Some(memory) = &self.memory {
            io.memory().set(memory.queues, self.queues.memory());
        }
    }
}
