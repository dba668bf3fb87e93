//! What is not needed any more goes from the disk.

use mainstem_log::Store;

use super::{ASIDE_BYTES_MAX, ASIDES_MAX, Keeper, Written, aside, size};
use crate::ask::Info;

impl Keeper {
    /// From where on messages are needed; nothing if that is where it was. What is settled stays until `keep_from`.
    /// A few old messages do not keep back what is behind them: they are copied. To be asked now and then.
    pub fn take_trim(&mut self, store: &mut dyn Store, keep_from: u64) -> Option<u64> {
        if self.has_failed {
            // Nobody knows what there is of the state.
            return None;
        }
        if let Some((offset, number)) = self.trim {
            if self.durable < number
                || self.in_flight.iter().any(|flight| matches!(flight.what, Written::Aside(_)))
            {
                return None;
            }
            self.trim = None;
            // Since it was decided, a group may have been given messages again.
            let offset = offset.min(keep_from).min(self.first_needed());
            if offset > self.trimmed_to {
                self.trimmed_to = offset;
                // What is cut off may be there again after a crash, and be asked for by a replay.
                self.queue.removed(store.status(self.messages).start_after_crash);
                return Some(offset);
            }
            return None;
        }
        self.forget_asides();
        let needed = self.needed_from(store);
        if needed > self.trimmed_to {
            let number = self.number();
            self.trim = Some((needed, number));
        }
        None
    }

    /// The first message that is needed where it stands; those before it that are not settled have been copied.
    fn needed_from(&mut self, store: &mut dyn Store) -> u64 {
        let mut needed = self.queue.needed(0, ASIDES_MAX + 1).into_iter();
        let first = needed.find(|offset| !self.asides.contains_key(offset));
        let Some(first) = first else { return self.queue.registered_to() };
        let status = store.status(self.messages);
        let mut info = Info::default();
        self.queue.info(&mut info);
        let held = info.bytes;
        if status.bytes < self.tuning.waste_bytes || status.bytes / 4 < held {
            return first;
        }
        if self.has_noted() {
            // Whatever is appended makes an end of notes: what they say comes before.
            self.gather_all();
            return first;
        }
        // Most of what is on disk is settled: those in front make way.
        let mut next = Some(first);
        while let Some(offset) = next {
            if self.asides.len() >= ASIDES_MAX || self.aside_bytes >= ASIDE_BYTES_MAX {
                return offset;
            }
            let Ok(Some(payload)) = self.payload(store, offset) else { return offset };
            let copy = aside::append(store, self.state, &payload, true, &mut self.in_flight);
            let Some(copy) = copy else { return offset };
            // The original goes when this is there: loss of power must not take both.
            store.sync_next(self.state);
            self.aside_bytes += size(&copy.record());
            self.asides.insert(offset, copy);
            next = needed.find(|offset| !self.asides.contains_key(offset));
        }
        self.first_needed()
    }

    /// The first message that is needed where it stands at the moment.
    fn first_needed(&self) -> u64 {
        let mut needed = self.queue.needed(0, ASIDES_MAX + 1).into_iter();
        let first = needed.find(|offset| !self.asides.contains_key(offset));
        first.unwrap_or_else(|| self.queue.registered_to())
    }

    pub(super) fn forget_asides(&mut self) {
        if self.asides.is_empty() {
            return;
        }
        let needed = self.queue.needed(0, ASIDES_MAX);
        let bytes = &mut self.aside_bytes;
        self.asides.retain(|offset, payload| {
            let is_needed = needed.binary_search(offset).is_ok();
            if !is_needed {
                *bytes -= size(&payload.record());
            }
            is_needed
        });
    }
}
