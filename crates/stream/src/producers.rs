//! What partitions know of their producers, over restarts: snapshots in a log of their store, and what the
//! partition's own log tells from there on.

use std::collections::HashMap;

use mainstem_coordinator::producer::{Data, Limits, Marker, Outcome, Producers};
use mainstem_kafka::{Uuid, record};
use mainstem_log::{Batch, BatchHeader, Completion, Durability, Error, LogId, Store, batches};

use crate::catalogue::PartitionId;
use crate::kept::Kept;
use crate::partition::Partition;

/// The log of snapshots, in each store.
const LOG: &str = "kafka-producers";
/// What follows a partition in the key of its log's start.
const START: &[u8] = b"start";
/// Bytes read at once when a partition is opened.
const READ_BYTES: usize = 1024 * 1024;
/// A snapshot is taken again after so many bytes, or so many times its own size.
const AGAIN_BYTES: u64 = 4 * 1024 * 1024;
const AGAIN_FACTOR: u64 = 8;
/// How often silent producers are looked for, ms.
const EXPIRE_EVERY_MS: u64 = 10 * 60 * 1000;

/// The snapshots of one store's partitions.
pub(crate) struct Snapshots {
    kept: Kept<()>,
    /// Those of partitions that have not been opened.
    found: HashMap<PartitionId, Found>,
}

/// What is known of a partition that is opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    snapshot: Option<Vec<u8>>,
    /// Where its log was to start when the snapshot was taken; a store may have lost that. What the snapshot has
    /// forgotten lies before.
    start: u64,
}

fn key(id: PartitionId) -> Vec<u8> {
    [&id.topic.0[..], &id.index.to_be_bytes()].concat()
}

/// The key under which it stands where the log starts.
fn start_key(id: PartitionId) -> Vec<u8> {
    [&key(id)[..], START].concat()
}

/// The partition of a key, and what follows it there.
fn partition_of(key: &[u8]) -> Option<(PartitionId, &[u8])> {
    let (topic, rest) = key.split_first_chunk::<16>()?;
    let (index, rest) = rest.split_first_chunk()?;
    Some((PartitionId { topic: Uuid(*topic), index: i32::from_be_bytes(*index) }, rest))
}

impl Snapshots {
    /// Reads what there is.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn open(store: &mut dyn Store) -> Result<Self, Error> {
        let mut found = HashMap::<_, Found>::new();
        // A snapshot that is lost costs the reading of more of its partition, so it need not be synced.
        let kept = Kept::open(store, LOG, Durability::Os, |key, value| {
            let Some((id, rest)) = partition_of(key) else { return };
            let known: &mut Found = found.entry(id).or_default();
            if rest == START {
                let start = value.and_then(|value| value.try_into().ok());
                known.start = start.map_or(0, u64::from_be_bytes);
            } else {
                known.snapshot = value.map(<[u8]>::to_vec);
            }
        })?;
        found.retain(|_, found| found.snapshot.is_some());
        Ok(Self { kept, found })
    }

    /// Takes what is known of a partition that is about to be opened.
    pub(crate) fn take(&mut self, id: PartitionId) -> Found {
        self.found.remove(&id).unwrap_or_default()
    }

    /// Takes a new snapshot of a partition, if one is due.
    pub(crate) fn tend(
        &mut self,
        store: &mut dyn Store,
        unix_ms: u64,
        partition: &mut Partition,
        is_last: IsLast,
    ) {
        let Partition { id, high_watermark, ref mut known, .. } = *partition;
        let Some(snapshot) = known.tend(unix_ms, high_watermark, is_last) else { return };
        let start = known.start.to_be_bytes().to_vec();
        // Both in one batch: neither is there without the other.
        self.kept.keep(store, unix_ms, &[(key(id), Some(snapshot)), (start_key(id), Some(start))], ());
    }

    /// Forgets a partition that is no more.
    pub(crate) fn remove(&mut self, store: &mut dyn Store, unix_ms: u64, id: PartitionId) {
        self.found.remove(&id);
        self.kept.keep(store, unix_ms, &[(key(id), None), (start_key(id), None)], ());
    }

    /// Hands the store what has been gathered in this turn.
    pub(crate) fn store_kept(&mut self, store: &mut dyn Store) {
        self.kept.store(store);
        let mut refused = Vec::new();
        self.kept.take_refused(&mut refused);
        note(&refused);
    }

    /// Takes note of a completion. False if it is of another log.
    pub(crate) fn arrived(&mut self, completion: &Completion) -> bool {
        let mut told = Vec::new();
        let is_mine = self.kept.arrived(completion, &mut told);
        note(&told);
        is_mine
    }
}

fn note(told: &[crate::kept::Outcome<()>]) {
    if let Some(((), Err(error))) = told.iter().find(|((), outcome)| outcome.is_err()) {
        log::warn!("a snapshot of producers is not kept: {error}");
    }
}

/// A partition's producers, and when to do what about them.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) producers: Producers,
    /// Bytes appended since the last snapshot.
    since_bytes: u64,
    again_bytes: u64,
    /// The log starts later than at the last snapshot, which is not to be older than that.
    is_due: bool,
    start: u64,
    expired_ms: u64,
}

impl Known {
    /// Finds out what a partition's log says of its producers, from a snapshot on if there is one.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn rebuild(
        store: &mut dyn Store,
        log: LogId,
        found: &Found,
        unix_ms: u64,
    ) -> Result<Self, Error> {
        if store.status(log).start < found.start {
            store.truncate_prefix(log, found.start)?;
        }
        let snapshot = found.snapshot.as_deref();
        let status = store.status(log);
        let mut from = status.start;
        let mut producers = Producers::new(Limits::default());
        if let Some(snapshot) = snapshot {
            match Producers::restore(Limits::default(), snapshot) {
                Ok((restored, offset)) if (status.start..=status.end).contains(&offset) => {
                    producers = restored;
                    from = offset;
                }
                // What they wrote in between is gone: they may begin anywhere.
                Ok((_, offset)) if offset < status.start => {}
                Ok(_) => log::info!("a snapshot of producers is ahead of its log, which is read instead"),
                Err(error) => log::error!("a snapshot of producers cannot be read: {error}"),
            }
        }
        producers.truncate_prefix(status.start);
        let since_bytes = tell_all(store, log, from..status.end, &mut producers, unix_ms)?;
        producers.durable(status.end);
        let again_bytes = again_bytes(snapshot.map_or(0, <[u8]>::len));
        Ok(Self {
            producers,
            since_bytes,
            again_bytes,
            is_due: false,
            start: status.start,
            expired_ms: unix_ms,
        })
    }

    /// Takes note of an append.
    pub(crate) fn grown(&mut self, bytes: usize) {
        self.since_bytes += bytes as u64;
    }

    /// The log starts at `start` now.
    pub(crate) fn started(&mut self, start: u64) {
        if start > self.start {
            self.start = start;
            self.is_due = true;
            self.producers.truncate_prefix(start);
        }
    }

    /// Does what is due by itself: a snapshot, of what is below `durable`, if there is much that it does not tell,
    /// or anything and `is_last`.
    pub(crate) fn tend(&mut self, unix_ms: u64, durable: u64, is_last: IsLast) -> Option<Vec<u8>> {
        if unix_ms.saturating_sub(self.expired_ms) >= EXPIRE_EVERY_MS {
            self.producers.expire(unix_ms);
            self.expired_ms = unix_ms;
        }
        let least = if is_last == IsLast::Yes { 1 } else { self.again_bytes };
        if self.since_bytes < least && !self.is_due {
            return None;
        }
        self.is_due = false;
        let snapshot = self.producers.snapshot(durable);
        self.since_bytes = 0;
        self.again_bytes = again_bytes(snapshot.len());
        Some(snapshot)
    }
}

/// Whether the process is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsLast {
    Yes,
    No,
}

fn again_bytes(snapshot_bytes: usize) -> u64 {
    AGAIN_BYTES.max(snapshot_bytes as u64 * AGAIN_FACTOR)
}

/// Tells of all batches in a part of a log; returns how many bytes they were.
fn tell_all(
    store: &mut dyn Store,
    log: LogId,
    offsets: std::ops::Range<u64>,
    producers: &mut Producers,
    unix_ms: u64,
) -> Result<u64, Error> {
    let (mut next, mut read, mut bytes) = (offsets.start, 0, Vec::new());
    while next < offsets.end {
        bytes.clear();
        match store.read(log, next..offsets.end, READ_BYTES, &mut bytes) {
            Ok(()) => {}
            Err(Error::Corrupt { offset }) => {
                log::error!("what producers wrote from offset {offset} on cannot be read");
                break;
            }
            Err(error) => return Err(error),
        }
        read += bytes.len() as u64;
        let before = next;
        for batch in batches(&bytes) {
            tell(producers, &batch, unix_ms);
            next = batch.header.end_offset();
        }
        if next == before {
            break;
        }
    }
    Ok(read)
}

fn tell(producers: &mut Producers, batch: &Batch<'_>, unix_ms: u64) {
    let BatchHeader { producer_id, producer_epoch, base_offset, .. } = batch.header;
    if producer_id < 0 {
        return;
    }
    if !batch.header.is_control() {
        return producers.appended(&data(&batch.header), base_offset, unix_ms);
    }
    let marker = batch.records().next().and_then(Result::ok);
    let Some(Ok(Some(found))) = marker.map(|record| record::Marker::parse(&record)) else { return };
    let marker = Marker {
        producer_id,
        producer_epoch,
        coordinator_epoch: found.coordinator_epoch,
        outcome: match found.outcome {
            record::Outcome::Commit => Outcome::Commit,
            record::Outcome::Abort => Outcome::Abort,
        },
        timestamp_ms: batch.header.max_timestamp_ms,
    };
    producers.ended(&marker, base_offset, unix_ms);
}

/// What of a batch's header matters to producers.
pub(crate) fn data(header: &BatchHeader) -> Data {
    Data {
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        last_offset_delta: header.last_offset_delta,
        max_timestamp_ms: header.max_timestamp_ms,
        is_transactional: header.is_transactional(),
    }
}

/// A marker as the format of batches has it.
pub(crate) fn on_log(marker: &Marker) -> record::Marker {
    record::Marker {
        outcome: match marker.outcome {
            Outcome::Commit => record::Outcome::Commit,
            Outcome::Abort => record::Outcome::Abort,
        },
        coordinator_epoch: marker.coordinator_epoch,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use mainstem_coordinator::producer::Membership;
    use mainstem_log::{BatchBuilder, BatchKind, Memory, Origin, Ticket};

    use super::*;
    use crate::catalogue::Topic;
    use crate::config::Config;
    use crate::partition::Taken;
    use crate::topic_config::TopicConfig;

    fn partition(store: &mut Memory) -> Partition {
        let config = TopicConfig::new(BTreeMap::new(), &Config::default());
        let topic = Topic { name: "topic".into(), id: Uuid([1; 16]), homes: vec![0], config };
        Partition::open(&Arc::new(topic), 0, 0, store, &Found::default(), 1).unwrap()
    }

    fn batch(base_sequence: i32) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        let origin = Origin { producer_id: 7, producer_epoch: 0, base_sequence, kind: BatchKind::Plain };
        builder.finish_as(&origin).bytes().to_vec()
    }

    fn append(partition: &mut Partition, store: &mut Memory, base_sequence: i32) -> Taken {
        partition.append(store, &batch(base_sequence), 1, Membership::Unknown).unwrap()
    }

    fn commit(partition: &mut Partition, store: &mut Memory) {
        let mut completions = Vec::new();
        store.commit();
        store.completions(&mut completions);
        for completion in completions {
            partition.arrived(&completion, |_, _| {});
        }
    }

    #[test]
    fn what_the_disk_has_lost_can_be_sent_again() {
        let mut store = Memory::new();
        let mut partition = partition(&mut store);
        append(&mut partition, &mut store, 0);
        commit(&mut partition, &mut store);
        append(&mut partition, &mut store, 1);
        assert!(matches!(append(&mut partition, &mut store, 1), Taken::Duplicate { end: 2, .. }));
        store.truncate_suffix(partition.log, 1).unwrap();
        let lost = Completion { log: partition.log, ticket: Ticket(u64::MAX), outcome: Err(Error::Full) };
        partition.arrived(&lost, |_, _| {});
        assert!(matches!(append(&mut partition, &mut store, 0), Taken::Duplicate { end: 1, .. }));
        assert!(matches!(append(&mut partition, &mut store, 1), Taken::Appended { end: 2, .. }));
    }

    #[test]
    fn producers_are_known_from_a_snapshot_and_what_follows_it() {
        let mut store = Memory::new();
        let mut partition = partition(&mut store);
        let mut snapshots = Vec::new();
        for sequence in 0..4 {
            append(&mut partition, &mut store, sequence);
            commit(&mut partition, &mut store);
            snapshots.extend(partition.known.tend(1, partition.high_watermark, IsLast::Yes));
        }
        assert_eq!(snapshots.len(), 4);
        let described = partition.producers();
        let rebuild = |store: &mut Memory, snapshot: Option<&[u8]>, start: u64| {
            let found = Found { snapshot: snapshot.map(<[u8]>::to_vec), start };
            Known::rebuild(store, partition.log, &found, 1).unwrap().producers.describe()
        };
        assert_eq!(rebuild(&mut store, None, 0), described);
        for snapshot in &snapshots {
            assert_eq!(rebuild(&mut store, Some(snapshot), 0), described);
        }
        assert_eq!(rebuild(&mut store, Some(b"nonsense"), 0), described);
        store.truncate_suffix(partition.log, 2).unwrap();
        let known = rebuild(&mut store, snapshots.last().map(Vec::as_slice), 0);
        assert_eq!(known[0].last_sequence, 1, "the snapshot is ahead of the log");
    }

    #[test]
    fn a_snapshot_does_not_speak_for_records_that_were_deleted_since() {
        let mut store = Memory::new();
        let mut partition = partition(&mut store);
        append(&mut partition, &mut store, 0);
        commit(&mut partition, &mut store);
        let snapshot = partition.known.tend(1, 1, IsLast::Yes);
        append(&mut partition, &mut store, 1);
        commit(&mut partition, &mut store);
        let log = partition.log;
        let mut rebuild = |snapshot: &Option<Vec<u8>>, start| {
            let found = Found { snapshot: snapshot.clone(), start };
            let known = Known::rebuild(&mut store, log, &found, 1).unwrap();
            (known.producers.describe().len(), store.status(log).start)
        };
        assert_eq!(rebuild(&snapshot, 0), (1, 0));
        assert_eq!(rebuild(&snapshot, 2), (0, 2), "the second record is not there to tell");

        partition.started_later(&store);
        let later = partition.known.tend(1, 2, IsLast::No);
        assert!(later.is_some(), "a snapshot is due where the log has come to start later");
        assert!(partition.known.tend(1, 2, IsLast::No).is_none());
        let found = Found { snapshot: later, start: 2 };
        assert_eq!(Known::rebuild(&mut store, log, &found, 1).unwrap().producers.len(), 1);
    }
}
