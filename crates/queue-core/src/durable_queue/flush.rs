//! Writes events to the state log, and tracks which of them are durable.
//!
//! Batches are numbered. A caller that has to confirm something takes the [`number`](DurableQueue::number) of the
//! batch and confirms when [`durable`](DurableQueue::durable) reaches it. A batch whose write failed is written again
//! before later ones.

use mainstem_log::{Completion, Store};

use super::{DurableQueue, InFlight, Written, size};

/// Number and size of the buffers that are kept for reuse.
const SPARES_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 16 * 1024;

impl DurableQueue {
    /// The number of the batch with everything that has happened so far: it is durable when [`DurableQueue::durable`]
    /// reaches the number. Call it before [`DurableQueue::store_events`].
    pub fn number(&mut self) -> u64 {
        self.flush_if_due();
        self.unwritten.back().map_or(self.last_written(), |(number, _)| *number)
    }

    fn last_written(&self) -> u64 {
        let written = self.in_flight.iter().rev().find_map(|flight| match flight.kind {
            Written::Events(number, _) => Some(number),
            _ => None,
        });
        written.unwrap_or(self.durable)
    }

    /// Batches up to this number are durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    fn flush_if_due(&mut self) {
        if self.queue.flush_is_due() {
            self.flush_all();
        }
    }

    /// Flushes all events, also those that nobody waits for.
    pub(super) fn flush_all(&mut self) {
        let mut events = self.spare_buffers.pop().unwrap_or_default();
        if let Some(number) = self.queue.flush(&mut events) {
            self.unwritten.push_back((number, events));
        }
    }

    /// Appends events to the state log. Call it before the commit of the turn.
    pub fn store_events(&mut self, store: &mut dyn Store, now_ms: u64) {
        if self.snapshot_is_due() {
            self.flush_all();
        } else if !self.note(store) {
            self.flush_if_due();
        }
        while let Some((number, events)) = self.unwritten.pop_front() {
            self.builder.push(now_ms.cast_signed(), None, Some(&events));
            match store.append_valid(self.state, self.builder.finish_valid()) {
                Ok(appended) => {
                    self.events_bytes += events.len();
                    let kind = Written::Events(number, events);
                    self.in_flight.push_back(InFlight { ticket: appended.ticket, kind });
                }
                Err(error) => {
                    self.has_failed |= !error.is_transient();
                    self.unwritten.push_front((number, events));
                    return;
                }
            }
        }
        self.stored_to = self.queue.flushed_to();
        self.continue_snapshot(store, now_ms);
    }

    /// Whether stored events register a message. If none do, those that [`DurableQueue::store_events`] writes next
    /// will.
    pub(super) fn is_recorded(&mut self, offset: u64) -> bool {
        if offset >= self.stored_to && offset >= self.queue.flushed_to() {
            self.queue.record_registration();
            self.flush_all();
        }
        offset < self.stored_to
    }

    /// Handles a completion. Returns false if it belongs to another log.
    pub fn on_completion(&mut self, store: &mut dyn Store, completion: &Completion, now_ms: u64) -> bool {
        if completion.log != self.state {
            return false;
        }
        let mut lost = Vec::new();
        while let Some(flight) = self.in_flight.pop_front_if(|flight| flight.ticket <= completion.ticket) {
            match (flight.kind, &completion.outcome) {
                (Written::Events(number, mut events), Ok(())) => {
                    self.durable = self.durable.max(number);
                    if self.spare_buffers.len() < SPARES_MAX && events.capacity() <= SPARE_BYTES_MAX {
                        events.clear();
                        self.spare_buffers.push(events);
                    }
                }
                (Written::Events(number, events), Err(_)) => {
                    lost.push((number, events));
                    self.stored_to = 0;
                    self.abandon_snapshot();
                }
                (Written::Snapshot(offset), Ok(())) => {
                    if let Err(error) = store.truncate_prefix(self.state, offset) {
                        log::warn!("queue: cannot delete old state: {error}");
                    }
                }
                (kind @ (Written::Snapshot(_) | Written::Part | Written::Relocated(_)), Err(_)) => {
                    // The copy failed, so the original is needed.
                    if let Written::Relocated(Some(offset)) = kind
                        && let Some(payload) = self.relocated.remove(&offset)
                    {
                        self.relocated_bytes -= size(&payload.record());
                    }
                    // The snapshot will be written again. Until then nothing that it replaces is deleted.
                    self.unfinished = None;
                    self.events_bytes = usize::MAX / 2;
                    self.trim = None;
                }
                (Written::Part | Written::Relocated(_), Ok(())) => {}
            }
        }
        if completion.outcome.as_ref().is_err_and(|error| !error.is_transient()) {
            self.has_failed = true;
        }
        for (number, events) in lost {
            // Keep the order of numbers: a later batch may have failed earlier.
            let at = self.unwritten.partition_point(|(known, _)| *known < number);
            self.unwritten.insert(at, (number, events));
        }
        self.queue.durable(self.durable, now_ms);
        true
    }
}
