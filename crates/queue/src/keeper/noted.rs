//! Deliveries that are counted beside the state's log, which costs much less than a batch of events of their own. They
//! stand in the next batch as well.

use std::collections::VecDeque;

use mainstem_log::{Durability, Error, Store};

use super::Keeper;
use super::found::Found;
use crate::event::VERSION;

impl Keeper {
    /// Notes what is to last, if that is nothing but deliveries. Whether all is noted.
    pub(super) fn note(&mut self, store: &mut dyn Store) -> bool {
        // A note is as good as an append that is not synced, and what is to be appended anyway may have all of it.
        let is_enough = self.durability == Durability::Os;
        if !is_enough || !self.gathered.is_empty() || self.unfinished.is_some() {
            return false;
        }
        self.note.clear();
        let registered_to = self.queue.registered_to();
        let recorder = &mut self.queue.shared.recorder;
        let is_noted = recorder.note(registered_to, &mut self.note) && store.note(self.state, &self.note);
        if is_noted {
            recorder.noted();
        }
        is_noted
    }

    /// Whether something is noted that does not stand in the log.
    pub(super) fn has_noted(&self) -> bool {
        self.queue.shared.recorder.has_noted()
    }
}

impl Found {
    /// Takes in what was noted behind the last batch of events. What is to be written as a batch, by its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it makes no sense.
    pub(super) fn take_notes(&mut self, notes: &[u8]) -> Result<VecDeque<(u64, Vec<u8>)>, Error> {
        if notes.is_empty() {
            return Ok(VecDeque::new());
        }
        let events = [&[VERSION], notes].concat();
        self.replay(&events, 0)?;
        Ok(VecDeque::from([(0, events)]))
    }
}
