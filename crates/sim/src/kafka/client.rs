//! What the Kafka clients of a run have in common: the trait that the scenario calls, what they work with, and the
//! records that they produce.

use mainstem_disk::fault::Rng;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_log::{BatchBuilder, BatchKind, Origin};

use super::connection::{Connection, Response};
use super::oracle::{Oracle, PartitionId, RecordId};
use crate::Violation;

/// What a client works with.
#[expect(clippy::struct_excessive_bools, reason = "facts about a run, independent of each other")]
pub(crate) struct Context<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) oracle: &'a mut Oracle,
    pub(crate) rng: &'a mut Rng,
    pub(crate) topics: &'a [Topic],
    pub(crate) now_ms: u64,
    pub(crate) unix_ms: u64,
    /// A disk fault was planned since the broker was started.
    pub(crate) is_troubled: bool,
    /// A disk fault was planned at any time.
    pub(crate) has_failed: bool,
    pub(crate) has_lost_power: bool,
    /// The run ends: only what has begun goes on.
    pub(crate) is_ending: bool,
}

/// A topic that exists for the whole run.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) partitions: u16,
    /// A binding appends to it.
    pub(crate) is_bound: bool,
}

pub(crate) trait Client {
    /// Sends requests, unless it waits for responses. Called while it is connected.
    fn act(&mut self, context: &mut Context<'_>);

    /// Takes the response to its oldest request.
    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation>;

    /// The connection is lost: what is in flight may happen or not.
    fn connection_lost(&mut self, oracle: &mut Oracle) -> Result<(), Violation>;

    /// Whether it has completed what it began.
    fn is_done(&self) -> bool;

    /// Whether it must not return before the broker is done with its former connection.
    fn waits_for_broker(&self) -> bool {
        true
    }
}

impl Context<'_> {
    pub(crate) fn name(&self, part: PartitionId) -> String {
        self.topics[part.topic].name.clone()
    }

    /// A random partition that clients produce to.
    pub(crate) fn any_partition(&mut self) -> PartitionId {
        let open = self.topics.iter().filter(|topic| !topic.is_bound).count();
        let topic = self.rng.below(open as u64) as usize;
        PartitionId { topic, index: self.rng.below(self.topics[topic].partitions.into()) as i32 }
    }

    /// The partition with this name.
    pub(crate) fn part(&self, name: &str, index: i32) -> Result<PartitionId, Violation> {
        let topic = self.topics.iter().position(|topic| topic.name == name);
        let topic =
            topic.ok_or_else(|| Violation(format!("an answer for {name:?}, which nobody asked for")))?;
        Ok(PartitionId { topic, index })
    }

    /// Commits an offset of one partition as a member of a group: its id, and its generation or epoch.
    pub(crate) fn send_commit(
        &mut self,
        version: i16,
        (group, member_id, epoch): (&'static str, &str, i32),
        part: PartitionId,
        offset: u64,
    ) {
        self.oracle.commit_sent(group, part, offset);
        let partition = OffsetCommitRequestPartition {
            partition_index: part.index,
            committed_offset: offset.cast_signed(),
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: self.name(part),
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: group.to_owned(),
            generation_id_or_member_epoch: epoch,
            member_id: member_id.to_owned(),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        self.connection.send(version, &request);
    }

    /// Returns a violation, unless the error is one that a disk fault explains.
    pub(crate) fn unexpected(&self, what: &str, code: i16) -> Result<(), Violation> {
        if self.is_troubled && is_storage(code) {
            return Ok(());
        }
        Err(Violation(format!("{what} is answered with {}", named(code))))
    }
}

/// Whether an error reports a failed disk.
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

/// Kafka's name of an error.
pub(crate) fn named(code: i16) -> String {
    ErrorCode::from_code(code).map_or_else(|| code.to_string(), |code| code.to_string())
}

/// A batch until it is acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) records: Vec<RecordId>,
    pub(crate) sequence: i32,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) type ProducerId = (i64, i16);

/// Makes a batch. Each record carries its number and its partition.
pub(crate) fn batch(
    records: &[RecordId],
    part: PartitionId,
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

/// Returns the record with this value.
pub(crate) fn record_of(value: &[u8], part: PartitionId) -> Result<RecordId, Violation> {
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
