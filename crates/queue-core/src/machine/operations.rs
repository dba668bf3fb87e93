//! Operators' calls: purge, redrive, replay, peek and information. Each one has a version that handles some messages
//! per call, so that a queue of a million messages does not stall its shard.

use std::ops::Range;

use super::{GroupId, MOVE_COST, Queue};
use crate::event::Event;
use crate::meta::Meta;
use crate::request::{GroupName, Info, Redriven};
use crate::shared::Shared;

/// Entries that can be freed in the time that one message takes otherwise.
const FREED_PER_MESSAGE: usize = 8;

impl Queue {
    /// The group with the most unsettled messages, and their number.
    pub fn most_lagging(&self) -> Option<(&GroupName, u64)> {
        let groups = self.groups.values().map(|group| (group.name(), group.unsettled()));
        groups.max_by_key(|(_, pending)| *pending)
    }

    /// Settles all messages of one group or of all groups, except those that are leaving. Leased messages are settled
    /// too. Returns their number.
    pub fn purge(&mut self, group: Option<GroupId>) -> u64 {
        let (mut next, mut purged) = (Some(0), 0);
        while let Some(from) = next {
            let (count, rest) = self.purge_some(group, from..u64::MAX);
            (next, purged) = (rest, purged + count);
        }
        purged
    }

    /// As [`purge`](Self::purge), for some messages of a range. Returns how many were settled, and the offset to
    /// continue from.
    pub fn purge_some(&mut self, group: Option<GroupId>, offsets: Range<u64>) -> (u64, Option<u64>) {
        let selected = |id: &u32| group.is_none_or(|group| group.0 == *id);
        let ids: Vec<u32> = self.groups.ids().filter(selected).collect();
        let is_unknown = |id: &u32| self.groups[*id].unknown().first_from(offsets.start).is_some();
        let unlisted = if ids.iter().any(is_unknown) { self.is_listing() } else { false };
        if unlisted || ids.iter().any(|&id| self.shared.messages.is_unlisted(id)) {
            // Messages that these groups take over must be settled too, and messages that other groups take over must
            // be kept.
            self.list(&mut { self.at_once });
            return (0, Some(offsets.start));
        }
        let staying = self.shared.messages.staying().0;
        let (mut left, mut from, mut purged) = (self.at_once, offsets.start, 0);
        let next = loop {
            let firsts = ids.iter().filter_map(|id| self.groups[*id].first_from(&self.shared, from));
            let first = firsts.min().filter(|first| *first < offsets.end);
            let Some(first) = first.filter(|_| left > 0) else { break first };
            // One range in one group after the other, so that consecutive settlements merge into one event.
            let things = ids.len() * if self.shared.config.fifo { MOVE_COST } else { 1 };
            let most = (left / things).max(1) as u64;
            let piece = first..offsets.end.min(first.saturating_add(most));
            let mut seen = 0;
            for group in &ids {
                let Some(group) = self.groups.get_mut(*group) else { continue };
                let (settled, things) = group.purge(&mut self.shared, piece.clone());
                (purged, seen) = (purged + settled, seen + things);
            }
            let unknown = self.purge_unknown(&ids, piece.clone());
            purged += unknown;
            left = left.saturating_sub(seen.max(1) + unknown as usize);
            from = piece.end;
        };
        (if group.is_none() { staying - self.shared.messages.staying().0 } else { purged }, next)
    }

    /// Moves up to `max` messages back to the queues that they came from. Only messages of the oldest group
    /// (`default` unless it was removed) that another queue moved here and no consumer has can go; a delay ends.
    /// Messages of one key go in order, and stay behind one that is leased.
    pub fn redrive(&mut self, max: u64, now_ms: u64) -> Redriven {
        let (mut next, mut redriven) = (Some(0), Redriven::default());
        while let Some(from) = next {
            let (step, rest) = self.redrive_some(from, max - redriven.moved, now_ms);
            redriven.moved += step.moved;
            redriven.skipped += step.skipped;
            next = rest;
        }
        redriven
    }

    /// As [`redrive`](Self::redrive), for some messages from an offset on. Also returns the offset to continue from.
    pub fn redrive_some(&mut self, from: u64, max: u64, now_ms: u64) -> (Redriven, Option<u64>) {
        let Some(group) = self.groups.values_mut().next() else { return (Redriven::default(), None) };
        group.redrive(&mut self.shared, from, max, self.at_once, now_ms)
    }

    /// The group that [redrive](Self::redrive) serves has loaded the messages below this offset. A redrive ignores
    /// the others.
    pub fn redrives_to(&self) -> u64 {
        let Some(group) = self.groups.values().next() else { return self.registration.to() };
        let joining = self.shared.messages.joining(group.id());
        let unlisted = joining.filter(|joining| !joining.rest.is_empty()).map(|joining| joining.rest.start);
        let joining = joining.and_then(|joining| joining.listed.first());
        let unknown = [group.unknown().first(), unlisted, joining];
        unknown.into_iter().flatten().fold(self.registration.to(), u64::min)
    }

    /// Whether that group will load more messages below `to` without a settlement: because messages leave or memory
    /// is free.
    pub fn redrives_more(&self, to: u64) -> bool {
        let Some(group) = self.groups.values().next().filter(|_| self.redrives_to() < to) else {
            return false;
        };
        let comes_by_itself = self.registration.to() < to && !self.is_crowded();
        let is_joining = self.shared.messages.joining(group.id()).is_some();
        group.is_transferring() || comes_by_itself || is_joining || self.can_load(group)
    }

    /// Frees some of the memory of a queue that is not used any more. Returns whether there is more; the rest can be
    /// dropped at once.
    pub fn drop_step(&mut self) -> bool {
        let mut budget = self.at_once.saturating_mul(FREED_PER_MESSAGE);
        self.groups.with_removed_mut().for_each(|group| group.drop_some(&mut budget));
        self.shared.messages.drop_some(&mut budget);
        self.duplicates.drop_some(&mut budget);
        budget == 0
    }

    /// Makes messages pending again that a group has settled, as if they had never been delivered. Skips messages
    /// that are pending, expired, duplicates, or not registered. Returns how many are pending again.
    pub fn replay_from(&mut self, group: GroupId, pending: &[Meta], now_ms: u64) -> u64 {
        // A new group must not list what becomes pending again.
        while self.is_listing() {
            self.list(&mut { self.at_once });
        }
        if !self.groups.contains(group.0) {
            return 0;
        }
        self.shared.resume_incarnation();
        let ttl_ms = self.shared.config.ttl_ms;
        let mut count = 0;
        let mut run = 0..0;
        for meta in pending {
            let missing = self.missing(meta.offset);
            let (Some(group), shared) = (self.groups.get_mut(group.0), &mut self.shared) else { break };
            let is_over =
                meta.expires_with(ttl_ms) <= now_ms || self.duplicates.dropped().contains(meta.offset);
            let is_there = group.first_from(shared, meta.offset) == Some(meta.offset);
            if is_over || is_there || meta.offset >= self.registration.to() {
                continue;
            }
            if run.end != meta.offset {
                record_pending(shared, group.id(), &run);
                run = meta.offset..meta.offset;
            }
            run.end += 1;
            count += 1;
            if group.skips_older_message(meta.offset) {
                // Messages before it are not loaded, and they come first.
                group.add_unloaded(meta.offset);
                shared.messages.miss_unloaded(meta);
                continue;
            }
            shared.messages.load(meta, missing);
            shared.messages.put(meta);
            let joining = shared.messages.joining(group.id()).and_then(|joining| joining.listed.first());
            if joining.is_some_and(|joining| joining < meta.offset) {
                shared.messages.append_joining(group.id(), meta.offset);
            } else {
                group.add(shared, meta.offset, now_ms);
            }
        }
        record_pending(&mut self.shared, group.0, &run);
        count
    }

    /// Appends up to `max` unsettled messages of a group from an offset on: offset, deliveries, state.
    pub fn peek(&self, group: GroupId, from: u64, max: usize, out: &mut Vec<(u64, u32, &'static str)>) {
        let Some(group) = self.groups.get(group.0) else { return };
        group.peek(&self.shared, from, max, out);
    }

    /// Fills in the information, except for name, settings and waiting consumers.
    pub fn info(&self, into: &mut Info) {
        let messages = &self.shared.messages;
        into.messages = messages.len() + messages.unloaded().len();
        into.bytes = messages.bytes() + messages.unloaded().bytes();
        into.oldest_ms = messages.first().map(|(_, known)| known.timestamp_ms);
        into.duplicates = self.duplicates.count();
        let groups = self.groups.by_name();
        into.groups = groups.map(|group| group.info(&self.shared, self.unknown_of(group))).collect();
    }

    /// The lowest offset that some group has not settled, or the end of the registered messages. Messages below it
    /// may be deleted once everything that has happened is durable.
    pub fn needed_from(&self) -> u64 {
        self.first_needed(0).unwrap_or(self.registration.known_to())
    }

    /// The lowest `max` unsettled offsets at or after `from`.
    pub fn needed(&self, from: u64, max: usize) -> Vec<u64> {
        std::iter::successors(self.first_needed(from), |&last| self.first_needed(last + 1))
            .take(max)
            .collect()
    }
}

fn record_pending(shared: &mut Shared, group: u32, run: &std::ops::Range<u64>) {
    if !run.is_empty() {
        shared.recorder.record(&Event::Pending { group, offsets: run.clone() });
    }
}
