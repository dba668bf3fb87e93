//! Groups that are behind learn of messages that were registered without them: these are read again.

use mainstem_log::{Error, Store, batches};

use super::come::log_unreadable;
use super::lost::GAP;
use super::{Keeper, READ_BYTES, meta_of};
use crate::meta::Meta;

/// Bytes read at once: what is learnt takes longer than what is registered, and nobody waits for all of it.
const LEARN_BYTES: usize = READ_BYTES / 4;

impl Keeper {
    /// Tells groups that are [behind](crate::Queue::is_crowded) and have settled enough of later messages, some at a time. Returns
    /// whether they can be told of more at once.
    ///
    /// # Errors
    /// What the store says.
    pub fn learn(&mut self, store: &mut dyn Store, now_ms: u64) -> Result<bool, Error> {
        let Some(from) = self.queue.learns_from() else { return Ok(false) };
        let start = store.status(self.messages).start;
        if from < start {
            // Of what is in the log no more there may be copies.
            let copies = self.asides.range(from..start);
            let metas: Vec<Meta> = copies.map(|(_, payload)| meta_of(payload)).collect();
            self.queue.learn(from..start, &metas, now_ms);
        } else {
            self.learn_read(store, from, now_ms)?;
        }
        Ok(self.queue.learns_from().is_some())
    }

    fn learn_read(&mut self, store: &mut dyn Store, from: u64, now_ms: u64) -> Result<(), Error> {
        let to = self.queue.registered_to();
        self.read_messages(store, from..to, LEARN_BYTES, |keeper, bytes| {
            let (mut metas, mut next) = (Vec::new(), None);
            for batch in batches(bytes) {
                next = Some(batch.header.end_offset());
                if batch.header.producer_id == GAP {
                    let offsets = batch.header.base_offset.max(from)..batch.header.end_offset();
                    metas.extend(keeper.asides.range(offsets).map(|(_, payload)| meta_of(payload)));
                    continue;
                }
                let is_missed = |offset| keeper.queue.misses(offset);
                if !batch.header.is_control() && !keeper.metas(&batch, is_missed, &mut metas) {
                    log_unreadable(&batch.header);
                }
            }
            // Without a batch nothing is left there: what was has been compacted away.
            keeper.queue.learn(from..next.unwrap_or(to), &metas, now_ms);
        })
    }
}
