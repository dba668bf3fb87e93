//! What has happened becomes durable: events on their way to the state's log.

use mainstem_log::{Completion, Error, Store};

use super::{Flight, Keeper, Written, size};

/// Buffers of events that are kept for the next ones, and the size of one, bytes.
const SPARES_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 16 * 1024;

impl Keeper {
    /// The number of what has happened up to now: [`Keeper::durable`] reaches it when all that is durable. To be
    /// called before [`Keeper::store_events`].
    pub fn number(&mut self) -> u64 {
        self.gather();
        self.gathered.back().map_or(self.last_written(), |(number, _)| *number)
    }

    fn last_written(&self) -> u64 {
        let written = self.in_flight.iter().rev().find_map(|flight| match flight.what {
            Written::Events(number, _) => Some(number),
            _ => None,
        });
        written.unwrap_or(self.durable)
    }

    /// What has happened up to this number is durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    fn gather(&mut self) {
        if self.queue.flush_is_due() {
            self.gather_all();
        }
    }

    /// Gathers what nobody waits for too.
    pub(super) fn gather_all(&mut self) {
        let mut events = self.spare.pop().unwrap_or_default();
        if let Some(number) = self.queue.flush(&mut events) {
            self.gathered.push_back((number, events));
        }
    }

    /// Hands the store what has happened. To be called before the turn's commit.
    pub fn store_events(&mut self, store: &mut dyn Store, now_ms: u64) {
        if self.snapshot_is_due() {
            self.gather_all();
        } else if !self.note(store) {
            self.gather();
        }
        while let Some((number, events)) = self.gathered.pop_front() {
            self.builder.push(now_ms.cast_signed(), None, Some(&events));
            match store.append_sound(self.state, self.builder.finish_sound()) {
                Ok(appended) => {
                    self.events_bytes += events.len();
                    let what = Written::Events(number, events);
                    self.in_flight.push_back(Flight { ticket: appended.ticket, what });
                }
                Err(error) => {
                    self.has_failed |= error != Error::Full;
                    self.gathered.push_front((number, events));
                    return;
                }
            }
        }
        self.go_on_with_snapshot(store, now_ms);
    }

    /// Takes note of a completion. False if it is of another log.
    pub fn arrived(&mut self, store: &mut dyn Store, completion: &Completion, now_ms: u64) -> bool {
        if completion.log != self.state {
            return false;
        }
        let mut lost = Vec::new();
        while let Some(flight) = self.in_flight.pop_front_if(|flight| flight.ticket <= completion.ticket) {
            match (flight.what, &completion.outcome) {
                (Written::Events(number, mut events), Ok(())) => {
                    self.durable = self.durable.max(number);
                    if self.spare.len() < SPARES_MAX && events.capacity() <= SPARE_BYTES_MAX {
                        events.clear();
                        self.spare.push(events);
                    }
                }
                (Written::Events(number, events), Err(_)) => {
                    lost.push((number, events));
                    self.give_up_snapshot();
                }
                (Written::Snapshot(offset), Ok(())) => {
                    if let Err(error) = store.truncate_prefix(self.state, offset) {
                        log::warn!("old state of a queue is not removed: {error}");
                    }
                }
                (what @ (Written::Snapshot(_) | Written::Part | Written::Aside(_)), Err(_)) => {
                    // There is no copy of it: it is needed where it stands.
                    if let Written::Aside(Some(offset)) = what
                        && let Some(payload) = self.asides.remove(&offset)
                    {
                        self.aside_bytes -= size(&payload.record());
                    }
                    // Written again; until then nothing it stands for is removed.
                    self.unfinished = None;
                    self.events_bytes = usize::MAX / 2;
                    self.trim = None;
                }
                (Written::Part | Written::Aside(_), Ok(())) => {}
            }
        }
        if completion.outcome.as_ref().is_err_and(|error| *error != Error::Full) {
            self.has_failed = true;
        }
        for (number, events) in lost {
            // Before those that came later, and may have been lost earlier.
            let at = self.gathered.partition_point(|(known, _)| *known < number);
            self.gathered.insert(at, (number, events));
        }
        self.queue.durable(self.durable, now_ms);
        true
    }
}
