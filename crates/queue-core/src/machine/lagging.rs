//! Groups that are far behind, and must not hold up the others.
//!
//! A queue keeps up to `known_max` unsettled messages in memory. When there are more, a group with more than its
//! share *lags*: newly registered messages are pending for it, but it does not load them. They are only ranges of
//! offsets in [`Group::unknown`]. When the group has half of its share or less, or nothing ready, the durable queue
//! reads the next messages again and the group loads them. So loaded messages always precede unloaded ones, and order
//! by key holds.
//!
//! A message that some groups have not loaded counts as held: overflow does not drop it before every group has loaded
//! it. A message that no group has loaded is *unloaded*: it is not in memory, but is counted. A group never transfers
//! a message that it has not loaded, so the message cannot expire or be redriven before that. A redrive makes room
//! for more messages, so the caller repeats it while [`Queue::redrives_more`] says so.

use std::ops::Range;

use super::{GroupId, Queue};
use crate::group::Group;
use crate::meta::Meta;
use crate::offset_ranges::OffsetRanges;
use crate::request::{QueueError, Reason, Settlement};

impl Queue {
    /// Whether registering must pause: the queue has enough messages in memory and no group has few of them, or all
    /// groups lag.
    pub fn is_crowded(&self) -> bool {
        if self.is_full() { !self.has_room_for_some() } else { !self.caught_up_groups().any(|_| true) }
    }

    /// Whether some group has registered messages that it has not loaded.
    pub fn is_lagging(&self) -> bool {
        self.groups.values().any(|group| group.is_lagging(self.registration.to()))
    }

    /// Whether a group may load more messages: there is room in memory, or the group has less than its share.
    pub fn has_room_for(&self, group: GroupId) -> bool {
        let knows_few = |group: &Group| group.pending().len() <= self.share();
        !self.is_full() || self.groups.get(group.0).is_some_and(knows_few)
    }

    /// How many messages a group has still to load.
    pub fn unknown(&self, group: GroupId) -> u64 {
        self.groups.get(group.0).map_or(0, |group| self.unknown_of(group))
    }

    /// How many registered messages a group has still to load.
    pub(crate) fn unknown_of(&self, group: &Group) -> u64 {
        if !self.registration.is_restoring() {
            return group.unknown().len();
        }
        let runs = group.unknown().ranges_within(0..self.registration.to());
        runs.map(|run| run.end - run.start).sum()
    }

    /// The lowest offset at or after `from` that the group has to settle and has not loaded.
    pub fn first_unknown(&self, group: GroupId, from: u64) -> Option<u64> {
        self.groups.get(group.0)?.unknown().first_from(from)
    }

    /// Number of messages that each group may have in memory in any case.
    pub(crate) fn share(&self) -> u64 {
        (self.known_max / 2 / self.groups.len().max(1) as u64).max(1)
    }

    fn is_full(&self) -> bool {
        let messages = &self.shared.messages;
        // Messages that leave cannot go before all messages are registered again.
        let is_restoring = self.registration.is_restoring();
        let known = if is_restoring { messages.staying_here() } else { messages.len() };
        known >= self.known_max
    }

    /// Whether groups with more than their share must lag from now on.
    pub(crate) fn must_lag(&self) -> bool {
        self.is_full() && self.has_room_for_some()
    }

    /// Whether some group that does not lag has no more than its share.
    fn has_room_for_some(&self) -> bool {
        let share = self.share();
        let is_new = |group: &Group| self.shared.messages.joining(group.id()).is_some();
        self.caught_up_groups().any(|group| group.pending().len() <= share && !is_new(group))
    }

    /// Groups that do not lag.
    fn caught_up_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().filter(|group| !group.is_lagging(self.registration.to()))
    }

    // --- catching up

    /// Whether the group loads more messages now.
    pub(crate) fn can_load(&self, group: &Group) -> bool {
        // This is the common case, and this method runs at every turn.
        if !group.is_lagging(self.registration.to()) || group.awaits_flush() {
            return false;
        }
        let most = if group.has_ready() { self.share() / 2 } else { self.share() };
        // Messages that a new group takes over come first.
        self.shared.messages.joining(group.id()).is_none()
            && (group.pending().len() <= most || self.shared.messages.len() < self.known_max / 2)
    }

    /// The offset from which messages must be read again for [`Queue::load_missed`]. `None` if no group loads any now.
    pub fn next_to_load(&self) -> Option<u64> {
        self.groups
            .values()
            .filter(|group| self.can_load(group))
            .filter_map(|group| group.unknown().first())
            .min()
    }

    /// Whether some group has to settle the message and has not loaded it.
    pub(crate) fn misses(&self, offset: u64) -> bool {
        self.groups.values().any(|group| group.unknown().contains(offset))
    }

    /// Loads messages into the groups that can take more. `messages` are all messages that still exist in `range`, in
    /// order. The range begins at the result of [`Queue::next_to_load`].
    pub fn load_missed(&mut self, range: Range<u64>, messages: &[Meta], now_ms: u64) {
        let range = range.start..range.end.min(self.registration.to());
        let of_range = |group: &&Group| group.unknown().first().is_some_and(|first| range.contains(&first));
        let loading = self.groups.values().filter(of_range).filter(|group| self.can_load(group));
        let loading: Vec<u32> = loading.map(Group::id).collect();
        let mut from = range.start;
        for meta in messages.iter().filter(|meta| range.contains(&meta.offset)) {
            self.drop_lost(&loading, from..meta.offset);
            from = meta.offset + 1;
            self.load_one(&loading, meta, now_ms);
        }
        self.drop_lost(&loading, from..range.end);
    }

    fn load_one(&mut self, loading: &[u32], meta: &Meta, now_ms: u64) {
        let offset = meta.offset;
        if !self.misses(offset) {
            return;
        }
        let missing = self.missing(offset);
        let Self { shared, groups, .. } = self;
        shared.messages.load(meta, missing);
        // The message stays in memory until all groups have loaded it.
        shared.messages.add_pending(offset);
        for id in loading {
            let group = groups.get_mut(*id).filter(|group| group.unknown().contains(offset));
            let Some(group) = group else { continue };
            shared.messages.stop_missing(offset);
            group.load(shared, offset, now_ms);
            if shared.messages.has_expired(offset, now_ms) {
                group.expel(shared, offset, Reason::Expired, now_ms);
            }
        }
        shared.messages.settle(offset);
    }

    /// How many groups have to settle the message without having it loaded.
    pub(crate) fn missing(&self, offset: u64) -> usize {
        let all = self.groups.with_removed();
        all.filter(|group| group.unknown().contains(offset)).count()
    }

    /// The offsets of this range no longer exist, so these groups do not have to settle them.
    fn drop_lost(&mut self, loading: &[u32], range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        for id in loading {
            let Some(group) = self.groups.get_mut(*id) else { continue };
            let lost: Vec<Range<u64>> = group.unknown().ranges_within(range.clone()).collect();
            for run in &lost {
                group.forget(run.clone());
            }
            for run in lost {
                self.forget_missed(run);
            }
        }
    }

    // --- settlements of unloaded messages

    /// A group does not have to settle these offsets any more. Returns how many of them are in memory.
    fn forget_missed(&mut self, run: Range<u64>) -> usize {
        let mut gone = OffsetRanges::default();
        gone.insert_range(run.clone());
        for group in self.groups.with_removed() {
            group.unknown().ranges_within(run.clone()).for_each(|missed| gone.remove_range(missed));
        }
        self.shared.messages.forget_unloaded(&gone);
        self.shared.messages.stop_missing_range(run)
    }

    /// Settles the unloaded messages of these groups in a range, all of which is listed. Returns how many settlements
    /// that is, over all groups.
    pub(crate) fn purge_unknown(&mut self, groups: &[u32], range: Range<u64>) -> u64 {
        let mut count = 0;
        for id in groups {
            let Some(group) = self.groups.get_mut(*id) else { continue };
            for run in group.purge_unknown(&mut self.shared, range.clone()) {
                count += run.end - run.start;
                self.forget_missed(run);
            }
        }
        count
    }

    /// Releases the unloaded messages of a removed group, while `budget` lasts.
    pub(crate) fn release_missed(&mut self, gone: &mut Group, budget: &mut usize) {
        while *budget > 0
            && let Some(run) = gone.unknown().first_range()
        {
            let run = run.start..self.shared.messages.end_of(run, *budget);
            gone.remove_unloaded(run.clone());
            *budget = budget.saturating_sub(self.forget_missed(run) + 1);
        }
    }

    /// Settles a message that its group has not loaded. Its receipt is from before a restart, and only an
    /// acknowledgement counts.
    pub(crate) fn settle_unknown(
        &mut self,
        group: GroupId,
        settlement: &Settlement,
    ) -> Result<(), QueueError> {
        let offset = settlement.receipt.offset;
        // A new group first lists what it takes over, so that it keeps this message.
        while self.is_listing() {
            self.list(&mut { self.at_once });
        }
        let known = self.groups.get_mut(group.0).ok_or(QueueError::Stale)?;
        known.acknowledge_unloaded(settlement)?;
        self.purge_unknown(&[group.0], offset..offset + 1);
        Ok(())
    }
}
