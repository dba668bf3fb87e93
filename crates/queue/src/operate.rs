//! What operators do with a queue, and see of it.

use std::ops::Range;

use crate::ask::{GroupInfo, GroupName, Info, Reason};
use crate::event::Event;
use crate::group::{Group, State};
use crate::machine::{GroupId, Queue, THINGS_PER_MOVE};
use crate::meta::Meta;
use crate::shared::Shared;

/// Entries that are freed in the time that a message takes otherwise.
const FREED_PER_MESSAGE: usize = 8;

impl Queue {
    /// The group that has most to settle, and how much.
    pub fn most_behind(&self) -> Option<(&GroupName, u64)> {
        let groups =
            self.groups.values().map(|group| (&group.name, group.pending.len() + group.unknown.len()));
        groups.max_by_key(|(_, pending)| *pending)
    }

    /// Settles all messages of a group, or of all groups, whoever has them; but none that leave. How many there were.
    pub fn purge(&mut self, group: Option<GroupId>) -> u64 {
        let (mut next, mut purged) = (Some(0), 0);
        while let Some(from) = next {
            let (count, rest) = self.purge_some(group, from..u64::MAX);
            (next, purged) = (rest, purged + count);
        }
        purged
    }

    /// The same of some messages in a range of offsets, so that nothing else waits for long: how many were settled, and
    /// where to go on.
    pub fn purge_some(&mut self, group: Option<GroupId>, offsets: Range<u64>) -> (u64, Option<u64>) {
        let selected = |id: &u32| group.is_none_or(|group| group.0 == *id);
        let ids: Vec<u32> = self.groups.keys().copied().filter(selected).collect();
        let is_unknown = |id: &u32| self.groups[id].unknown.first_from(offsets.start).is_some();
        let unlisted = if ids.iter().any(is_unknown) { self.is_listing() } else { false };
        if unlisted || ids.iter().any(|&id| self.shared.pool.is_unlisted(id)) {
            // What they are to be given is to be settled too. And what others are to be given is to be kept for them.
            self.list(&mut { self.at_once });
            return (0, Some(offsets.start));
        }
        let staying = self.shared.pool.staying().0;
        let (mut left, mut from, mut purged) = (self.at_once, offsets.start, 0);
        let next = loop {
            let firsts = ids.iter().filter_map(|id| self.groups[id].first_from(&self.shared, from));
            let first = firsts.min().filter(|first| *first < offsets.end);
            let Some(first) = first.filter(|_| left > 0) else { break first };
            // A piece in one group after the other: what is settled in a row is told in one event.
            let things = ids.len() * if self.shared.config.fifo { THINGS_PER_MOVE } else { 1 };
            let most = (left / things).max(1) as u64;
            let piece = first..offsets.end.min(first.saturating_add(most));
            let mut seen = 0;
            for group in &ids {
                let Some(group) = self.groups.get_mut(group) else { continue };
                let (settled, things) = group.purge(&mut self.shared, piece.clone());
                (purged, seen) = (purged + settled, seen + things);
            }
            let unknown = self.purge_unknown(&ids, piece.clone());
            purged += unknown;
            left = left.saturating_sub(seen.max(1) + unknown as usize);
            from = piece.end;
        };
        (if group.is_none() { staying - self.shared.pool.staying().0 } else { purged }, next)
    }

    /// Lets up to `max` messages of the oldest group, `default` unless that was removed, leave that another queue has moved here and nobody has: back to
    /// where they came from. Messages of a key leave in their order, behind one that is out they stay. How many leave.
    pub fn redrive(&mut self, max: u64, now_ms: u64) -> u64 {
        let (mut next, mut moved) = (Some(0), 0);
        while let Some(from) = next {
            let (count, rest) = self.redrive_some(from, max - moved, now_ms);
            (next, moved) = (rest, moved + count);
        }
        moved
    }

    /// The same of some messages from an offset on, so that nothing else waits for long: how many leave, and where to go
    /// on.
    pub fn redrive_some(&mut self, from: u64, max: u64, now_ms: u64) -> (u64, Option<u64>) {
        let Some(group) = self.groups.values_mut().next() else { return (0, None) };
        group.redrive(&mut self.shared, from, max, self.at_once, now_ms)
    }

    /// Messages below this offset are known to the group that [redrive](Self::redrive) is about, which passes over the others.
    pub fn redrives_to(&self) -> u64 {
        let Some(group) = self.groups.values().next() else { return self.registered_to };
        let late = self.shared.pool.late(group.id);
        let unlisted = late.filter(|late| !late.rest.is_empty()).map(|late| late.rest.start);
        let late = late.and_then(|late| late.listed.first());
        let unknown = [group.unknown.first(), unlisted, late];
        unknown.into_iter().flatten().fold(self.registered_to, u64::min)
    }

    /// Whether that group will know more of the messages below `to` without anybody settling some: because others leave, or
    /// there is room for more.
    pub fn redrives_more(&self, to: u64) -> bool {
        let Some(group) = self.groups.values().next().filter(|_| self.redrives_to() < to) else {
            return false;
        };
        let comes_by_itself = self.registered_to < to && !self.is_crowded();
        let is_late = self.shared.pool.late(group.id).is_some();
        !group.leaving.is_empty() || comes_by_itself || is_late || self.learns(group)
    }

    /// It is of no use any more: frees some of what it knows. Returns whether there is more; what then is left may be
    /// dropped at once.
    pub fn dissolve(&mut self) -> bool {
        let mut most = self.at_once.saturating_mul(FREED_PER_MESSAGE);
        self.groups.values_mut().chain(&mut self.remains).for_each(|group| group.thin(&mut most));
        self.shared.pool.thin(&mut most);
        self.seen.thin(&mut most);
        self.dropped.thin(&mut most);
        most == 0
    }

    /// Makes messages pending again that a group has settled, as if they had never been delivered to it. Those that are
    /// pending stay as they are; those that have expired, were thrown away as duplicates, or were
    /// never registered, are passed over. How many are
    /// pending again.
    pub fn replay_from(&mut self, group: GroupId, pending: &[Meta], now_ms: u64) -> u64 {
        // What is pending again is none of what a new group is to list.
        while self.is_listing() {
            self.list(&mut { self.at_once });
        }
        if !self.groups.contains_key(&group.0) {
            return 0;
        }
        self.shared.go_on_living();
        let ttl_ms = self.shared.config.ttl_ms;
        let mut count = 0;
        let mut run = 0..0;
        for meta in pending {
            let missing = self.missing(meta.offset);
            let (Some(group), shared) = (self.groups.get_mut(&group.0), &mut self.shared) else { break };
            let is_over = meta.expires_with(ttl_ms) <= now_ms || self.dropped.contains(meta.offset);
            let is_there = group.first_from(shared, meta.offset) == Some(meta.offset);
            if is_over || is_there || meta.offset >= self.registered_to {
                continue;
            }
            if run.end != meta.offset {
                record_pending(shared, group.id, &run);
                run = meta.offset..meta.offset;
            }
            run.end += 1;
            count += 1;
            if group.misses_behind_others(meta.offset) {
                // Those before it come first.
                group.unknown.insert(meta.offset);
                shared.pool.miss_from_now_on(meta);
                continue;
            }
            shared.pool.bring_in(meta, missing);
            shared.pool.put(meta);
            let late = shared.pool.late(group.id).and_then(|late| late.listed.first());
            if late.is_some_and(|late| late < meta.offset) {
                shared.pool.join_late(group.id, meta.offset);
            } else {
                group.add(shared, meta.offset, now_ms);
            }
        }
        record_pending(&mut self.shared, group.0, &run);
        count
    }

    /// Appends up to `max` unsettled messages of a group from an offset on: offset, deliveries, state.
    pub fn peek(&self, group: GroupId, from: u64, max: usize, out: &mut Vec<(u64, u32, &'static str)>) {
        let Some(group) = self.groups.get(&group.0) else { return };
        let (mut known, mut unknown) =
            (group.pending.from(from).peekable(), group.unknown.from(from).peekable());
        let next = || match (known.peek(), unknown.peek()) {
            (Some(first), Some(other)) if first < other => known.next(),
            (_, Some(_)) => unknown.next(),
            _ => known.next(),
        };
        for offset in std::iter::from_fn(next).take(max) {
            let count = group.entries.get(&offset).map_or(0, |entry| entry.count);
            let state = match group.state(offset) {
                State::Idle if group.is_ready(&self.shared, offset) => "ready",
                // As far as anybody knows.
                State::Idle if group.unknown.contains(offset) => "ready",
                State::Idle => "blocked",
                State::Leased { .. } => "leased",
                State::Delayed { .. } => "delayed",
                State::Leaving { .. } => "leaving",
            };
            out.push((offset, count, state));
        }
    }

    /// Says how the queue is; all but its name, its settings, and who waits.
    pub fn info(&self, into: &mut Info) {
        let pool = &self.shared.pool;
        into.messages = pool.len() + pool.outside().len();
        into.bytes = pool.bytes() + pool.outside().bytes();
        into.oldest_ms = pool.first().map(|(_, known)| known.timestamp_ms);
        into.duplicates = self.duplicates;
        into.groups = self
            .names
            .values()
            .filter_map(|id| self.groups.get(&id.0))
            .map(|group| group.info(&self.shared, self.unknown_of(group)))
            .collect();
    }

    /// The lowest offset that some group has not settled; if there is none, what is registered. The log may forget what
    /// lies below when all that has happened up to now is durable.
    pub fn needed_from(&self) -> u64 {
        self.first_needed(0).unwrap_or(self.registered_to.max(self.restored_to))
    }

    /// The lowest `max` offsets from `from` on that some group has not settled.
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

impl Group {
    /// Settles what is pending in a range and does not leave: how many that were, and how many it has looked at; those
    /// that stand in line count as more.
    fn purge(&mut self, shared: &mut Shared, offsets: Range<u64>) -> (u64, usize) {
        let (mut from, mut purged, mut seen) = (offsets.start, 0, 0);
        while shared
            .pool
            .late(self.id)
            .and_then(|late| late.listed.first_from(from))
            .is_some_and(|at| at < offsets.end)
        {
            self.join(shared, from, 0);
        }
        while let Some(offset) = self.pending.first_from(from).filter(|offset| *offset < offsets.end) {
            from = offset + 1;
            seen += if self.line_of(shared, offset).is_some() { THINGS_PER_MOVE } else { 1 };
            if !matches!(self.state(offset), State::Leaving { .. }) {
                self.withdraw(shared, offset);
                // Nothing comes out of a line before this that is not settled: the time does not matter.
                self.finish(shared, offset, 0);
                purged += 1;
            }
        }
        (purged, seen)
    }

    fn redrive(
        &mut self,
        shared: &mut Shared,
        mut from: u64,
        max: u64,
        at_once: usize,
        now_ms: u64,
    ) -> (u64, Option<u64>) {
        let (mut moved, mut seen) = (0, 0);
        while moved < max
            && let Some(offset) = self.pending.first_from(from)
        {
            if seen == at_once {
                return (moved, Some(offset));
            }
            (from, seen) = (offset + 1, seen + 1);
            let line = self.line_of(shared, offset);
            let is_moved = shared.pool.get(offset).is_some_and(|known| known.is_moved);
            let is_free = self.state(offset) == State::Idle
                && (self.is_ready(shared, offset) || line.is_some_and(|key| self.is_redriven(key)));
            if is_moved && is_free {
                self.withdraw(shared, offset);
                self.depart(shared, offset, Reason::Redriven, now_ms);
                moved += 1;
            }
        }
        (moved, None)
    }

    fn info(&self, shared: &Shared, unknown: u64) -> GroupInfo {
        let ready = self.ready.iter().map(crate::runs::Runs::len).sum::<u64>();
        let leaving = self.leaving.len() as u64;
        let others = ready + leaving + self.leased + self.delayed;
        let first = self.pending.first().into_iter().chain(self.unknown.first()).min();
        let first = first.and_then(|offset| shared.pool.get(offset));
        GroupInfo {
            name: self.name.to_string(),
            // What is not known to it may turn out to be something else.
            ready: ready + unknown,
            leased: self.leased,
            delayed: self.delayed,
            blocked: self.pending.len().saturating_sub(others),
            leaving,
            oldest_ms: first.map(|known| known.timestamp_ms),
            waiting: 0,
            delivered: self.counters.delivered,
            redelivered: self.counters.redelivered,
            acked: self.counters.acked,
            nacked: self.counters.nacked,
            dead: self.counters.dead,
        }
    }
}
