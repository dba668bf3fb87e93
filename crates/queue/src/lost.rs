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
    /// What was newer than the newest message so far was lost, before this time: whoever sends it again is to be heard.
    pub(crate) fn forget_lost_ids(&mut self, before_ms: u64) {
        let Newest { timestamp_ms, ids } = &self.newest;
        self.seen.forget_between(*timestamp_ms..before_ms);
        for id in ids {
            self.seen.know(id, *timestamp_ms);
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
