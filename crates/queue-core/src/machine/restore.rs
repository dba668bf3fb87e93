//! Replays events into a queue, and writes snapshots.
//!
//! During replay `pending` of each group holds the offsets that the events leave pending. No message is in memory at
//! that point, so all of them become `unknown` when the replay ends; registration loads them again.

use super::{GroupId, Queue};
use crate::event::{Event, Malformed, Reader};
use crate::event_recorder::Recorder;
use crate::group::Group;
use crate::offset_ranges::OffsetRanges;

impl Queue {
    /// Replays one batch of [`Queue::flush`] or [`Queue::snapshot`]. Batches must come in order, before any message
    /// is registered.
    ///
    /// # Errors
    /// The bytes are malformed or of a newer version. The queue must not be used afterwards.
    pub fn replay(&mut self, events: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(events)?;
        self.groups.values_mut().for_each(Group::swap_pending_and_unknown);
        while let Some(event) = reader.next()? {
            self.replay_event(&event)?;
        }
        self.registration.restore(self.shared.recorder.registered_to());
        for group in self.groups.values_mut() {
            group.all_durable();
            group.swap_pending_and_unknown();
        }
        Ok(())
    }

    fn replay_event(&mut self, event: &Event<'_>) -> Result<(), Malformed> {
        if event.end() > self.shared.recorder.registered_to() {
            return Err(Malformed("an event refers to a message that is not registered"));
        }
        match *event {
            Event::Registered { to } => {
                let fresh = self.shared.recorder.registered_to()..to;
                if !fresh.is_empty() {
                    self.groups.values_mut().for_each(|group| group.replay_registered(fresh.clone()));
                    self.shared.recorder.set_registered_to(to);
                }
            }
            Event::Group { group, name, last_number } => {
                return self.groups.restore(group, name, last_number);
            }
            Event::GroupRemoved { group } => {
                self.groups.remove(group);
            }
            Event::Dropped { ref offsets } => {
                self.groups.values_mut().for_each(|group| group.forget(offsets.clone()));
                self.duplicates.restore_dropped(offsets.clone());
            }
            Event::Known { id, timestamp_ms } => self.duplicates.index_mut().record(id, timestamp_ms),
            Event::Moved { who, number } => self.duplicates.index_mut().record_transfer(who, number),
            Event::PendingElsewhere { group } => self.replay_elsewhere(group),
            Event::Numbers { last } => self.groups.set_last_number(last),
            Event::Settled { group, .. }
            | Event::Delivered { group, .. }
            | Event::Delayed { group, .. }
            | Event::Leaving { group, .. }
            | Event::Pending { group, .. } => {
                if let Some(group) = self.groups.get_mut(group) {
                    group.replay(event);
                }
            }
        }
        Ok(())
    }

    /// Makes everything that is pending in other groups pending in this one.
    fn replay_elsewhere(&mut self, id: u32) {
        let others = self.groups.values().filter(|other| other.id() != id);
        let staying: Vec<OffsetRanges> = others.map(Group::replayed_staying).collect();
        let Some(group) = self.groups.get_mut(id) else { return };
        for offsets in staying.iter().flat_map(OffsetRanges::ranges) {
            group.replay_pending(offsets);
        }
    }

    /// Appends a batch to `into` that replaces all batches that were flushed before. All events that somebody waits
    /// for must be flushed, or they would be replayed twice. No group may be [listing](Queue::is_listing).
    pub fn snapshot(&self, into: &mut Vec<u8>) {
        debug_assert!(!self.flush_is_due(), "events are flushed before a snapshot");
        debug_assert!(!self.is_listing(), "new groups have listed their messages before a snapshot");
        let to = self.registration.known_to();
        let mut recorder = Recorder::default();
        recorder.record(&Event::Numbers { last: self.groups.last_number() });
        for (who, number) in self.duplicates.index().movers() {
            recorder.record(&Event::Moved { who, number });
        }
        for (id, timestamp_ms) in self.duplicates.index().ids() {
            recorder.record(&Event::Known { id, timestamp_ms });
        }
        for offsets in self.duplicates.dropped().ranges() {
            recorder.record(&Event::Dropped { offsets });
        }
        self.record_default_group_removed(&mut recorder);
        for group in self.groups.values() {
            group.snapshot(self.shared.messages.joining(group.id()), &mut recorder);
        }
        // Registration alone makes nothing pending here: each group lists its own pending offsets.
        recorder.flush(to, into);
    }

    /// A new queue starts with the group `default`, so a snapshot must record its removal.
    pub(crate) fn record_default_group_removed(&self, recorder: &mut Recorder) {
        let group = GroupId::DEFAULT.0;
        if !self.groups.contains(group) {
            recorder.record(&Event::GroupRemoved { group });
        }
    }
}
