//! Closed connections whose peers may still read the last bytes.
//!
//! Closing a socket with unread input resets the connection, which could destroy the last packet. A closed connection
//! therefore lingers: its write side is shut down, and input is read and discarded until the peer closes.
//!
//! The peer of a lingering connection is often one that was refused, so what it can cost is bounded: in time, in bytes
//! read, in reads per turn, and in the number of connections that linger. After the last byte of its share a connection
//! is not read any more, and TCP stops the peer; it still has until the deadline to read what it was sent.

use std::collections::VecDeque;
use std::io::{self, Read};

use mio::{Interest, Token};

use super::Driver;
use super::input::READ_UNITS;
use crate::links::ConnId;
use crate::service::Service;

/// How long the peer of a closed connection may take to read its last bytes, ms.
const LINGER_MS: u64 = 2_000;
/// Input that is read and discarded per lingering connection, bytes.
pub(crate) const LINGER_BYTES: u32 = 64 * 1024;
/// Largest read of discarded input, bytes.
const READ_BYTES: usize = 16 * 1024;
/// Reads of discarded input in one turn of a shard.
const READS_PER_TURN: u32 = 32;
/// Lingering connections that are closed in one turn of a shard.
const CLOSES_PER_TURN: usize = 64;
/// Maximum number of lingering connections per shard. Beyond it, the one that has lingered longest is closed.
const LINGERING_MAX: usize = 1024;

/// The lingering connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    /// May contain connections that have closed since.
    queue: VecDeque<(ConnId, u64)>,
    /// Lingering connections that are open.
    open: usize,
    reads_in_turn: u32,
}

impl Lingering {
    fn add(&mut self, conn: ConnId, now_ms: u64) {
        self.queue.push_back((conn, now_ms + LINGER_MS));
        self.open += 1;
    }

    /// A lingering connection has closed.
    pub(super) fn closed(&mut self) {
        self.open -= 1;
    }

    /// When the oldest must be closed, ms.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queue.front().map(|(_, until_ms)| *until_ms)
    }

    /// Takes a connection that is to be closed, or has closed: it is overdue, or too many linger.
    fn take_due(&mut self, now_ms: u64, is_open: impl Fn(ConnId) -> bool) -> Option<ConnId> {
        let (conn, until_ms) = *self.queue.front()?;
        let is_due = now_ms >= until_ms || self.open > LINGERING_MAX || !is_open(conn);
        is_due.then(|| self.queue.pop_front())?;
        Some(conn)
    }

    /// Whether another read fits into this turn; counts it.
    fn may_read(&mut self) -> bool {
        self.reads_in_turn += 1;
        self.reads_in_turn <= READS_PER_TURN
    }
}

impl<S: Service> Driver<S> {
    /// Lets a connection linger that the service has closed.
    pub(super) fn linger(&mut self, conn: ConnId) {
        self.core.links.linger(conn.slot, LINGER_BYTES);
        self.lingering.add(conn, self.core.clock.now_ms);
        self.read_again.push(conn.slot);
    }

    /// Reads and discards input of a closed connection, as far as its share goes.
    pub(super) fn discard_input(&mut self, slot: u32) {
        let Some(socket) = self.sockets[slot as usize].as_mut() else { return };
        let link = self.core.links.slot_mut(slot);
        let room = READ_BYTES.min(link.discardable_bytes());
        if room == 0 {
            // Its share is used up, or it is about to close: `linger` reads it then.
            return;
        }
        if !self.lingering.may_read() {
            self.read_again.push(slot);
            return;
        }
        let conn = ConnId { slot, generation: link.generation() };
        self.core.stats.reads += 1;
        self.core.work.charge(READ_UNITS);
        match socket.read(&mut self.buffer[..room]) {
            Ok(0) => self.peer_closed(conn),
            Ok(count) => {
                self.core.stats.bytes_read += count as u64;
                link.count_discarded(count);
                if link.discardable_bytes() == 0 {
                    // Further input must not even wake the shard.
                    let registry = self.poll.registry();
                    if let Err(error) = registry.reregister(socket, Token(slot as usize), Interest::WRITABLE)
                    {
                        log::debug!("cannot ignore the input of a closed connection: {error}");
                        self.drop_socket(slot);
                    }
                } else if count == room {
                    self.read_again.push(slot);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.read_again.push(slot),
            Err(_) => self.peer_closed(conn),
        }
    }

    /// Ends the turn of the lingering connections: closes those that are due.
    pub(super) fn end_lingering(&mut self) {
        self.lingering.reads_in_turn = 0;
        let now_ms = self.core.clock.now_ms;
        for _ in 0..CLOSES_PER_TURN {
            let is_open = |conn| self.core.links.get(conn).is_some();
            let Some(conn) = self.lingering.take_due(now_ms, is_open) else { break };
            if self.core.links.get(conn).is_some() {
                self.drop_socket(conn.slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: usize) -> ConnId {
        ConnId { slot: slot as u32, generation: 1 }
    }

    #[test]
    fn beyond_the_maximum_the_oldest_is_closed_before_its_time() {
        let mut lingering = Lingering::default();
        (0..LINGERING_MAX).for_each(|slot| lingering.add(conn(slot), 5));
        assert_eq!(lingering.take_due(6, |_| true), None);
        lingering.add(conn(LINGERING_MAX), 6);
        assert_eq!(lingering.take_due(6, |_| true), Some(conn(0)));
        lingering.closed();
        assert_eq!(lingering.take_due(6, |_| true), None);
        assert_eq!(lingering.take_due(5 + LINGER_MS, |_| true), Some(conn(1)));
    }

    #[test]
    fn connections_that_have_closed_count_no_more() {
        let mut lingering = Lingering::default();
        for slot in 0..LINGERING_MAX * 2 {
            lingering.add(conn(slot), 5);
            lingering.closed();
        }
        lingering.add(conn(LINGERING_MAX * 2), 5);
        let is_open = |conn: ConnId| conn.slot() == LINGERING_MAX * 2;
        let taken = std::iter::from_fn(|| lingering.take_due(6, is_open)).count();
        assert_eq!((taken, lingering.open), (LINGERING_MAX * 2, 1));
    }
}
