//! Messages that leave for another queue: numbered, brought there when that is durable, and settled when they are there.

use super::{Entry, Gone, Group, State};
use crate::ask::Reason;
use crate::event::Event;
use crate::machine::{GroupId, Leaving};
use crate::shared::Shared;

impl Group {
    /// A message that was withdrawn leaves for another queue; it is settled if it would be a dead letter, and those
    /// are not kept.
    pub(crate) fn depart(&mut self, shared: &mut Shared, offset: u64, reason: Reason, now_ms: u64) {
        if reason != Reason::Redriven {
            self.counters.dead += 1;
            if !shared.config.dead_letters {
                return self.finish(shared, offset, now_ms);
            }
        }
        shared.pool.keep_for_late(offset);
        self.quit_line(shared, offset, now_ms);
        self.last_number += 1;
        let number = self.last_number;
        self.entries.entry(offset).or_insert(Entry::NEW).state = State::Leaving { number };
        self.leaving.insert(number, Gone { offset, reason, since_ms: now_ms });
        shared.pool.depart(offset);
        shared.recorder.record(&Event::Leaving { group: self.id, offset, number, reason, since_ms: now_ms });
        if shared.departed.last() != Some(&self.id) {
            shared.departed.push(self.id);
        }
    }

    /// Appends up to `max` messages that leave, in order, each once.
    pub(crate) fn take_leaving(&mut self, max: usize, out: &mut Vec<Leaving>) {
        let fresh = self.leaving.range(self.taken_to + 1..);
        for (&number, gone) in fresh.take_while(|&(&number, _)| number <= self.durable_to).take(max) {
            self.taken_to = number;
            out.push(Leaving {
                group: GroupId(self.id),
                number,
                offset: gone.offset,
                count: self.entries.get(&gone.offset).map_or(0, |entry| entry.count),
                reason: gone.reason,
                since_ms: gone.since_ms,
            });
        }
    }

    /// That one and those behind it are to be taken again.
    pub(crate) fn give_back(&mut self, from_number: u64) {
        self.taken_to = self.taken_to.min(from_number.saturating_sub(1));
    }

    /// A message has arrived elsewhere.
    pub(crate) fn left(&mut self, shared: &mut Shared, number: u64) {
        let Some(gone) = self.leaving.remove(&number) else { return };
        self.pending.remove(gone.offset);
        self.entries.remove(&gone.offset);
        shared.pool.settle_departed(gone.offset);
        shared.recorder.settled(self.id, gone.offset);
    }

    /// What leaves so far is in this flush.
    pub(crate) fn seal(&mut self, flush: u64) {
        self.sealed.push_back((flush, self.last_number));
    }

    /// Flushes up to this one are durable.
    pub(crate) fn durable(&mut self, flush: u64) {
        while let Some((_, number)) = self.sealed.pop_front_if(|sealed| sealed.0 <= flush) {
            self.durable_to = number;
        }
        if self.learns_behind <= flush {
            self.learns_behind = 0;
        }
    }

    /// All numbers so far are durable.
    pub(crate) fn all_durable(&mut self) {
        self.durable_to = self.last_number;
    }
}
