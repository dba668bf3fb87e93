//! What a shard knows of the broker around it: its number, the state that all shards share, the topics.
//!
//! Handlers read topics many times per request. A shard works on a snapshot of the catalogue, which it replaces where a
//! request needs the newest topics; that takes a lock only if the catalogue has changed.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_runtime::{MemoryBudget, MemoryMeter, ShardMemory};

use crate::catalogue::{Catalogue, PartitionId, Topic};
use crate::counters::Counters;
use crate::log_throttle::LogThrottle;
use crate::memory_use::MemoryUse;
use crate::shared::Shared;

/// The surroundings of one shard of the server.
pub(crate) struct Environment {
    me: usize,
    shared: Arc<Shared>,
    /// Snapshot of the topics.
    catalogue: Arc<Catalogue>,
    log_throttle: LogThrottle,
    /// Set in the first turn.
    memory: Option<MemoryUse>,
}

impl Environment {
    /// The environment of shard `me`, with the current topics.
    pub(crate) fn new(me: usize, shared: Arc<Shared>) -> Self {
        let catalogue = shared.snapshot();
        Self { me, shared, catalogue, log_throttle: LogThrottle::default(), memory: None }
    }

    /// The first turn begins: memory is charged from now on. Returns false in later turns.
    pub(crate) fn begin_first_turn(&mut self, budget: &Arc<MemoryBudget>) -> bool {
        let is_first = self.memory.is_none();
        if is_first {
            self.memory = Some(MemoryUse::new(self.me, budget));
        }
        is_first
    }

    /// The number of this shard.
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// Whether this is shard 0.
    pub(crate) fn is_controller(&self) -> bool {
        self.me == 0
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What this shard counts.
    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters[self.me]
    }

    /// The topics, as of the last [`Self::refresh`].
    pub(crate) fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Takes the current topics, if they have changed.
    pub(crate) fn refresh(&mut self) {
        self.shared.refresh(&mut self.catalogue);
    }

    /// The meters of the memory budget, after the first turn has begun.
    pub(crate) fn memory(&self) -> Option<&MemoryUse> {
        self.memory.as_ref()
    }

    /// What large responses are charged to.
    pub(crate) fn response_meter(&self) -> MemoryMeter {
        self.memory.as_ref().map(|memory| memory.responses.clone()).unwrap_or_default()
    }

    /// Counts the bytes of requests and records that wait for other requests, shards or turns.
    pub(crate) fn count_records(&self, memory: &ShardMemory, bytes: usize) {
        if let Some(charged) = &self.memory {
            charged.set_records(memory, bytes);
        }
    }

    /// Counts the memory of the work queues.
    pub(crate) fn count_queues(&self, memory: &ShardMemory, bytes: u64) {
        if let Some(charged) = &self.memory {
            charged.set_queues(memory, bytes);
        }
    }

    /// Whether another log line about an error of a client may be written now.
    pub(crate) fn should_log(&mut self, now_ms: u64) -> bool {
        self.log_throttle.should_log(now_ms)
    }

    /// Logs how many lines were suppressed. To be called now and then.
    pub(crate) fn log_suppressed(&mut self, now_ms: u64) {
        self.log_throttle.log_suppressed(now_ms);
    }

    /// The shard that owns a partition.
    ///
    /// # Errors
    /// The partition does not exist.
    pub(crate) fn owner_of(&self, id: PartitionId) -> Result<usize, ErrorCode> {
        let topic = self.catalogue.topic_by_id(id.topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let store_id = topic.store_id(id.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        Ok(self.shared.owner(store_id))
    }

    /// The partitions of a topic on each shard, by the shard's number.
    pub(crate) fn partitions_by_owner(&self, topic: &Topic) -> Vec<Vec<PartitionId>> {
        let mut by_shard: Vec<Vec<PartitionId>> = vec![Vec::new(); self.shared.shards];
        for index in 0..topic.partitions() {
            if let Some(store_id) = topic.store_id(index) {
                by_shard[self.shared.owner(store_id)].push(topic.partition(index));
            }
        }
        by_shard
    }

    /// Logs how many producers and transactional ids were forgotten for lack of memory.
    pub(crate) fn log_evictions(&mut self, now_ms: u64, producers: u64, ids: u64) {
        let config = &self.shared.config;
        let all = [
            (producers, "idle producers", "kafka.max_producer_state_bytes", config.producer_bytes_max),
            (
                ids,
                "unused transactional ids",
                "kafka.max_transactional_id_bytes",
                config.transactional_id_bytes_max,
            ),
        ];
        for (count, what, key, bytes) in all.into_iter().filter(|(count, ..)| *count > 0) {
            if self.log_throttle.should_log(now_ms) {
                log::warn!(
                    "{count} {what} were forgotten before they expired: their state exceeds {key} ({bytes})"
                );
            }
        }
    }
}
