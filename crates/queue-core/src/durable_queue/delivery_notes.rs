//! Notes: delivery counts that are stored beside the state log.
//!
//! A consumer that leases one message at a time would otherwise cause one batch of events per delivery. The store
//! keeps notes in a small space until the next append, which costs much less. The next batch contains the same
//! events.

use std::collections::VecDeque;

use mainstem_log::{Durability, Error, Store};

use super::DurableQueue;
use super::recovery::Recovery;
use crate::event::VERSION;

impl DurableQueue {
    /// Writes a note if there is nothing but deliveries to make durable. Returns whether it did.
    pub(super) fn note(&mut self, store: &mut dyn Store) -> bool {
        // A note is as durable as an append that is not synced. If there is something to append anyway, it can
        // contain the deliveries.
        let is_enough = self.durability == Durability::Os;
        if !is_enough || !self.unwritten.is_empty() || self.unfinished.is_some() {
            return false;
        }
        self.note_buffer.clear();
        let state = self.state;
        self.queue.note_deliveries(&mut self.note_buffer, |note| store.note(state, note))
    }

    /// Whether there are noted events that are not in the log.
    pub(super) fn has_noted(&self) -> bool {
        self.queue.has_noted()
    }
}

impl Recovery {
    /// Replays the notes written after the last batch of events. Returns the batches to write, with their numbers.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the notes are invalid.
    pub(super) fn take_notes(&mut self, notes: &[u8]) -> Result<VecDeque<(u64, Vec<u8>)>, Error> {
        if notes.is_empty() {
            return Ok(VecDeque::new());
        }
        let events = [&[VERSION], notes].concat();
        self.replay(&events, 0)?;
        Ok(VecDeque::from([(0, events)]))
    }
}
