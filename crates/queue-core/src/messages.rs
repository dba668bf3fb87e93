//! The messages that some group has not settled: what the groups share about each of them, and their total size.
//!
//! A group keeps only its own state of a message, by offset. Priority, key, size and expiry are here once, with
//! counters of the groups that have the message pending, staying and held. A message is dropped from memory when the
//! last group that knows it has settled it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::num::NonZeroU64;
use std::ops::Range;

use crate::deferred_drop::drop_some;
use crate::expiry::Expiry;
use crate::joining_group::JoiningGroup;
use crate::message_entry::{Era, MessageEntry};
use crate::meta::Meta;
use crate::offset_ranges::OffsetRanges;
use crate::unloaded::UnloadedMessages;

/// Unsettled messages by offset.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    by_offset: BTreeMap<u64, MessageEntry>,
    expiry: Expiry,
    /// Messages that no group holds.
    free: OffsetRanges,
    /// What new groups have still to take over. Those messages stay in memory until then.
    joining: BTreeMap<u32, JoiningGroup>,
    /// Messages that some groups have to settle and none has loaded.
    unloaded: UnloadedMessages,
    bytes: u64,
    staying: Size,
}

/// Number of messages and their total size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    messages: u64,
    bytes: u64,
}

impl Size {
    fn add(&mut self, known: &MessageEntry) {
        self.messages += 1;
        self.bytes += u64::from(known.bytes);
    }

    fn subtract(&mut self, known: &MessageEntry) {
        self.messages -= 1;
        self.bytes -= u64::from(known.bytes);
    }
}

impl Messages {
    /// For a queue with this time to live; 0 for none.
    pub(crate) fn new(ttl_ms: u64) -> Self {
        Self { expiry: Expiry::new(ttl_ms), ..Self::default() }
    }

    /// Changes the time to live, and reindexes up to `most` of the existing messages.
    pub(crate) fn apply_ttl(&mut self, ttl_ms: u64, most: usize) {
        self.expiry.set_ttl(ttl_ms);
        let Some(from) = self.expiry.next() else { return };
        let mut rest = self.by_offset.range_mut(from..);
        for (&offset, known) in rest.by_ref().take(most) {
            self.expiry.reindex(offset, known);
        }
        let next = rest.next().map(|(&offset, _)| offset);
        self.expiry.reindexed_to(next);
        self.expiry.set_ttl(ttl_ms);
    }

    /// Whether messages have still to be reindexed after a change of the time to live.
    pub(crate) fn is_applying_ttl(&self) -> bool {
        self.expiry.next().is_some()
    }

    pub(crate) fn len(&self) -> u64 {
        self.by_offset.len() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number and bytes of the unsettled messages that are not on their way to another queue.
    pub(crate) fn staying(&self) -> (u64, u64) {
        (self.staying.messages + self.unloaded.len(), self.staying.bytes + self.unloaded.bytes())
    }

    /// How many of them are in memory.
    pub(crate) fn staying_here(&self) -> u64 {
        self.staying.messages
    }

    /// Messages that some groups have to settle and none has loaded.
    pub(crate) fn unloaded(&self) -> &UnloadedMessages {
        &self.unloaded
    }

    pub(crate) fn get(&self, offset: u64) -> Option<&MessageEntry> {
        self.by_offset.get(&offset)
    }

    pub(crate) fn first(&self) -> Option<(u64, &MessageEntry)> {
        self.by_offset.first_key_value().map(|(&offset, known)| (offset, known))
    }

    pub(crate) fn has_expired(&self, offset: u64, now_ms: u64) -> bool {
        self.get(offset).is_some_and(|known| known.expires_ms(self.expiry.ttl_ms()) <= now_ms)
    }

    /// When the first message expires, or must be reindexed.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiry.first()
    }

    /// Returns a message that has expired, each one once. Examines messages while `budget` lasts.
    pub(crate) fn take_expired(&mut self, now_ms: u64, budget: &mut usize) -> Option<u64> {
        while *budget > 0
            && let Some(offset) = self.expiry.take(now_ms)
        {
            *budget -= 1;
            if self.has_expired(offset, now_ms) {
                return Some(offset);
            }
            if let Some(known) = self.by_offset.get_mut(&offset) {
                self.expiry.reindex(offset, known);
            }
        }
        None
    }

    pub(crate) fn oldest_free(&self) -> Option<u64> {
        self.free.first()
    }

    /// Adds a message unless it is there.
    pub(crate) fn put(&mut self, meta: &Meta) {
        let Entry::Vacant(vacant) = self.by_offset.entry(meta.offset) else { return };
        let known = vacant.insert(MessageEntry {
            timestamp_ms: meta.timestamp_ms,
            expires_ms: meta.expires_ms,
            due_ms: meta.due_ms,
            // A collision of keys only makes their messages wait for each other.
            key: meta.key.and_then(|key| NonZeroU64::new(key.max(1))),
            bytes: meta.bytes,
            pending: 0,
            staying: 0,
            held: 0,
            priority: meta.priority.min(9),
            era: Era::default(),
            is_moved: meta.moved_by.is_some(),
        });
        self.expiry.put(meta.offset, known);
        self.free.insert(meta.offset);
        self.bytes += u64::from(meta.bytes);
    }

    /// What is still remembered, as pairs of a name and whether there is any.
    pub(crate) fn unfinished(&self) -> [(&'static str, bool); 6] {
        [
            ("messages", !self.by_offset.is_empty()),
            ("expiry times", self.expiry.first().is_some()),
            ("messages that no group holds", !self.free.is_empty()),
            ("messages for new groups", !self.joining.is_empty()),
            ("unloaded messages", (self.unloaded.len(), self.unloaded.bytes()) != (0, 0)),
            ("sizes", (self.bytes, self.staying) != (0, Size::default())),
        ]
    }

    // --- new groups

    /// A new group takes over what older groups have pending in this range.
    pub(crate) fn begin_joining(&mut self, group: u32, rest: Range<u64>) {
        if !rest.is_empty() {
            self.joining.insert(group, JoiningGroup { rest, ..JoiningGroup::default() });
        }
    }

    /// What a group has still to take over.
    pub(crate) fn joining(&self, group: u32) -> Option<&JoiningGroup> {
        self.joining.get(&group)
    }

    /// Groups that have still to take over messages, in the order of their creation.
    pub(crate) fn joining_groups(&self) -> impl Iterator<Item = u32> {
        self.joining.keys().copied()
    }

    /// Groups that have still to list some of what they take over.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = (u32, &JoiningGroup)> {
        self.joining
            .iter()
            .filter(|(_, joining)| !joining.rest.is_empty())
            .map(|(&group, joining)| (group, joining))
    }

    /// Whether a group has still to list some of what it takes over.
    pub(crate) fn is_unlisted(&self, group: u32) -> bool {
        self.joining.get(&group).is_some_and(|joining| !joining.rest.is_empty())
    }

    /// Records that the group takes over `offsets` of the range below `to`, in addition to what is kept for it.
    pub(crate) fn list(&mut self, group: u32, offsets: OffsetRanges, to: u64) {
        let Entry::Occupied(mut joining) = self.joining.entry(group) else { return };
        joining.get_mut().listed.add(offsets);
        joining.get_mut().rest.start = to;
        if joining.get().is_empty() {
            joining.remove();
        }
    }

    /// Before a group settles or transfers a message, keeps it for new groups that have not listed it yet.
    pub(crate) fn keep_for_joining(&mut self, offset: u64) {
        for joining in self.joining.values_mut().filter(|joining| joining.rest.contains(&offset)) {
            joining.listed.insert(offset);
        }
    }

    /// Whether some new group has still to take over this message.
    pub(crate) fn is_joining(&self, offset: u64) -> bool {
        self.joining.values().any(|joining| joining.listed.contains(offset))
    }

    /// Appends the message to those that a group has still to take over, if there are any. Returns whether it did.
    pub(crate) fn append_joining(&mut self, group: u32, offset: u64) -> bool {
        self.joining.get_mut(&group).is_some_and(|joining| joining.listed.insert(offset))
    }

    /// Removes and returns the first listed offset at or after `from`. `None` if the group has to list more first.
    pub(crate) fn take_joining(&mut self, group: u32, from: u64) -> Option<u64> {
        let Entry::Occupied(mut joining) = self.joining.entry(group) else { return None };
        let first = joining.get().first_from(from)?;
        joining.get_mut().listed.remove(first);
        if joining.get().is_empty() {
            joining.remove();
        }
        Some(first)
    }

    /// A removed group takes over no more. Returns whether there was a message left to release.
    pub(crate) fn refuse_joining(&mut self, group: u32) -> bool {
        self.list(group, OffsetRanges::default(), u64::MAX);
        let first = self.take_joining(group, 0);
        if let Some(offset) = first {
            self.forget_if_settled(offset);
        }
        first.is_some()
    }

    // --- groups that have not loaded what they have to settle

    /// A group has to settle a message that is in memory, but does not load it for now.
    pub(crate) fn miss(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get_mut(&offset) else { return };
        known.staying += 1;
        if known.staying == 1 {
            self.staying.add(known);
        }
        self.hold(offset);
    }

    /// As [`miss`](Self::miss), for a message that may not be in memory.
    pub(crate) fn miss_unloaded(&mut self, meta: &Meta) {
        if self.by_offset.contains_key(&meta.offset) {
            self.miss(meta.offset);
        } else {
            self.unloaded.insert(meta.offset, meta.bytes);
        }
    }

    /// A group that had not loaded the message loads it now, or does not have to settle it any more.
    pub(crate) fn stop_missing(&mut self, offset: u64) {
        self.stop_staying(offset);
        self.release_hold(offset);
    }

    /// As [`stop_missing`](Self::stop_missing), for all messages of a range that are in memory. Returns their number.
    pub(crate) fn stop_missing_range(&mut self, range: Range<u64>) -> usize {
        let here: Vec<u64> = self.by_offset.range(range).map(|(&offset, _)| offset).collect();
        for &offset in &here {
            self.stop_missing(offset);
        }
        here.len()
    }

    /// The end of the first `most` messages in memory of a range.
    pub(crate) fn end_of(&self, range: Range<u64>, most: usize) -> u64 {
        self.by_offset.range(range.clone()).nth(most).map_or(range.end, |(&offset, _)| offset)
    }

    /// No group has to settle these unloaded messages any more.
    pub(crate) fn forget_unloaded(&mut self, offsets: &OffsetRanges) {
        offsets.ranges().for_each(|run| self.unloaded.remove_range(run));
    }

    /// Loads a message that `missing` groups have to settle without having it.
    pub(crate) fn load(&mut self, meta: &Meta, missing: usize) {
        if self.unloaded.take(meta.offset, meta.bytes) {
            self.put(meta);
            (0..missing).for_each(|_| self.miss(meta.offset));
        }
    }

    // --- changes by groups

    /// One more group has the message pending.
    pub(crate) fn add_pending(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get_mut(&offset) else { return };
        known.pending += 1;
        known.staying += 1;
        if known.staying == 1 {
            self.staying.add(known);
        }
    }

    /// A group holds the message: it is leased or leaves.
    pub(crate) fn hold(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get_mut(&offset) else { return };
        known.held += 1;
        self.free.remove(offset);
    }

    /// A group does not hold the message any more.
    pub(crate) fn release_hold(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get_mut(&offset) else { return };
        known.held -= 1;
        if known.held == 0 {
            self.free.insert(offset);
        }
    }

    /// The message leaves a group that did not hold it. The group holds it until the transfer is settled.
    pub(crate) fn begin_transfer(&mut self, offset: u64) {
        self.hold(offset);
        self.stop_staying(offset);
    }

    fn stop_staying(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get_mut(&offset) else { return };
        known.staying -= 1;
        if known.staying == 0 {
            self.staying.subtract(known);
        }
    }

    /// A group that did not hold the message has settled it.
    pub(crate) fn settle(&mut self, offset: u64) {
        self.stop_staying(offset);
        self.forget(offset);
    }

    /// A group that held the message has settled it.
    pub(crate) fn settle_held(&mut self, offset: u64) {
        self.stop_staying(offset);
        let is_joining = self.is_joining(offset);
        let Entry::Occupied(mut there) = self.by_offset.entry(offset) else { return };
        let known = there.get_mut();
        known.held -= 1;
        known.pending -= 1;
        if known.pending == 0 && !is_joining {
            self.bytes -= u64::from(known.bytes);
            self.expiry.remove(offset, known);
            let gone = there.remove();
            self.drop_transferred(offset, &gone);
        } else if known.held == 0 {
            self.free.insert(offset);
        }
    }

    /// The transfer of a message is complete in one group.
    pub(crate) fn settle_transferred(&mut self, offset: u64) {
        self.release_hold(offset);
        self.forget(offset);
    }

    /// Drops entries of collections, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        self.joining.values_mut().for_each(|joining| joining.listed.drop_some(budget));
        drop_some(&mut self.by_offset, budget);
        self.expiry.drop_some(budget);
        self.free.drop_some(budget);
        self.unloaded.drop_some(budget);
    }

    fn forget(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get_mut(&offset) else { return };
        known.pending -= 1;
        self.forget_if_settled(offset);
    }

    /// Drops the message if no group has it pending and no new group takes it over.
    pub(crate) fn forget_if_settled(&mut self, offset: u64) {
        let Some(known) = self.by_offset.get(&offset) else { return };
        if known.pending > 0 || self.is_joining(offset) {
            return;
        }
        self.bytes -= u64::from(known.bytes);
        self.expiry.remove(offset, known);
        self.free.remove(offset);
        if let Some(gone) = self.by_offset.remove(&offset) {
            self.drop_transferred(offset, &gone);
        }
    }

    /// The message is no longer in memory. Groups that have not loaded it may still have to settle it.
    fn drop_transferred(&mut self, offset: u64, gone: &MessageEntry) {
        if gone.staying > 0 {
            self.staying.subtract(gone);
            self.unloaded.insert(offset, gone.bytes);
        }
    }
}
