//! The partitions of one shard.
//!
//! Owns the open partitions, the index from logs to partitions, the producer snapshots of each store, and the fetches
//! parked on partitions that have no log yet. Stores belong to the caller, because other logs of the shard share them;
//! every call that needs one takes it as a parameter.
//!
//! # Managed partitions
//! A component of the broker may manage a partition ([`crate::PartitionConfig::is_managed`]), for example a work queue.
//! Its appends and its progress are collected as [`PartitionEvent`]s, which the component takes when it runs. In return
//! it states what clients may append, as an [`Admission`]; nothing is appended before it has done so. Plain partitions
//! collect and check nothing, so the component costs them nothing.

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use mainstem_coordinator::producer::TxnVerification;
use mainstem_log::{Completion, Error, LogId, Store, StoreAt};

use crate::admission::Admission;
use crate::config::PartitionConfig;
use crate::error::PartitionError;
use crate::ids::{JobId, PartitionId};
use crate::incoming::IncomingBatch;
use crate::partition::{Accepted, AppendResult, Partition, PartitionSpec, Waiter};
use crate::producers::IsLast;
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
    /// Fetches parked on partitions that have no log yet.
    uncreated: FastMap<PartitionId, Vec<JobId>>,
    events: Vec<PartitionEvent>,
}

impl Partitions {
    /// Reads the producer snapshots of the shard's stores. No partition is open yet.
    ///
    /// # Errors
    /// A store fails.
    pub fn restore(stores: &mut [StoreAt]) -> Result<Self, Error> {
        let snapshots = stores.iter_mut().map(|at| ProducerSnapshots::open(&mut *at.store));
        Ok(Self {
            open: FastMap::default(),
            by_log: FastMap::default(),
            snapshots: snapshots.collect::<Result<_, Error>>()?,
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
        let mut partition = Partition::open(spec, store, &snapshot, unix_ms)?;
        for watcher in self.uncreated.remove(&id).unwrap_or_default() {
            partition.watch(watcher);
        }
        self.by_log.insert((store_index, partition.log()), id);
        self.open.insert(id, partition);
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
        let partition = self.open.get_mut(&id).ok_or(PartitionError::UnknownPartition)?;
        let accepted = partition.append(store, incoming, unix_ms, verification, waiter)?;
        let is_appended = !matches!(accepted, Accepted::Unverified(_));
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
        let has_advanced = partition.on_completion(completion, results);
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

    /// Expires idle producers and takes the snapshots that are due.
    pub fn maintain(&mut self, stores: &mut [StoreAt], unix_ms: u64, is_last: IsLast) {
        for partition in self.open.values_mut() {
            let at = partition.store_index();
            let store = &mut *stores[at].store;
            if partition.has_producers() {
                partition.on_start_advanced(store);
            }
            take_snapshot(&mut self.snapshots[at], store, unix_ms, partition, is_last);
        }
    }

    /// Takes a snapshot after records were deleted, so that a restart does not restore their producer state.
    pub fn on_start_advanced(&mut self, stores: &mut [StoreAt], unix_ms: u64, id: PartitionId) {
        let Some(partition) = self.open.get_mut(&id) else { return };
        let at = partition.store_index();
        let store = &mut *stores[at].store;
        partition.on_start_advanced(store);
        take_snapshot(&mut self.snapshots[at], store, unix_ms, partition, IsLast::No);
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
    if let Some((state, start)) = partition.snapshot_if_due(unix_ms, is_last) {
        snapshots.append(store, unix_ms, partition.id(), state, start);
    }
}

#[cfg(test)]
mod tests {
    use mainstem_coordinator::producer::Marker;
    use mainstem_log::{BatchBuilder, MemoryStore};

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
        let mut partitions = Partitions::restore(stores).unwrap();
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
        let mut partitions = Partitions::restore(&mut stores).unwrap();
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
