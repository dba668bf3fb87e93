//! Catching up: messages that lagging groups have not loaded are read again.

use mainstem_log::{Error, Store, batches};

use super::register::log_unreadable;
use super::{DurableQueue, READ_BYTES, is_gap, meta_of};
use crate::meta::Meta;

/// Bytes per read: loading takes longer than registering, and nobody waits for all of it.
const LEARN_BYTES: usize = READ_BYTES / 4;

impl DurableQueue {
    /// Loads messages into [lagging](crate::Queue::is_lagging) groups that have settled enough, some per call. Returns
    /// whether there is more to load at once.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn catch_up(&mut self, store: &mut dyn Store, now_ms: u64) -> Result<bool, Error> {
        let Some(from) = self.queue.next_to_load() else { return Ok(false) };
        let start = store.status(self.messages).start;
        if from < start {
            // Below the start of the log there can only be copies.
            let copies = self.relocated.range(from..start);
            let metas: Vec<Meta> = copies.map(|(_, payload)| meta_of(payload)).collect();
            self.queue.load_missed(from..start, &metas, now_ms);
        } else {
            self.catch_up_from(store, from, now_ms)?;
        }
        Ok(self.queue.next_to_load().is_some())
    }

    fn catch_up_from(&mut self, store: &mut dyn Store, from: u64, now_ms: u64) -> Result<(), Error> {
        let to = self.queue.registered_to();
        self.read_messages(store, from..to, LEARN_BYTES, |this, bytes| {
            let (mut metas, mut next) = (Vec::new(), None);
            for batch in batches(bytes) {
                next = Some(batch.header.end_offset());
                if is_gap(&batch.header) {
                    let offsets = batch.header.base_offset.max(from)..batch.header.end_offset();
                    metas.extend(this.relocated.range(offsets).map(|(_, payload)| meta_of(payload)));
                    continue;
                }
                let is_missed = |offset| this.queue.misses(offset);
                if !batch.header.is_control() && !this.metas(&batch, is_missed, &mut metas) {
                    log_unreadable(&batch.header);
                }
            }
            // Without a batch nothing is left in the range: compaction has removed it.
            this.queue.load_missed(from..next.unwrap_or(to), &metas, now_ms);
        })
    }
}
