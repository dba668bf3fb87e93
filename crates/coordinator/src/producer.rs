//! Producer state of one partition: idempotence (KIP-98), open and aborted transactions.
//!
//! ```text
//!  Produce ─► check ─► Append ──► the log ─► appended ─┐               durable(offset): it is final
//!               │ └──► Duplicate, Refused              ├─► not durable ┤
//!               └────► Verify ─► the coordinator       │               rollback_to(offset): it is undone
//!  WriteTxnMarkers ─► check_marker ─► the log ─► ended ┘
//! ```
//! A batch is checked against everything appended before it, durable or not, so several batches can be in flight.
//! Whatever is not durable yet can be rolled back.
//!
//! # Bounds
//! A producer that has been idle for [`Limits::expiration_ms`] expires and may continue with any sequence number, as in
//! Kafka. So may one of which the log only has a transaction marker left.
//!
//! The owner bounds the memory of many partitions together, with [`Producers::evict_idle`]. An evicted producer must
//! not continue as if nothing had happened, because a retry would then be appended twice. Until all evicted producers
//! would have expired, an unknown producer must begin with sequence number 0; any other gets `UNKNOWN_PRODUCER_ID`, and
//! its client begins a new epoch (KIP-360).
//!
//! At [`Limits::aborted`] aborted transactions that readers may still encounter, new transactions are rejected until
//! the log start offset moves past some of them.

mod aborted;
mod entry;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::hash_map::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use aborted::AbortedTransaction;

use crate::Error;
use aborted::AbortedIndex;
use entry::Entry;

/// Memory of one producer in one partition, bytes: its entry in the hash table, which is at least half full, and in the
/// order of idle producers.
pub const PRODUCER_BYTES: usize = 3 * size_of::<(i64, Entry)>() / 2 + 2 * size_of::<(u64, i64)>();
/// Most notes about producers whose batches were rolled back.
const ROLLED_BACK_MAX: usize = 16 * 1024;

/// The fields of a batch header that matter here. The producer id is at least 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// Producer id.
    pub producer_id: i64,
    /// Producer epoch.
    pub producer_epoch: i16,
    /// Sequence number of the first record.
    pub base_sequence: i32,
    /// Offset of the last record, relative to the first.
    pub last_offset_delta: u32,
    /// Latest timestamp in the batch, ms since 1970.
    pub max_timestamp_ms: i64,
    /// Whether the batch is part of a transaction.
    pub is_transactional: bool,
}

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Its records become visible.
    Commit,
    /// Readers skip its records.
    Abort,
}

/// A transaction marker, as stored in a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Producer id.
    pub producer_id: i64,
    /// Epoch from which on the producer may write.
    pub producer_epoch: i16,
    /// Epoch of the transaction coordinator.
    pub coordinator_epoch: i32,
    /// Outcome of the transaction.
    pub outcome: Outcome,
    /// Time of writing, ms since 1970.
    pub timestamp_ms: i64,
}

/// Result of verifying a batch's partition with the transaction coordinator (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnVerification {
    /// Not verified.
    Unknown,
    /// The partition is in the producer's transaction.
    Verified,
    /// The same, and the client uses transaction version 2: each transaction has its own epoch, so an unknown producer
    /// must start at sequence number 0.
    VerifiedOwnEpoch,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendDecision {
    /// Append it.
    Append,
    /// It was appended before.
    Duplicate {
        /// Base offset of the original.
        base_offset: u64,
        /// Latest timestamp of the original, ms since 1970.
        timestamp_ms: i64,
    },
    /// It would begin a transaction here. Verify it with the coordinator, then check it again in the same turn in which
    /// the answer arrives.
    Verify,
    /// Reject it.
    Refused(Error),
}

/// Limits on the state of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of aborted transactions.
    pub aborted: usize,
    /// Idle time after which a producer expires, ms (`producer.id.expiration.ms`).
    pub expiration_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { aborted: 1 << 20, expiration_ms: 24 * 60 * 60 * 1000 }
    }
}

/// A producer, as reported by `DescribeProducers`. Unknown numbers are -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// Producer id.
    pub producer_id: i64,
    /// Producer epoch.
    pub producer_epoch: i16,
    /// Sequence number of the last record.
    pub last_sequence: i32,
    /// Latest timestamp of the last batch or marker, ms since 1970.
    pub last_timestamp_ms: i64,
    /// Epoch of the coordinator that ended its last transaction.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction.
    pub transaction_start_offset: i64,
}

/// All producers of one partition.
///
/// To rebuild the state, start with [`Producers::restore`] or [`Producers::new`], replay every later batch in order
/// with [`Producers::on_batch_appended`] and [`Producers::on_marker_appended`], then call
/// [`Producers::mark_durable`].
#[derive(Clone, Debug)]
pub struct Producers {
    limits: Limits,
    entries: HashMap<i64, Entry>,
    /// Producers without an open transaction, with an offset that is not after their last one. Appends do not update
    /// the set: a producer whose offset is outdated moves when it is found at the front.
    idle: BTreeSet<(u64, i64)>,
    /// Until then, ms since 1970, an unknown producer may be one that was evicted; 0 if none was.
    evicted_until_ms: u64,
    /// Producer ids of open transactions by first offset.
    open: BTreeMap<u64, i64>,
    /// Transactions whose marker is not durable yet, in the order of their markers.
    ended: VecDeque<EndedTransaction>,
    aborted: AbortedIndex,
    /// Undo information of whatever is not durable, oldest first.
    undo: VecDeque<Undo>,
    /// Producers whose batches were all rolled back or failed to append, with the point at which they must continue.
    /// Without it, a later batch already in flight would be accepted in place of the lost one.
    rolled_back: HashMap<i64, RolledBack>,
}

#[derive(Clone, Copy, Debug)]
struct RolledBack {
    epoch: i16,
    sequence: i32,
}

#[derive(Clone, Copy, Debug)]
struct EndedTransaction {
    first_offset: u64,
    marker_offset: u64,
}

#[derive(Clone, Copy, Debug)]
struct Undo {
    offset: u64,
    producer_id: i64,
    before: Option<Entry>,
}

impl Producers {
    /// Creates an empty state.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            idle: BTreeSet::new(),
            evicted_until_ms: 0,
            open: BTreeMap::new(),
            ended: VecDeque::new(),
            aborted: AbortedIndex::default(),
            undo: VecDeque::new(),
            rolled_back: HashMap::new(),
        }
    }

    /// Checks whether a batch may be appended now. Returns [`AppendDecision::Verify`] only if `membership` is unknown.
    pub fn check(&self, batch: &BatchInfo, membership: TxnVerification) -> AppendDecision {
        if batch.base_sequence < 0 || batch.producer_epoch < 0 {
            return AppendDecision::Refused(Error::InvalidRecord);
        }
        let known = self.entries.get(&batch.producer_id);
        if let Some(written) = known.and_then(|entry| entry.duplicate_of(batch)) {
            return AppendDecision::Duplicate {
                base_offset: written.base_offset(),
                timestamp_ms: written.timestamp_ms,
            };
        }
        if known.is_some_and(|entry| batch.producer_epoch < entry.epoch) {
            return AppendDecision::Refused(Error::InvalidProducerEpoch);
        }
        let is_open = self.is_open(batch.producer_id, batch.producer_epoch);
        if batch.is_transactional && !is_open && membership == TxnVerification::Unknown {
            return AppendDecision::Verify;
        }
        let error = match known {
            Some(entry) if !entry.accepts_any_sequence => entry.append_error(batch),
            _ if membership == TxnVerification::VerifiedOwnEpoch && batch.base_sequence != 0 => {
                Some(Error::OutOfOrderSequenceNumber)
            }
            _ if self.skips_rolled_back(batch) => Some(Error::OutOfOrderSequenceNumber),
            Some(entry) => entry.append_error(batch),
            None if self.evicted_until_ms > 0 && batch.base_sequence != 0 => Some(Error::UnknownProducerId),
            // An unknown producer may start anywhere.
            None => None,
        };
        let begins = batch.is_transactional && known.is_none_or(|entry| entry.open_from.is_none());
        match error {
            Some(error) => AppendDecision::Refused(error),
            None if begins && self.aborted.len() >= self.limits.aborted => {
                AppendDecision::Refused(Error::PolicyViolation)
            }
            None => AppendDecision::Append,
        }
    }

    /// Checks whether a marker may be appended now. Writing a marker again is allowed.
    ///
    /// # Errors
    /// [`Error::InvalidProducerEpoch`] or [`Error::TransactionCoordinatorFenced`] if an epoch is old.
    pub fn check_marker(&self, marker: &Marker) -> Result<(), Error> {
        let Some(entry) = self.entries.get(&marker.producer_id) else { return Ok(()) };
        if marker.producer_epoch < entry.epoch {
            Err(Error::InvalidProducerEpoch)
        } else if marker.coordinator_epoch < entry.coordinator_epoch {
            Err(Error::TransactionCoordinatorFenced)
        } else {
            Ok(())
        }
    }

    /// A batch was appended, or replayed from the log.
    pub fn on_batch_appended(&mut self, batch: &BatchInfo, base_offset: u64, now_ms: u64) {
        let before = self.entries.get(&batch.producer_id).copied();
        let mut entry = before.unwrap_or_default();
        entry.write(batch, base_offset, now_ms);
        if batch.is_transactional && entry.open_from.is_none() {
            entry.open_from = Some(base_offset);
            self.open.insert(base_offset, batch.producer_id);
        }
        self.insert(batch.producer_id, entry, before, base_offset);
    }

    /// A marker was appended, or replayed from the log.
    pub fn on_marker_appended(&mut self, marker: &Marker, offset: u64, now_ms: u64) {
        let before = self.entries.get(&marker.producer_id).copied();
        let mut entry = before.unwrap_or_default();
        let first_offset = entry.end(marker, offset, now_ms);
        if let Some(first_offset) = first_offset {
            self.open.remove(&first_offset);
            self.ended.push_back(EndedTransaction { first_offset, marker_offset: offset });
            if marker.outcome == Outcome::Abort {
                let last_stable_offset = self.open.keys().next().copied().unwrap_or(offset + 1);
                self.aborted.push(AbortedTransaction {
                    producer_id: marker.producer_id,
                    first_offset,
                    last_offset: offset,
                    last_stable_offset,
                });
            }
        }
        self.insert(marker.producer_id, entry, before, offset);
    }

    /// A batch that passed [`Producers::check`] could not be appended.
    pub fn on_append_failed(&mut self, batch: &BatchInfo) {
        if self.entries.get(&batch.producer_id).is_none_or(|entry| entry.accepts_any_sequence) {
            self.record_rollback(batch.producer_id, batch.producer_epoch, batch.base_sequence);
        }
    }

    /// The first failure counts. At the limit, all of these notes are dropped.
    fn record_rollback(&mut self, producer_id: i64, epoch: i16, sequence: i32) {
        if self.rolled_back.len() >= ROLLED_BACK_MAX {
            self.rolled_back.clear();
        }
        let known = self.rolled_back.entry(producer_id).or_insert(RolledBack { epoch, sequence });
        if known.epoch < epoch {
            *known = RolledBack { epoch, sequence };
        }
    }

    /// Whether an earlier batch of the producer was rolled back.
    fn skips_rolled_back(&self, batch: &BatchInfo) -> bool {
        self.rolled_back.get(&batch.producer_id).is_some_and(|rolled_back| {
            rolled_back.epoch == batch.producer_epoch && rolled_back.sequence != batch.base_sequence
        })
    }

    fn insert(&mut self, producer_id: i64, mut entry: Entry, before: Option<Entry>, offset: u64) {
        self.list_if_idle(producer_id, &mut entry);
        self.entries.insert(producer_id, entry);
        if !entry.accepts_any_sequence {
            self.rolled_back.remove(&producer_id);
        }
        self.undo.push_back(Undo { offset, producer_id, before });
    }

    /// Adds a producer without an open transaction to the idle ones.
    fn list_if_idle(&mut self, producer_id: i64, entry: &mut Entry) {
        if entry.open_from.is_none() && !std::mem::replace(&mut entry.is_listed, true) {
            self.idle.insert((entry.last_offset, producer_id));
        }
    }

    /// Everything below `offset` is durable and can no longer be rolled back.
    pub fn mark_durable(&mut self, offset: u64) {
        while self.undo.front().is_some_and(|undo| undo.offset < offset) {
            self.undo.pop_front();
        }
        while self.ended.front().is_some_and(|ended| ended.marker_offset < offset) {
            self.ended.pop_front();
        }
    }

    /// Rolls back everything at or above `offset`, none of which may be durable.
    pub fn rollback_to(&mut self, offset: u64) {
        while let Some(undo) = self.undo.pop_back_if(|undo| undo.offset >= offset) {
            let after = self.entries.get(&undo.producer_id).copied();
            if let Some(begin) = after.and_then(|entry| entry.open_from) {
                self.open.remove(&begin);
            }
            let gone = match undo.before {
                Some(mut before) => {
                    // Its offset goes back, possibly before the one in `idle`.
                    before.is_listed = false;
                    self.list_if_idle(undo.producer_id, &mut before);
                    self.open.extend(before.open_from.map(|begin| (begin, undo.producer_id)));
                    self.entries.insert(undo.producer_id, before).filter(|_| before.accepts_any_sequence)
                }
                None => self.entries.remove(&undo.producer_id),
            };
            if let Some((epoch, sequence)) = gone.and_then(|entry| entry.first_known_sequence()) {
                self.record_rollback(undo.producer_id, epoch, sequence);
            }
        }
        while self.ended.pop_back_if(|ended| ended.marker_offset >= offset).is_some() {}
        self.aborted.truncate_from(offset);
    }

    /// Whether a producer has an open transaction here with this epoch.
    pub fn is_open(&self, producer_id: i64, producer_epoch: i16) -> bool {
        self.entries
            .get(&producer_id)
            .is_some_and(|entry| entry.open_from.is_some() && entry.epoch == producer_epoch)
    }

    /// The last stable offset: all transactions below it have ended durably.
    pub fn last_stable_offset(&self, high_watermark: u64) -> u64 {
        let open = self.open.keys().next().copied();
        let ended = self.ended.iter().map(|ended| ended.first_offset).min();
        open.into_iter().chain(ended).fold(high_watermark, u64::min)
    }

    /// Aborted transactions that overlap the offsets `from..until`. `until` is at most the last stable offset.
    pub fn aborted_between(&self, from: u64, until: u64) -> impl Iterator<Item = AbortedTransaction> {
        self.aborted.between(from, until)
    }

    /// The log start offset is now `offset`; drops aborted transactions before it.
    pub fn truncate_prefix(&mut self, offset: u64) {
        self.aborted.truncate_before(offset);
    }

    /// Removes producers that have been idle for [`Limits::expiration_ms`] and have no open transaction.
    pub fn expire(&mut self, now_ms: u64) {
        let limit_ms = self.limits.expiration_ms;
        while let Some((id, seen_ms)) = self.longest_idle()
            && now_ms.saturating_sub(seen_ms) >= limit_ms
        {
            self.remove_idle(id);
        }
        if self.evicted_until_ms <= now_ms {
            self.evicted_until_ms = 0;
        }
    }

    /// Evicts up to `count` producers without an open transaction, those that have been idle for longest. Returns how
    /// many were evicted.
    pub fn evict_idle(&mut self, count: usize) -> usize {
        let mut evicted = 0;
        while evicted < count
            && let Some((id, seen_ms)) = self.longest_idle()
        {
            let expires_ms = seen_ms.saturating_add(self.limits.expiration_ms);
            self.evicted_until_ms = self.evicted_until_ms.max(expires_ms);
            self.remove_idle(id);
            evicted += 1;
        }
        evicted
    }

    /// The producer that has been idle for longest, at the front of `idle`, and when it was last seen.
    fn longest_idle(&mut self) -> Option<(i64, u64)> {
        while let Some(&(offset, id)) = self.idle.first() {
            match self.entries.get_mut(&id) {
                Some(entry) if entry.open_from.is_none() && entry.last_offset <= offset => {
                    return Some((id, entry.seen_ms));
                }
                Some(entry) => {
                    self.idle.pop_first();
                    entry.is_listed = entry.open_from.is_none();
                    if entry.is_listed {
                        self.idle.insert((entry.last_offset, id));
                    }
                }
                None => drop(self.idle.pop_first()),
            }
        }
        None
    }

    /// Removes the producer at the front of `idle`.
    fn remove_idle(&mut self, id: i64) {
        self.idle.pop_first();
        self.entries.remove(&id);
    }

    /// Whether the producer is known.
    pub fn contains(&self, producer_id: i64) -> bool {
        self.entries.contains_key(&producer_id)
    }

    /// Whether there are no producers and no aborted transactions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.aborted.is_empty()
    }

    /// Number of producers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// All producers, ordered by id.
    pub fn describe(&self) -> Vec<ProducerState> {
        let mut all: Vec<ProducerState> =
            self.entries.iter().map(|(id, entry)| entry.describe(*id)).collect();
        all.sort_unstable_by_key(|active| active.producer_id);
        all
    }
}
