//! The messages with the highest timestamp, while a queue registers its messages again.

use crate::meta::Meta;

/// The newest messages that were registered again: those with the highest timestamp.
#[derive(Debug, Default)]
pub(crate) struct NewestMessages {
    pub(crate) timestamp_ms: u64,
    pub(crate) ids: Vec<Box<[u8]>>,
}

impl NewestMessages {
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
