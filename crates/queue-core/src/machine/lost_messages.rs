//! Deduplication after messages were lost.
//!
//! The state may remember identifiers of messages that a loss of power has taken. A publisher that sends such a
//! message again must not be told that it is a duplicate.

use super::Queue;
use crate::meta::Meta;

impl Queue {
    /// Forgets identifiers of messages that are lost, given the time of the last message that is left and that of the
    /// restart.
    pub(crate) fn forget_lost_ids(&mut self, times_ms: [u64; 2]) {
        self.duplicates.forget_lost(times_ms);
    }

    /// Registers a message that is lost in the log but has a copy: it exists, and its identifier was seen.
    pub(crate) fn register_copy(&mut self, meta: Meta, now_ms: u64) {
        if let Some(id) = meta.dedup_id.as_deref().filter(|_| self.shared.config.dedup_window_ms > 0) {
            self.duplicates.index_mut().record_if_new(id, meta.timestamp_ms);
        }
        self.register(meta, now_ms);
    }

    /// Once everything is registered again, the newest messages are not needed.
    pub(crate) fn forget_newest_if_restored(&mut self) {
        if !self.registration.is_restoring() {
            self.duplicates.all_registered_again();
        }
    }

    /// Makes future transfer numbers higher than this one.
    pub(crate) fn skip_numbers_to(&mut self, number: u64) {
        self.groups.skip_numbers_to(number);
    }
}
