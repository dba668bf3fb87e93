//! Partitions that have no log yet.
//!
//! A log costs a directory, a file and their syncs, and many partitions are never written to. The first append
//! creates the log; until then reads find the partition empty.

use mainstem_kafka::ErrorCode;
use mainstem_partition::Watermarks;

use super::{Storage, offset_lookup};
use crate::catalogue::PartitionId;
use crate::environment::Environment;
use crate::partition_message::{PartitionQuery, PartitionQueryResult};

impl Storage {
    /// Whether a partition of this shard has no log yet.
    pub(super) fn is_uncreated(&self, env: &mut Environment, id: PartitionId) -> bool {
        if self.partitions.contains(&id) || self.maintenance.is_unopened(id) {
            return false;
        }
        env.refresh();
        env.owner_of(id) == Ok(env.me())
    }
}

/// Answers a query to a partition without a log.
///
/// # Errors
/// The query would fail on an empty log too.
pub(super) fn answer(query: &PartitionQuery) -> Result<PartitionQueryResult, ErrorCode> {
    Ok(match *query {
        PartitionQuery::Offset { timestamp_ms, .. } => {
            return offset_lookup::find_in_empty(timestamp_ms);
        }
        PartitionQuery::DeleteBefore(0 | -1) => PartitionQueryResult::DeletedBefore(0),
        PartitionQuery::DeleteBefore(_) => return Err(ErrorCode::OffsetOutOfRange),
        PartitionQuery::Watermarks => PartitionQueryResult::Watermarks(Watermarks::default()),
        PartitionQuery::Producers => PartitionQueryResult::Producers(Vec::new()),
        PartitionQuery::Size => PartitionQueryResult::Size { bytes: 0 },
    })
}
