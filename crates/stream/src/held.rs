//! Batches that would begin a transaction in their partition: they are held until the coordinator has said that the
//! partition is part of it, or has made it one (KIP-890). Without that, a batch that comes late could begin a
//! transaction that nobody ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstem_coordinator::Error;
use mainstem_coordinator::producer::Membership;
use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::mail::{JobId, Letter, Mail};
use crate::partition::{Produced, Refused};
use crate::shard::Shard;
use crate::work::Done;

/// Bytes that are held in one partition at most.
const HELD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes that are held in all partitions of all shards at most.
const HELD_BYTES_MAX_IN_ALL: usize = 128 * 1024 * 1024;
/// From this version of Produce on, clients know that a transaction may have to be aborted.
const TRANSACTION_ABORTABLE: i16 = 11;
/// From this version of Produce on, to write to a partition is to add it.
const ADDS: i16 = 12;

/// What a Produce request says of its transaction.
#[derive(Clone, Debug)]
pub(crate) struct Transactional {
    pub(crate) id: Arc<str>,
    /// Version of the request.
    pub(crate) version: i16,
}

impl Transactional {
    fn membership(&self) -> Membership {
        if self.version >= ADDS { Membership::VerifiedOwnEpoch } else { Membership::Verified }
    }

    /// What a producer is told of the coordinator's refusal.
    fn refused(&self, error: Error) -> Refused {
        let code = match error {
            Error::ProducerFenced => ErrorCode::InvalidProducerEpoch,
            Error::TransactionAbortable if self.version < TRANSACTION_ABORTABLE => ErrorCode::InvalidTxnState,
            Error::ConcurrentTransactions if self.version < ADDS => ErrorCode::NotEnoughReplicas,
            Error::CoordinatorNotAvailable | Error::NotCoordinator => ErrorCode::NotEnoughReplicas,
            other => ErrorCode::from_code(other.code()).unwrap_or(ErrorCode::UnknownServerError),
        };
        let message = format!("the partition is not part of the transaction: {error}");
        Refused::new(code, message)
    }
}

/// How much is held in all partitions of all shards, bytes.
#[derive(Debug, Default)]
pub(crate) struct Room(AtomicUsize);

/// So much of the room is taken, until this is dropped.
#[derive(Debug)]
struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    /// Nothing if there is too little.
    fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let share = Share { room: Arc::clone(self), bytes };
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= HELD_BYTES_MAX_IN_ALL).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A batch that is held.
#[derive(Debug)]
struct Batch {
    job: JobId,
    part: u32,
    epoch: i16,
    records: Vec<u8>,
    transactional: Transactional,
    _share: Share,
}

/// An error after which producers try again.
fn too_much() -> Refused {
    Refused::new(ErrorCode::NotEnoughReplicas, "too much waits for the transaction coordinator")
}

/// The batches held in one partition, by producer id; the coordinator has been asked about the first of each.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: usize,
    queues: BTreeMap<i64, VecDeque<Batch>>,
}

impl Held {
    /// Whether a batch must wait behind others of its producer.
    pub(crate) fn has(&self, producer_id: i64) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&producer_id)
    }

    fn push(&mut self, producer_id: i64, batch: Batch) -> Result<(), Refused> {
        if self.bytes + batch.records.len() > HELD_BYTES_MAX {
            return Err(too_much());
        }
        self.bytes += batch.records.len();
        self.queues.entry(producer_id).or_default().push_back(batch);
        Ok(())
    }

    /// Takes the first batches of a producer that are of this epoch, and says what comes behind them.
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

    /// Those who wait; the partition is about to go.
    pub(crate) fn dissolve(self) -> impl Iterator<Item = (JobId, u32)> {
        self.queues.into_values().flatten().map(|batch| (batch.job, batch.part))
    }
}

/// A question to the coordinator: is the partition part of the producer's transaction?
#[derive(Debug)]
pub(crate) struct Vouch {
    /// The shard that asks.
    shard: usize,
    id: PartitionId,
    topic: Arc<str>,
    producer: Producer,
    transactional: Transactional,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct Vouched {
    id: PartitionId,
    producer: Producer,
    outcome: Result<(), Error>,
}

impl Shard {
    /// Holds a batch. The coordinator is asked, unless it has been for one before.
    ///
    /// # Errors
    /// Too much is held.
    pub(crate) fn hold(
        &mut self,
        io: &mut Io<'_, Mail>,
        to: (JobId, u32, PartitionId),
        producer: Producer,
        records: &[u8],
        transactional: &Transactional,
    ) -> Result<(), Refused> {
        let (job, part, id) = to;
        let share = self.shared.held.take(records.len()).ok_or_else(too_much)?;
        let (partition, _) = self.partition(id)?;
        let is_first = !partition.held.has(producer.id);
        let batch = Batch {
            job,
            part,
            epoch: producer.epoch,
            records: records.to_vec(),
            transactional: transactional.clone(),
            _share: share,
        };
        partition.held.push(producer.id, batch)?;
        if is_first {
            self.ask_to_vouch(io, id, producer, transactional.clone());
        }
        Ok(())
    }

    fn ask_to_vouch(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        producer: Producer,
        transactional: Transactional,
    ) {
        let Some(partition) = self.partitions.get(&id) else { return };
        let topic = Arc::clone(&partition.topic.name);
        let vouch = Vouch { shard: self.me, id, topic, producer, transactional };
        if self.is_controller() {
            self.vouch(io, vouch);
        } else {
            io.send(0, Mail(Letter::Vouch(vouch)));
        }
    }

    /// Answers for a transaction, on shard 0.
    pub(crate) fn vouch(&mut self, io: &mut Io<'_, Mail>, vouch: Vouch) {
        let Vouch { shard: to, id, topic, producer, transactional } = vouch;
        let participant = Participant::Partition { topic, index: id.index };
        if transactional.version < ADDS {
            let verified = self.look_at_transactions(io, |machine, _| {
                machine.verify(&transactional.id, producer, &participant)
            });
            let outcome = verified.unwrap_or(Err(Error::NotCoordinator));
            return self.send_vouched(io, to, Vouched { id, producer, outcome });
        }
        let add = Request::Add { producer, participants: vec![participant] };
        self.ask_transactions(
            io,
            |machine, now_ms, caller| machine.handle(now_ms, &transactional.id, add, caller),
            move |shard, io, answer| {
                shard.send_vouched(io, to, Vouched { id, producer, outcome: answer.map(|_| ()) });
            },
        );
    }

    fn send_vouched(&mut self, io: &mut Io<'_, Mail>, to: usize, vouched: Vouched) {
        if to == self.me {
            self.vouched(io, &vouched);
        } else {
            io.send(to, Mail(Letter::Vouched(vouched)));
        }
    }

    /// The coordinator has answered: what was held is appended, in this very turn, or refused. A marker that the
    /// coordinator sends later comes later.
    pub(crate) fn vouched(&mut self, io: &mut Io<'_, Mail>, vouched: &Vouched) {
        let Vouched { id, producer, outcome } = *vouched;
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let (batches, next) = partition.held.take(producer);
        for batch in batches {
            let Batch { job, part, records, transactional, .. } = batch;
            let appended = match outcome {
                Ok(()) => self.append_here(io, (job, part, id), &records, transactional.membership()),
                Err(error) => Err(transactional.refused(error)),
            };
            if let Err(refused) = appended {
                self.work_done(io, job, Done::Produced(Produced { part, outcome: Err(refused) }));
            }
        }
        if let Some((producer, transactional)) = next {
            self.ask_to_vouch(io, id, producer, transactional);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_held_in_all_partitions_than_there_is_room_for() {
        let room = Arc::new(Room::default());
        let part = HELD_BYTES_MAX_IN_ALL / 4;
        let mut shares: Vec<Share> = (0..4).filter_map(|_| room.take(part)).collect();
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
