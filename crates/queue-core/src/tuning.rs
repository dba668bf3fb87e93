//! Thresholds of a durable queue's background work. Tests set small ones to reach every case.

/// Thresholds, the same for all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Limit of messages that one call handles where no other limit applies; 1,000. A larger snapshot is written in
    /// parts of this size.
    pub at_once: usize,
    /// Unsettled messages to keep in memory; a million. Beyond that, lagging groups load later messages only after
    /// they have settled some.
    pub known_max: u64,
    /// Bytes of events after which a snapshot is written, if they are also four times as large as the last snapshot;
    /// 1 MiB.
    pub snapshot_bytes: usize,
    /// Bytes of messages on disk from which on old messages are copied to free disk space, if more than three
    /// quarters of the messages are settled; 64 MiB.
    pub waste_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            at_once: 1_000,
            known_max: 1_000_000,
            snapshot_bytes: 1024 * 1024,
            waste_bytes: 64 * 1024 * 1024,
        }
    }
}
