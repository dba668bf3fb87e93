//! The partitions of one shard.
//!
//! Owns the open partitions, the index from logs to partitions, the producer snapshots of each store, and the fetches
//! parked on partitions that have no log yet. Stores belong to the caller, because other logs of the shard share them;
//! every call that needs one takes it as a parameter.
//!
//! # Producers
//! [`ProducerLimits`] bounds the memory of the producers of all partitions together. At the bound, the partition with
//! most producers forgets those that have been idle for longest; see [`mainstem_coordinator::producer`] for what their
//! next batch is answered.
//!
//! # Managed partitions
//! A component of the broker may manage a partition ([`crate::PartitionConfig::is_managed`]), for example a work queue.
//! Its appends and its progress are collected as [`PartitionEvent`]s, which the component takes when it runs. In return
//! it states what clients may append, as an [`Admission`]; nothing is appended before it has done so. Plain partitions
//! collect and check nothing, so the component costs them nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use mainstem_coordinator::Error as ProducerError;
use mainstem_coordinator::producer::{Marker, TxnVerification};
use mainstem_log::{Completion, Error, LogId, Store, StoreAt};

use crate::admission::Admission;
use crate::config::PartitionConfig;
use crate::error::PartitionError;
use crate::ids::{JobId, PartitionId};
use crate::incoming::IncomingBatch;
use crate::partition::{Accepted, AppendResult, Partition, PartitionSpec, Waiter};
use crate::producers::{IsLast, ProducerLimits};
use crate::snapshots::ProducerSnapshots;

type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// What has happened in a managed partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionEvent {
    /// A client's batch was appended, or was found to be appended before.
    Appended {
        /// The partition.
        id: PartitionId,
        /// End of the log.
        end: u64,
        /// Size of the batch.
        bytes: u64,
    },
    /// The high watermark has moved, or the partition has just become managed.
    Advanced {
        /// The partition.
        id: PartitionId,
    },
    /// Appends have failed. Those in flight that end after this offset are not part of the log.
    Failed {
        /// The partition.
        id: PartitionId,
        /// End of the log.
        end: u64,
    },
}

/// The partitions of one shard.
pub struct Partitions {
    open: FastMap<PartitionId, Partition>,
    by_log: FastMap<(usize, LogId), PartitionId>,
    /// One per store.
    snapshots: Vec<ProducerSnapshots>,
    limits: ProducerLimits,
    /// Number of producers of all open partitions.
    producers: usize,
    /// Number of producers evicted because of the limit, not taken yet.
    evicted_producers: u64,
    /// The open partitions in the order of their maintenance, and some that are not open any more.
    maintained: VecDeque<PartitionId>,
    /// How many of them, from the front on, the current round of maintenance has not reached.
    unmaintained: usize,
    /// Fetches parked on partitions that have no log yet.
    uncreated: FastMap<PartitionId, Vec<JobId>>,
    events: Vec<PartitionEvent>,
}

impl Partitions {
    /// Reads the producer snapshots of the shard's stores. No partition is open yet.
    ///
    /// # Errors
    /// A store fails.
    pub fn restore(stores: &mut [StoreAt], limits: ProducerLimits) -> Result<Self, Error> {
        let snapshots = stores.iter_mut().map(|at| ProducerSnapshots::open(&mut *at.store));
        Ok(Self {
            open: FastMap::default(),
            by_log: FastMap::default(),
            snapshots: snapshots.collect::<Result<_, Error>>()?,
            limits,
            producers: 0,
            evicted_producers: 0,
            maintained: VecDeque::new(),
            unmaintained: 0,
            uncreated: FastMap::default(),
            events: Vec::new(),
        })
    }

    /// An open partition.
    pub fn get(&self, id: &PartitionId) -> Option<&Partition> {
        self.open.get(id)
    }

    /// An open partition.
    pub fn get_mut(&mut self, id: &PartitionId) -> Option<&mut Partition> {
        self.open.get_mut(id)
    }

    /// Whether a partition is open.
    pub fn contains(&self, id: &PartitionId) -> bool {
        self.open.contains_key(id)
    }

    /// All open partitions, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.open.values()
    }

    /// Opens a partition, creating its log if it does not exist. Fetches parked on it keep waiting.
    ///
    /// # Errors
    /// The store fails.
    pub fn open(&mut self, spec: PartitionSpec, store: &mut dyn Store, unix_ms: u64) -> Result<(), Error> {
        let (id, store_index) = (spec.id, spec.store);
        let snapshot = self.snapshots[store_index].take(id);
        let mut partition = Partition::open(spec, store, &snapshot, &self.limits, unix_ms)?;
        for watcher in self.uncreated.remove(&id).unwrap_or_default() {
            partition.watch(watcher);
        }
        self.by_log.insert((store_index, partition.log()), id);
        self.producers += partition.producer_count();
        if self.open.insert(id, partition).is_none() {
            self.maintained.push_back(id);
        }
        self.evict_producers(self.producers.saturating_sub(self.limits.count()));
        Ok(())
    }

    /// Appends a batch to an open partition, unless its producer sent it before. The result of a pending append comes
    /// from [`Self::on_completion`].
    ///
    /// # Errors
    /// The batch is invalid, or the store fails. Nothing was appended.
    pub fn append(
        &mut self,
        id: PartitionId,
        store: &mut dyn Store,
        incoming: &IncomingBatch<'_>,
        unix_ms: u64,
        verification: TxnVerification,
        waiter: Waiter,
    ) -> Result<Accepted, PartitionError> {
        self.make_room_for_producer(id, incoming.producer().id)?;
        let partition = self.open.get_mut(&id).ok_or(PartitionError::UnknownPartition)?;
        let before = partition.producer_count();
        let accepted = partition.append(store, incoming, unix_ms, verification, waiter)?;
        self.producers = self.producers - before + partition.producer_count();
        let is_appended = !matches!(accepted, Accepted::Unverified(_) | Accepted::Unprepared(_));
        if is_appended && partition.config().is_managed && incoming.is_from_client() {
            let end = store.status(partition.log()).end;
            let bytes = incoming.bytes().len() as u64;
            self.events.push(PartitionEvent::Appended { id, end, bytes });
        }
        Ok(accepted)
    }

    /// Replaces the terms of the manager of a partition, if it is open.
    pub fn admit(&mut self, id: PartitionId, admission: Admission) {
        if let Some(partition) = self.open.get_mut(&id) {
            partition.admit(admission);
        }
    }

    /// Appends the marker of a transaction that has ended.
    ///
    /// # Errors
    /// The marker contradicts the producer state, or the store fails. Nothing was appended.
    pub fn mark(
        &mut self,
        id: PartitionId,
        store: &mut dyn Store,
        marker: &Marker,
        unix_ms: u64,
        waiter: Waiter,
    ) -> Result<(), PartitionError> {
        self.make_room_for_producer(id, marker.producer_id)?;
        let partition = self.open.get_mut(&id).ok_or(PartitionError::UnknownPartition)?;
        let before = partition.producer_count();
        let outcome = partition.mark(store, marker, unix_ms, waiter);
        self.producers = self.producers - before + partition.producer_count();
        outcome
    }

    /// Makes room for the state of a producer, unless it has state already.
    fn make_room_for_producer(&mut self, id: PartitionId, producer_id: i64) -> Result<(), PartitionError> {
        if producer_id < 0 || self.producers < self.limits.count() {
            return Ok(());
        }
        let is_known = self.open.get(&id).is_some_and(|partition| partition.knows_producer(producer_id));
        if is_known || self.evict_producers(1) {
            return Ok(());
        }
        Err(PartitionError::Producer(ProducerError::PolicyViolation))
    }

    /// Evicts `count` producers or a few more. Returns false if fewer could be evicted, because the others have open
    /// transactions.
    fn evict_producers(&mut self, count: usize) -> bool {
        // Finding the partition costs a pass over all, so it gives up more than one.
        let mut wanted = if count == 0 { 0 } else { count.max(self.limits.count() / 256) };
        let mut evicted = 0;
        while wanted > 0
            && let Some(partition) = self.open.values_mut().max_by_key(|known| known.producer_count())
        {
            let from_this =
                partition.evict_idle_producers(wanted.min(partition.producer_count().div_ceil(2)));
            if from_this == 0 {
                break;
            }
            wanted -= from_this;
            evicted += from_this;
        }
        for partition in self.open.values_mut() {
            let from_this = partition.evict_idle_producers(count.saturating_sub(evicted));
            evicted += from_this;
        }
        self.producers -= evicted;
        self.evicted_producers += evicted as u64;
        evicted >= count
    }

    /// Takes the number of producers that were evicted because of [`ProducerLimits::bytes`] since the last call.
    pub fn take_evicted_producers(&mut self) -> u64 {
        std::mem::take(&mut self.evicted_producers)
    }

    /// Handles a completion: collects the results of waiters, and returns the parked fetches to wake. A completion of
    /// another log has no effect.
    pub fn on_completion(
        &mut self,
        store_index: usize,
        store: &dyn Store,
        completion: &Completion,
        results: &mut Vec<AppendResult>,
    ) -> Vec<JobId> {
        let Some(id) = self.by_log.get(&(store_index, completion.log)).copied() else { return Vec::new() };
        let Some(partition) = self.open.get_mut(&id) else { return Vec::new() };
        let before = partition.producer_count();
        let has_advanced = partition.on_completion(completion, results);
        self.producers = self.producers - before + partition.producer_count();
        if partition.config().is_managed && completion.outcome.is_err() {
            self.events.push(PartitionEvent::Failed { id, end: store.status(completion.log).end });
        }
        if !has_advanced {
            return Vec::new();
        }
        if partition.config().is_managed {
            self.events.push(PartitionEvent::Advanced { id });
        }
        partition.take_watchers()
    }

    /// Whether [`Self::take_events`] would return any.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the events of managed partitions since the last call, in order.
    pub fn take_events(&mut self) -> Vec<PartitionEvent> {
        std::mem::take(&mut self.events)
    }

    /// Registers a parked fetch with a partition, which may have no log yet.
    pub fn watch(&mut self, id: PartitionId, watcher: JobId) {
        if let Some(partition) = self.open.get_mut(&id) {
            return partition.watch(watcher);
        }
        let watchers = self.uncreated.entry(id).or_default();
        if !watchers.contains(&watcher) {
            watchers.push(watcher);
        }
    }

    /// Removes a fetch that has ended.
    pub fn unwatch(&mut self, id: PartitionId, watcher: JobId) {
        if let Some(partition) = self.open.get_mut(&id) {
            return partition.unwatch(watcher);
        }
        let Entry::Occupied(mut watchers) = self.uncreated.entry(id) else { return };
        watchers.get_mut().retain(|known| *known != watcher);
        if watchers.get().is_empty() {
            watchers.remove();
        }
    }

    /// Applies the configuration of a topic to an open partition.
    ///
    /// # Errors
    /// The store keeps the old options of the log.
    pub fn reconfigure(
        &mut self,
        id: PartitionId,
        config: &Arc<PartitionConfig>,
        store: &mut dyn Store,
    ) -> Result<(), Error> {
        let Some(partition) = self.open.get_mut(&id) else { return Ok(()) };
        if partition.reconfigure(config, store)? {
            self.events.push(PartitionEvent::Advanced { id });
        }
        Ok(())
    }

    /// Closes a deleted partition: collects the errors of its waiters, and returns its log, if it is open, and the
    /// parked fetches to wake. The caller removes the log.
    pub fn remove(
        &mut self,
        id: PartitionId,
        results: &mut Vec<AppendResult>,
    ) -> (Option<(usize, LogId)>, Vec<JobId>) {
        let Some(partition) = self.open.remove(&id) else {
            return (None, self.uncreated.remove(&id).unwrap_or_default());
        };
        let log = (partition.store_index(), partition.log());
        self.by_log.remove(&log);
        self.producers -= partition.producer_count();
        (Some(log), partition.into_waiters(results))
    }

    /// Removes the producer snapshot of a deleted partition.
    pub fn remove_snapshot(
        &mut self,
        stores: &mut [StoreAt],
        store_index: usize,
        unix_ms: u64,
        id: PartitionId,
    ) {
        self.snapshots[store_index].remove(&mut *stores[store_index].store, unix_ms, id);
    }

    /// Begins a round of maintenance over all open partitions, unless one is in progress: [`Self::maintain`] continues.
    pub fn begin_maintenance(&mut self) {
        if self.unmaintained == 0 {
            self.unmaintained = self.maintained.len();
        }
    }

    /// Expires idle producers of the next partition of the round, and takes its snapshot if that is due. Returns false
    /// if the round is over. A shard may have a hundred thousand partitions, so the caller decides how many to maintain
    /// in a turn.
    pub fn maintain(&mut self, stores: &mut [StoreAt], unix_ms: u64, is_last: IsLast) -> bool {
        if self.unmaintained == 0 {
            return false;
        }
        self.unmaintained -= 1;
        let Some(id) = self.maintained.pop_front() else { return false };
        let Some(partition) = self.open.get_mut(&id) else { return true };
        self.maintained.push_back(id);
        let at = partition.store_index();
        let store = &mut *stores[at].store;
        let before = partition.producer_count();
        if partition.has_producers() {
            partition.on_start_advanced(store);
        }
        take_snapshot(&mut self.snapshots[at], store, unix_ms, partition, is_last);
        self.producers = self.producers - before + partition.producer_count();
        true
    }

    /// Takes the last snapshots of all open partitions, at once.
    pub fn end_maintenance(&mut self, stores: &mut [StoreAt], unix_ms: u64) {
        self.unmaintained = self.maintained.len();
        while self.maintain(stores, unix_ms, IsLast::Yes) {}
    }

    /// Takes a snapshot after records were deleted, so that a restart does not restore their producer state.
    pub fn on_start_advanced(&mut self, stores: &mut [StoreAt], unix_ms: u64, id: PartitionId) {
        let Some(partition) = self.open.get_mut(&id) else { return };
        let at = partition.store_index();
        let store = &mut *stores[at].store;
        let before = partition.producer_count();
        partition.on_start_advanced(store);
        take_snapshot(&mut self.snapshots[at], store, unix_ms, partition, IsLast::No);
        self.producers = self.producers - before + partition.producer_count();
    }

    /// Appends the snapshots of this turn. Call it before the commit.
    pub fn store_snapshots(&mut self, stores: &mut [StoreAt]) {
        for (snapshots, at) in self.snapshots.iter_mut().zip(stores) {
            snapshots.store_pending(&mut *at.store);
        }
    }

    /// Handles a completion of a log of snapshots. Returns false if it is of another log.
    pub fn on_snapshot_completion(&mut self, store_index: usize, completion: &Completion) -> bool {
        self.snapshots[store_index].on_completion(completion)
    }
}

fn take_snapshot(
    snapshots: &mut ProducerSnapshots,
    store: &mut dyn Store,
    unix_ms: u64,
    partition: &mut Partition,
    is_last: IsLast,
) {
    if let Some(due) = partition.snapshot_if_due(unix_ms, is_last) {
        snapshots.append(store, unix_ms, partition.id(), due);
    }
}

#[cfg(test)]
mod tests {
    use mainstem_coordinator::producer::PRODUCER_BYTES;
    use mainstem_log::{BatchBuilder, BatchKind, MemoryStore, Origin};

    use super::*;
    use crate::ids::TopicId;
    use crate::partition::AppendInfo;

    const ID: PartitionId = PartitionId { topic: TopicId([1; 16]), index: 0 };
    const WATCHER: JobId = JobId { shard: 1, job: 7 };

    fn waiter(part: u32) -> Waiter {
        Waiter { job: JobId { shard: 0, job: 3 }, part }
    }

    fn config(is_managed: bool) -> Arc<PartitionConfig> {
        Arc::new(PartitionConfig { is_managed, ..PartitionConfig::default() })
    }

    fn stores() -> Vec<StoreAt> {
        vec![StoreAt::new(0, Box::new(MemoryStore::new()))]
    }

    fn open(stores: &mut [StoreAt], is_managed: bool) -> Partitions {
        let mut partitions = Partitions::restore(stores, ProducerLimits::default()).unwrap();
        let spec = PartitionSpec { id: ID, topic: "topic".into(), config: config(is_managed), store: 0 };
        partitions.open(spec, &mut *stores[0].store, 1).unwrap();
        partitions
    }

    fn batch() -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        builder.finish().to_vec()
    }

    fn append(partitions: &mut Partitions, stores: &mut [StoreAt], incoming: &IncomingBatch<'_>, part: u32) {
        let store = &mut *stores[0].store;
        let verification = TxnVerification::Unknown;
        let accepted = partitions.append(ID, store, incoming, 1, verification, waiter(part)).unwrap();
        assert!(matches!(accepted, Accepted::Pending { .. }));
    }

    /// Commits, and returns the results and the watchers to wake.
    fn commit(partitions: &mut Partitions, stores: &mut [StoreAt]) -> (Vec<AppendResult>, Vec<JobId>) {
        let (mut completions, mut results, mut woken) = (Vec::new(), Vec::new(), Vec::new());
        stores[0].store.commit();
        stores[0].store.completions(&mut completions);
        for completion in completions {
            woken.extend(partitions.on_completion(0, &*stores[0].store, &completion, &mut results));
        }
        (results, woken)
    }

    #[test]
    fn waiters_and_watchers_hear_when_records_are_durable() {
        let mut stores = stores();
        let mut partitions = open(&mut stores, false);
        partitions.watch(ID, WATCHER);
        let bytes = batch();
        let incoming = IncomingBatch::parse(&bytes).unwrap();
        append(&mut partitions, &mut stores, &incoming, 0);
        append(&mut partitions, &mut stores, &incoming, 1);
        let watermarks = |partitions: &Partitions, stores: &[StoreAt]| {
            partitions.get(&ID).unwrap().watermarks(&*stores[0].store)
        };
        assert_eq!(watermarks(&partitions, &stores).high_watermark, 0, "not durable yet");
        let (results, woken) = commit(&mut partitions, &mut stores);
        let info = |base_offset| AppendInfo { base_offset, append_time_ms: None, log_start: 0 };
        let result =
            |part, base_offset| AppendResult { waiter: waiter(part), outcome: Ok(info(base_offset)) };
        assert_eq!(results, [result(0, 0), result(1, 1)]);
        assert_eq!(woken, [WATCHER]);
        assert_eq!(watermarks(&partitions, &stores).high_watermark, 2);
        append(&mut partitions, &mut stores, &incoming, 2);
        assert_eq!(commit(&mut partitions, &mut stores).1, [], "a watcher is woken once");
    }

    /// A batch of an idempotent producer.
    fn batch_of(producer_id: i64, base_sequence: i32, kind: BatchKind) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        let origin = Origin { producer_id, producer_epoch: 0, base_sequence, kind };
        builder.finish_as(&origin).bytes().to_vec()
    }

    #[test]
    fn memory_of_producers_is_bounded_over_all_partitions() {
        let mut stores = stores();
        let limits = ProducerLimits { bytes: 100 * PRODUCER_BYTES, ..ProducerLimits::default() };
        let mut partitions = Partitions::restore(&mut stores, limits).unwrap();
        let ids = [0, 1].map(|index| PartitionId { index, ..ID });
        for id in ids {
            let spec = PartitionSpec { id, topic: "topic".into(), config: config(false), store: 0 };
            partitions.open(spec, &mut *stores[0].store, 1).unwrap();
        }
        let mut append = |partitions: &mut Partitions, id, producer_id, sequence, kind| {
            let bytes = batch_of(producer_id, sequence, kind);
            let incoming = IncomingBatch::parse(&bytes).unwrap();
            let store = &mut *stores[0].store;
            partitions.append(id, store, &incoming, 1, TxnVerification::Verified, waiter(0))
        };
        let counts = |partitions: &Partitions| ids.map(|id| partitions.open[&id].producer_count());
        append(&mut partitions, ids[1], 999, 0, BatchKind::Plain).unwrap();
        for producer_id in 0..300 {
            append(&mut partitions, ids[0], producer_id, 0, BatchKind::Plain).unwrap();
            let [many, few] = counts(&partitions);
            assert!(many + few <= 100 && few == 1, "the partition with most producers gives them up");
            assert_eq!(partitions.producers, many + few);
        }
        assert!(partitions.take_evicted_producers() >= 200);
        append(&mut partitions, ids[0], 299, 1, BatchKind::Plain).unwrap();
        append(&mut partitions, ids[1], 999, 1, BatchKind::Plain).unwrap();
        let evicted = append(&mut partitions, ids[0], 0, 1, BatchKind::Plain);
        assert_eq!(evicted, Err(PartitionError::UnknownProducer { log_start: 0 }));
        for producer_id in 1000..1100 {
            append(&mut partitions, ids[0], producer_id, 0, BatchKind::Transactional).unwrap();
        }
        let full = append(&mut partitions, ids[1], 2000, 0, BatchKind::Plain);
        assert_eq!(full, Err(PartitionError::Producer(ProducerError::PolicyViolation)), "all are in use");
        append(&mut partitions, ids[0], 1000, 1, BatchKind::Transactional).unwrap();
        // A restart replays the log within the same bound.
        let mut reopened = Partitions::restore(&mut stores, limits).unwrap();
        let spec = PartitionSpec { id: ids[0], topic: "topic".into(), config: config(false), store: 0 };
        reopened.open(spec, &mut *stores[0].store, 1).unwrap();
        assert_eq!(reopened.producers, 100);
    }

    #[test]
    fn only_managed_partitions_report_events() {
        let bytes = batch();
        let client = IncomingBatch::parse(&bytes).unwrap();
        let internal = IncomingBatch::parse_internal(&bytes).unwrap();
        let mut stores = stores();
        let mut partitions = open(&mut stores, false);
        append(&mut partitions, &mut stores, &client, 0);
        commit(&mut partitions, &mut stores);
        assert_eq!(partitions.take_events(), []);

        partitions.reconfigure(ID, &config(true), &mut *stores[0].store).unwrap();
        assert_eq!(partitions.take_events(), [PartitionEvent::Advanced { id: ID }], "it has become managed");
        partitions.admit(ID, Admission { assigned_to: 0, records: 9, bytes: 999 });
        append(&mut partitions, &mut stores, &internal, 0);
        assert_eq!(partitions.take_events(), [], "its manager knows what it appends");
        append(&mut partitions, &mut stores, &client, 1);
        commit(&mut partitions, &mut stores);
        let appended = PartitionEvent::Appended { id: ID, end: 3, bytes: bytes.len() as u64 };
        assert_eq!(partitions.take_events(), [appended, PartitionEvent::Advanced { id: ID }]);
        assert_eq!(partitions.take_events(), []);
    }

    fn append_here(
        partitions: &mut Partitions,
        stores: &mut [StoreAt],
        incoming: &IncomingBatch<'_>,
    ) -> Result<Accepted, PartitionError> {
        partitions.append(ID, &mut *stores[0].store, incoming, 1, TxnVerification::Unknown, waiter(0))
    }

    #[test]
    fn nothing_is_appended_to_a_managed_partition_before_its_manager_is_ready() {
        let bytes = batch();
        let client = IncomingBatch::parse(&bytes).unwrap();
        let internal = IncomingBatch::parse_internal(&bytes).unwrap();
        let marker = Marker {
            producer_id: 7,
            producer_epoch: 0,
            timestamp_ms: 1,
            outcome: mainstem_coordinator::producer::Outcome::Commit,
            coordinator_epoch: 0,
        };
        let mut stores = stores();
        let mut partitions = open(&mut stores, true);
        for assigned_to in [None, Some(2)] {
            // The log ends at 0.
            if let Some(assigned_to) = assigned_to {
                partitions.admit(ID, Admission { assigned_to, records: 9, bytes: 999 });
            }
            let store = &mut *stores[0].store;
            assert!(partitions.get(&ID).unwrap().awaits_manager(store));
            let outcome = partitions.get_mut(&ID).unwrap().mark(store, &marker, 1, waiter(0));
            assert_eq!(outcome, Err(PartitionError::NotReady));
            for incoming in [&client, &internal] {
                let refused = append_here(&mut partitions, &mut stores, incoming);
                assert_eq!(refused, Err(PartitionError::NotReady), "{assigned_to:?}");
            }
        }
        let mut gap = BatchBuilder::default();
        gap.push(1, None, None);
        gap.push(1, None, None);
        partitions.get_mut(&ID).unwrap().append_gap(&mut *stores[0].store, gap.finish()).unwrap();
        assert!(!partitions.get(&ID).unwrap().awaits_manager(&*stores[0].store));
        assert_eq!(append_here(&mut partitions, &mut stores, &client), Ok(Accepted::Pending { end: 3 }));
    }

    #[test]
    fn batches_of_clients_share_the_room_that_the_manager_admits() {
        let bytes = batch();
        let client = IncomingBatch::parse(&bytes).unwrap();
        let internal = IncomingBatch::parse_internal(&bytes).unwrap();
        let len = bytes.len() as u64;
        for (records, bytes) in [(2, 9 * len), (9, 2 * len)] {
            let mut stores = stores();
            let mut partitions = open(&mut stores, true);
            let admission = Admission { assigned_to: 0, records, bytes };
            partitions.admit(ID, admission);
            for end in 1..3 {
                let accepted = append_here(&mut partitions, &mut stores, &client);
                assert_eq!(accepted, Ok(Accepted::Pending { end }));
            }
            assert_eq!(append_here(&mut partitions, &mut stores, &client), Err(PartitionError::Full));
            let accepted = append_here(&mut partitions, &mut stores, &internal);
            assert_eq!(
                accepted,
                Ok(Accepted::Pending { end: 3 }),
                "the manager has admitted its own batches"
            );
            partitions.admit(ID, admission);
            assert!(append_here(&mut partitions, &mut stores, &client).is_ok());
        }
    }

    #[test]
    fn a_retry_is_recognized_in_a_full_partition_and_a_refused_batch_leaves_no_gap_in_its_sequence() {
        let send = |partitions: &mut Partitions, stores: &mut [StoreAt], base_sequence| {
            let kind = mainstem_log::BatchKind::Plain;
            let origin = mainstem_log::Origin { producer_id: 7, producer_epoch: 0, base_sequence, kind };
            let mut builder = BatchBuilder::default();
            builder.push(1, None, Some(b"value"));
            let bytes = builder.finish_as(&origin).bytes().to_vec();
            append_here(partitions, stores, &IncomingBatch::parse(&bytes).unwrap())
        };
        let mut stores = stores();
        let mut partitions = open(&mut stores, true);
        let admission = Admission { assigned_to: 0, records: 1, bytes: 999 };
        partitions.admit(ID, admission);
        assert_eq!(send(&mut partitions, &mut stores, 0), Ok(Accepted::Pending { end: 1 }));
        assert_eq!(send(&mut partitions, &mut stores, 0), Ok(Accepted::Pending { end: 1 }), "the same batch");
        assert_eq!(send(&mut partitions, &mut stores, 1), Err(PartitionError::Full));
        partitions.admit(ID, admission);
        assert_eq!(send(&mut partitions, &mut stores, 1), Ok(Accepted::Pending { end: 2 }));
    }

    #[test]
    fn watchers_of_a_partition_without_a_log_keep_waiting_when_it_is_created() {
        let mut stores = stores();
        let mut partitions = Partitions::restore(&mut stores, ProducerLimits::default()).unwrap();
        let other = JobId { job: 8, ..WATCHER };
        partitions.watch(ID, WATCHER);
        partitions.watch(ID, other);
        partitions.unwatch(ID, other);
        let spec = PartitionSpec { id: ID, topic: "topic".into(), config: config(false), store: 0 };
        partitions.open(spec, &mut *stores[0].store, 1).unwrap();
        let bytes = batch();
        append(&mut partitions, &mut stores, &IncomingBatch::parse(&bytes).unwrap(), 0);
        assert_eq!(commit(&mut partitions, &mut stores).1, [WATCHER]);
    }

    #[test]
    fn deleting_a_partition_ends_its_appends_and_wakes_its_watchers() {
        let mut stores = stores();
        let mut partitions = open(&mut stores, false);
        partitions.watch(ID, WATCHER);
        let bytes = batch();
        append(&mut partitions, &mut stores, &IncomingBatch::parse(&bytes).unwrap(), 0);
        let mut results = Vec::new();
        let (log, woken) = partitions.remove(ID, &mut results);
        assert_eq!(log.map(|(store, _)| store), Some(0));
        assert_eq!(woken, [WATCHER]);
        assert_eq!(
            results,
            [AppendResult { waiter: waiter(0), outcome: Err(PartitionError::UnknownPartition) }]
        );
        assert!(partitions.get(&ID).is_none());
        assert_eq!(commit(&mut partitions, &mut stores).0, [], "its completion finds nothing");
    }
}
