//! Messages become known to a queue, and to its groups.

use crate::event::Event;
use crate::machine::Queue;
use crate::meta::Meta;

/// Messages that make way for one that comes.
const OUSTED_AT_ONCE: usize = 16;

impl Queue {
    /// Offsets below are known. A queue that was made again knows none.
    pub fn registered_to(&self) -> u64 {
        self.registered_to
    }

    /// Tells of a message. Messages come in order of their offsets, each once; one that does not is passed over.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "whoever tells of a message has no more use for what it says"
    )]
    pub fn register(&mut self, meta: Meta, now_ms: u64) {
        let offset = meta.offset;
        if offset < self.registered_to {
            return;
        }
        self.registered(offset);
        let is_new = offset >= self.restored_to;
        if is_new && self.is_duplicate(&meta) {
            self.registered_to = offset + 1;
            self.duplicates += 1;
            self.dropped.insert(offset);
            self.shared.recorder.mention(&Event::Dropped { offsets: offset..offset + 1 });
            return;
        }
        // Those that know more fall behind.
        let most = if self.makes_room() { self.share() } else { u64::MAX };
        self.registered_to = offset + 1;
        if is_new {
            self.register_new(&meta, most, now_ms);
        } else {
            self.register_again(&meta, most, now_ms);
            self.forget_newest_if_restored();
        }
        self.enforce_limits(OUSTED_AT_ONCE, now_ms);
    }

    /// A message that every group has to settle.
    fn register_new(&mut self, meta: &Meta, most: u64, now_ms: u64) {
        let offset = meta.offset;
        let Self { shared, groups, .. } = self;
        shared.pool.put(meta);
        let mut is_missed = false;
        for group in groups.values_mut() {
            if group.misses_more() || group.pending.len() > most {
                group.unknown.insert(offset);
                shared.pool.miss(offset);
                is_missed = true;
            } else if !shared.pool.join_late(group.id, offset) {
                group.add(shared, offset, now_ms);
            }
        }
        if is_missed {
            shared.pool.forget_if_settled(offset);
        }
    }

    /// A message that groups may have to settle since before the queue was made again.
    fn register_again(&mut self, meta: &Meta, most: u64, now_ms: u64) {
        let offset = meta.offset;
        self.newest.note(meta);
        let Self { shared, groups, remains, .. } = self;
        let mut all = groups.values().chain(remains.iter());
        if !all.any(|group| group.unknown.contains(offset)) {
            return;
        }
        shared.pool.put(meta);
        // It stays until all have been told.
        shared.pool.pend(offset);
        for group in groups.values_mut().filter(|group| group.unknown.contains(offset)) {
            let is_next = group.unknown.first() == Some(offset) && group.pending.len() <= most;
            let is_given_older_ones = shared.pool.late(group.id).is_some();
            if is_next && !is_given_older_ones || group.leaves(offset) {
                group.learn(shared, offset, now_ms);
            } else {
                shared.pool.miss(offset);
            }
        }
        for _ in remains.iter().filter(|gone| gone.unknown.contains(offset)) {
            shared.pool.miss(offset);
        }
        shared.pool.settle(offset);
    }

    /// Everything below `to` has been registered, or is no message. If it was one that was pending before the queue was
    /// made again, it is lost.
    pub fn registered(&mut self, to: u64) {
        let lost = self.registered_to..to.min(self.restored_to);
        if !lost.is_empty() {
            let all = self.groups.values_mut().chain(&mut self.remains);
            all.for_each(|group| group.forget(lost.clone()));
            self.registered_to = lost.end;
            self.forget_newest_if_restored();
        }
        self.registered_to = self.registered_to.max(to);
    }

    /// Messages below `to` are on disk no more, and do not come back by a crash.
    pub fn removed(&mut self, to: u64) {
        self.dropped.remove_range(0..to);
    }

    /// Whether some group has not settled a message that is registered.
    pub(crate) fn knows(&self, offset: u64) -> bool {
        self.shared.pool.get(offset).is_some()
    }

    /// A message that a queue has moved here may have the identifier of one that was here before: itself.
    fn is_duplicate(&mut self, meta: &Meta) -> bool {
        if let Some((who, number)) = &meta.moved_by {
            let again = self.seen.is_moved_again(who, *number);
            self.shared.recorder.moved(who, *number);
            return again;
        }
        let window_ms = self.shared.config.dedup_window_ms;
        let Some(id) = meta.dedup_id.as_deref().filter(|_| window_ms > 0) else { return false };
        let timestamp_ms = meta.timestamp_ms;
        let again = self.seen.is_duplicate(id, timestamp_ms, window_ms);
        if !again {
            self.shared.recorder.mention(&Event::Known { id, timestamp_ms });
        }
        again
    }
}
