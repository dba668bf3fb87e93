//! Messages that leave for another queue.
//!
//! A leaving message gets a transfer number. The caller copies it to the other queue once the event with that number
//! is durable, and reports when the copy is durable; then the message is settled here. The target queue discards a
//! number that it has seen, so a crash in between copies a message twice without delivering it twice.

use super::{Entry, Group, State};
use crate::event::Event;
use crate::machine::{GroupId, PendingTransfer};
use crate::outgoing_transfers::LeavingMessage;
use crate::request::Reason;
use crate::shared::Shared;

impl Group {
    /// Starts the transfer of a withdrawn message. A message that would become a dead letter is settled instead if
    /// the queue keeps none.
    pub(super) fn begin_transfer(&mut self, shared: &mut Shared, offset: u64, reason: Reason, now_ms: u64) {
        if reason != Reason::Redriven {
            self.counters.dead += 1;
            if !shared.config.dead_letters {
                return self.finish(shared, offset, now_ms);
            }
        }
        shared.messages.keep_for_joining(offset);
        self.settle_key(shared, offset, now_ms);
        let number = self.transfers.begin(LeavingMessage { offset, reason, since_ms: now_ms });
        self.entries.entry(offset).or_insert(Entry::NEW).state = State::Leaving { number };
        shared.messages.begin_transfer(offset);
        shared.recorder.record(&Event::Leaving { group: self.id, offset, number, reason, since_ms: now_ms });
        if shared.transferring.last() != Some(&self.id) {
            shared.transferring.push(self.id);
        }
    }

    /// Appends up to `max` leaving messages to `out` in order of their numbers, each one once.
    pub(crate) fn take_transfers(&mut self, max: usize, out: &mut Vec<PendingTransfer>) {
        for (number, gone) in std::iter::from_fn(|| self.transfers.take()).take(max) {
            out.push(PendingTransfer {
                group: GroupId(self.id),
                number,
                offset: gone.offset,
                count: self.entries.get(&gone.offset).map_or(0, |entry| entry.count),
                reason: gone.reason,
                since_ms: gone.since_ms,
            });
        }
    }

    /// This transfer and those after it are handed out again.
    pub(crate) fn return_transfers(&mut self, from_number: u64) {
        self.transfers.return_from(from_number);
    }

    /// The message is durable in the other queue.
    pub(crate) fn transferred(&mut self, shared: &mut Shared, number: u64) {
        let Some(gone) = self.transfers.remove(number) else { return };
        self.pending.remove(gone.offset);
        self.entries.remove(&gone.offset);
        shared.messages.settle_transferred(gone.offset);
        shared.recorder.settled(self.id, gone.offset);
    }

    /// The numbers given so far are recorded in this flush.
    pub(crate) fn seal(&mut self, flush: u64) {
        self.transfers.seal(flush);
    }

    /// Flushes up to this one are durable.
    pub(crate) fn durable(&mut self, flush: u64) {
        self.transfers.flush_durable(flush);
        if self.loads_after_flush <= flush {
            self.loads_after_flush = 0;
        }
    }

    /// All numbers given so far are durable.
    pub(crate) fn all_durable(&mut self) {
        self.transfers.all_durable();
    }

    /// Whether messages are on their way to another queue.
    pub(crate) fn is_transferring(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// The highest transfer number given so far.
    pub(crate) fn last_number(&self) -> u64 {
        self.transfers.last_number()
    }

    /// Makes future transfer numbers higher than this one.
    pub(crate) fn skip_numbers_to(&mut self, number: u64) {
        self.transfers.skip_to(number);
    }
}
