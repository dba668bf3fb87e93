//! Encoding of the transaction coordinator's records. The format is specified in `docs/formats/transaction-records.md`.
//!
//! A key starts with its kind, a value with a version. Unknown kinds and versions are errors.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::state::{State, Transaction};
use super::{Participant, Producer};
use crate::Record;
use crate::bytes::{Malformed, Reader, Writer};
use crate::producer::Outcome;

const VERSION: u8 = 1;
/// Key kinds.
const TRANSACTION_KEY: u8 = 1;
const PRODUCER_IDS_KEY: u8 = 2;
/// Participant kinds.
const PARTITION: u8 = 0;
const GROUP: u8 = 1;

/// A decoded record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedRecord {
    Transaction(Arc<str>, Option<Box<Transaction>>),
    ProducerIds(i64),
    /// A tombstone of a producer id block, which has no effect.
    Ignored,
}

pub(super) fn transaction(transactional_id: &str, transaction: Option<&Transaction>) -> Record {
    let mut key = Writer::starting_with(TRANSACTION_KEY);
    key.text(transactional_id);
    Record { key: key.0, value: transaction.map(encode) }
}

pub(super) fn producer_ids(end: i64) -> Record {
    let mut value = Writer::starting_with(VERSION);
    value.signed(end);
    Record { key: vec![PRODUCER_IDS_KEY], value: Some(value.0) }
}

pub(super) fn parse(key: &[u8], value: Option<&[u8]>) -> Result<ParsedRecord, Malformed> {
    let mut key = Reader::new(key);
    match (key.byte()?, value) {
        (TRANSACTION_KEY, value) => {
            let transactional_id = key.text()?.into();
            key.end()?;
            Ok(ParsedRecord::Transaction(transactional_id, value.map(decode).transpose()?.map(Box::new)))
        }
        (PRODUCER_IDS_KEY, Some(value)) => {
            key.end()?;
            let mut reader = versioned(value)?;
            let end = reader.signed()?;
            reader.end()?;
            Ok(ParsedRecord::ProducerIds(end))
        }
        (PRODUCER_IDS_KEY, None) => Ok(ParsedRecord::Ignored),
        _ => Err(Malformed("unknown key kind")),
    }
}

fn encode(transaction: &Transaction) -> Vec<u8> {
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

fn decode(value: &[u8]) -> Result<Transaction, Malformed> {
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
            _ => return Err(Malformed("unknown transaction state")),
        },
        started_ms: reader.number()?,
        updated_ms: reader.number()?,
        participants: BTreeSet::new(),
    };
    for _ in 0..reader.count()? {
        transaction.participants.insert(match reader.byte()? {
            PARTITION => Participant::Partition { topic: reader.text()?.into(), index: reader.signed_32()? },
            GROUP => Participant::Group(reader.text()?.into()),
            _ => return Err(Malformed("unknown participant kind")),
        });
    }
    reader.end()?;
    Ok(transaction)
}

fn versioned(value: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(value);
    if reader.byte()? == VERSION { Ok(reader) } else { Err(Malformed("unknown record version")) }
}

fn epoch(reader: &mut Reader<'_>) -> Result<i16, Malformed> {
    i16::try_from(reader.signed()?).map_err(|_| Malformed("an epoch exceeds 16 bits"))
}
