//! The calls of a journal that append or read.
//!
//! A journal does not own its store: the shard lends it to the server that runs. [`OpenJournal`] is a journal together
//! with its store for the length of a call.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use mainstem_log::{BatchBuilder, Completion, LogOwner, State, StoreAt};

use super::entry::{Entry, MessageEntry, Origin, ReachedTargets, Receivers};
use super::load::encode_message;
use super::stored::Arrival;
use super::{Arrived, BATCH_BYTES, InFlight, Journal, Lost};
use crate::message::Message;

/// A journal and the store it is in.
pub(crate) struct OpenJournal<'a> {
    pub(super) journal: &'a mut Journal,
    pub(super) at: &'a mut StoreAt,
}

impl Deref for OpenJournal<'_> {
    type Target = Journal;

    fn deref(&self) -> &Journal {
        self.journal
    }
}

impl DerefMut for OpenJournal<'_> {
    fn deref_mut(&mut self) -> &mut Journal {
        self.journal
    }
}

impl<'a> OpenJournal<'a> {
    pub(super) fn new(journal: &'a mut Journal, at: &'a mut StoreAt) -> Self {
        Self { journal, at }
    }
}

impl OpenJournal<'_> {
    /// Adds an entry; it is durable with the turn's commit.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        debug_assert!(self.journal.receivers.is_empty(), "the offset of a message has been assigned");
        self.journal.scratch.clear();
        entry.put(&mut self.journal.scratch);
        self.push_scratch();
    }

    /// Adds an entry that `put` writes.
    pub(crate) fn push_with(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(self.journal.receivers.is_empty(), "the offset of a message has been assigned");
        self.journal.scratch.clear();
        put(&mut self.journal.scratch);
        self.push_scratch();
    }

    fn push_scratch(&mut self) {
        self.journal.builder.push(
            self.journal.clock.unix_ms.cast_signed(),
            None,
            Some(&self.journal.scratch),
        );
        self.journal.next += 1;
        if self.journal.builder.len() >= BATCH_BYTES {
            self.store_batch();
        }
    }

    /// Appends a message for the receivers added since the last one.
    pub(crate) fn push_message(
        &mut self,
        message: &Arc<Message>,
        origin: Option<Origin>,
        replayed_for: Option<&str>,
    ) {
        match (origin, self.has_receivers()) {
            (Some(_), _) => self.journal.held.note_once(self.journal.next),
            (None, true) => self.journal.held.hold(self.journal.next, message),
            (None, false) => {}
        }
        self.journal.publish.clear();
        encode_message(message, self.journal.clock, &mut self.journal.publish);
        let (groups, is_for_sessions) =
            (std::mem::take(&mut self.journal.groups), std::mem::take(&mut self.journal.is_for_sessions));
        match origin {
            Some(origin) if origin.journal_id != self.journal.id => {
                let journals = is_for_sessions.then_some(self.journal.id).into_iter().collect();
                let reached = ReachedTargets { journals, groups: groups.into_iter().collect() };
                self.remember_origin(Arrival { origin, reached });
            }
            Some(_) => self.journal.dealt = groups,
            None => {}
        }
        let receivers = if self.journal.receivers.is_empty() {
            Receivers::Nobody
        } else {
            self.journal.sets.name(&self.journal.receivers)
        };
        let entry =
            Entry::Message(MessageEntry { origin, receivers, replayed_for, publish: &self.journal.publish });
        self.journal.scratch.clear();
        entry.put(&mut self.journal.scratch);
        self.journal.receivers.clear();
        self.push_scratch();
    }

    /// Appends the collected entries to the store.
    fn store_batch(&mut self) {
        if self.journal.builder.is_empty() {
            return;
        }
        let (bytes, records) = (self.journal.builder.len() as u64, self.journal.builder.records());
        if self.journal.is_failing && !self.journal.snapshots.is_healing() {
            // Entries mean nothing without those that were lost; a snapshot will make up for all.
            self.journal.builder.finish();
            if self.journal.held.has_once_from(self.journal.turn_start) {
                self.journal.note_lost(Lost { from: self.journal.turn_start, commit: None });
            }
            return;
        }
        match self.at.store.append_valid(self.journal.log, self.journal.builder.finish_valid()) {
            Ok(appended) => {
                debug_assert_eq!(appended.base_offset + u64::from(records), self.journal.next);
                self.journal.snapshots.add_written(bytes);
                self.journal.entries += u64::from(records);
                self.journal.bytes += bytes;
                self.journal.stored = self.journal.next;
                self.journal.uncommitted_bytes += bytes;
                let known = self.journal.in_flight.back_mut().filter(|last| last.ticket == appended.ticket);
                if let Some(last) = known {
                    (last.end, last.bytes) = (self.journal.next, last.bytes + bytes);
                } else {
                    let ticket = appended.ticket;
                    let (from, end) = (self.journal.turn_start, self.journal.next);
                    self.journal.in_flight.push_back(InFlight { ticket, from, end, bytes, commit: 0 });
                }
            }
            // The turn fails as a whole, whatever of it has been stored before.
            Err(error) => self.journal.fail(&error, Lost { from: self.journal.turn_start, commit: None }),
        }
    }

    /// Ends the turn: commits its entries as part of the shard's commit `commit`. False if there are none, or the
    /// journal fails.
    pub(crate) fn commit(&mut self, commit: u64) -> bool {
        if self.marks_leave() {
            let marks = std::mem::take(&mut self.journal.marks);
            self.push_with(|into| into.extend_from_slice(&marks));
            self.journal.marks = marks;
            self.journal.marks.clear();
            self.journal.marks_are_urgent = false;
        }
        self.store_batch();
        let mut has_entries = false;
        for flight in self.journal.in_flight.iter_mut().rev().take_while(|flight| flight.commit == 0) {
            flight.commit = commit;
            has_entries = true;
        }
        self.journal.turn_start = self.journal.next;
        has_entries
    }

    /// Collects parts of commits that are over, in order, and completions of other logs of the store.
    pub(crate) fn poll(&mut self, arrived: &mut Vec<Arrived>, others: &mut Vec<Completion>) {
        let mut completions = std::mem::take(&mut self.journal.completions);
        self.at.take_completions(LogOwner::Assigned, &mut completions);
        for completion in completions.drain(..) {
            if completion.log != self.journal.log {
                others.push(completion);
                continue;
            }
            while let Some(flight) =
                self.journal.in_flight.pop_front_if(|flight| flight.ticket <= completion.ticket)
            {
                self.journal.uncommitted_bytes -= flight.bytes;
                if completion.outcome.is_ok() {
                    self.journal.committed = self.journal.committed.max(flight.end);
                }
                arrived.push(Arrived { commit: flight.commit, is_durable: completion.outcome.is_ok() });
                if let Err(error) = &completion.outcome {
                    self.fail(error, Lost { from: flight.from, commit: Some(flight.commit) });
                }
            }
        }
        self.journal.completions = completions;
        self.journal.held.committed(self.journal.committed);
    }

    /// Discards what this turn has collected: the journal is about to restart.
    pub(crate) fn give_up_turn(&mut self) {
        self.store_batch();
    }

    /// Whether a journal that failed may be tried again.
    pub(crate) fn could_heal(&self) -> bool {
        let is_time = self.journal.clock.now_ms >= self.journal.retry_at_ms;
        self.journal.is_failing
            && is_time
            && self.journal.in_flight.is_empty()
            && self.at.store.status(self.journal.log).state != State::Broken
    }

    /// Restarts at the end of the log, with a snapshot that is about to be written. Entries before it do not count any
    /// more.
    pub(crate) fn resume(&mut self) {
        let end = self.at.store.status(self.journal.log).end;
        // What was in flight when it failed may be on disk.
        self.journal.lost_from = end;
        self.journal.lost_shift = self.journal.lost_next.saturating_sub(end);
        self.journal.lost_next = self.journal.next.max(end) + self.journal.lost_shift;
        self.journal.turn_start = end;
        self.journal.next = end;
        self.journal.stored = end;
        self.journal.committed = end;
        self.journal.held.restart(end, self.journal.lost_shift);
        // What this turn has collected is lost as well.
        self.journal.builder = BatchBuilder::default();
        self.journal.sets.forget();
        self.journal.recent.clear();
    }

    /// The message at `offset`, from memory or from disk. `None` if it cannot be read.
    pub(crate) fn message(&mut self, offset: u64) -> Option<Arc<Message>> {
        let undone = self.journal.snapshots.undone(offset).filter(|_| self.journal.is_failing);
        let offset = undone.unwrap_or(offset);
        if let Some(held) = self.journal.held.message(offset) {
            return Some(held);
        }
        if offset >= self.journal.stored {
            self.store_batch();
        }
        let found =
            self.journal.recent.message(&mut *self.at.store, self.journal.log, offset, self.journal.clock);
        if let Err(error) = &found {
            log::error!("journal {}: the message at {offset} cannot be read: {error}", self.journal.id);
        }
        found.ok()
    }
}
