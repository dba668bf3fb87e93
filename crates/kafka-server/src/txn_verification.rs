//! Verification of transactions (KIP-890).
//!
//! A batch that would begin a transaction in its partition is held until the coordinator confirms that the partition
//! is part of the transaction, or adds it. Otherwise a delayed batch could begin a transaction that nobody ends, and
//! the last stable offset of the partition would never advance again.
//!
//! The held batches of one producer keep their order: while one is held, later ones queue behind it.

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_partition::{IncomingBatch, Waiter};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;
use crate::partition_requests::Appended;
use crate::pending::AfterTxnReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, ShardMessage, TxnVerified, VerifyTxn};
use crate::unverified_batches::{ADDS, Batch, Transactional, too_much};

impl Shard {
    /// Holds a batch, and asks the coordinator about it if it is the first of its producer.
    ///
    /// # Errors
    /// Too many bytes are held.
    pub(crate) fn hold(
        &mut self,
        io: &mut Io<'_, Mail>,
        waiter: Waiter,
        id: PartitionId,
        producer: Producer,
        incoming: &IncomingBatch<'_>,
        transactional: &Transactional,
    ) -> Result<(), AppendError> {
        let records = incoming.bytes();
        let share = self
            .env
            .shared()
            .held_bytes
            .take(records.len() + incoming.prepared().bytes())
            .ok_or_else(too_much)?;
        let is_first = !self.unverified.has(id, producer.id);
        let batch = Batch {
            waiter,
            epoch: producer.epoch,
            records: records.to_vec(),
            prepared: incoming.prepared().clone(),
            transactional: transactional.clone(),
            _share: share,
        };
        self.unverified.push(id, producer.id, batch)?;
        if is_first {
            self.request_verification(io, id, producer, transactional.clone());
        }
        Ok(())
    }

    fn request_verification(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        producer: Producer,
        transactional: Transactional,
    ) {
        let Some(topic) = self.storage.topic_of(id).cloned() else { return };
        let request = VerifyTxn { shard: self.env.me(), id, topic, producer, transactional };
        if self.env.is_controller() {
            self.verify_txn(io, request);
        } else {
            io.send(0, Mail(ShardMessage::VerifyTxn(request)));
        }
    }

    /// Verifies a transaction on shard 0.
    pub(crate) fn verify_txn(&mut self, io: &mut Io<'_, Mail>, request: VerifyTxn) {
        let VerifyTxn { shard: to, id, topic, producer, transactional } = request;
        let participant = Participant::Partition { topic, index: id.index };
        if transactional.version < ADDS {
            let verified = self.with_transactions(io, |machine, _| {
                machine.verify(&transactional.id, producer, &participant)
            });
            let outcome = verified.unwrap_or(Err(Error::NotCoordinator));
            return self.send_verification(io, to, TxnVerified { id, producer, outcome });
        }
        let add = Request::Add { producer, participants: vec![participant] };
        self.call_transactions(
            io,
            |machine, now_ms, caller| machine.handle(now_ms, &transactional.id, add, caller),
            AfterTxnReply::VerifyTxn { shard: to, id, producer },
        );
    }

    pub(crate) fn send_verification(&mut self, io: &mut Io<'_, Mail>, to: usize, verified: TxnVerified) {
        if to == self.env.me() {
            self.on_txn_verified(io, &verified);
        } else {
            io.send(to, Mail(ShardMessage::TxnVerified(verified)));
        }
    }

    /// Appends or refuses the held batches when the coordinator has answered. The append happens in this turn, so it
    /// precedes any marker that the coordinator sends later.
    pub(crate) fn on_txn_verified(&mut self, io: &mut Io<'_, Mail>, verified: &TxnVerified) {
        let TxnVerified { id, producer, outcome } = *verified;
        let (batches, next) = self.unverified.take(id, producer);
        for Batch { waiter, records, prepared, transactional, .. } in batches {
            let appended = outcome.map_err(|error| transactional.refused(error)).and_then(|()| {
                let incoming = IncomingBatch::parse(&records)?.with_prepared(prepared);
                self.append_incoming(io, waiter, id, &incoming, transactional.membership())
            });
            match appended {
                Ok(Appended::Yes) => {}
                // Only a change of the topic's configuration in the meantime leads here. The producer retries.
                Ok(_) => self.send_produced(io, waiter, Err(ErrorCode::NotEnoughReplicas.into())),
                Err(error) => self.send_produced(io, waiter, Err(error)),
            }
        }
        if let Some((producer, transactional)) = next {
            self.request_verification(io, id, producer, transactional);
        }
    }
}
