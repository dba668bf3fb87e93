//! The open queues of a host, by partition and by the log of their state.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_log::LogId;
use mainstem_partition::{PartitionId, Topic};
use mainstem_queue_core::Engine;

use crate::message::ReplyTo;

/// An open queue.
pub(super) struct OpenQueue<C> {
    pub(super) topic: Arc<Topic<C>>,
    /// Index of the shard's store that has it.
    pub(super) store: usize,
    pub(super) engine: Engine<ReplyTo>,
    /// Its deadline in the schedule, ms since 1970.
    pub(super) due_ms: Option<u64>,
}

impl<C> OpenQueue<C> {
    /// The store and the log that have its state.
    fn state(&self) -> (usize, LogId) {
        (self.store, self.engine.queue().state_log())
    }
}

/// The open queues of a shard. Each is found by its partition and by the log of its state.
pub(super) struct OpenQueues<C> {
    by_id: BTreeMap<PartitionId, OpenQueue<C>>,
    by_state: HashMap<(usize, LogId), PartitionId, foldhash::fast::RandomState>,
}

impl<C> Default for OpenQueues<C> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), by_state: HashMap::default() }
    }
}

impl<C> OpenQueues<C> {
    pub(super) fn insert(&mut self, id: PartitionId, queue: OpenQueue<C>) {
        let other = self.by_state.insert(queue.state(), id);
        debug_assert!(other.is_none(), "a log has the state of one queue");
        let replaced = self.by_id.insert(id, queue);
        debug_assert!(replaced.is_none(), "a queue is opened once");
    }

    pub(super) fn remove(&mut self, id: PartitionId) -> Option<OpenQueue<C>> {
        let queue = self.by_id.remove(&id)?;
        let known = self.by_state.remove(&queue.state());
        debug_assert_eq!(known, Some(id), "an open queue is found by its state");
        Some(queue)
    }

    pub(super) fn get(&self, id: PartitionId) -> Option<&OpenQueue<C>> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: PartitionId) -> Option<&mut OpenQueue<C>> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn contains(&self, id: PartitionId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// The open queue whose state a log of a store has.
    #[inline]
    pub(super) fn of_state(&self, store: usize, log: LogId) -> Option<PartitionId> {
        self.by_state.get(&(store, log)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn ids(&self) -> Vec<PartitionId> {
        self.by_id.keys().copied().collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &OpenQueue<C>> {
        self.by_id.values()
    }
}
