//! What `DescribeTransactions` and `ListTransactions` tell.

use super::{Participant, Producer, State, Transactions};
use crate::Error;

/// A transaction as it is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// How far it has come.
    pub state: State,
    /// Its producer.
    pub producer: Producer,
    /// Age at which it is aborted, ms.
    pub timeout_ms: i32,
    /// When it began, ms since 1970; -1 if there was none.
    pub started_ms: i64,
    /// Partitions and groups in it.
    pub participants: Vec<Participant>,
}

impl Transactions {
    /// What is known of a transactional identifier.
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

    /// All transactional identifiers, with the state of their transactions, their producers, and when the
    /// transaction began, ms since 1970 (0 for never), in no order.
    pub fn list(&self) -> impl Iterator<Item = (&str, State, Producer, u64)> {
        self.slots.iter().map(|(id, slot)| {
            let transaction = &slot.transaction;
            (&**id, transaction.state, transaction.producer, transaction.started_ms)
        })
    }

    /// Whether a participant is in a producer's transaction, so that it may be written to (KIP-890).
    ///
    /// # Errors
    /// [`Error::TransactionAbortable`] if it is not; [`Error::InvalidProducerIdMapping`],
    /// [`Error::ProducerFenced`], [`Error::ConcurrentTransactions`] if there is no such transaction.
    pub fn verify(
        &self,
        transactional_id: &str,
        producer: Producer,
        participant: &Participant,
    ) -> Result<(), Error> {
        let slot = self.slots.get(transactional_id).ok_or(Error::InvalidProducerIdMapping)?;
        slot.transaction.expect(producer)?;
        match slot.transaction.state {
            State::Prepare(_) => Err(Error::ConcurrentTransactions),
            _ if slot.transaction.participants.contains(participant) => Ok(()),
            _ => Err(Error::TransactionAbortable),
        }
    }
}
