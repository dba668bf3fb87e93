//! What a new group takes over from older groups: some messages per call, in ascending order.
//!
//! The set of messages is fixed when the group is created, but writing it out may be too long for one call. In that
//! case one event says "whatever is pending in other groups". The new group then *lists* these messages range by
//! range, and takes over what it has listed. If another group settles a message that is not listed yet, the message
//! is kept for the new group. Until all is listed, settled messages cannot be replayed, and removed groups keep their
//! messages. Messages that no group has loaded are not loaded for the new group either: it is
//! [lagging](super::lagging).

use std::ops::Range;

use super::Queue;
use crate::config::Start;
use crate::event::Event;
use crate::group::Group;
use crate::offset_ranges::OffsetRanges;

impl Queue {
    /// Whether a new group has not listed all that it takes over. Until then there is no [snapshot](Queue::snapshot).
    pub fn is_listing(&self) -> bool {
        self.shared.messages.unlisted().any(|(id, _)| self.groups.contains(id))
    }

    /// Starts taking over what is pending elsewhere. The creation of the group has just been recorded.
    pub(crate) fn begin_joining(&mut self, group: u32) {
        if self.shared.config.start == Start::Latest {
            return;
        }
        let is_much = self.snapshot_entries() > self.at_once;
        self.shared.messages.begin_joining(group, 0..self.registration.known_to());
        if is_much {
            return self.shared.recorder.record(&Event::PendingElsewhere { group });
        }
        self.list(&mut { usize::MAX });
        let mut runs: Vec<Range<u64>> = self.groups[group].unknown().ranges().collect();
        let joining = self.shared.messages.joining(group);
        runs.extend(joining.into_iter().flat_map(|joining| joining.listed.ranges()));
        for offsets in runs {
            self.shared.recorder.record(&Event::Pending { group, offsets });
        }
    }

    /// Approximate size of a snapshot, as a number of ranges and single messages; the maximum while a group is
    /// listing.
    pub(crate) fn snapshot_entries(&self) -> usize {
        if self.shared.messages.unlisted().next().is_some() {
            return usize::MAX;
        }
        let of_group = |group: &Group| {
            let joining =
                self.shared.messages.joining(group.id()).map_or(0, |joining| joining.listed.count());
            group.snapshot_entries() + joining
        };
        self.groups.values().map(of_group).sum()
    }

    /// Moves messages into new groups, while `budget` lasts.
    pub(crate) fn continue_joining(&mut self, budget: &mut usize, now_ms: u64) {
        while *budget > 0 {
            let joining = self.shared.messages.joining_groups().find(|id| self.groups.contains(*id));
            let Some(group) = joining.and_then(|id| self.groups.get_mut(id)) else { return };
            if group.take_over_next(&mut self.shared, 0, now_ms).is_some() {
                *budget -= 1;
            } else {
                self.list(budget);
            }
        }
    }

    /// The lowest offset at or after `from` that some group has not settled, or that a new group has still to list
    /// from a removed group.
    pub(crate) fn first_needed(&self, from: u64) -> Option<u64> {
        let there = self.groups.values().filter_map(|group| group.first_from(&self.shared, from));
        let gone = self.shared.messages.unlisted().flat_map(|(id, joining)| {
            let sources = self.groups.removed().iter().filter(move |gone| gone.existed_before(id));
            sources.filter_map(move |gone| gone.first_from(&self.shared, from.max(joining.rest.start)))
        });
        there.chain(gone).min()
    }

    /// Lists the next range, about `budget` entries, for the first group that has not listed everything.
    pub(crate) fn list(&mut self, budget: &mut usize) {
        let Some((id, joining)) = self.shared.messages.unlisted().next() else { return };
        let sources = || self.groups.with_removed().filter(|group| group.existed_before(id));
        // Groups before this one have listed everything.
        let joining_of =
            |group: &Group| self.shared.messages.joining(group.id()).map(|joining| &joining.listed);
        let share = (*budget / sources().count().max(1)).max(1);
        let ends = sources().map(|group| group.end_of(joining_of(group), joining.rest.clone(), share));
        let ends = ends.chain([self.shared.messages.unloaded().end_of(joining.rest.clone(), share)]);
        let part = joining.rest.start..ends.min().unwrap_or(joining.rest.end);
        let mut listed = OffsetRanges::default();
        let mut seen = 0;
        for group in sources() {
            let staying = group.staying_within(part.clone());
            seen += staying.count().max(group.deliveries_within(part.clone()));
            let joining =
                joining_of(group).into_iter().flat_map(|joining| joining.ranges_within(part.clone()));
            listed.add(staying);
            joining.for_each(|run| listed.insert_range(run));
        }
        *budget = budget.saturating_sub(seen.max(1));
        let unknown = self.take_unknown(&mut listed, part.clone());
        if let Some(group) = self.groups.get_mut(id) {
            group.add_unloaded_ranges(unknown);
        }
        self.shared.messages.list(id, listed, part.end);
    }

    /// Removes unloaded offsets from `listed` and returns them. The new group lags if there are any.
    fn take_unknown(&self, listed: &mut OffsetRanges, part: Range<u64>) -> OffsetRanges {
        let mut unknown = OffsetRanges::default();
        let unloaded = self.shared.messages.unloaded().ranges_within(part.clone());
        let unregistered = Some(part.start.max(self.registration.to())..part.end);
        for run in unloaded.chain(unregistered.filter(|run| !run.is_empty())) {
            listed.ranges_within(run.clone()).for_each(|run| unknown.insert_range(run));
            listed.remove_range(run);
        }
        unknown
    }
}
