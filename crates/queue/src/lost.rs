//! What a queue that is made again forgets of messages that are lost, though its state speaks of them.

use crate::machine::Queue;
use crate::meta::Meta;

/// The newest messages that are there, and were when the queue was made again: those of one ms.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    timestamp_ms: u64,
    ids: Vec<Box<[u8]>>,
}

impl Newest {
    pub(crate) fn note(&mut self, meta: &Meta) {
        if meta.timestamp_ms > self.timestamp_ms {
            self.timestamp_ms = meta.timestamp_ms;
            self.ids.clear();
        }
        if meta.timestamp_ms == self.timestamp_ms {
            self.ids.extend(meta.dedup_id.clone());
        }
    }
}

impl Queue {
    /// What was newer than the last message that was left, which is of the first of these times, and was there before the
    /// second one, was lost: whoever sends it again is to be heard.
    pub(crate) fn forget_lost_ids(&mut self, [from_ms, to_ms]: [u64; 2]) {
        let Newest { timestamp_ms, ids } = &self.newest;
        if *timestamp_ms == from_ms {
            self.seen.forget_between(from_ms..to_ms);
            for id in ids {
                self.seen.know_if_unknown(id, from_ms);
            }
        } else {
            // It is settled and gone, and what was lost of its time was forgotten before.
            self.seen.forget_between(from_ms.saturating_add(1)..to_ms);
        }
    }

    /// Tells of a message that is lost but for a copy: it is there, and its identifier has been seen.
    pub(crate) fn register_copy(&mut self, meta: Meta, now_ms: u64) {
        if let Some(id) = meta.dedup_id.as_deref().filter(|_| self.shared.config.dedup_window_ms > 0) {
            self.seen.know_if_unknown(id, meta.timestamp_ms);
        }
        self.register(meta, now_ms);
    }

    /// When all is registered again, nobody asks any more which messages were the newest.
    pub(crate) fn forget_newest_if_restored(&mut self) {
        if self.registered_to >= self.restored_to {
            self.newest = Newest::default();
        }
    }

    /// Lets what leaves from here on have higher numbers than this one.
    pub(crate) fn number_beyond(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
        for group in self.groups.values_mut() {
            group.last_number = group.last_number.max(number);
        }
    }
}
