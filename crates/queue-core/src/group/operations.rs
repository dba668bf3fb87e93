//! Operators' calls, from the view of one group: purge, redrive, peek and information.
//!
//! Each call looks at a limited number of messages and tells where it stopped, or what it cost, so that the caller can
//! divide a purge of a million messages over many turns. Messages that are on their way to another queue are left
//! alone: that transfer decides about them.

use std::ops::Range;

use super::{Group, State};
use crate::machine::MOVE_COST;
use crate::request::{GroupInfo, Reason, Redriven};
use crate::shared::Shared;

impl Group {
    /// Settles the pending messages of a range that do not leave. Returns how many were settled, and the cost in
    /// messages examined; ordered messages cost more.
    pub(crate) fn purge(&mut self, shared: &mut Shared, offsets: Range<u64>) -> (u64, usize) {
        let (mut from, mut purged, mut seen) = (offsets.start, 0, 0);
        while shared
            .messages
            .joining(self.id)
            .and_then(|joining| joining.listed.first_from(from))
            .is_some_and(|at| at < offsets.end)
        {
            self.take_over_next(shared, from, 0);
        }
        while let Some(offset) = self.pending.first_from(from).filter(|offset| *offset < offsets.end) {
            from = offset + 1;
            seen += if self.key_of(shared, offset).is_some() { MOVE_COST } else { 1 };
            if !matches!(self.state(offset), State::Leaving { .. }) {
                self.withdraw(shared, offset);
                // No unsettled message becomes available before this is complete, so the time does not matter.
                self.finish(shared, offset, 0);
                purged += 1;
            }
        }
        (purged, seen)
    }

    /// See [`crate::Queue::redrive_some`].
    pub(crate) fn redrive(
        &mut self,
        shared: &mut Shared,
        mut from: u64,
        max: u64,
        at_once: usize,
        now_ms: u64,
    ) -> (Redriven, Option<u64>) {
        let (mut redriven, mut seen) = (Redriven::default(), 0);
        while redriven.moved < max
            && let Some(offset) = self.pending.first_from(from)
        {
            if seen == at_once {
                return (redriven, Some(offset));
            }
            (from, seen) = (offset + 1, seen + 1);
            let is_dead_letter = shared.messages.get(offset).is_some_and(|known| known.is_moved);
            if !is_dead_letter || matches!(self.state(offset), State::Leaving { .. }) {
                continue;
            }
            if self.can_redrive(shared, offset) {
                self.withdraw(shared, offset);
                self.begin_transfer(shared, offset, Reason::Redriven, now_ms);
                redriven.moved += 1;
            } else {
                redriven.skipped += 1;
            }
        }
        (redriven, None)
    }

    /// The information, except for waiting consumers. `unknown` messages are registered and not loaded.
    pub(crate) fn info(&self, shared: &Shared, unknown: u64) -> GroupInfo {
        let ready = self.ready();
        let leaving = self.transfers.len() as u64;
        let others = ready + leaving + self.leased + self.delayed;
        let first = self.pending.first().into_iter().chain(self.unknown.first()).min();
        let first = first.and_then(|offset| shared.messages.get(offset));
        GroupInfo {
            name: self.name.to_string(),
            // Messages that the group has not loaded may turn out to be delayed or blocked.
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

    /// See [`crate::Queue::peek`].
    pub(crate) fn peek(
        &self,
        shared: &Shared,
        from: u64,
        max: usize,
        out: &mut Vec<(u64, u32, &'static str)>,
    ) {
        let (mut known, mut unknown) =
            (self.pending.from(from).peekable(), self.unknown.from(from).peekable());
        let next = || match (known.peek(), unknown.peek()) {
            (Some(first), Some(other)) if first < other => known.next(),
            (_, Some(_)) => unknown.next(),
            _ => known.next(),
        };
        for offset in std::iter::from_fn(next).take(max) {
            let count = self.entries.get(&offset).map_or(0, |entry| entry.count);
            let state = match self.state(offset) {
                State::Idle if self.is_ready(shared, offset) => "ready",
                // It is ready as far as the group knows.
                State::Idle if self.unknown.contains(offset) => "ready",
                State::Idle => "blocked",
                State::Leased { .. } => "leased",
                State::Delayed { .. } => "delayed",
                State::Leaving { .. } => "leaving",
            };
            out.push((offset, count, state));
        }
    }

    /// Number of unsettled messages, loaded or not.
    pub(crate) fn unsettled(&self) -> u64 {
        self.pending.len() + self.unknown.len()
    }
}
