//! What the manager of a partition admits to it.
//!
//! A component of the broker that manages a partition, for example a work queue, limits what clients append, and must
//! act before anything is appended if the log has lost offsets that were assigned before a restart. A server that
//! appends must not know that component. So the manager states its terms as an [`Admission`], which the partition
//! checks with each append, and replaces it whenever they change. In between, the partition itself counts what clients
//! append: batches of the same turn share the room that is left.

use crate::error::PartitionError;

/// The terms of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Offsets below this one were assigned before a restart. Nothing is appended to a log that ends earlier: the
    /// manager must fill the lost offsets first.
    pub assigned_to: u64,
    /// Room for records of clients.
    pub records: u64,
    /// Room for batches of clients, bytes.
    pub bytes: u64,
}

impl Admission {
    /// Whether a log with this end can be appended to.
    pub(crate) fn is_open(&self, log_end: u64) -> bool {
        self.assigned_to <= log_end
    }

    /// Checks whether a client's batch of this size fits.
    pub(crate) fn check(&self, records: u64, bytes: u64) -> Result<(), PartitionError> {
        if records <= self.records && bytes <= self.bytes { Ok(()) } else { Err(PartitionError::Full) }
    }

    /// Counts a client's batch that was appended.
    pub(crate) fn take(&mut self, records: u64, bytes: u64) {
        self.records = self.records.saturating_sub(records);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
