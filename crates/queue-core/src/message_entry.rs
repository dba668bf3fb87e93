//! What is known of one unsettled message in memory.

use std::num::NonZeroU64;

/// Identifies the time to live that a message is indexed by.
pub(crate) type Era = u8;

/// What is known of a message in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageEntry {
    pub(crate) timestamp_ms: u64,
    /// Expiry from its headers; `u64::MAX` for never.
    pub(crate) expires_ms: u64,
    pub(crate) due_ms: u64,
    pub(crate) key: Option<NonZeroU64>,
    pub(crate) bytes: u32,
    /// Groups that have it in memory and have not settled it.
    pub(crate) pending: u16,
    /// Pending groups in which it does not leave, plus groups that have not loaded it.
    pub(crate) staying: u16,
    /// Pending groups in which it is leased or leaving, plus groups that have not loaded it.
    pub(crate) held: u16,
    pub(crate) priority: u8,
    /// The era of the time to live by which [`Expiry`](crate::expiry::Expiry) has indexed it.
    pub(crate) era: Era,
    /// Whether another queue moved it here.
    pub(crate) is_moved: bool,
}

impl MessageEntry {
    /// Hash of its key.
    pub(crate) fn key(&self) -> Option<u64> {
        self.key.map(NonZeroU64::get)
    }

    /// When it expires in a queue with this time to live; `u64::MAX` for never.
    pub(crate) fn expires_ms(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 {
            self.expires_ms
        } else {
            self.expires_ms.min(self.timestamp_ms.saturating_add(ttl_ms))
        }
    }
}
