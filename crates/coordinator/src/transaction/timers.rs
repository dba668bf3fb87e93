//! What time does: transactions that take too long are aborted, markers are tried again, identifiers are forgotten,
//! and requests that have waited too long are sent back.

use std::sync::Arc;

use super::{Slot, State, Transactions, Waiting, records};
use crate::{Caller, Error};

impl Transactions {
    /// When [`Transactions::tick`] is to be called again, ms; nothing if nothing is due by itself.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Does what is due.
    pub fn tick(&mut self, now_ms: u64) {
        while self.next_deadline_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let Some((_, id)) = self.due.pop_first() else { return };
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.due_ms = None;
            }
            self.send_back(&id, now_ms);
            self.retry_markers(&id, now_ms);
            self.abort_late(&id, now_ms);
            self.forget(&id, now_ms);
            self.schedule(&id);
        }
    }

    /// Enters the next time at which something is due for an identifier.
    pub(super) fn schedule(&mut self, id: &Arc<str>) {
        self.unschedule(id);
        let expiration_ms = self.settings.expiration_ms;
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.due_ms = slot.next_due_ms(expiration_ms);
        if let Some(due_ms) = slot.due_ms {
            self.due.insert((due_ms, Arc::clone(id)));
        }
    }

    pub(super) fn unschedule(&mut self, id: &Arc<str>) {
        if let Some(due_ms) = self.slots.get_mut(id).and_then(|slot| slot.due_ms.take()) {
            self.due.remove(&(due_ms, Arc::clone(id)));
        }
    }

    /// Sends back requests that have waited too long.
    fn send_back(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let is_late = |waiting: &mut Waiting| waiting.until_ms <= now_ms;
        let mut late: Vec<Caller> = Vec::new();
        while let Some(waiting) = slot.waiting.pop_front_if(is_late) {
            late.extend(waiting.callers);
        }
        self.reply(&late, Err(Error::ConcurrentTransactions));
    }

    /// Aborts a transaction that is older than its producer has allowed.
    fn abort_late(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get(id) else { return };
        if slot.times_out_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let next = slot.transaction.fenced(now_ms);
            let reply = next.producer;
            self.keep(id, next, reply, Vec::new());
        }
    }

    /// Forgets an identifier that has not been used for long.
    fn forget(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get(id) else { return };
        if slot.expires_ms(self.settings.expiration_ms).is_some_and(|due_ms| due_ms <= now_ms) {
            self.slots.remove(id);
            self.put(vec![records::transaction(id, None)]);
        }
    }
}

impl Slot {
    fn next_due_ms(&self, expiration_ms: u64) -> Option<u64> {
        let waits_ms = self.waiting.front().map(|waiting| waiting.until_ms);
        let all = [waits_ms, self.retry_ms, self.times_out_ms(), self.expires_ms(expiration_ms)];
        all.into_iter().flatten().min()
    }

    fn times_out_ms(&self) -> Option<u64> {
        let is_open = self.transaction.state == State::Ongoing && self.pending.is_none();
        let timeout_ms = u64::try_from(self.transaction.timeout_ms).unwrap_or(0);
        is_open.then(|| self.transaction.started_ms.saturating_add(timeout_ms).max(self.not_before_ms))
    }

    fn expires_ms(&self, expiration_ms: u64) -> Option<u64> {
        let is_idle = matches!(self.transaction.state, State::Empty | State::Complete(_))
            && self.pending.is_none()
            && self.waiting.is_empty();
        is_idle.then(|| self.transaction.updated_ms.saturating_add(expiration_ms))
    }
}
