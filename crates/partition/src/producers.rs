//! Producer state of a partition across restarts.
//!
//! The broker must recognize the retry of a batch after a restart too, so the state of the producers must survive one.
//! Reading the whole log would restore it, but takes too long. This file rebuilds the state machine,
//! [`mainstem_coordinator::producer::Producers`], from a snapshot and the part of the log that follows it. The result
//! equals the state that the whole log gives.
//!
//! This file also decides when the next snapshot is due: when reading the new bytes would take longer than writing a
//! snapshot, or when the start of the log has moved.

use std::ops::Range;

use mainstem_coordinator::producer::{Limits, PRODUCER_BYTES, Producers};
use mainstem_log::{Batch, Durability, Error, LogId, Store, batches};

use crate::incoming::batch_info;
use crate::marker::marker_of;
use crate::snapshots::{DueSnapshot, ProducerSnapshot};

/// Bytes per read when a partition is opened.
const READ_BYTES: usize = 1024 * 1024;
/// A snapshot is due after this many appended bytes, or this many times its own size, whichever is more.
const SNAPSHOT_BYTES: u64 = 4 * 1024 * 1024;
const SNAPSHOT_FACTOR: u64 = 8;
/// Whether the broker is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsLast {
    /// Take a snapshot of everything that has changed.
    Yes,
    /// Take a snapshot if it is due.
    No,
}

/// The producers of a partition, and the schedule of their snapshots.
#[derive(Debug)]
pub(crate) struct PartitionProducers {
    pub(crate) state: Producers,
    bytes_since_snapshot: u64,
    snapshot_bytes: u64,
    /// The log start has moved since the last snapshot, which must not be older than the start.
    is_due: bool,
    start: u64,
}

/// Limits on the producers of all partitions of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerLimits {
    /// Memory of their state, bytes.
    pub bytes: usize,
    /// Idle time after which a producer expires, ms (`producer.id.expiration.ms`).
    pub expiration_ms: u64,
}

impl Default for ProducerLimits {
    fn default() -> Self {
        Self { bytes: 64 * 1024 * 1024, expiration_ms: Limits::default().expiration_ms }
    }
}

impl ProducerLimits {
    /// Most producers.
    pub(crate) fn count(&self) -> usize {
        (self.bytes / PRODUCER_BYTES).max(1)
    }

    fn of_partition(&self) -> Limits {
        Limits { expiration_ms: self.expiration_ms, ..Limits::default() }
    }
}

impl PartitionProducers {
    /// Rebuilds the state from a snapshot and the log.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) fn rebuild(
        store: &mut dyn Store,
        log: LogId,
        snapshot: &ProducerSnapshot,
        limits: &ProducerLimits,
        unix_ms: u64,
    ) -> Result<Self, Error> {
        if store.status(log).start < snapshot.start {
            store.truncate_prefix(log, snapshot.start)?;
        }
        let status = store.status(log);
        let mut from = status.start;
        let mut producers = Producers::new(limits.of_partition());
        let bytes = snapshot.state.as_deref();
        if let Some(bytes) = bytes {
            match Producers::restore(limits.of_partition(), bytes) {
                Ok((restored, offset)) if (status.start..=status.end).contains(&offset) => {
                    producers = restored;
                    from = offset;
                }
                // Batches between snapshot and log start are gone, so producers may begin with any sequence number.
                Ok((_, offset)) if offset < status.start => {}
                Ok(_) => log::info!("a producer snapshot is ahead of its log; the log is read instead"),
                Err(error) => log::error!("a producer snapshot cannot be read: {error}"),
            }
        }
        producers.truncate_prefix(status.start);
        let mut limited = |batch: &Batch<'_>| {
            apply(&mut producers, batch, unix_ms);
            producers.evict_idle(producers.len().saturating_sub(limits.count()));
        };
        let bytes_since_snapshot = replay(store, log, from..status.end, &mut limited)?;
        producers.mark_durable(status.end);
        Ok(Self {
            state: producers,
            bytes_since_snapshot,
            snapshot_bytes: due_bytes(bytes.map_or(0, <[u8]>::len)),
            is_due: false,
            start: status.start,
        })
    }

    pub(crate) fn on_appended(&mut self, bytes: usize) {
        self.bytes_since_snapshot += bytes as u64;
    }

    /// The log starts at `start` now.
    pub(crate) fn on_start_advanced(&mut self, start: u64) {
        if start > self.start {
            self.start = start;
            self.is_due = true;
            self.state.truncate_prefix(start);
        }
    }

    /// Expires idle producers, and returns a snapshot of everything below `durable` and the log start, if it is due.
    pub(crate) fn maintain(&mut self, unix_ms: u64, durable: u64, is_last: IsLast) -> Option<DueSnapshot> {
        self.state.expire(unix_ms);
        let due_from = if is_last == IsLast::Yes { 1 } else { self.snapshot_bytes };
        if self.bytes_since_snapshot < due_from && !self.is_due {
            return None;
        }
        let replaces_records = std::mem::take(&mut self.is_due) && !self.state.is_empty();
        let durability = if replaces_records { Durability::Fsync } else { Durability::Os };
        let state = self.state.snapshot(durable);
        self.bytes_since_snapshot = 0;
        self.snapshot_bytes = due_bytes(state.len());
        Some(DueSnapshot { state, start: self.start, durability })
    }
}

/// Bytes to append before the next snapshot, after one of `snapshot_bytes`.
fn due_bytes(snapshot_bytes: usize) -> u64 {
    SNAPSHOT_BYTES.max(snapshot_bytes as u64 * SNAPSHOT_FACTOR)
}

/// Applies the batches in a range of the log and returns their size in bytes.
fn replay(
    store: &mut dyn Store,
    log: LogId,
    offsets: Range<u64>,
    apply: &mut dyn FnMut(&Batch<'_>),
) -> Result<u64, Error> {
    let (mut next, mut read, mut bytes) = (offsets.start, 0, Vec::new());
    while next < offsets.end {
        bytes.clear();
        match store.read(log, next..offsets.end, READ_BYTES, &mut bytes) {
            Ok(()) => {}
            Err(Error::Corrupt { offset }) => {
                log::error!("producer state: the log cannot be read from offset {offset} on");
                break;
            }
            Err(error) => return Err(error),
        }
        read += bytes.len() as u64;
        let before = next;
        for batch in batches(&bytes) {
            apply(&batch);
            next = batch.header.end_offset();
        }
        if next == before {
            break;
        }
    }
    Ok(read)
}

fn apply(producers: &mut Producers, batch: &Batch<'_>, unix_ms: u64) {
    if batch.header.producer_id < 0 {
        return;
    }
    let base_offset = batch.header.base_offset;
    if !batch.header.is_control() {
        producers.on_batch_appended(&batch_info(&batch.header), base_offset, unix_ms);
    } else if let Some(marker) = marker_of(batch) {
        producers.on_marker_appended(&marker, base_offset, unix_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstem_coordinator::producer::TxnVerification;
    use mainstem_log::{
        BatchBuilder, BatchKind, Completion, LogAdmin, LogReader, MemoryStore, Origin, Ticket,
    };

    use super::*;
    use crate::config::PartitionConfig;
    use crate::ids::{JobId, PartitionId, TopicId};
    use crate::incoming::IncomingBatch;
    use crate::partition::{Accepted, Partition, PartitionSpec, Waiter};

    const WAITER: Waiter = Waiter { job: JobId { shard: 0, job: 1 }, part: 0 };

    fn partition(store: &mut MemoryStore) -> Partition {
        let id = PartitionId { topic: TopicId([1; 16]), index: 0 };
        let config = Arc::new(PartitionConfig::default());
        let spec = PartitionSpec { id, topic: "topic".into(), config, store: 0 };
        let limits = ProducerLimits::default();
        Partition::open(spec, store, &ProducerSnapshot::default(), &limits, 1).unwrap()
    }

    fn append(partition: &mut Partition, store: &mut MemoryStore, base_sequence: i32) -> Accepted {
        let mut builder = BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        let origin = Origin { producer_id: 7, producer_epoch: 0, base_sequence, kind: BatchKind::Plain };
        let batch = builder.finish_as(&origin);
        let incoming = IncomingBatch::parse(batch.bytes()).unwrap();
        partition.append(store, &incoming, 1, TxnVerification::Unknown, WAITER).unwrap()
    }

    /// Commits, and returns the base offsets of the appends that became durable.
    fn commit(partition: &mut Partition, store: &mut MemoryStore) -> Vec<u64> {
        let (mut completions, mut results) = (Vec::new(), Vec::new());
        store.commit();
        store.completions(&mut completions);
        for completion in completions {
            partition.on_completion(&completion, &mut results);
        }
        results.into_iter().map(|result| result.outcome.unwrap().base_offset).collect()
    }

    #[test]
    fn batches_lost_by_a_failed_write_can_be_resent() {
        let mut store = MemoryStore::new();
        let mut partition = partition(&mut store);
        assert_eq!(append(&mut partition, &mut store, 0), Accepted::Pending { end: 1 });
        assert_eq!(commit(&mut partition, &mut store), [0]);
        assert_eq!(append(&mut partition, &mut store, 1), Accepted::Pending { end: 2 });
        assert_eq!(
            append(&mut partition, &mut store, 1),
            Accepted::Pending { end: 2 },
            "a duplicate in flight"
        );
        assert_eq!(store.status(partition.log()).end, 2);
        store.truncate_suffix(partition.log(), 1).unwrap();
        let lost = Completion { log: partition.log(), ticket: Ticket(u64::MAX), outcome: Err(Error::Full) };
        let mut results = Vec::new();
        partition.on_completion(&lost, &mut results);
        assert_eq!(results.len(), 2);
        assert!(results.iter().all(|result| result.outcome.is_err()));
        let Accepted::Durable(info) = append(&mut partition, &mut store, 0) else {
            panic!("the first batch is durable")
        };
        assert_eq!(info.base_offset, 0);
        assert_eq!(append(&mut partition, &mut store, 1), Accepted::Pending { end: 2 });
        assert_eq!(store.status(partition.log()).end, 2);
    }

    #[test]
    fn append_after_lost_records_does_not_wait_for_their_completion() {
        let mut store = MemoryStore::new();
        let mut partition = partition(&mut store);
        append(&mut partition, &mut store, 0);
        store.truncate_suffix(partition.log(), 0).unwrap();
        assert_eq!(append(&mut partition, &mut store, 0), Accepted::Pending { end: 1 });
        assert_eq!(store.status(partition.log()).end, 1);
        commit(&mut partition, &mut store);
        assert_eq!(partition.high_watermark(), 1);
    }

    #[test]
    fn snapshot_and_later_log_restore_the_producer_state() {
        let mut store = MemoryStore::new();
        let mut partition = partition(&mut store);
        let mut snapshots = Vec::new();
        for sequence in 0..4 {
            append(&mut partition, &mut store, sequence);
            commit(&mut partition, &mut store);
            snapshots.extend(partition.snapshot_if_due(1, IsLast::Yes).map(|due| due.state));
        }
        assert_eq!(snapshots.len(), 4);
        let described = partition.producers();
        let rebuild = |store: &mut MemoryStore, snapshot: Option<&[u8]>, start: u64| {
            let snapshot = ProducerSnapshot { state: snapshot.map(<[u8]>::to_vec), start };
            let limits = ProducerLimits::default();
            let rebuilt = PartitionProducers::rebuild(store, partition.log(), &snapshot, &limits, 1);
            rebuilt.unwrap().state.describe()
        };
        assert_eq!(rebuild(&mut store, None, 0), described);
        for snapshot in &snapshots {
            assert_eq!(rebuild(&mut store, Some(snapshot), 0), described);
        }
        assert_eq!(rebuild(&mut store, Some(b"nonsense"), 0), described);
        store.truncate_suffix(partition.log(), 2).unwrap();
        let known = rebuild(&mut store, snapshots.last().map(Vec::as_slice), 0);
        assert_eq!(known[0].last_sequence, 1, "the snapshot is ahead of the log");
    }

    #[test]
    fn deleted_records_do_not_reappear_from_a_snapshot() {
        let mut store = MemoryStore::new();
        let mut partition = partition(&mut store);
        append(&mut partition, &mut store, 0);
        commit(&mut partition, &mut store);
        let limits = ProducerLimits::default();
        let snapshot = partition.snapshot_if_due(1, IsLast::Yes).map(|due| due.state);
        append(&mut partition, &mut store, 1);
        commit(&mut partition, &mut store);
        let log = partition.log();
        let mut rebuild = |snapshot: &Option<Vec<u8>>, start| {
            let snapshot = ProducerSnapshot { state: snapshot.clone(), start };
            let producers = PartitionProducers::rebuild(&mut store, log, &snapshot, &limits, 1).unwrap();
            (producers.state.describe().len(), store.status(log).start)
        };
        assert_eq!(rebuild(&snapshot, 0), (1, 0));
        assert_eq!(rebuild(&snapshot, 2), (0, 2), "the second record was deleted");

        partition.on_start_advanced(&store);
        let later = partition.snapshot_if_due(1, IsLast::No);
        let later = later.expect("a snapshot is due when the log start has moved");
        assert_eq!(later.durability, Durability::Fsync, "only the snapshot has the producer now");
        assert!(partition.snapshot_if_due(1, IsLast::No).is_none());
        let snapshot = ProducerSnapshot { state: Some(later.state), start: 2 };
        let producers = PartitionProducers::rebuild(&mut store, log, &snapshot, &limits, 1).unwrap();
        assert_eq!(producers.state.len(), 1);
    }
}
