//! `ListOffsets`, versions 1 to 11: offsets for timestamps. Runs here; partitions are asked where they live.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse,
};
use mainstem_log::Store;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::handlers::offset_for_leader_epoch::{LEADER_EPOCH, NO_EPOCH, check_epoch};
use crate::mail::{Call, Mail};
use crate::partition::{Partition, Reach};
use crate::shard::Shard;
use crate::work::{Isolation, PartAnswer, PartAsk};

/// Timestamps that stand for something else.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// The record with the largest timestamp (KIP-734).
const MAX_TIMESTAMP: i64 = -3;
/// The first that is on this node, which is the first there is (KIP-405).
const EARLIEST_LOCAL: i64 = -4;
/// The last that has left for remote storage, of which there is none (KIP-1005).
const LATEST_TIERED: i64 = -5;
/// The first that has not: the first there is (KIP-1023).
const EARLIEST_PENDING_UPLOAD: i64 = -6;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: ListOffsetsRequest) {
    let isolation = Isolation::from_level(request.isolation_level);
    let mut asks = Vec::new();
    for topic in &request.topics {
        let id = shard.catalogue.topic(&topic.name).map_or_else(Default::default, |topic| topic.id);
        for part in &topic.partitions {
            let id = PartitionId { topic: id, index: part.partition_index };
            asks.push((id, PartAsk::Offset { timestamp_ms: part.timestamp, isolation }));
        }
    }
    shard.ask_partitions(io, asks, move |shard, io, answers| {
        let mut answers = answers.into_iter();
        let topics = request.topics.iter().map(|topic| {
            let parts = topic.partitions.iter().zip(answers.by_ref());
            let partition =
                |(part, answer): (&ListOffsetsPartition, PartAnswer)| part_response(part, &answer);
            ListOffsetsTopicResponse { name: topic.name.clone(), partitions: parts.map(partition).collect() }
        });
        let topics = topics.collect();
        shard.reply::<ListOffsetsRequest>(io, &call, &ListOffsetsResponse { topics, ..Default::default() });
    });
}

fn part_response(part: &ListOffsetsPartition, answer: &PartAnswer) -> ListOffsetsPartitionResponse {
    let partition_index = part.partition_index;
    let mut response = ListOffsetsPartitionResponse { partition_index, ..Default::default() };
    match (answer, check_epoch(part.current_leader_epoch)) {
        (PartAnswer::Failed(ErrorCode::UnknownTopicOrPartition), _) => {
            response.error_code = ErrorCode::UnknownTopicOrPartition as i16;
        }
        (_, Err(code)) => response.error_code = code as i16,
        (PartAnswer::Offset { offset, timestamp_ms }, Ok(())) => {
            response.offset = *offset;
            response.timestamp = *timestamp_ms;
            response.leader_epoch = if *offset >= 0 { LEADER_EPOCH } else { NO_EPOCH };
        }
        (PartAnswer::Failed(code), Ok(())) => response.error_code = *code as i16,
        _ => response.error_code = ErrorCode::UnknownServerError as i16,
    }
    response
}

/// The offset for a timestamp, in a partition that is here.
///
/// # Errors
/// It cannot be read.
pub(crate) fn find(
    partition: &Partition,
    store: &mut dyn Store,
    reach: Reach,
    timestamp_ms: i64,
    isolation: Isolation,
) -> Result<PartAnswer, ErrorCode> {
    let mark = |offset: u64| PartAnswer::Offset { offset: offset.cast_signed(), timestamp_ms: -1 };
    let end = match isolation {
        Isolation::ReadUncommitted => reach.high_watermark,
        Isolation::ReadCommitted => reach.last_stable,
    };
    let nothing = PartAnswer::Offset { offset: -1, timestamp_ms: -1 };
    match timestamp_ms {
        LATEST => Ok(mark(end)),
        EARLIEST | EARLIEST_LOCAL | EARLIEST_PENDING_UPLOAD => Ok(mark(reach.start)),
        LATEST_TIERED => Ok(nothing),
        MAX_TIMESTAMP => Ok(find_largest(partition, store, end)?.unwrap_or(nothing)),
        _ if timestamp_ms < 0 => Err(ErrorCode::UnsupportedVersion),
        _ => {
            let found = store.find_time(partition.log, timestamp_ms);
            let found = found.map_err(|_| ErrorCode::KafkaStorageError)?;
            let found = found.filter(|found| found.offset < end);
            Ok(found.map_or(nothing, |found| PartAnswer::Offset {
                offset: found.offset.cast_signed(),
                timestamp_ms: found.timestamp_ms,
            }))
        }
    }
}

/// The offset for a timestamp, in a partition without records.
///
/// # Errors
/// Nobody knows such a timestamp.
pub(crate) fn find_in_nothing(timestamp_ms: i64) -> Result<PartAnswer, ErrorCode> {
    let offset = match timestamp_ms {
        LATEST | EARLIEST | EARLIEST_LOCAL | EARLIEST_PENDING_UPLOAD => 0,
        _ if timestamp_ms < LATEST_TIERED => return Err(ErrorCode::UnsupportedVersion),
        _ => -1,
    };
    Ok(PartAnswer::Offset { offset, timestamp_ms: -1 })
}

/// The first record of those with the largest timestamp before `end`. There is one for a timestamp as long as that is
/// not above the largest, so halving finds it, in as many looks at the indexes as a timestamp has bits; no client
/// makes the shard read a partition through.
fn find_largest(
    partition: &Partition,
    store: &mut dyn Store,
    end: u64,
) -> Result<Option<PartAnswer>, ErrorCode> {
    let mut find = |timestamp_ms: i64| {
        let found = store.find_time(partition.log, timestamp_ms).map_err(|_| ErrorCode::KafkaStorageError)?;
        Ok(found.filter(|found| found.offset < end))
    };
    let Some(mut largest) = find(i64::MIN)? else { return Ok(None) };
    let mut above = i64::MAX;
    while largest.timestamp_ms + 1 < above {
        let middle = largest.timestamp_ms.midpoint(above);
        match find(middle)? {
            Some(found) => largest = found,
            None => above = middle,
        }
    }
    Ok(Some(PartAnswer::Offset { offset: largest.offset.cast_signed(), timestamp_ms: largest.timestamp_ms }))
}
