//! Partitions that have no log yet.
//!
//! A log costs a directory, a file and their syncs, and many partitions are never written to. The first append
//! creates the log; until then reads find the partition empty.

use mainstem_kafka::ErrorCode;
use mainstem_partition::{JobId, Watermarks};

use crate::catalogue::PartitionId;
use crate::partition_message::{PartitionQuery, PartitionQueryResult};
use crate::shard::Shard;

impl Shard {
    /// Whether a partition of this shard has no log yet.
    pub(crate) fn is_uncreated(&mut self, id: PartitionId) -> bool {
        if self.partitions.contains(&id) || self.maintenance.is_unopened(id) {
            return false;
        }
        self.shared.refresh(&mut self.catalogue);
        self.owner_of(id) == Ok(self.me)
    }

    /// Registers a parked fetch with a partition of this shard.
    pub(crate) fn watch(&mut self, id: PartitionId, watcher: JobId) {
        if self.partitions.contains(&id) || self.is_uncreated(id) {
            self.partitions.watch(id, watcher);
        }
    }
}

/// Answers a query to a partition without a log.
///
/// # Errors
/// The query would fail on an empty log too.
pub(crate) fn answer(query: &PartitionQuery) -> Result<PartitionQueryResult, ErrorCode> {
    Ok(match *query {
        PartitionQuery::Offset { timestamp_ms, .. } => {
            return crate::offset_lookup::find_in_empty(timestamp_ms);
        }
        PartitionQuery::DeleteBefore(0 | -1) => PartitionQueryResult::DeletedBefore(0),
        PartitionQuery::DeleteBefore(_) => return Err(ErrorCode::OffsetOutOfRange),
        PartitionQuery::Watermarks => PartitionQueryResult::Watermarks(Watermarks::default()),
        PartitionQuery::Producers => PartitionQueryResult::Producers(Vec::new()),
        PartitionQuery::Size => PartitionQueryResult::Size { bytes: 0 },
    })
}
