//! The partitions of a shard and the stores with their logs.
//!
//! A partition is opened when it is first needed, because opening reads files. What has no log yet is in
//! `storage/uncreated.rs`; what happens without a request is in `storage/background_work.rs`.
//!
//! Costs are charged in units of about 100 ns ([`Io::charge`]). They estimate what the store does: opening a log
//! reads or creates files, a search by time reads an index, other operations stay in memory.

mod background_work;
mod maintenance;
mod offset_lookup;
mod queries;
mod reads;
mod uncreated;

use std::ops::Range;
use std::sync::Arc;

use mainstem_coordinator::producer::{Marker, TxnVerification};
use mainstem_kafka::ErrorCode;
use mainstem_log::{Completion, Error, LogId, LogOwner, Store, Stores};
use mainstem_partition::{
    Accepted, AppendResult, IncomingBatch, JobId, Partition, PartitionError, PartitionSpec, Partitions,
    ProducerLimits, Waiter,
};
use mainstem_queue_server::topic_of_state;
use mainstem_runtime::Io;

pub(crate) use background_work::MAINTENANCE_INTERVAL_MS;
use maintenance::Maintenance;

use crate::append_error::AppendError;
use crate::catalogue::{Catalogue, PartitionId, TopicId};
use crate::environment::Environment;
use crate::partition_message::FetchPartitions;

/// Time that one unit stands for.
const NS_PER_UNIT: u64 = 100;
/// Opening or removing a log.
const OPEN_UNITS: u32 = 3_000;
/// Appending a batch, besides its bytes.
const APPEND_UNITS: u32 = 20;
/// Bytes of a batch that one unit pays for: checksum and copy.
const BYTES_PER_UNIT: usize = 1024;
/// A query that is answered from memory, and removing a partition from the tables.
pub(crate) const LOOKUP_UNITS: u32 = 10;

/// The units to charge for work of this estimated time.
pub(crate) fn units(ns: u64) -> u32 {
    u32::try_from(ns / NS_PER_UNIT).unwrap_or(u32::MAX)
}

/// The partitions of a shard, and the stores of the shard while it runs.
pub(crate) struct Storage {
    stores: Stores,
    partitions: Partitions,
    maintenance: Maintenance,
    /// The time of the turn, ms since 1970.
    unix_ms: u64,
}

impl Storage {
    /// Restores the partitions from their stores.
    ///
    /// # Errors
    /// A store fails.
    pub(crate) fn restore(
        mut stores: Stores,
        limits: ProducerLimits,
        catalogue: &Catalogue,
        unix_ms: u64,
    ) -> Result<Self, Error> {
        let partitions = Partitions::restore(&mut stores, limits)?;
        let maintenance = Maintenance::find(&stores, catalogue, topic_of_state);
        Ok(Self { stores, partitions, maintenance, unix_ms })
    }

    /// Sets the time of the turn.
    pub(crate) fn begin_turn(&mut self, unix_ms: u64) {
        self.unix_ms = unix_ms;
    }

    // --- stores

    pub(crate) fn stores_mut(&mut self) -> &mut Stores {
        &mut self.stores
    }

    /// The stores and the partitions, for the work queues.
    pub(crate) fn parts_mut(&mut self) -> (&mut Stores, &mut Partitions) {
        (&mut self.stores, &mut self.partitions)
    }

    /// The store that is the shard's own. On shard 0 it has the logs of the controller.
    pub(crate) fn first_store(&mut self) -> Option<&mut dyn Store> {
        Some(&mut *self.stores.first_mut()?.store)
    }

    /// The store of an open partition, and its index.
    pub(crate) fn store_of(&mut self, id: PartitionId) -> Option<(usize, &mut dyn Store)> {
        let index = self.partitions.get(&id).map(Partition::store_index)?;
        Some((index, &mut *self.stores[index].store))
    }

    /// Takes the completions of one store; `None` if there is no such store.
    pub(crate) fn take_completions(&mut self, store: usize, into: &mut Vec<Completion>) -> Option<()> {
        self.stores.get_mut(store)?.take_completions(LogOwner::Default, into);
        Some(())
    }

    /// Handles a completion of a log of producer snapshots. Returns false if it is of another log.
    pub(crate) fn on_snapshot_completion(&mut self, store: usize, completion: &Completion) -> bool {
        self.partitions.on_snapshot_completion(store, completion)
    }

    /// Handles a completion of a partition: collects the results of appends, and returns the fetches to wake.
    pub(crate) fn on_completion(
        &mut self,
        store_index: usize,
        completion: &Completion,
        results: &mut Vec<AppendResult>,
    ) -> Vec<JobId> {
        let store = &*self.stores[store_index].store;
        self.partitions.on_completion(store_index, store, completion, results)
    }

    /// Hands the stores the producer snapshots of this turn.
    pub(crate) fn store_snapshots(&mut self) {
        self.partitions.store_snapshots(&mut self.stores);
    }

    // --- partitions

    /// A partition of this shard, opened if necessary, and its store.
    ///
    /// # Errors
    /// The partition does not exist, or cannot be opened.
    pub(crate) fn partition(
        &mut self,
        env: &mut Environment,
        id: PartitionId,
    ) -> Result<(&mut Partition, &mut dyn Store), ErrorCode> {
        if !self.partitions.contains(&id) {
            self.open(env, id)?;
        }
        let partition = self.partitions.get_mut(&id).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let store = &mut *self.stores[partition.store_index()].store;
        Ok((partition, store))
    }

    fn open(&mut self, env: &mut Environment, id: PartitionId) -> Result<(), ErrorCode> {
        env.refresh();
        let unknown = ErrorCode::UnknownTopicOrPartition;
        let topic = env.catalogue().topic_by_id(id.topic).ok_or(unknown)?;
        let store_id = topic.store_id(id.index).ok_or(unknown)?;
        let store = self.stores.iter().position(|known| known.store_id == store_id).ok_or(unknown)?;
        let config = Arc::clone(&topic.config.partition);
        let spec = PartitionSpec { id, topic: Arc::clone(&topic.name), config, store };
        let opened = self.partitions.open(spec, &mut *self.stores[store].store, self.unix_ms);
        opened.map_err(|error| {
            log::error!("partition {}-{}: {error}", topic.name, id.index);
            ErrorCode::KafkaStorageError
        })?;
        self.maintenance.has_opened(id);
        Ok(())
    }

    /// The topic of an open partition.
    pub(crate) fn topic_of(&self, id: PartitionId) -> Option<&Arc<str>> {
        self.partitions.get(&id).map(Partition::topic)
    }

    /// Whether partitions of work queues have events.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.partitions.has_events()
    }

    /// Takes the number of producers that were forgotten for lack of memory.
    pub(crate) fn take_evicted_producers(&mut self) -> u64 {
        self.partitions.take_evicted_producers()
    }

    /// Charges the append of a batch to the turn, before it happens: its bytes, and the work on its records.
    pub(crate) fn charge_batch<M>(&self, io: &mut Io<'_, M>, id: PartitionId, incoming: &IncomingBatch<'_>) {
        let work = match self.partitions.get(&id) {
            Some(partition) => units(partition.records_work_ns(incoming)),
            None => OPEN_UNITS,
        };
        io.charge(APPEND_UNITS + work + (incoming.bytes().len() / BYTES_PER_UNIT) as u32);
    }

    /// Charges the append of a transaction marker to the turn, before it happens.
    pub(crate) fn charge_marker<M>(&self, io: &mut Io<'_, M>, id: PartitionId) {
        io.charge(APPEND_UNITS + if self.partitions.contains(&id) { 0 } else { OPEN_UNITS });
    }

    /// Appends a batch to an open partition of the store `store_index`.
    ///
    /// # Errors
    /// The batch was not appended.
    pub(crate) fn append(
        &mut self,
        (id, store_index): (PartitionId, usize),
        incoming: &IncomingBatch<'_>,
        verification: TxnVerification,
        waiter: Waiter,
    ) -> Result<Accepted, PartitionError> {
        let store = &mut *self.stores[store_index].store;
        self.partitions.append(id, store, incoming, self.unix_ms, verification, waiter)
    }

    /// Appends a transaction marker.
    ///
    /// # Errors
    /// The marker was not appended.
    pub(crate) fn mark(
        &mut self,
        env: &mut Environment,
        id: PartitionId,
        marker: &Marker,
        waiter: Waiter,
    ) -> Result<(), AppendError> {
        let store_index = self.partition(env, id)?.0.store_index();
        let store = &mut *self.stores[store_index].store;
        Ok(self.partitions.mark(id, store, marker, self.unix_ms, waiter)?)
    }

    /// Records the new start of a partition after a deletion, so that a restart does not restore deleted records.
    pub(crate) fn on_start_advanced(&mut self, id: PartitionId) {
        self.partitions.on_start_advanced(&mut self.stores, self.unix_ms, id);
    }

    /// Closes a partition of a deleted topic, and has its log removed: collects the errors of its waiters, and returns
    /// the fetches to wake.
    pub(crate) fn remove(&mut self, id: PartitionId, results: &mut Vec<AppendResult>) -> Vec<JobId> {
        let (log, watchers) = self.partitions.remove(id, results);
        let store_index = match log {
            Some((store_index, log)) => {
                self.maintenance.remove_log(store_index, log);
                Some(store_index)
            }
            None => self.maintenance.remove_unopened(id),
        };
        if let Some(store_index) = store_index {
            self.partitions.remove_snapshot(&mut self.stores, store_index, self.unix_ms, id);
        }
        watchers
    }

    /// Has the open log of a queue's state removed.
    pub(crate) fn remove_log(&mut self, store: usize, log: LogId) {
        self.maintenance.remove_log(store, log);
    }

    /// Has the log of a queue's state removed that is not open, if there is one.
    pub(crate) fn remove_state(&mut self, name: &str) {
        self.maintenance.remove_state(name);
    }

    /// Takes the last snapshots of producers, before the shutdown.
    pub(crate) fn end_producer_maintenance(&mut self) {
        self.partitions.end_maintenance(&mut self.stores, self.unix_ms);
    }

    /// Applies the current configuration of these topics to their open partitions.
    pub(crate) fn apply_catalogue(&mut self, env: &mut Environment, changed: &[TopicId]) {
        env.refresh();
        for topic in changed.iter().filter_map(|id| env.catalogue().topic_by_id(*id)) {
            for index in 0..topic.partitions() {
                let id = topic.partition(index);
                let Some(partition) = self.partitions.get(&id) else { continue };
                if Arc::ptr_eq(&topic.config.partition, partition.config()) {
                    continue;
                }
                let store = &mut *self.stores[partition.store_index()].store;
                if let Err(error) = self.partitions.reconfigure(id, &topic.config.partition, store) {
                    log::error!("a partition of {} keeps its old configuration: {error}", topic.name);
                }
            }
        }
    }

    // --- watchers

    /// Registers a parked fetch with a partition of this shard.
    pub(crate) fn watch(&mut self, env: &mut Environment, id: PartitionId, watcher: JobId) {
        if self.partitions.contains(&id) || self.is_uncreated(env, id) {
            self.partitions.watch(id, watcher);
        }
    }

    /// Registers a fetch of another shard with these of its partitions, if it waits.
    pub(crate) fn watch_parts(
        &mut self,
        env: &mut Environment,
        request: &FetchPartitions,
        parts: Range<usize>,
    ) {
        let Some(watcher) = request.watcher else { return };
        for part in &request.parts[parts] {
            self.watch(env, part.id, watcher);
        }
    }

    /// Removes a fetch that has ended from the watchers of a partition.
    pub(crate) fn unwatch(&mut self, id: PartitionId, watcher: JobId) {
        self.partitions.unwatch(id, watcher);
    }
}
