//! When a keeper does what it does now and then: for all that tests want to reach.

/// Bounds that are the same for all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Messages that one call concerns itself with, at most, where there is no other bound; 1,000. A snapshot that speaks of more
    /// is written in parts of so many.
    pub at_once: usize,
    /// Unsettled messages that a queue wants to know at once; a million. When there are more, groups that are behind learn of
    /// later ones when they have settled some.
    pub known_max: u64,
    /// Bytes of events beyond which a snapshot is written, if they are more than four times the last one; 1 MiB.
    pub snapshot_bytes: usize,
    /// Bytes of messages on disk, at least, before old messages are copied so that those behind them that are settled can
    /// go, if that is more than three quarters; 64 MiB.
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
