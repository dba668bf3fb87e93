//! What a shard of the Kafka server charges to the memory budget of the process.

use std::sync::Arc;

use mainstem_runtime::{MemoryBudget, MemoryMeter, MemoryOwner, ShardMemory};

/// The owners that a shard counts for.
#[derive(Debug)]
pub(crate) struct MemoryUse {
    /// What is still to come of unfinished requests that have a reservation.
    pub(crate) requests: MemoryMeter,
    /// Large responses that have not been sent.
    pub(crate) responses: MemoryMeter,
    /// Complete requests that wait, and records on their way to their logs.
    records: MemoryOwner,
    /// Work queues: the state of their messages, and batches in memory.
    queues: MemoryOwner,
}

impl MemoryUse {
    pub(crate) fn new(shard: usize, budget: &Arc<MemoryBudget>) -> Self {
        Self {
            requests: budget.meter(shard, budget.owner("requests")),
            responses: budget.meter(shard, budget.owner("responses")),
            records: budget.owner("records"),
            queues: budget.owner("queues"),
        }
    }

    /// Sets the bytes of requests and records that wait for other requests, shards or turns.
    pub(crate) fn set_records(&self, memory: &ShardMemory, bytes: usize) {
        memory.set(self.records, bytes as u64);
    }

    /// Sets the bytes of the work queues.
    pub(crate) fn set_queues(&self, memory: &ShardMemory, bytes: u64) {
        memory.set(self.queues, bytes);
    }
}
