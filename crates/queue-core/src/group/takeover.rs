//! What a new group [takes over](crate::Queue::is_listing) from older groups, from the view of one group.

use std::ops::Range;

use super::{Group, State};
use crate::offset_ranges::OffsetRanges;
use crate::request::Reason;
use crate::shared::Shared;

impl Group {
    /// Takes the next message at or after `from` that a new group starts with, and returns its offset.
    pub(crate) fn take_over_next(&mut self, shared: &mut Shared, from: u64, now_ms: u64) -> Option<u64> {
        let offset = shared.messages.take_joining(self.id, from)?;
        if self.skips_older_message(offset) {
            // Messages before it are not loaded, and they come first.
            self.add_unloaded(offset);
            shared.messages.miss(offset);
            shared.messages.forget_if_settled(offset);
            return Some(offset);
        }
        self.add(shared, offset, now_ms);
        if shared.messages.has_expired(offset, now_ms) {
            self.expel(shared, offset, Reason::Expired, now_ms);
        }
        Some(offset)
    }

    /// The lowest unsettled offset at or after `from`. Offsets that the group has still to list do not count.
    pub(crate) fn first_from(&self, shared: &Shared, from: u64) -> Option<u64> {
        let joining = shared.messages.joining(self.id).and_then(|joining| joining.listed.first_from(from));
        let unknown = self.unknown.first_from(from);
        self.pending.first_from(from).into_iter().chain(unknown).chain(joining).min()
    }

    /// The group is removed. Groups with the number `next_id` or a higher one are created afterwards.
    pub(crate) fn retire(&mut self, next_id: u32) {
        self.removed_before = next_id;
    }

    /// Whether the group existed when the group `opened` was created.
    pub(crate) fn existed_before(&self, opened: u32) -> bool {
        (self.id + 1..self.removed_before).contains(&opened)
    }

    /// The end of the first `most` entries of a range.
    pub(crate) fn end_of(&self, joining: Option<&OffsetRanges>, range: Range<u64>, most: usize) -> u64 {
        let entry = self.entries.range(range.clone()).nth(most).map(|(&offset, _)| offset);
        let joining = joining.map(|joining| joining.end_of(range.clone(), most));
        let unknown = self.unknown.end_of(range.clone(), most);
        let pending = self.pending.end_of(range, most);
        [entry, joining].into_iter().flatten().fold(pending.min(unknown), u64::min)
    }

    /// Offsets in a range that are pending and do not leave.
    pub(crate) fn staying_within(&self, range: Range<u64>) -> OffsetRanges {
        let mut staying = OffsetRanges::default();
        self.pending.ranges_within(range.clone()).for_each(|run| staying.insert_range(run));
        self.unknown.ranges_within(range.clone()).for_each(|run| staying.insert_range(run));
        for (&offset, entry) in self.entries.range(range) {
            if let State::Leaving { .. } = entry.state {
                staying.remove(offset);
            }
        }
        staying
    }

    /// Number of messages whose deliveries the group remembers.
    pub(crate) fn deliveries(&self) -> usize {
        self.entries.len()
    }

    /// The same, of a range.
    pub(crate) fn deliveries_within(&self, range: Range<u64>) -> usize {
        self.entries.range(range).count()
    }

    /// Approximate size of the group in a snapshot, as a number of ranges and single messages.
    pub(crate) fn snapshot_entries(&self) -> usize {
        self.pending.count() + self.unknown.count() + self.entries.len()
    }
}
