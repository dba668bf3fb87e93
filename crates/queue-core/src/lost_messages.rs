//! Deduplication after messages were lost.
//!
//! The state may remember identifiers of messages that a loss of power has taken. A publisher that sends such a
//! message again must not be told that it is a duplicate.

use crate::machine::Queue;
use crate::meta::Meta;
use crate::newest_messages::NewestMessages;

impl Queue {
    /// Forgets identifiers of lost messages. Those are newer than `from_ms`, the time of the last message that is
    /// left, and older than `to_ms`, the time of the restart.
    pub(crate) fn forget_lost_ids(&mut self, [from_ms, to_ms]: [u64; 2]) {
        let NewestMessages { timestamp_ms, ids } = &self.newest;
        if *timestamp_ms == from_ms {
            self.dedup.forget_between(from_ms..to_ms);
            for id in ids {
                self.dedup.record_if_new(id, from_ms);
            }
        } else {
            // The last message is settled and deleted, and identifiers of its millisecond were forgotten before.
            self.dedup.forget_between(from_ms.saturating_add(1)..to_ms);
        }
    }

    /// Registers a message that is lost in the log but has a copy: it exists, and its identifier was seen.
    pub(crate) fn register_copy(&mut self, meta: Meta, now_ms: u64) {
        if let Some(id) = meta.dedup_id.as_deref().filter(|_| self.shared.config.dedup_window_ms > 0) {
            self.dedup.record_if_new(id, meta.timestamp_ms);
        }
        self.register(meta, now_ms);
    }

    /// Once everything is registered again, the newest messages are not needed.
    pub(crate) fn forget_newest_if_restored(&mut self) {
        if self.registered_to >= self.restored_to {
            self.newest = NewestMessages::default();
        }
    }

    /// Makes future transfer numbers higher than this one.
    pub(crate) fn skip_numbers_to(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
        for group in self.groups.values_mut() {
            group.transfers.skip_to(number);
        }
    }
}
