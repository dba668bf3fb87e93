//! Read-only views: `DescribeTransactions`, `ListTransactions`, and the verification of participants (KIP-890).

use super::{Participant, Producer, State, Transactions};
use crate::Error;

/// A transaction, as reported by `DescribeTransactions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// State.
    pub state: State,
    /// Current producer id and epoch.
    pub producer: Producer,
    /// Age at which the transaction is aborted, ms.
    pub timeout_ms: i32,
    /// When it began, ms since 1970; -1 if there was none.
    pub started_ms: i64,
    /// Partitions and groups in the transaction.
    pub participants: Vec<Participant>,
}

impl Transactions {
    /// Number of transactional ids removed because of [`Settings::bytes`](super::Settings::bytes), since the start.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Describes a transactional id.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is empty, [`Error::TransactionalIdNotFound`].
    pub fn describe(&self, transactional_id: &str) -> Result<Description, Error> {
        if transactional_id.is_empty() {
            return Err(Error::InvalidRequest);
        }
        let slot = self.slots.get(transactional_id).ok_or(Error::TransactionalIdNotFound)?;
        let transaction = &slot.transaction;
        Ok(Description {
            state: transaction.state,
            producer: transaction.producer,
            timeout_ms: transaction.timeout_ms,
            started_ms: match transaction.started_ms {
                0 => -1,
                started_ms => started_ms.cast_signed(),
            },
            participants: transaction.participants.iter().cloned().collect(),
        })
    }

    /// All transactional ids with state, producer, and start time of the transaction (ms since 1970, 0 for never), in
    /// no particular order.
    pub fn list(&self) -> impl Iterator<Item = (&str, State, Producer, u64)> {
        self.slots.iter().map(|(id, slot)| {
            let transaction = &slot.transaction;
            (&**id, transaction.state, transaction.producer, transaction.started_ms)
        })
    }

    /// Checks that a participant is in a producer's transaction, so that it may be written to (KIP-890).
    ///
    /// # Errors
    /// [`Error::TransactionAbortable`] if it is not; [`Error::InvalidProducerIdMapping`], [`Error::ProducerFenced`] or
    /// [`Error::ConcurrentTransactions`] if there is no such transaction.
    pub fn verify(
        &self,
        transactional_id: &str,
        producer: Producer,
        participant: &Participant,
    ) -> Result<(), Error> {
        let slot = self.slots.get(transactional_id).ok_or(Error::InvalidProducerIdMapping)?;
        slot.transaction.check_producer(producer)?;
        match slot.transaction.state {
            State::Prepare(_) => Err(Error::ConcurrentTransactions),
            _ if slot.transaction.participants.contains(participant) => Ok(()),
            _ => Err(Error::TransactionAbortable),
        }
    }
}
