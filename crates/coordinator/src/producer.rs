//! What a partition knows of the producers that write to it: idempotence (KIP-98), open and aborted transactions.
//!
//! ```text
//!  Produce ─► check ─► Append ──► the log ─► appended ─┐               durable(offset): it stays
//!               │ └──► Duplicate, refused              ├─► not durable ┤
//!               └────► Verify ─► the coordinator       │               rollback_to(offset): it never was
//!  WriteTxnMarkers ─► check_marker ─► the log ─► ended ┘
//! ```
//! A batch is checked against all that was appended before it, durable or not, so several can be under way. What
//! is not durable yet can be taken back.
//!
//! # Bounds
//! At [`Limits::producers`] the producers that have been silent for longest are forgotten, but never one with an
//! open transaction; if there are only such, a producer that is not known is refused. A producer that was
//! forgotten may go on with any sequence number, as after its expiry, and so may one of which the log has only
//! the end of a transaction left. At [`Limits::aborted`] aborted transactions
//! that readers may still meet, no new transaction is let in until the log starts later.

mod aborted;
mod entry;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::hash_map::HashMap;
use std::collections::{BTreeMap, VecDeque};

pub use aborted::Aborted;

use crate::Error;
use aborted::AbortedIndex;
use entry::Entry;

/// The fields of a batch's header that matter here. Its producer id is at least 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The producer's identifier.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// Sequence number of the first record.
    pub base_sequence: i32,
    /// The last record's offset, counted from the first one's.
    pub last_offset_delta: u32,
    /// The latest timestamp in the batch, ms since 1970.
    pub max_timestamp_ms: i64,
    /// Whether it is part of a transaction.
    pub is_transactional: bool,
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// What it wrote is to be read.
    Commit,
    /// What it wrote is to be passed over.
    Abort,
}

/// The end of a producer's transaction, as it stands in a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The producer's identifier.
    pub producer_id: i64,
    /// The epoch from which on the producer may write again.
    pub producer_epoch: i16,
    /// Epoch of the transaction coordinator.
    pub coordinator_epoch: i32,
    /// How the transaction ended.
    pub outcome: Outcome,
    /// When it was written, ms since 1970.
    pub timestamp_ms: i64,
}

/// What the transaction coordinator has said of a batch's partition (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It was not asked.
    Unknown,
    /// The partition is in the producer's transaction.
    Verified,
    /// The same, and the client speaks transaction version 2: each transaction has an epoch of its own, so a
    /// producer of which nothing is known begins at sequence number 0.
    VerifiedOwnEpoch,
}

/// What is to be done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be appended.
    Append,
    /// It has been appended before.
    Duplicate {
        /// Where.
        base_offset: u64,
        /// Its latest timestamp, ms since 1970.
        timestamp_ms: i64,
    },
    /// It would begin a transaction here: the coordinator must be asked whether there is one, and the batch
    /// checked again in the very turn in which the answer comes.
    Verify,
    /// It must not be appended.
    Refused(Error),
}

/// How much is kept for one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Producers known.
    pub producers: usize,
    /// Aborted transactions known.
    pub aborted: usize,
    /// Silence after which a producer is forgotten, ms (`producer.id.expiration.ms`).
    pub expiration_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { producers: 16 * 1024, aborted: 1 << 20, expiration_ms: 24 * 60 * 60 * 1000 }
    }
}

/// A producer, as `DescribeProducers` tells of it. Numbers that are not known are -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Its identifier.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// Sequence number of its last record.
    pub last_sequence: i32,
    /// Latest timestamp of its last batch or marker, ms since 1970.
    pub last_timestamp_ms: i64,
    /// Epoch of the coordinator that ended its last transaction.
    pub coordinator_epoch: i32,
    /// Where its open transaction begins.
    pub transaction_start_offset: i64,
}

/// All producers of one partition.
///
/// To rebuild it, begin with [`Producers::restore`] or anew, and tell it of every batch behind, in order, with
/// [`Producers::appended`] and [`Producers::ended`]; then [`Producers::durable`].
#[derive(Clone, Debug)]
pub struct Producers {
    limits: Limits,
    entries: HashMap<i64, Entry>,
    /// Open transactions: first offset, producer.
    open: BTreeMap<u64, i64>,
    /// Transactions that have ended by a marker that is not durable yet, in the order of their markers.
    ended: VecDeque<Ended>,
    aborted: AbortedIndex,
    /// What is not durable yet, oldest first.
    undo: VecDeque<Undo>,
    /// Producers of whose batches nothing is known because all they wrote was taken back, or refused by the log:
    /// where they go on. What is on its way behind that must not take its place.
    withdrawn: HashMap<i64, Withdrawn>,
}

#[derive(Clone, Copy, Debug)]
struct Withdrawn {
    epoch: i16,
    sequence: i32,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
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
    /// No producers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            open: BTreeMap::new(),
            ended: VecDeque::new(),
            aborted: AbortedIndex::default(),
            undo: VecDeque::new(),
            withdrawn: HashMap::new(),
        }
    }

    /// Whether a batch may be appended now. Says [`Verdict::Verify`] only if `membership` is unknown.
    pub fn check(&self, batch: &Data, membership: Membership) -> Verdict {
        if batch.base_sequence < 0 || batch.producer_epoch < 0 {
            return Verdict::Refused(Error::InvalidRecord);
        }
        let known = self.entries.get(&batch.producer_id);
        if let Some(written) = known.and_then(|entry| entry.duplicate_of(batch)) {
            return Verdict::Duplicate {
                base_offset: written.base_offset(),
                timestamp_ms: written.timestamp_ms,
            };
        }
        if known.is_some_and(|entry| batch.producer_epoch < entry.epoch) {
            return Verdict::Refused(Error::InvalidProducerEpoch);
        }
        let is_open = self.is_open(batch.producer_id, batch.producer_epoch);
        if batch.is_transactional && !is_open && membership == Membership::Unknown {
            return Verdict::Verify;
        }
        let fault = match known {
            Some(entry) if !entry.may_go_on => entry.fault_of(batch),
            None if self.is_full_of_open() => Some(Error::PolicyViolation),
            _ if membership == Membership::VerifiedOwnEpoch && batch.base_sequence != 0 => {
                Some(Error::OutOfOrderSequenceNumber)
            }
            _ if self.is_withdrawn_before(batch) => Some(Error::OutOfOrderSequenceNumber),
            Some(entry) => entry.fault_of(batch),
            // Nothing is known of it any more, or never was: it may begin anywhere.
            None => None,
        };
        let begins = batch.is_transactional && known.is_none_or(|entry| entry.open_from.is_none());
        match fault {
            Some(error) => Verdict::Refused(error),
            None if begins && self.aborted.len() >= self.limits.aborted => {
                Verdict::Refused(Error::PolicyViolation)
            }
            None => Verdict::Append,
        }
    }

    /// Whether a marker may be appended now. One that was written before may be written again.
    ///
    /// # Errors
    /// [`Error::InvalidProducerEpoch`] and [`Error::TransactionCoordinatorFenced`] if it comes from the past.
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

    /// A batch of a producer has been appended, or is met again in the log.
    pub fn appended(&mut self, batch: &Data, base_offset: u64, now_ms: u64) {
        let before = self.entries.get(&batch.producer_id).copied();
        let mut entry = before.unwrap_or_default();
        entry.write(batch, base_offset, now_ms);
        if batch.is_transactional && entry.open_from.is_none() {
            entry.open_from = Some(base_offset);
            self.open.insert(base_offset, batch.producer_id);
        }
        self.put(batch.producer_id, entry, before, base_offset);
    }

    /// A marker has been appended, or is met again in the log.
    pub fn ended(&mut self, marker: &Marker, offset: u64, now_ms: u64) {
        let before = self.entries.get(&marker.producer_id).copied();
        let mut entry = before.unwrap_or_default();
        let first_offset = entry.end(marker, offset, now_ms);
        if let Some(first_offset) = first_offset {
            self.open.remove(&first_offset);
            self.ended.push_back(Ended { first_offset, marker_offset: offset });
            if marker.outcome == Outcome::Abort {
                let last_stable_offset = self.open.keys().next().copied().unwrap_or(offset + 1);
                self.aborted.push(Aborted {
                    producer_id: marker.producer_id,
                    first_offset,
                    last_offset: offset,
                    last_stable_offset,
                });
            }
        }
        self.put(marker.producer_id, entry, before, offset);
    }

    /// A batch that was to be appended could not be.
    pub fn failed(&mut self, batch: &Data) {
        if self.entries.get(&batch.producer_id).is_none_or(|entry| entry.may_go_on) {
            self.withdraw(batch.producer_id, batch.producer_epoch, batch.base_sequence);
        }
    }

    /// The first to be withdrawn counts. Beyond the bound all are forgotten.
    fn withdraw(&mut self, producer_id: i64, epoch: i16, sequence: i32) {
        if self.withdrawn.len() >= self.limits.producers {
            self.withdrawn.clear();
        }
        let known = self.withdrawn.entry(producer_id).or_insert(Withdrawn { epoch, sequence });
        if known.epoch < epoch {
            *known = Withdrawn { epoch, sequence };
        }
    }

    /// Whether something that would come before this batch has been withdrawn.
    fn is_withdrawn_before(&self, batch: &Data) -> bool {
        self.withdrawn.get(&batch.producer_id).is_some_and(|withdrawn| {
            withdrawn.epoch == batch.producer_epoch && withdrawn.sequence != batch.base_sequence
        })
    }

    fn put(&mut self, producer_id: i64, entry: Entry, before: Option<Entry>, offset: u64) {
        if before.is_none() && self.entries.len() >= self.limits.producers {
            self.forget_silent();
        }
        self.entries.insert(producer_id, entry);
        if !entry.may_go_on {
            self.withdrawn.remove(&producer_id);
        }
        self.undo.push_back(Undo { offset, producer_id, before });
    }

    /// Everything below `offset` will not be taken back any more.
    pub fn durable(&mut self, offset: u64) {
        while self.undo.front().is_some_and(|undo| undo.offset < offset) {
            self.undo.pop_front();
        }
        while self.ended.front().is_some_and(|ended| ended.marker_offset < offset) {
            self.ended.pop_front();
        }
    }

    /// Takes back everything from `offset` on, of which nothing may be durable.
    pub fn rollback_to(&mut self, offset: u64) {
        while let Some(undo) = self.undo.pop_back_if(|undo| undo.offset >= offset) {
            let after = self.entries.get(&undo.producer_id).and_then(|entry| entry.open_from);
            if let Some(begin) = after {
                self.open.remove(&begin);
            }
            let gone = match undo.before {
                Some(before) => {
                    self.open.extend(before.open_from.map(|begin| (begin, undo.producer_id)));
                    self.entries.insert(undo.producer_id, before).filter(|_| before.may_go_on)
                }
                None => self.entries.remove(&undo.producer_id),
            };
            if let Some((epoch, sequence)) = gone.and_then(|entry| entry.begins_with()) {
                self.withdraw(undo.producer_id, epoch, sequence);
            }
        }
        while self.ended.pop_back_if(|ended| ended.marker_offset >= offset).is_some() {}
        self.aborted.cut_off(offset);
    }

    /// Whether a producer has a transaction open here, at this epoch.
    pub fn is_open(&self, producer_id: i64, producer_epoch: i16) -> bool {
        self.entries
            .get(&producer_id)
            .is_some_and(|entry| entry.open_from.is_some() && entry.epoch == producer_epoch)
    }

    /// The last stable offset: below it every transaction has come to its end, durably. `high_watermark` is where
    /// what is durable ends.
    pub fn last_stable_offset(&self, high_watermark: u64) -> u64 {
        let open = self.open.keys().next().copied();
        let ended = self.ended.iter().map(|ended| ended.first_offset).min();
        open.into_iter().chain(ended).fold(high_watermark, u64::min)
    }

    /// Aborted transactions of which something stands from offset `from` on and below `until`. `until` is at most
    /// the last stable offset.
    pub fn aborted_between(&self, from: u64, until: u64) -> impl Iterator<Item = Aborted> {
        self.aborted.between(from, until)
    }

    /// The log starts at `offset` now: aborted transactions before that are of no use.
    pub fn truncate_prefix(&mut self, offset: u64) {
        self.aborted.forget_before(offset);
    }

    /// Forgets producers that have been silent for [`Limits::expiration_ms`] and have no transaction open.
    pub fn expire(&mut self, now_ms: u64) {
        let limit_ms = self.limits.expiration_ms;
        self.entries
            .retain(|_, entry| entry.open_from.is_some() || now_ms.saturating_sub(entry.seen_ms) < limit_ms);
    }

    /// Whether there is nothing to know: no producers, no aborted transactions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.aborted.is_empty()
    }

    /// Number of producers known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// All producers, in order of their identifiers.
    pub fn describe(&self) -> Vec<Active> {
        let mut all: Vec<Active> = self.entries.iter().map(|(id, entry)| entry.describe(*id)).collect();
        all.sort_unstable_by_key(|active| active.producer_id);
        all
    }

    /// Whether there is no room, and no producer that may be forgotten.
    fn is_full_of_open(&self) -> bool {
        self.entries.len() >= self.limits.producers && self.open.len() >= self.entries.len()
    }

    /// Makes room: of the producers without an open transaction a sixteenth, those whose last batch is oldest.
    fn forget_silent(&mut self) {
        let silent = self.entries.iter().filter(|(_, entry)| entry.open_from.is_none());
        let mut silent: Vec<(u64, i64)> = silent.map(|(id, entry)| (entry.last_offset, *id)).collect();
        let count = (self.limits.producers / 16).max(1).min(silent.len());
        if count == 0 {
            return;
        }
        silent.select_nth_unstable(count - 1);
        for (_, id) in &silent[..count] {
            self.entries.remove(id);
        }
    }
}
