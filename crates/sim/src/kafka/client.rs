//! What every client of the Kafka door is to the run.

use mainstem_disk::fault::Dice;
use mainstem_kafka::ErrorCode;
use mainstem_log::{BatchBuilder, BatchKind, Origin};

use super::ledger::{Ledger, Part, RecordId};
use super::wire::{Response, Wire};
use crate::ledger::Violation;

/// What a client works with.
#[expect(clippy::struct_excessive_bools, reason = "facts about a run, independent of each other")]
pub(crate) struct Desk<'a> {
    pub(crate) wire: &'a mut Wire,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) dice: &'a mut Dice,
    pub(crate) topics: &'a [Topic],
    pub(crate) now_ms: u64,
    pub(crate) unix_ms: u64,
    /// Faults of the disk have been planted since the broker was started.
    pub(crate) is_troubled: bool,
    /// They have been planted at some time.
    pub(crate) has_failed: bool,
    /// Power was lost at some time.
    pub(crate) has_lost_power: bool,
    /// The run comes to its end: only what has been begun goes on.
    pub(crate) is_ending: bool,
}

/// A topic that is there for the whole run.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) partitions: u16,
    /// Records are made of messages.
    pub(crate) is_bound: bool,
}

/// A client of the Kafka door.
pub(crate) trait Client {
    /// Does something, if there is nothing it waits for. Called while it is connected.
    fn act(&mut self, desk: &mut Desk<'_>);

    /// Takes the response to the oldest request that has none.
    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation>;

    /// The connection is lost: what is under way may happen or not.
    fn lost(&mut self, ledger: &mut Ledger) -> Result<(), Violation>;

    /// Whether nothing is left to be done.
    fn is_done(&self) -> bool;

    /// Whether it must not come back before the broker has done with what it sent over an earlier connection.
    fn is_careful(&self) -> bool {
        true
    }
}

impl Desk<'_> {
    /// The name of a partition's topic.
    pub(crate) fn name(&self, part: Part) -> String {
        self.topics[part.topic].name.clone()
    }

    /// Some partition that records are produced to.
    pub(crate) fn any_part(&mut self) -> Part {
        let open = self.topics.iter().filter(|topic| !topic.is_bound).count();
        let topic = self.dice.below(open as u64) as usize;
        Part { topic, index: self.dice.below(self.topics[topic].partitions.into()) as i32 }
    }

    /// The partition with this name.
    pub(crate) fn part(&self, name: &str, index: i32) -> Result<Part, Violation> {
        let topic = self.topics.iter().position(|topic| topic.name == name);
        let topic =
            topic.ok_or_else(|| Violation(format!("an answer for {name:?}, which nobody asked for")))?;
        Ok(Part { topic, index })
    }

    /// A violation, unless the disk is to blame.
    pub(crate) fn unexpected(&self, what: &str, code: i16) -> Result<(), Violation> {
        if self.is_troubled && is_storage(code) {
            return Ok(());
        }
        Err(Violation(format!("{what} is answered with {}", named(code))))
    }
}

/// Whether an error says that the disk has failed.
pub(crate) fn is_storage(code: i16) -> bool {
    const BY_DISKS: [ErrorCode; 5] = [
        ErrorCode::KafkaStorageError,
        ErrorCode::UnknownServerError,
        ErrorCode::NotEnoughReplicas,
        ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotCoordinator,
    ];
    BY_DISKS.map(ErrorCode::code).contains(&code)
}

/// An error as Kafka spells it.
pub(crate) fn named(code: i16) -> String {
    ErrorCode::from_code(code).map_or_else(|| code.to_string(), |code| code.to_string())
}

/// A batch as a producer keeps it until it is acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) records: Vec<RecordId>,
    pub(crate) sequence: i32,
    pub(crate) bytes: Vec<u8>,
}

/// Producer id and epoch.
pub(crate) type ProducerId = (i64, i16);

/// Makes a batch of records. Each says which one it is, and where it belongs.
pub(crate) fn batch(
    records: &[RecordId],
    part: Part,
    unix_ms: u64,
    producer: Option<(ProducerId, i32)>,
    kind: BatchKind,
) -> Batch {
    let mut builder = BatchBuilder::default();
    for id in records {
        let mut value = format!("{id};{}-{};", part.topic, part.index).into_bytes();
        let len = if id.is_multiple_of(19) { 3000 } else { value.len() + id % 7 };
        value.resize(len, b'x');
        let key = format!("k{}", id % 5);
        builder.push(unix_ms.cast_signed(), Some(key.as_bytes()), Some(&value));
    }
    let origin = producer.map_or_else(Origin::default, |((producer_id, producer_epoch), base_sequence)| {
        Origin { producer_id, producer_epoch, base_sequence, kind }
    });
    let sequence = producer.map_or(-1, |(_, sequence)| sequence);
    Batch { records: records.to_vec(), sequence, bytes: builder.finish_as(&origin).bytes().to_vec() }
}

/// The record that a value says it is.
pub(crate) fn record_of(value: &[u8], part: Part) -> Result<RecordId, Violation> {
    let bad = || Violation(format!("{part:?}: {:?}, which nobody sent", String::from_utf8_lossy(value)));
    let mut parts = value.split(|byte| *byte == b';');
    let id =
        parts.next().and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).ok_or_else(bad)?;
    let home = format!("{}-{}", part.topic, part.index);
    if parts.next() != Some(home.as_bytes())
        || parts.next().is_none_or(|rest| rest.iter().any(|x| *x != b'x'))
    {
        return Err(bad());
    }
    Ok(id)
}
