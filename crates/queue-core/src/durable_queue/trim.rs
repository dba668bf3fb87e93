//! Trimming: tells the owner of the log of messages what can be deleted.
//!
//! A message may be deleted when no group needs it and that fact is durable; a crash must not bring back a settled
//! message whose content has gone. The position is therefore decided first, and given out when all events up to then
//! are on disk. A few old messages would keep all newer ones on disk, so they are copied to the state log instead.

use mainstem_log::Store;

use super::{DurableQueue, RELOCATED_BYTES_MAX, RELOCATED_MAX, Written, relocate, size};
use crate::request::Info;

impl DurableQueue {
    /// The first message that is needed, if it has changed. Settled messages at or after `keep_from` are kept. A few
    /// old messages do not keep newer ones on disk: they are copied to the state log. Call it regularly.
    pub fn take_trim(&mut self, store: &mut dyn Store, keep_from: u64) -> Option<u64> {
        if self.has_failed {
            // It is unknown which part of the state is stored.
            return None;
        }
        if let Some((offset, number)) = self.trim {
            if self.durable < number
                || self.in_flight.iter().any(|flight| matches!(flight.kind, Written::Relocated(_)))
            {
                return None;
            }
            self.trim = None;
            // A replay may have made messages pending again since this was decided.
            let offset = offset.min(keep_from).min(self.first_needed());
            if offset > self.trimmed_to {
                self.trimmed_to = offset;
                // A crash may undo the deletion, and a replay may read the messages again.
                self.queue.removed(store.status(self.messages).start_after_crash);
                return Some(offset);
            }
            return None;
        }
        self.drop_relocated();
        let needed = self.needed_from(store);
        if needed > self.trimmed_to {
            let number = self.number();
            self.trim = Some((needed, number));
        }
        None
    }

    /// The first message that is needed in the log of messages, after copying unsettled messages before it if that is
    /// worthwhile.
    fn needed_from(&mut self, store: &mut dyn Store) -> u64 {
        let mut needed = self.queue.needed(0, RELOCATED_MAX + 1).into_iter();
        let first = needed.find(|offset| !self.relocated.contains_key(offset));
        let Some(first) = first else { return self.queue.registered_to() };
        let status = store.status(self.messages);
        let mut info = Info::default();
        self.queue.info(&mut info);
        let held = info.bytes;
        if status.bytes < self.tuning.waste_bytes || status.bytes / 4 < held {
            return first;
        }
        if self.has_noted() {
            // An append invalidates the notes, so their events must be written first.
            self.flush_all();
            return first;
        }
        // Most messages on disk are settled, so the unsettled ones in front are copied.
        let mut next = Some(first);
        while let Some(offset) = next {
            if self.relocated.len() >= RELOCATED_MAX || self.relocated_bytes >= RELOCATED_BYTES_MAX {
                return offset;
            }
            // A restart must not find a copy of a message that no event has registered: if the log of messages has
            // lost the original, a new message would take its offset, and the copy would stand for the new one.
            if !self.is_recorded(offset) {
                return offset;
            }
            let Ok(Some(payload)) = self.payload(store, offset) else { return offset };
            let copy = relocate::append(store, self.state, &payload, true, &mut self.in_flight);
            let Some(copy) = copy else { return offset };
            // The original is deleted once the copy is stored: a loss of power must not take both.
            store.force_sync(self.state);
            self.relocated_bytes += size(&copy.record());
            self.relocated.insert(offset, copy);
            next = needed.find(|offset| !self.relocated.contains_key(offset));
        }
        self.first_needed()
    }

    /// The first message that is needed in the log of messages, after copying unsettled messages before it if that is
    /// worthwhile.
    fn first_needed(&self) -> u64 {
        let mut needed = self.queue.needed(0, RELOCATED_MAX + 1).into_iter();
        let first = needed.find(|offset| !self.relocated.contains_key(offset));
        first.unwrap_or_else(|| self.queue.registered_to())
    }

    pub(super) fn drop_relocated(&mut self) {
        if self.relocated.is_empty() {
            return;
        }
        let needed = self.queue.needed(0, RELOCATED_MAX);
        let bytes = &mut self.relocated_bytes;
        self.relocated.retain(|offset, payload| {
            let is_needed = needed.binary_search(offset).is_ok();
            if !is_needed {
                *bytes -= size(&payload.record());
            }
            is_needed
        });
    }
}
