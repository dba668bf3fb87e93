//! Batches that are held until the coordinator has verified their transaction, see `txn_verification.rs`.
//!
//! Held batches are copies, and clients decide how many there are: their bytes are limited per partition and in all,
//! and beyond that the producer gets an error after which it tries again. The batches of a producer keep their order,
//! and only those of the verified epoch are released together: one of a newer epoch needs a verification of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use mainstem_coordinator::Error;
use mainstem_coordinator::producer::TxnVerification;
use mainstem_coordinator::transaction::Producer;
use mainstem_kafka::ErrorCode;
use mainstem_partition::{Prepared, Waiter};

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;

/// Most bytes held in one partition.
const HELD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most bytes held in all partitions of all shards.
const HELD_BYTES_MAX_IN_ALL: usize = 128 * 1024 * 1024;
/// The first version of Produce whose clients understand `TRANSACTION_ABORTABLE`.
const TRANSACTION_ABORTABLE: i16 = 11;
/// The first version of Produce that adds its partitions to the transaction implicitly.
pub(crate) const ADDS: i16 = 12;

/// The transaction that a Produce request names.
#[derive(Clone, Debug)]
pub(crate) struct Transactional {
    pub(crate) id: Arc<str>,
    /// Version of the request.
    pub(crate) version: i16,
}

impl Transactional {
    pub(crate) fn membership(&self) -> TxnVerification {
        if self.version >= ADDS { TxnVerification::VerifiedOwnEpoch } else { TxnVerification::Verified }
    }

    /// The error that the producer gets when the coordinator refuses.
    pub(crate) fn refused(&self, error: Error) -> AppendError {
        let code = match error {
            Error::ProducerFenced => ErrorCode::InvalidProducerEpoch,
            Error::TransactionAbortable if self.version < TRANSACTION_ABORTABLE => ErrorCode::InvalidTxnState,
            Error::ConcurrentTransactions if self.version < ADDS => ErrorCode::NotEnoughReplicas,
            Error::CoordinatorNotAvailable | Error::NotCoordinator => ErrorCode::NotEnoughReplicas,
            other => ErrorCode::from_code(other.code()).unwrap_or(ErrorCode::UnknownServerError),
        };
        let message = format!("the partition is not part of the transaction: {error}");
        AppendError::new(code, message)
    }
}

/// Bytes held in all partitions of all shards.
#[derive(Debug, Default)]
pub(crate) struct HeldBytesBudget(AtomicUsize);

/// A share of the budget, returned on drop.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    room: Arc<HeldBytesBudget>,
    bytes: usize,
}

impl HeldBytesBudget {
    /// `None` if the budget is exhausted.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<HeldBytes> {
        let share = HeldBytes { room: Arc::clone(self), bytes };
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= HELD_BYTES_MAX_IN_ALL).then_some(share)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A batch that is held.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) waiter: Waiter,
    pub(crate) epoch: i16,
    pub(crate) records: Vec<u8>,
    /// What has been done with its records.
    pub(crate) prepared: Prepared,
    pub(crate) transactional: Transactional,
    pub(crate) _share: HeldBytes,
}

/// A retriable error.
pub(crate) fn too_much() -> AppendError {
    AppendError::new(ErrorCode::NotEnoughReplicas, "too much waits for the transaction coordinator")
}

/// The batches held on one shard, by partition. Partitions without held batches have no entry.
#[derive(Debug, Default)]
pub(crate) struct UnverifiedBatches(HashMap<PartitionId, HeldBatches, foldhash::fast::RandomState>);

/// The batches held in one partition, by producer id. The coordinator is asked about the first batch of each producer.
#[derive(Debug, Default)]
struct HeldBatches {
    bytes: usize,
    queues: BTreeMap<i64, VecDeque<Batch>>,
}

impl HeldBatches {
    fn push(&mut self, producer_id: i64, batch: Batch) -> Result<(), AppendError> {
        if self.bytes + batch.records.len() > HELD_BYTES_MAX {
            return Err(too_much());
        }
        self.bytes += batch.records.len();
        self.queues.entry(producer_id).or_default().push_back(batch);
        Ok(())
    }

    /// Takes the first batches of a producer that have this epoch, and returns the producer of the next one.
    fn take(&mut self, producer: Producer) -> (Vec<Batch>, Option<(Producer, Transactional)>) {
        let Some(queue) = self.queues.get_mut(&producer.id) else { return (Vec::new(), None) };
        let mut taken = Vec::new();
        while let Some(batch) = queue.pop_front_if(|batch| batch.epoch == producer.epoch) {
            self.bytes -= batch.records.len();
            taken.push(batch);
        }
        let next = queue
            .front()
            .map(|batch| (Producer { epoch: batch.epoch, ..producer }, batch.transactional.clone()));
        if next.is_none() {
            self.queues.remove(&producer.id);
        }
        (taken, next)
    }
}

impl UnverifiedBatches {
    /// Whether a batch of this producer must queue behind others.
    pub(crate) fn has(&self, id: PartitionId, producer_id: i64) -> bool {
        self.0.get(&id).is_some_and(|held| held.queues.contains_key(&producer_id))
    }

    pub(crate) fn push(
        &mut self,
        id: PartitionId,
        producer_id: i64,
        batch: Batch,
    ) -> Result<(), AppendError> {
        let pushed = self.0.entry(id).or_default().push(producer_id, batch);
        self.remove_if_empty(id);
        pushed
    }

    pub(crate) fn take(
        &mut self,
        id: PartitionId,
        producer: Producer,
    ) -> (Vec<Batch>, Option<(Producer, Transactional)>) {
        let Some(held) = self.0.get_mut(&id) else { return (Vec::new(), None) };
        let taken = held.take(producer);
        self.remove_if_empty(id);
        taken
    }

    fn remove_if_empty(&mut self, id: PartitionId) {
        if self.0.get(&id).is_some_and(|held| held.queues.is_empty()) {
            self.0.remove(&id);
        }
    }

    /// Drops the batches of a deleted partition and returns the producers to answer.
    pub(crate) fn remove(&mut self, id: PartitionId) -> Vec<Waiter> {
        let held = self.0.remove(&id).unwrap_or_default();
        held.queues.into_values().flatten().map(|batch| batch.waiter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_held_in_all_partitions_than_there_is_room_for() {
        let room = Arc::new(HeldBytesBudget::default());
        let part = HELD_BYTES_MAX_IN_ALL / 4;
        let mut shares: Vec<HeldBytes> = (0..4).filter_map(|_| room.take(part)).collect();
        assert_eq!(shares.len(), 4);
        for _ in 0..3 {
            assert!(room.take(1).is_none(), "what is refused takes no room");
        }
        shares.pop();
        assert!(room.take(part + 1).is_none());
        shares.extend(room.take(part));
        assert_eq!(shares.len(), 4);
        shares.clear();
        assert!(room.take(HELD_BYTES_MAX_IN_ALL).is_some());
    }
}
