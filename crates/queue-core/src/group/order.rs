//! A change of the `fifo` setting, applied message by message in ascending order.
//!
//! A queue may hold a million messages, so the change is not made in one call. The group remembers the offsets that
//! it has not reached, and each call to [`Group::apply_fifo`] handles some of them.

use super::{Group, State};
use crate::message_entry::MessageEntry;
use crate::offset_ranges::OffsetRanges;
use crate::shared::Shared;

impl Group {
    /// The setting `fifo` has changed. The change reaches messages below `to` when [`Group::apply_fifo`] comes to them.
    pub(crate) fn fifo_changed(&mut self, to: u64) {
        let mut fifo_pending = OffsetRanges::default();
        fifo_pending.insert_range(0..to);
        // Messages that the previous change has not reached are already in the requested order.
        self.fifo_pending.ranges().for_each(|run| fifo_pending.remove_range(run));
        self.fifo_pending = fifo_pending;
    }

    pub(crate) fn is_applying_fifo(&self) -> bool {
        !self.fifo_pending.is_empty()
    }

    /// Applies the setting to the next messages, while `budget` lasts.
    pub(crate) fn apply_fifo(&mut self, shared: &mut Shared, budget: &mut usize, now_ms: u64) {
        while *budget > 0
            && let Some(from) = self.fifo_pending.first()
        {
            *budget -= 1;
            let Some(offset) = self.pending.first_from(from) else {
                self.fifo_pending = OffsetRanges::default();
                return;
            };
            let turns = self.fifo_pending.contains(offset);
            // A message that is not pending now is inserted in the new order if it becomes pending again.
            self.fifo_pending.remove_range(from..offset + 1);
            let key = shared.messages.get(offset).filter(|_| turns).and_then(MessageEntry::key);
            match key {
                Some(key) if shared.config.fifo => self.enter_key_order(shared, key, offset, now_ms),
                Some(key) => self.leave_key_order(shared, key, offset, now_ms),
                None => {}
            }
        }
    }

    fn enter_key_order(&mut self, shared: &mut Shared, key: u64, offset: u64, now_ms: u64) {
        match self.state(offset) {
            State::Idle | State::Delayed { .. } => {
                self.withdraw(shared, offset);
                self.admit(shared, offset, now_ms);
            }
            State::Leased { .. } => {
                let head = self.key_order.head(key).filter(|&head| head != offset);
                match head {
                    None => drop(self.key_order.enter(key, offset)),
                    Some(head) if self.is_taken(key, head) => self.key_order.enter_extra_leased(key, offset),
                    Some(head) => {
                        self.unready(shared, head);
                        self.key_order.replace_head(key, offset);
                    }
                }
            }
            State::Leaving { .. } => {}
        }
    }

    /// Whether the head of a key is leased or delayed and not settled.
    fn is_taken(&self, key: u64, head: u64) -> bool {
        let is_busy = matches!(self.state(head), State::Leased { .. } | State::Delayed { .. });
        is_busy && !self.key_order.is_settled(key, head)
    }

    fn leave_key_order(&mut self, shared: &mut Shared, key: u64, offset: u64, now_ms: u64) {
        let state = self.state(offset);
        if let State::Leaving { .. } = state {
            return;
        }
        if let Some(next) = self.key_order.leave(key, offset) {
            self.unblock(shared, key, next, now_ms);
        }
        if state == State::Idle && !self.is_ready(shared, offset) {
            self.place(shared, offset, now_ms);
        }
    }
}
