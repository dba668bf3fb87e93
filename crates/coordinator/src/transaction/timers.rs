//! Timeouts: overdue transactions are aborted, failed markers retried, unused transactional ids removed, and waiting
//! requests answered with `CONCURRENT_TRANSACTIONS`.
//!
//! Each transactional id has at most one entry in `deadlines`, its earliest one; every operation that may change it
//! ends with [`Transactions::schedule`].

use std::sync::Arc;

use super::{PARTICIPANT_BYTES, SLOT_BYTES, Slot, State, Transactions, WaitingRequest, records};
use crate::{Caller, Error};

/// Memory of a transactional id with this number of participants.
pub(super) fn slot_bytes(id: &str, participants: usize) -> usize {
    SLOT_BYTES + id.len() + participants * PARTICIPANT_BYTES
}

impl Transactions {
    /// When [`Transactions::tick`] must be called next, ms since 1970; `None` if nothing is pending.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|(due_ms, _)| *due_ms)
    }

    /// Handles all expired deadlines.
    pub fn tick(&mut self, now_ms: u64) {
        while self.next_deadline_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let Some((_, id)) = self.deadlines.pop_first() else { return };
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.due_ms = None;
            }
            self.expire_waiting_requests(&id, now_ms);
            self.retry_markers(&id, now_ms);
            self.abort_timed_out(&id, now_ms);
            self.expire_unused_id(&id, now_ms);
            self.schedule(&id);
        }
    }

    /// Updates the deadline of a transactional id, its place among the unused ones, and its memory.
    pub(super) fn schedule(&mut self, id: &Arc<str>) {
        self.unschedule(id);
        let expiration_ms = self.settings.expiration_ms;
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.due_ms = slot.next_due_ms(expiration_ms);
        if let Some(due_ms) = slot.due_ms {
            self.deadlines.insert((due_ms, Arc::clone(id)));
        }
        slot.idle_ms = slot.unused_since_ms();
        if let Some(idle_ms) = slot.idle_ms {
            self.idle.insert((idle_ms, Arc::clone(id)));
        }
        slot.bytes = slot_bytes(id, slot.participants());
        self.bytes += slot.bytes;
    }

    fn unschedule(&mut self, id: &Arc<str>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        self.bytes -= std::mem::take(&mut slot.bytes);
        if let Some(due_ms) = slot.due_ms.take() {
            self.deadlines.remove(&(due_ms, Arc::clone(id)));
        }
        if let Some(idle_ms) = slot.idle_ms.take() {
            self.idle.remove(&(idle_ms, Arc::clone(id)));
        }
    }

    /// Removes a transactional id, without a record of it.
    pub(super) fn remove_slot(&mut self, id: &Arc<str>) {
        self.unschedule(id);
        self.slots.remove(id);
    }

    /// Makes room for `bytes` more: removes transactional ids other than `except` that have been unused for longest.
    /// Returns whether there is room.
    pub(super) fn make_room(&mut self, bytes: usize, except: &str) -> bool {
        while self.bytes + bytes > self.settings.bytes {
            let Some((_, id)) = self.idle.iter().find(|(_, id)| **id != *except) else { return false };
            let id = Arc::clone(id);
            self.remove_slot(&id);
            self.persist(vec![records::transaction(&id, None)]);
            self.evictions += 1;
        }
        true
    }

    /// Rejects requests that have waited too long.
    fn expire_waiting_requests(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let is_expired = |waiting: &mut WaitingRequest| waiting.deadline_ms <= now_ms;
        let mut expired: Vec<Caller> = Vec::new();
        while let Some(waiting) = slot.waiting.pop_front_if(is_expired) {
            expired.extend(waiting.callers);
        }
        self.reply(&expired, Err(Error::ConcurrentTransactions));
    }

    /// Aborts a transaction that exceeds its timeout.
    fn abort_timed_out(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get(id) else { return };
        if slot.times_out_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let next = slot.transaction.fenced(now_ms);
            let reply = next.producer;
            self.persist_transaction(id, next, reply, Vec::new());
        }
    }

    /// Removes a transactional id that has been unused for too long.
    fn expire_unused_id(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get(id) else { return };
        if slot.expires_ms(self.settings.expiration_ms).is_some_and(|due_ms| due_ms <= now_ms) {
            self.remove_slot(id);
            self.persist(vec![records::transaction(id, None)]);
        }
    }
}

impl Slot {
    fn next_due_ms(&self, expiration_ms: u64) -> Option<u64> {
        let waits_ms = self.waiting.front().map(|waiting| waiting.deadline_ms);
        let all = [waits_ms, self.retry_ms, self.times_out_ms(), self.expires_ms(expiration_ms)];
        all.into_iter().flatten().min()
    }

    fn times_out_ms(&self) -> Option<u64> {
        let is_open = self.transaction.state == State::Ongoing && self.pending.is_none();
        let timeout_ms = u64::try_from(self.transaction.timeout_ms).unwrap_or(0);
        is_open.then(|| self.transaction.started_ms.saturating_add(timeout_ms).max(self.retry_not_before_ms))
    }

    fn expires_ms(&self, expiration_ms: u64) -> Option<u64> {
        self.unused_since_ms().map(|since_ms| since_ms.saturating_add(expiration_ms))
    }

    /// When its last transaction ended; `None` if it is in use.
    fn unused_since_ms(&self) -> Option<u64> {
        let is_idle = matches!(self.transaction.state, State::Empty | State::Complete(_))
            && self.pending.is_none()
            && self.waiting.is_empty();
        is_idle.then_some(self.transaction.updated_ms)
    }

    /// Number of participants, now or when the pending state is durable.
    fn participants(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.next.participants.len());
        self.transaction.participants.len().max(pending)
    }
}
