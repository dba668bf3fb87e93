//! Lookup of offsets by timestamp, for `ListOffsets`.
//!
//! A consumer must be given an offset that it can fetch. Each answer is therefore limited by the end that the
//! consumer's isolation level can see, not by the end of the log.

use mainstem_kafka::ErrorCode;
use mainstem_log::Store;
use mainstem_partition::{Isolation, Partition, Watermarks};

use crate::partition_message::PartitionQueryResult;

/// Timestamps with a special meaning.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// The record with the largest timestamp (KIP-734).
const MAX_TIMESTAMP: i64 = -3;
/// The first offset on this node, which is the first of all (KIP-405).
const EARLIEST_LOCAL: i64 = -4;
/// The last offset in remote storage, which the broker does not have (KIP-1005).
const LATEST_TIERED: i64 = -5;
/// The first offset that is not in remote storage: the first of all (KIP-1023).
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// Whether the offset for a timestamp is looked up in the log.
pub(super) fn is_lookup_by_time(timestamp_ms: i64) -> bool {
    timestamp_ms >= 0 || timestamp_ms == MAX_TIMESTAMP
}

/// The offset for a timestamp in a partition of this shard.
///
/// # Errors
/// It cannot be read.
pub(super) fn find(
    partition: &Partition,
    store: &mut dyn Store,
    watermarks: Watermarks,
    timestamp_ms: i64,
    isolation: Isolation,
) -> Result<PartitionQueryResult, ErrorCode> {
    let mark = |offset: u64| PartitionQueryResult::Offset { offset: offset.cast_signed(), timestamp_ms: -1 };
    let end = watermarks.end(isolation);
    let nothing = PartitionQueryResult::Offset { offset: -1, timestamp_ms: -1 };
    match timestamp_ms {
        LATEST => Ok(mark(end)),
        EARLIEST | EARLIEST_LOCAL | EARLIEST_PENDING_UPLOAD => Ok(mark(watermarks.start)),
        LATEST_TIERED => Ok(nothing),
        MAX_TIMESTAMP => Ok(find_largest(partition, store, end)?.unwrap_or(nothing)),
        _ if timestamp_ms < 0 => Err(ErrorCode::UnsupportedVersion),
        _ => {
            let found = store.find_time(partition.log(), timestamp_ms);
            let found = found.map_err(|_| ErrorCode::KafkaStorageError)?;
            let found = found.filter(|found| found.offset < end);
            Ok(found.map_or(nothing, |found| PartitionQueryResult::Offset {
                offset: found.offset.cast_signed(),
                timestamp_ms: found.timestamp_ms,
            }))
        }
    }
}

/// The offset for a timestamp, in a partition without records.
///
/// # Errors
/// The special timestamp is unknown.
pub(super) fn find_in_empty(timestamp_ms: i64) -> Result<PartitionQueryResult, ErrorCode> {
    let offset = match timestamp_ms {
        LATEST | EARLIEST | EARLIEST_LOCAL | EARLIEST_PENDING_UPLOAD => 0,
        _ if timestamp_ms < LATEST_TIERED => return Err(ErrorCode::UnsupportedVersion),
        _ => -1,
    };
    Ok(PartitionQueryResult::Offset { offset, timestamp_ms: -1 })
}

/// The first record with the largest timestamp before `end`.
///
/// A lookup by timestamp succeeds exactly if the timestamp is not above the largest one. Binary search over timestamps
/// therefore finds it with one index lookup per bit, and no client can make the shard scan a partition.
fn find_largest(
    partition: &Partition,
    store: &mut dyn Store,
    end: u64,
) -> Result<Option<PartitionQueryResult>, ErrorCode> {
    let mut find = |timestamp_ms: i64| {
        let found =
            store.find_time(partition.log(), timestamp_ms).map_err(|_| ErrorCode::KafkaStorageError)?;
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
    Ok(Some(PartitionQueryResult::Offset {
        offset: largest.offset.cast_signed(),
        timestamp_ms: largest.timestamp_ms,
    }))
}
