//! What is kept of the coordinator. The format stands in `docs/formats/transaction-records.md`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::state::{State, Transaction};
use super::{Participant, Producer};
use crate::Record;
use crate::bytes::{Malformed, Reader, Writer};
use crate::producer::Outcome;

const VERSION: u8 = 1;
/// Kinds of keys.
const OF_TRANSACTION: u8 = 1;
const OF_PRODUCER_IDS: u8 = 2;
/// Kinds of participants.
const PARTITION: u8 = 0;
const GROUP: u8 = 1;

/// A record, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    Transaction(Arc<str>, Option<Box<Transaction>>),
    ProducerIds(i64),
    /// Of no use: a block that is taken back.
    Nothing,
}

pub(super) fn transaction(transactional_id: &str, transaction: Option<&Transaction>) -> Record {
    let mut key = Writer::starting_with(OF_TRANSACTION);
    key.text(transactional_id);
    Record { key: key.0, value: transaction.map(put) }
}

pub(super) fn producer_ids(end: i64) -> Record {
    let mut value = Writer::starting_with(VERSION);
    value.signed(end);
    Record { key: vec![OF_PRODUCER_IDS], value: Some(value.0) }
}

/// # Errors
/// [`Malformed`].
pub(super) fn read(key: &[u8], value: Option<&[u8]>) -> Result<Read, Malformed> {
    let mut key = Reader::new(key);
    match (key.byte()?, value) {
        (OF_TRANSACTION, value) => {
            let transactional_id = key.text()?.into();
            key.end()?;
            Ok(Read::Transaction(transactional_id, value.map(take).transpose()?.map(Box::new)))
        }
        (OF_PRODUCER_IDS, Some(value)) => {
            key.end()?;
            let mut reader = versioned(value)?;
            let end = reader.signed()?;
            reader.end()?;
            Ok(Read::ProducerIds(end))
        }
        (OF_PRODUCER_IDS, None) => Ok(Read::Nothing),
        _ => Err(Malformed("a key of an unknown kind")),
    }
}

fn put(transaction: &Transaction) -> Vec<u8> {
    let mut writer = Writer::starting_with(VERSION);
    writer.signed(transaction.producer.id).signed(transaction.producer.epoch.into());
    writer.signed(transaction.last_epoch.into());
    writer.signed(transaction.previous_id).signed(transaction.next_id);
    writer.signed(transaction.timeout_ms.into());
    writer.number(match transaction.state {
        State::Empty => 0,
        State::Ongoing => 1,
        State::Prepare(Outcome::Commit) => 2,
        State::Prepare(Outcome::Abort) => 3,
        State::Complete(Outcome::Commit) => 4,
        State::Complete(Outcome::Abort) => 5,
    });
    writer.number(transaction.started_ms).number(transaction.updated_ms);
    writer.number(transaction.participants.len() as u64);
    for participant in &transaction.participants {
        match participant {
            Participant::Partition { topic, index } => {
                writer.number(PARTITION.into()).text(topic).signed((*index).into());
            }
            Participant::Group(group) => {
                writer.number(GROUP.into()).text(group);
            }
        }
    }
    writer.0
}

fn take(value: &[u8]) -> Result<Transaction, Malformed> {
    let mut reader = versioned(value)?;
    let mut transaction = Transaction {
        producer: Producer { id: reader.signed()?, epoch: epoch(&mut reader)? },
        last_epoch: epoch(&mut reader)?,
        previous_id: reader.signed()?,
        next_id: reader.signed()?,
        timeout_ms: reader.signed_32()?,
        state: match reader.byte()? {
            0 => State::Empty,
            1 => State::Ongoing,
            2 => State::Prepare(Outcome::Commit),
            3 => State::Prepare(Outcome::Abort),
            4 => State::Complete(Outcome::Commit),
            5 => State::Complete(Outcome::Abort),
            _ => return Err(Malformed("an unknown state")),
        },
        started_ms: reader.number()?,
        updated_ms: reader.number()?,
        participants: BTreeSet::new(),
    };
    for _ in 0..reader.count()? {
        transaction.participants.insert(match reader.byte()? {
            PARTITION => Participant::Partition { topic: reader.text()?.into(), index: reader.signed_32()? },
            GROUP => Participant::Group(reader.text()?.into()),
            _ => return Err(Malformed("a participant of an unknown kind")),
        });
    }
    reader.end()?;
    Ok(transaction)
}

fn versioned(value: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(value);
    if reader.byte()? == VERSION { Ok(reader) } else { Err(Malformed("a record of another version")) }
}

fn epoch(reader: &mut Reader<'_>) -> Result<i16, Malformed> {
    i16::try_from(reader.signed()?).map_err(|_| Malformed("an epoch of more than 16 bits"))
}
