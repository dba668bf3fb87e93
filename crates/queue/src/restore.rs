//! A queue made again from its events, and written as a whole.

use std::ops::Range;

use crate::event::{Delivered, Event, Malformed, Reader};
use crate::group::{Entry, Gone, Group, State};
use crate::join::Late;
use crate::machine::{GROUPS_MAX, GroupId, Queue};
use crate::recorder::Recorder;

impl Queue {
    /// Takes in one batch, as [`Queue::flush`] or [`Queue::snapshot`] gave it. Batches come in order, before anything is
    /// registered.
    ///
    /// # Errors
    /// They are no such bytes, or those of a newer version. The queue is of no use then.
    pub fn replay(&mut self, events: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(events)?;
        self.groups.values_mut().for_each(Group::turn_round);
        while let Some(event) = reader.next()? {
            self.replay_event(&event)?;
        }
        self.restored_to = self.shared.recorder.said();
        for group in self.groups.values_mut() {
            group.all_durable();
            group.turn_round();
        }
        Ok(())
    }

    fn replay_event(&mut self, event: &Event<'_>) -> Result<(), Malformed> {
        if event.end() > self.shared.recorder.said() {
            return Err(Malformed("an event is about a message that is not registered"));
        }
        match *event {
            Event::Registered { to } => {
                let fresh = self.shared.recorder.said()..to;
                if !fresh.is_empty() {
                    self.groups.values_mut().for_each(|group| group.pending.insert_range(fresh.clone()));
                    self.shared.recorder.begin_at(to);
                }
            }
            Event::Group { group, name, last_number } => return self.replay_group(group, name, last_number),
            Event::GroupRemoved { group } => {
                if let Some(gone) = self.groups.remove(&group) {
                    self.names.remove(&gone.name);
                    self.last_number = self.last_number.max(gone.last_number);
                }
            }
            Event::Dropped { ref offsets } => {
                self.groups.values_mut().for_each(|group| group.forget(offsets.clone()));
                self.dropped.insert_range(offsets.clone());
            }
            Event::Known { id, timestamp_ms } => self.seen.know(id, timestamp_ms),
            Event::Moved { who, number } => self.seen.moved(who, number),
            Event::PendingElsewhere { group } => self.replay_elsewhere(group),
            Event::Numbers { last } => self.last_number = last,
            Event::Settled { group, .. }
            | Event::Delivered { group, .. }
            | Event::Delayed { group, .. }
            | Event::Leaving { group, .. }
            | Event::Pending { group, .. } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.replay(event);
                }
            }
        }
        Ok(())
    }

    fn replay_group(&mut self, id: u32, name: &str, last_number: u64) -> Result<(), Malformed> {
        if self.names.get(name).is_some_and(|&other| other.0 != id) {
            return Err(Malformed("two groups have one name"));
        }
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&id) {
            return Err(Malformed("there are too many groups"));
        }
        self.next_group =
            self.next_group.max(id.checked_add(1).ok_or(Malformed("a group's number is too high"))?);
        if let Some(old) = self.groups.remove(&id) {
            self.names.remove(&old.name);
        }
        self.names.insert(name.into(), GroupId(id));
        self.groups.insert(id, Group::new(id, name.into(), last_number));
        Ok(())
    }

    /// What is pending in other groups is pending in this one.
    fn replay_elsewhere(&mut self, id: u32) {
        let Some(mut group) = self.groups.remove(&id) else { return };
        for other in self.groups.values() {
            let mut staying = other.pending.clone();
            for gone in other.leaving.values() {
                staying.remove(gone.offset);
            }
            for offsets in staying.runs() {
                group.forget(offsets.clone());
                group.pending.insert_range(offsets);
            }
        }
        self.groups.insert(id, group);
    }

    /// Appends a batch to `into` that stands for all that were flushed. Nothing may have happened since the last flush: it
    /// would be told twice. No group may be [listing](Queue::is_listing).
    pub fn snapshot(&self, into: &mut Vec<u8>) {
        debug_assert!(!self.flush_is_due(), "what is recorded is flushed before a snapshot");
        debug_assert!(!self.is_listing(), "what a group is to be given is known before a snapshot");
        let to = self.registered_to.max(self.restored_to);
        let mut recorder = Recorder::default();
        recorder.record(&Event::Numbers { last: self.last_number });
        for (who, number) in self.seen.movers() {
            recorder.record(&Event::Moved { who, number });
        }
        for (id, timestamp_ms) in self.seen.ids() {
            recorder.record(&Event::Known { id, timestamp_ms });
        }
        for offsets in self.dropped.runs() {
            recorder.record(&Event::Dropped { offsets });
        }
        self.record_lack_of_default(&mut recorder);
        for group in self.groups.values() {
            group.snapshot(self.shared.pool.late(group.id), &mut recorder);
        }
        // Nothing is pending since it is registered: each group says what is.
        recorder.flush(to, into);
    }

    /// A queue that is made again begins with the group `default`: it is to know if that has been removed.
    pub(crate) fn record_lack_of_default(&self, recorder: &mut Recorder) {
        let group = GroupId::DEFAULT.0;
        if !self.groups.contains_key(&group) {
            recorder.record(&Event::GroupRemoved { group });
        }
    }
}

impl Group {
    /// What is pending by its events is not known before it is registered.
    fn turn_round(&mut self) {
        std::mem::swap(&mut self.pending, &mut self.unknown);
    }

    /// Forgets offsets that are no messages any more, none of which the pool knows.
    pub(crate) fn forget(&mut self, offsets: Range<u64>) {
        self.pending.remove_range(offsets.clone());
        self.unknown.remove_range(offsets.clone());
        while let Some((&offset, _)) = self.entries.range(offsets.clone()).next() {
            self.stay(offset);
            self.entries.remove(&offset);
        }
    }

    /// Whatever was said, an offset does not leave.
    fn stay(&mut self, offset: u64) {
        if let Some(entry) = self.entries.get_mut(&offset)
            && let State::Leaving { number } = entry.state
        {
            entry.state = State::Idle;
            self.leaving.remove(&number);
        }
    }

    /// Takes in an event before any message is registered.
    fn replay(&mut self, event: &Event<'_>) {
        match *event {
            Event::Settled { ref offsets, .. } => self.forget(offsets.clone()),
            Event::Pending { ref offsets, .. } => {
                self.forget(offsets.clone());
                self.pending.insert_range(offsets.clone());
            }
            Event::Delivered { ref offsets, how, .. } => {
                let Delivered { count, life, first_ms } = how;
                for offset in offsets.clone() {
                    if self.pending.contains(offset) {
                        self.stay(offset);
                        self.entries.insert(offset, Entry { count, life, first_ms, ..Entry::NEW });
                    }
                }
            }
            Event::Delayed { offset, until_ms, .. } if self.pending.contains(offset) => {
                self.entries.entry(offset).or_insert(Entry::NEW).not_before_ms = until_ms;
            }
            Event::Leaving { offset, number, reason, since_ms, .. } => {
                self.last_number = self.last_number.max(number);
                if self.pending.contains(offset) && !self.leaving.contains_key(&number) {
                    self.stay(offset);
                    self.entries.entry(offset).or_insert(Entry::NEW).state = State::Leaving { number };
                    self.leaving.insert(number, Gone { offset, reason, since_ms });
                }
            }
            _ => {}
        }
    }

    fn snapshot(&self, late: Option<&Late>, recorder: &mut Recorder) {
        let group = self.id;
        recorder.record(&Event::Group { group, name: &self.name, last_number: self.last_number });
        let late = late.into_iter().flat_map(|late| late.listed.runs());
        for offsets in self.pending.runs().chain(self.unknown.runs()).chain(late) {
            recorder.record(&Event::Pending { group, offsets });
        }
        for (&offset, entry) in self.entries.iter().filter(|(_, entry)| entry.count > 0) {
            recorder.delivered(group, offset, entry.delivered());
        }
        for (&offset, entry) in self.entries.iter().filter(|(_, entry)| entry.not_before_ms > 0) {
            recorder.record(&Event::Delayed { group, offset, until_ms: entry.not_before_ms });
        }
        for (&number, gone) in &self.leaving {
            let Gone { offset, reason, since_ms } = *gone;
            recorder.record(&Event::Leaving { group, offset, number, reason, since_ms });
        }
    }
}
