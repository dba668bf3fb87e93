//! New groups are given what was there before them: some at a time, the lowest first.
//!
//! What they are to be given is fixed when they are opened. If that is much, it is not written down then: one event says
//! that it is what others have. A new group *lists* it from the lowest offset on, some at a time, and is given what is
//! listed. What others settle that is not listed yet is kept for it. Until all is listed, nobody is given again what
//! was settled before, and groups that are removed keep what they had. What no group knows of it the new one does
//! not know either: it is [behind](crate::behind).

use std::ops::Range;

use crate::config::Start;
use crate::event::Event;
use crate::group::{Group, State};
use crate::machine::Queue;
use crate::runs::Runs;

/// What a group is still to be given.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Offsets that are listed, that others have settled since, or that came later.
    pub(crate) listed: Runs,
    /// Of these, also what is pending in groups that were there when this one was opened, and does not leave there.
    pub(crate) rest: Range<u64>,
}

impl Late {
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.rest.is_empty()
    }

    /// The first offset from `from` on that it can be given now: all before are known.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        let first = self.listed.first_from(from);
        first.filter(|first| self.rest.is_empty() || *first < self.rest.start)
    }
}

impl Queue {
    /// Whether a new group does not know yet what it is to be given. Until then there is no [snapshot](Queue::snapshot).
    pub fn is_listing(&self) -> bool {
        self.shared.pool.unlisted().any(|(id, _)| self.groups.contains_key(&id))
    }

    /// A group that has been recorded just now is to be given what is pending elsewhere.
    pub(crate) fn begin_to_join(&mut self, group: u32) {
        if self.shared.config.start == Start::Latest {
            return;
        }
        let is_much = self.runs() > self.at_once;
        self.shared.pool.begin_late(group, 0..self.registered_to.max(self.restored_to));
        if is_much {
            return self.shared.recorder.record(&Event::PendingElsewhere { group });
        }
        self.list(&mut { usize::MAX });
        let mut runs: Vec<Range<u64>> = self.groups[&group].unknown.runs().collect();
        let late = self.shared.pool.late(group);
        runs.extend(late.into_iter().flat_map(|late| late.listed.runs()));
        for offsets in runs {
            self.shared.recorder.record(&Event::Pending { group, offsets });
        }
    }

    /// About how many runs and single messages groups have; very many while one is listing.
    pub(crate) fn runs(&self) -> usize {
        if self.shared.pool.unlisted().next().is_some() {
            return usize::MAX;
        }
        let of_group = |group: &Group| {
            let late = self.shared.pool.late(group.id).map_or(0, |late| late.listed.count());
            group.pending.count() + group.unknown.count() + group.entries.len() + late
        };
        self.groups.values().map(of_group).sum()
    }

    /// Gives new groups messages that were there before them, as long as `most` is not 0.
    pub(crate) fn let_join(&mut self, most: &mut usize, now_ms: u64) {
        while *most > 0 {
            let late = self.shared.pool.late_groups().find(|id| self.groups.contains_key(id));
            let Some(group) = late.and_then(|id| self.groups.get_mut(&id)) else { return };
            if group.join(&mut self.shared, 0, now_ms).is_some() {
                *most -= 1;
            } else {
                self.list(most);
            }
        }
    }

    /// The lowest offset from `from` on that some group has not settled, or that a removed one has which a new one is still
    /// to list.
    pub(crate) fn first_needed(&self, from: u64) -> Option<u64> {
        let there = self.groups.values().filter_map(|group| group.first_from(&self.shared, from));
        let gone = self.shared.pool.unlisted().flat_map(|(id, late)| {
            let sources = self.remains.iter().filter(move |gone| gone.was_there_for(id));
            sources.filter_map(move |gone| gone.first_from(&self.shared, from.max(late.rest.start)))
        });
        there.chain(gone).min()
    }

    /// Lets the first group that has not listed everything list what comes next, about `most` things.
    pub(crate) fn list(&mut self, most: &mut usize) {
        let Some((id, late)) = self.shared.pool.unlisted().next() else { return };
        let sources = || self.groups.values().chain(&self.remains).filter(|group| group.was_there_for(id));
        // Groups before this one have listed all that they are to be given.
        let late_of = |group: &Group| self.shared.pool.late(group.id).map(|late| &late.listed);
        let share = (*most / sources().count().max(1)).max(1);
        let ends = sources().map(|group| group.end_of(late_of(group), late.rest.clone(), share));
        let ends = ends.chain([self.shared.pool.outside().end_of(late.rest.clone(), share)]);
        let part = late.rest.start..ends.min().unwrap_or(late.rest.end);
        let mut listed = Runs::default();
        let mut seen = 0;
        for group in sources() {
            let staying = group.staying_within(part.clone());
            seen += staying.count().max(group.entries.range(part.clone()).count());
            let late = late_of(group).into_iter().flat_map(|late| late.runs_within(part.clone()));
            listed.add(staying);
            late.for_each(|run| listed.insert_range(run));
        }
        *most = most.saturating_sub(seen.max(1));
        let unknown = self.take_unknown(&mut listed, part.clone());
        if let Some(group) = self.groups.get_mut(&id) {
            group.unknown.add(unknown);
        }
        self.shared.pool.list(id, listed, part.end);
    }

    /// Takes out what is not known of what is listed in a range: a group is behind if it has such to settle.
    fn take_unknown(&self, listed: &mut Runs, part: Range<u64>) -> Runs {
        let mut unknown = Runs::default();
        let outside = self.shared.pool.outside().runs_within(part.clone());
        let unregistered = Some(part.start.max(self.registered_to)..part.end);
        for run in outside.chain(unregistered.filter(|run| !run.is_empty())) {
            listed.runs_within(run.clone()).for_each(|run| unknown.insert_range(run));
            listed.remove_range(run);
        }
        unknown
    }
}

impl Group {
    /// Whether it was there when a group was opened.
    fn was_there_for(&self, opened: u32) -> bool {
        (self.id + 1..self.removed_before).contains(&opened)
    }

    /// Where about `most` things end of those that it has in a range.
    pub(crate) fn end_of(&self, late: Option<&Runs>, range: Range<u64>, most: usize) -> u64 {
        let entry = self.entries.range(range.clone()).nth(most).map(|(&offset, _)| offset);
        let late = late.map(|late| late.end_of(range.clone(), most));
        let unknown = self.unknown.end_of(range.clone(), most);
        let pending = self.pending.end_of(range, most);
        [entry, late].into_iter().flatten().fold(pending.min(unknown), u64::min)
    }

    /// What is pending in a range, and does not leave.
    fn staying_within(&self, range: Range<u64>) -> Runs {
        let mut staying = Runs::default();
        self.pending.runs_within(range.clone()).for_each(|run| staying.insert_range(run));
        self.unknown.runs_within(range.clone()).for_each(|run| staying.insert_range(run));
        for (&offset, entry) in self.entries.range(range) {
            if let State::Leaving { .. } = entry.state {
                staying.remove(offset);
            }
        }
        staying
    }
}
