//! Registration: messages enter the queue and its groups, in the order of their offsets.
//!
//! A restarted queue knows from its events which offsets are pending in which group, but not the messages. It
//! registers them again from the log. Only later messages are new to it.

use super::Queue;
use crate::meta::Meta;
use crate::shared::Shared;

/// Messages that a new one evicts at most.
const EVICTED_AT_ONCE: usize = 16;

impl Queue {
    /// Messages below this offset are registered. It is 0 after a restart.
    pub fn registered_to(&self) -> u64 {
        self.registration.to()
    }

    /// Messages below this offset were registered before the last restart.
    pub(crate) fn restored_to(&self) -> u64 {
        self.registration.restored_to()
    }

    /// Registers a message. Messages come in ascending order of their offsets; a lower offset is ignored.
    #[expect(clippy::needless_pass_by_value, reason = "callers do not need the metadata afterwards")]
    pub fn register(&mut self, meta: Meta, now_ms: u64) {
        let offset = meta.offset;
        if offset < self.registration.to() {
            return;
        }
        self.registered(offset);
        let is_new = self.registration.is_new(offset);
        if is_new {
            let Self { duplicates, shared: Shared { recorder, config, .. }, .. } = self;
            if duplicates.drop_if_seen(&meta, config.dedup_window_ms, recorder) {
                self.registration.advance(offset + 1);
                return;
            }
        }
        // Groups with more than their share begin to lag.
        let most = if self.must_lag() { self.share() } else { u64::MAX };
        self.registration.advance(offset + 1);
        if is_new {
            self.register_new(&meta, most, now_ms);
        } else {
            self.register_again(&meta, most, now_ms);
            self.forget_newest_if_restored();
        }
        self.enforce_limits(EVICTED_AT_ONCE, now_ms);
    }

    /// A message that every group has to settle.
    fn register_new(&mut self, meta: &Meta, most: u64, now_ms: u64) {
        let offset = meta.offset;
        let Self { shared, groups, .. } = self;
        shared.messages.put(meta);
        let mut is_missed = false;
        for group in groups.values_mut() {
            if group.skips_new_messages() || group.pending().len() > most {
                group.add_unloaded(offset);
                shared.messages.miss(offset);
                is_missed = true;
            } else if !shared.messages.append_joining(group.id(), offset) {
                group.add(shared, offset, now_ms);
            }
        }
        if is_missed {
            shared.messages.forget_if_settled(offset);
        }
    }

    /// A message that was registered before the restart, and may still be pending in some groups.
    fn register_again(&mut self, meta: &Meta, most: u64, now_ms: u64) {
        let offset = meta.offset;
        self.duplicates.registered_again(meta);
        let Self { shared, groups, .. } = self;
        if !groups.with_removed().any(|group| group.unknown().contains(offset)) {
            return;
        }
        shared.messages.put(meta);
        // It stays in memory until all groups have seen it.
        shared.messages.add_pending(offset);
        for group in groups.values_mut().filter(|group| group.unknown().contains(offset)) {
            let is_next = group.unknown().first() == Some(offset) && group.pending().len() <= most;
            let is_given_older_ones = shared.messages.joining(group.id()).is_some();
            if is_next && !is_given_older_ones || group.is_leaving(offset) {
                group.load(shared, offset, now_ms);
            } else {
                shared.messages.miss(offset);
            }
        }
        for _ in groups.removed().iter().filter(|gone| gone.unknown().contains(offset)) {
            shared.messages.miss(offset);
        }
        shared.messages.settle(offset);
    }

    /// All offsets below `to` are registered or are no messages. Offsets that were pending before a restart are lost.
    pub fn registered(&mut self, to: u64) {
        let lost = self.registration.to()..to.min(self.registration.restored_to());
        if !lost.is_empty() {
            self.groups.with_removed_mut().for_each(|group| group.forget(lost.clone()));
            self.registration.advance(lost.end);
            self.forget_newest_if_restored();
        }
        self.registration.advance(to);
    }

    /// Messages below `to` are deleted from disk, and a crash does not bring them back.
    pub fn removed(&mut self, to: u64) {
        self.duplicates.deleted_to(to);
    }

    /// Whether the message is in memory.
    pub(crate) fn is_in_memory(&self, offset: u64) -> bool {
        self.shared.messages.get(offset).is_some()
    }
}
