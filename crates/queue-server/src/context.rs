//! What the owner of a host lends it with each call, and what it knows of a topic.

use std::ops::Range;
use std::sync::Arc;

use mainstem_log::{BatchHeader, Store, StoreAt};
use mainstem_partition::{AbortedFilter, Catalogue, Partition, PartitionId, Partitions};
use mainstem_queue_core::{EngineSettings, MessageLog};

/// The configuration of a topic, which may be a queue.
pub trait QueueTopicConfig {
    /// The settings of its queue; `None` if it is no queue.
    fn engine_settings(&self) -> Option<EngineSettings>;

    /// The settings of its queue as protocols show them, by name.
    fn shown_settings(&self) -> Vec<(String, String)>;

    /// Whether the topic is a queue.
    fn is_queue(&self) -> bool;
}

/// The resources of one call.
pub struct Context<'a, C> {
    /// The stores of the shard.
    pub stores: &'a mut [StoreAt],
    /// The partitions of the shard.
    pub partitions: &'a mut Partitions,
    /// The newest topics.
    pub catalogue: &'a Arc<Catalogue<C>>,
    /// The shard that owns a store.
    pub owner_of_store: &'a dyn Fn(u16) -> usize,
    /// Ms since 1970.
    pub now_ms: u64,
}

impl<C> Context<'_, C> {
    /// The shard that owns a partition; `None` if the partition does not exist.
    pub(crate) fn owner(&self, id: PartitionId) -> Option<usize> {
        let store_id = self.catalogue.topic_by_id(id.topic)?.store_id(id.index)?;
        Some((self.owner_of_store)(store_id))
    }
}

/// The partition of a queue as its engine sees it: consumers get committed messages only.
pub(crate) struct MessagePartition<'a>(pub(crate) &'a Partition);

impl MessageLog for MessagePartition<'_> {
    fn visible_to(&self, store: &dyn Store) -> u64 {
        self.0.watermarks(store).last_stable
    }

    fn skip(&self, offsets: Range<u64>) -> impl FnMut(&BatchHeader) -> bool {
        let mut aborted = AbortedFilter::new(self.0.aborted(offsets));
        move |header| aborted.should_skip(header)
    }
}
