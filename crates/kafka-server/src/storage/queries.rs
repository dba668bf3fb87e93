//! Queries to partitions: offsets by timestamp, watermarks, sizes, producers, and the deletion of records.

use std::vec;

use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use super::offset_lookup::{self, is_lookup_by_time};
use super::reads::read_error;
use super::{LOOKUP_UNITS, OPEN_UNITS, Storage, uncreated};
use crate::catalogue::PartitionId;
use crate::environment::Environment;
use crate::partition_message::{PartitionQuery, PartitionQueryResult};

/// Looking up a record by its time.
const FIND_TIME_UNITS: u32 = 500;
/// Deleting records, which takes a snapshot of the producers.
const DELETE_UNITS: u32 = 500;

impl Storage {
    /// Answers the next query to a partition of this shard, and charges it to the turn. Returns false if there is none.
    pub(crate) fn query_next<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        queries: &mut vec::IntoIter<(u32, PartitionId, PartitionQuery)>,
        answers: &mut Vec<(u32, PartitionQueryResult)>,
    ) -> bool {
        let Some((part, id, query)) = queries.next() else { return false };
        let open = if self.maintenance.is_unopened(id) { OPEN_UNITS } else { 0 };
        io.charge(open + query_units(&query));
        answers.push((part, self.answer(env, id, &query).unwrap_or_else(PartitionQueryResult::Failed)));
        true
    }

    fn answer(
        &mut self,
        env: &mut Environment,
        id: PartitionId,
        query: &PartitionQuery,
    ) -> Result<PartitionQueryResult, ErrorCode> {
        if self.is_uncreated(env, id) {
            return uncreated::answer(query);
        }
        let (partition, store) = self.partition(env, id)?;
        let watermarks = partition.watermarks(store);
        Ok(match *query {
            PartitionQuery::Offset { timestamp_ms, isolation } => {
                return offset_lookup::find(partition, store, watermarks, timestamp_ms, isolation);
            }
            PartitionQuery::DeleteBefore(offset) => {
                let offset =
                    if offset == -1 { watermarks.high_watermark } else { offset.max(-1).cast_unsigned() };
                if offset > watermarks.high_watermark {
                    return Err(ErrorCode::OffsetOutOfRange);
                }
                store.truncate_prefix(partition.log(), offset).map_err(|error| read_error(&error))?;
                let start = partition.watermarks(store).start;
                self.on_start_advanced(id);
                PartitionQueryResult::DeletedBefore(start.cast_signed())
            }
            PartitionQuery::Watermarks => PartitionQueryResult::Watermarks(watermarks),
            PartitionQuery::Producers => PartitionQueryResult::Producers(partition.producers()),
            PartitionQuery::Size => PartitionQueryResult::Size { bytes: store.status(partition.log()).bytes },
        })
    }
}

fn query_units(query: &PartitionQuery) -> u32 {
    match query {
        PartitionQuery::Offset { timestamp_ms, .. } if is_lookup_by_time(*timestamp_ms) => FIND_TIME_UNITS,
        PartitionQuery::DeleteBefore(_) => DELETE_UNITS,
        PartitionQuery::Offset { .. }
        | PartitionQuery::Watermarks
        | PartitionQuery::Size
        | PartitionQuery::Producers => LOOKUP_UNITS,
    }
}
