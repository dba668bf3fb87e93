//! Producer snapshots: the producer state of partitions in a compacted log of their store.
//!
//! A snapshot shortens the startup: a partition reads its log from the snapshot's offset instead of from the
//! beginning. The loss of such a snapshot costs only time, so the log of snapshots is not synced. After records were
//! deleted, however, the snapshot is the only source of their producers' state. It is synced with the commit of its
//! turn, before the store deletes anything.
//!
//! A snapshot is stored together with the start of its partition's log. The store may lose a recent truncation in a
//! crash, and records that were deleted must not reappear in the producer state.

use std::collections::HashMap;

use mainstem_log::{Completion, Durability, Error, Store};

use crate::compacted_log::{CompactedLog, Outcome};
use crate::ids::{PartitionId, TopicId};

/// The log of snapshots, in each store.
const LOG: &str = "kafka-producers";
/// Suffix of the key that stores the start of a partition's log.
const START: &[u8] = b"start";

/// The snapshots of one store's partitions.
pub(crate) struct ProducerSnapshots {
    log: CompactedLog<()>,
    /// Snapshots of partitions that have not been opened.
    unopened: HashMap<PartitionId, ProducerSnapshot>,
}

/// The stored state of a partition's producers.
#[derive(Debug, Default)]
pub(crate) struct ProducerSnapshot {
    pub(crate) state: Option<Vec<u8>>,
    /// Start of the partition's log when the snapshot was taken.
    pub(crate) start: u64,
}

/// A snapshot to store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DueSnapshot {
    pub(crate) state: Vec<u8>,
    /// Start of the partition's log.
    pub(crate) start: u64,
    /// Whether the snapshot is synced.
    pub(crate) durability: Durability,
}

fn key(id: PartitionId) -> Vec<u8> {
    [&id.topic.0[..], &id.index.to_be_bytes()].concat()
}

fn start_key(id: PartitionId) -> Vec<u8> {
    [&key(id)[..], START].concat()
}

/// The partition of a key, and the suffix.
fn parse_key(key: &[u8]) -> Option<(PartitionId, &[u8])> {
    let (topic, rest) = key.split_first_chunk::<16>()?;
    let (index, rest) = rest.split_first_chunk()?;
    Some((PartitionId { topic: TopicId(*topic), index: i32::from_be_bytes(*index) }, rest))
}

impl ProducerSnapshots {
    /// Reads the snapshots of a store.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) fn open(store: &mut dyn Store) -> Result<Self, Error> {
        let mut unopened = HashMap::<_, ProducerSnapshot>::new();
        let log = CompactedLog::open(store, LOG, Durability::Os, |key, value| {
            let Some((id, suffix)) = parse_key(key) else { return };
            let snapshot = unopened.entry(id).or_default();
            if suffix == START {
                let start = value.and_then(|value| value.try_into().ok());
                snapshot.start = start.map_or(0, u64::from_be_bytes);
            } else {
                snapshot.state = value.map(<[u8]>::to_vec);
            }
        })?;
        unopened.retain(|_, snapshot| snapshot.state.is_some());
        Ok(Self { log, unopened })
    }

    /// Takes the snapshot of a partition that is about to be opened.
    pub(crate) fn take(&mut self, id: PartitionId) -> ProducerSnapshot {
        self.unopened.remove(&id).unwrap_or_default()
    }

    /// Stores a snapshot, with the start of the partition's log.
    pub(crate) fn append(&mut self, store: &mut dyn Store, unix_ms: u64, id: PartitionId, due: DueSnapshot) {
        let start = due.start.to_be_bytes().to_vec();
        if due.durability == Durability::Fsync {
            self.log.force_sync(store);
        }
        // One batch holds both records, so neither exists without the other.
        self.log.append(store, unix_ms, &[(key(id), Some(due.state)), (start_key(id), Some(start))], ());
    }

    /// Removes the snapshot of a deleted partition.
    pub(crate) fn remove(&mut self, store: &mut dyn Store, unix_ms: u64, id: PartitionId) {
        self.unopened.remove(&id);
        self.log.append(store, unix_ms, &[(key(id), None), (start_key(id), None)], ());
    }

    /// Appends the snapshots of this turn.
    pub(crate) fn store_pending(&mut self, store: &mut dyn Store) {
        self.log.store_pending(store);
        let mut outcomes = Vec::new();
        self.log.take_failed(&mut outcomes);
        log_failure(&outcomes);
    }

    /// Handles a completion. Returns false if it is of another log.
    pub(crate) fn on_completion(&mut self, completion: &Completion) -> bool {
        let mut outcomes = Vec::new();
        let is_own = self.log.on_completion(completion, &mut outcomes);
        log_failure(&outcomes);
        is_own
    }
}

fn log_failure(outcomes: &[Outcome<()>]) {
    if let Some(((), Err(error))) = outcomes.iter().find(|((), outcome)| outcome.is_err()) {
        log::warn!("a producer snapshot cannot be stored: {error}");
    }
}
