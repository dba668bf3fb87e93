//! Groups that are far behind, so that they do not hold up the others.
//!
//! A queue knows so many unsettled messages at once, a million if nothing else is said. When there are more, a group that
//! knows more than its share *falls behind*, if another one knows less: it learns no more of what is registered. That is
//! pending for it like anything else, but it stands in [`unknown`](Group::unknown) only, as runs of offsets. When the group
//! knows no more than half of its share, or nothing of it is ready, it learns of the next ones: somebody reads them again.
//! So what it knows comes before what it does not, and order by key holds.
//!
//! A message that some groups know counts for the others as one that somebody holds: it is not thrown away because there
//! are too many before all know it. One that none knows is *outside*: not in the pool, but counted. What a group does not
//! know does not leave: it neither expires nor is redriven before it is known. What is redriven makes room for more to be
//! known, so whoever redrives goes on as long as [`Queue::redrives_more`] says so.

use std::ops::Range;

use crate::ask::{Reason, Refusal, Settlement, Verdict};
use crate::event::Event;
use crate::group::{Group, State};
use crate::machine::{GroupId, Queue};
use crate::meta::Meta;
use crate::runs::Runs;
use crate::shared::Shared;

impl Group {
    /// Whether there are messages in a queue that are registered and that it has to settle, and does not know.
    pub(crate) fn is_behind(&self, registered_to: u64) -> bool {
        self.unknown.first().is_some_and(|first| first < registered_to)
    }

    /// Whether a message that is registered now is not to be known.
    pub(crate) fn misses_more(&self) -> bool {
        !self.unknown.is_empty() || self.learns_behind > 0
    }

    /// Whether the same is so of an older one, for which there are some in front of it that are not known.
    pub(crate) fn misses_behind_others(&self, offset: u64) -> bool {
        let is_last = || self.pending.first_from(offset).is_none();
        self.unknown.first().is_some_and(|first| first < offset) || self.learns_behind > 0 && is_last()
    }

    /// Whether a message leaves.
    pub(crate) fn leaves(&self, offset: u64) -> bool {
        matches!(self.state(offset), State::Leaving { .. })
    }

    /// Settles what it does not know of a range: which offsets that were.
    fn purge_unknown(&mut self, shared: &mut Shared, range: Range<u64>) -> Vec<Range<u64>> {
        let purged: Vec<Range<u64>> = self.unknown.runs_within(range).collect();
        for run in &purged {
            self.forget(run.clone());
            shared.recorder.record(&Event::Settled { group: self.id, offsets: run.clone() });
            // Otherwise a later one of a key could be out before it lasts that this one is settled.
            self.learns_behind = shared.recorder.next_flush();
        }
        purged
    }
}

impl Queue {
    /// Whether no more messages are to be registered for now: it knows as many as it should and no group knows few of
    /// them, or all groups are behind.
    pub fn is_crowded(&self) -> bool {
        if self.is_full() { !self.has_room_for_some() } else { !self.follows().any(|_| true) }
    }

    /// Whether some group has messages to settle that are registered and that it does not know.
    pub fn is_behind(&self) -> bool {
        self.groups.values().any(|group| group.is_behind(self.registered_to))
    }

    /// Whether a group may know more messages: the queue knows fewer than it should, or the group knows less than its share.
    pub fn has_room_for(&self, group: GroupId) -> bool {
        let knows_few = |group: &Group| group.pending.len() <= self.share();
        !self.is_full() || self.groups.get(&group.0).is_some_and(knows_few)
    }

    /// How many messages a group has to settle and does not know yet.
    pub fn unknown(&self, group: GroupId) -> u64 {
        self.groups.get(&group.0).map_or(0, |group| self.unknown_of(group))
    }

    /// The same of those that are registered.
    pub(crate) fn unknown_of(&self, group: &Group) -> u64 {
        if self.registered_to >= self.restored_to {
            return group.unknown.len();
        }
        let runs = group.unknown.runs_within(0..self.registered_to);
        runs.map(|run| run.end - run.start).sum()
    }

    /// The lowest offset from `from` on of a message that some group has to settle and does not know.
    pub fn first_unknown(&self, group: GroupId, from: u64) -> Option<u64> {
        self.groups.get(&group.0)?.unknown.first_from(from)
    }

    /// What each group may know in any case.
    pub(crate) fn share(&self) -> u64 {
        (self.known_max / 2 / self.groups.len().max(1) as u64).max(1)
    }

    fn is_full(&self) -> bool {
        let pool = &self.shared.pool;
        // What leaves cannot go before all is registered again.
        let is_restoring = self.registered_to < self.restored_to;
        let known = if is_restoring { pool.staying_here() } else { pool.len() };
        known >= self.known_max
    }

    /// Whether those that know more than their share are to fall behind.
    pub(crate) fn makes_room(&self) -> bool {
        self.is_full() && self.has_room_for_some()
    }

    /// Whether some group that learns of what is registered knows no more than its share.
    fn has_room_for_some(&self) -> bool {
        let share = self.share();
        let is_new = |group: &Group| self.shared.pool.late(group.id).is_some();
        self.follows().any(|group| group.pending.len() <= share && !is_new(group))
    }

    /// Groups that are not behind.
    fn follows(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().filter(|group| !group.is_behind(self.registered_to))
    }

    // --- learning

    /// Whether a group is to learn of more messages now.
    pub(crate) fn learns(&self, group: &Group) -> bool {
        // Nearly always that is all: this is asked at every turn.
        if !group.is_behind(self.registered_to) || group.learns_behind > 0 {
            return false;
        }
        let is_idle = group.ready.iter().all(Runs::is_empty);
        let most = if is_idle { self.share() } else { self.share() / 2 };
        // What it is to be given of older ones comes first.
        self.shared.pool.late(group.id).is_none()
            && (group.pending.len() <= most || self.shared.pool.len() < self.known_max / 2)
    }

    /// From where on messages are to be read again, for [`Queue::learn`]: nothing if no group is to learn of any now.
    pub fn learns_from(&self) -> Option<u64> {
        self.groups
            .values()
            .filter(|group| self.learns(group))
            .filter_map(|group| group.unknown.first())
            .min()
    }

    /// Whether some group misses a message.
    pub(crate) fn misses(&self, offset: u64) -> bool {
        self.groups.values().any(|group| group.unknown.contains(offset))
    }

    /// Tells groups that are to learn of more messages of those in a range, which are all that there still are of it, in
    /// order. The range begins where [`Queue::learns_from`] said.
    pub fn learn(&mut self, range: Range<u64>, messages: &[Meta], now_ms: u64) {
        let range = range.start..range.end.min(self.registered_to);
        let of_range = |group: &&Group| group.unknown.first().is_some_and(|first| range.contains(&first));
        let learners = self.groups.values().filter(of_range).filter(|group| self.learns(group));
        let learners: Vec<u32> = learners.map(|group| group.id).collect();
        let mut from = range.start;
        for meta in messages.iter().filter(|meta| range.contains(&meta.offset)) {
            self.lose(&learners, from..meta.offset);
            from = meta.offset + 1;
            self.learn_one(&learners, meta, now_ms);
        }
        self.lose(&learners, from..range.end);
    }

    fn learn_one(&mut self, learners: &[u32], meta: &Meta, now_ms: u64) {
        let offset = meta.offset;
        if !self.misses(offset) {
            return;
        }
        let missing = self.missing(offset);
        let Self { shared, groups, .. } = self;
        shared.pool.bring_in(meta, missing);
        // It stays until all have been told.
        shared.pool.pend(offset);
        for id in learners {
            let group = groups.get_mut(id).filter(|group| group.unknown.contains(offset));
            let Some(group) = group else { continue };
            shared.pool.miss_no_more(offset);
            group.learn(shared, offset, now_ms);
            if shared.pool.has_expired(offset, now_ms) {
                group.expel(shared, offset, Reason::Expired, now_ms);
            }
        }
        shared.pool.settle(offset);
    }

    /// How many groups miss a message.
    pub(crate) fn missing(&self, offset: u64) -> usize {
        let all = self.groups.values().chain(&self.remains);
        all.filter(|group| group.unknown.contains(offset)).count()
    }

    /// What these groups are to learn of a range is there no more.
    fn lose(&mut self, learners: &[u32], range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        for id in learners {
            let Some(group) = self.groups.get_mut(id) else { continue };
            let lost: Vec<Range<u64>> = group.unknown.runs_within(range.clone()).collect();
            for run in &lost {
                group.forget(run.clone());
            }
            for run in lost {
                self.come_to_nothing(run);
            }
        }
    }

    // --- what is settled without being known

    /// Offsets in a row that a group missed are none that it has to settle any more. How many of them are known.
    fn come_to_nothing(&mut self, run: Range<u64>) -> usize {
        let mut gone = Runs::default();
        gone.insert_range(run.clone());
        for group in self.groups.values().chain(&self.remains) {
            group.unknown.runs_within(run.clone()).for_each(|missed| gone.remove_range(missed));
        }
        self.shared.pool.forget_outside(&gone);
        self.shared.pool.miss_none(run)
    }

    /// Settles what groups do not know of a range, all of which is listed. How many of them these were, counted in each.
    pub(crate) fn purge_unknown(&mut self, groups: &[u32], range: Range<u64>) -> u64 {
        let mut count = 0;
        for id in groups {
            let Some(group) = self.groups.get_mut(id) else { continue };
            for run in group.purge_unknown(&mut self.shared, range.clone()) {
                count += run.end - run.start;
                self.come_to_nothing(run);
            }
        }
        count
    }

    /// A group that is removed has nothing to settle that it does not know: goes on with that as long as `most` is not 0.
    pub(crate) fn miss_nothing(&mut self, gone: &mut Group, most: &mut usize) {
        while *most > 0
            && let Some(run) = gone.unknown.first_run()
        {
            let run = run.start..self.shared.pool.end_of(run, *most);
            gone.unknown.remove_range(run.clone());
            *most = most.saturating_sub(self.come_to_nothing(run) + 1);
        }
    }

    /// A receipt of a message that its group does not know is from before the queue was made again: that it is
    /// done counts.
    pub(crate) fn settle_unknown(&mut self, group: GroupId, settlement: &Settlement) -> Result<(), Refusal> {
        let offset = settlement.receipt.offset;
        // What a new group is still to list is listed, so that it keeps this.
        while self.is_listing() {
            self.list(&mut { self.at_once });
        }
        let known = self.groups.get_mut(&group.0).ok_or(Refusal::Stale)?;
        let is_it = known.entries.get(&offset).is_some_and(|entry| entry.is_of(settlement.receipt));
        if !is_it || known.leaves(offset) || settlement.verdict != Verdict::Ack {
            return Err(Refusal::Stale);
        }
        known.counters.acked += 1;
        self.purge_unknown(&[group.0], offset..offset + 1);
        Ok(())
    }
}
