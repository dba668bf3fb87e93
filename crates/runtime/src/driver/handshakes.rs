//! Connections in the handshake of their transport: bounded in number, in time, and in work per turn.
//!
//! A handshake costs up to a millisecond of a core, and its peer is a stranger. So handshakes are read last in a turn,
//! within a share of their own, and one that does not fit waits for the next turn: a flood of them cannot delay the
//! clients that are served. Beyond the maximum, the oldest handshake ends. Clients complete theirs in a few round
//! trips; those that are still there when as many newer ones have arrived mostly never will.

use std::collections::VecDeque;
use std::time::Instant;

use super::Driver;
use mainstem_quota::LogThrottle;

use crate::links::{ConnId, Link};
use crate::service::Service;

/// Limits of the handshakes of one shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeLimits {
    pub(super) max: usize,
    pub(super) timeout_ms: u64,
}

/// The handshakes of one shard.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    /// Oldest first, with their deadlines, ms. Some have ended since.
    queue: VecDeque<(ConnId, u64)>,
    /// Connections to read when the others were read.
    unread: VecDeque<u32>,
    log: LogThrottle,
}

impl Handshakes {
    /// When the next may be overdue, ms.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queue.front().map(|(_, until_ms)| *until_ms)
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }
}

impl<S: Service> Driver<S> {
    /// Notes a new connection, if its transport has a handshake.
    pub(super) fn begin_handshake(&mut self, conn: ConnId) {
        if self.core.links.get(conn).is_some_and(Link::is_handshaking) {
            let until_ms = self.core.clock.now_ms + self.handshake_limits.timeout_ms;
            self.handshakes.queue.push_back((conn, until_ms));
        }
    }

    /// Reads a connection that has input, at once or, in its handshake, after the others.
    pub(super) fn read_in_turn(&mut self, slot: u32) {
        let link = self.core.links.slot_mut(slot);
        if !link.is_handshaking() {
            self.read(slot);
        } else if link.input.read_later() {
            self.handshakes.unread.push_back(slot);
        }
    }

    /// Reads connections in their handshakes, as long as their share of the turn lasts.
    pub(super) fn read_handshakes(&mut self) {
        self.core.work.begin_handshakes();
        while !self.core.work.is_phase_over()
            && let Some(slot) = self.handshakes.unread.pop_front()
        {
            self.core.links.slot_mut(slot).input.read_now();
            self.read(slot);
        }
    }

    /// Closes the handshakes that are overdue or too many.
    pub(super) fn end_handshakes(&mut self) {
        let now_ms = self.core.clock.now_ms;
        while let Some((conn, until_ms)) = self.handshakes.queue.front().copied() {
            if self.core.links.get(conn).is_some_and(Link::is_handshaking) {
                let max = self.handshake_limits.max;
                if now_ms < until_ms && self.core.links.handshaking() <= max {
                    break;
                }
                if let Some(count) = self.handshakes.log.count(Instant::now()) {
                    log::warn!(
                        "{count} connections closed before the end of their handshake, which has taken longer than server.handshake_timeout_ms, or was the oldest of more than {max} of this shard (server.max_handshakes)"
                    );
                }
                self.abort_handshake(conn);
            }
            self.handshakes.queue.pop_front();
        }
    }
}
