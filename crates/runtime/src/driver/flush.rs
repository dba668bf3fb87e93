//! The end of a turn: flushes output, and closes or hands over connections.
//!
//! Output is written once per connection and turn, when everything that the turn adds is there: one system call carries
//! many messages. A turn may have output for thousands of connections, so the flush has a share of the turn's work
//! budget. In the next turn, connections that were left over come after those with new output, each with a share of
//! their own: a short response does not wait behind a message to thousands of subscribers, and the fan-out goes on all
//! the same.

use std::net::Shutdown;

use rustix::net::sockopt;

use super::Driver;
use crate::accept::Arrival;
use crate::file::log_failure;
use crate::links::{ConnId, MovedLink, Phase};
use crate::service::Service;

/// Cost of a write, units.
const WRITE_UNITS: u32 = 50;
/// Cost of closing a socket, units.
const CLOSE_UNITS: u32 = 50;
/// Bytes written for one unit.
const BYTES_PER_UNIT: usize = 512;

impl<S: Service> Driver<S> {
    /// Writes the pending output of dirty connections, as far as their sockets accept it and the turn lasts.
    ///
    /// If many connections are left for the next turn, that one begins with others: whoever gets a short response does
    /// not wait until a message has been written to thousands of subscribers.
    pub(super) fn flush(&mut self) {
        let mut dirty = self.core.links.take_dirty();
        let waiting = std::mem::take(&mut self.unflushed).min(dirty.len());
        self.core.work.begin_flush();
        let new = waiting + self.flush_some(&dirty[waiting..]);
        self.core.work.begin_flush();
        let old = self.flush_some(&dirty[..waiting]);
        let end = if old == waiting { new + self.flush_some(&dirty[new..]) } else { new };
        dirty.drain(waiting..end);
        dirty.drain(..old);
        self.unflushed = dirty.len();
        // Those that have more to write, and receivers of wills of connections that failed.
        self.core.links.return_dirty(dirty);
    }

    /// Writes the output of connections until the share of this phase is used up. Returns the number of connections.
    fn flush_some(&mut self, slots: &[u32]) -> usize {
        for (index, slot) in slots.iter().enumerate() {
            if self.core.work.is_phase_over() {
                return index;
            }
            self.flush_one(*slot);
        }
        slots.len()
    }

    /// Writes the output of fan-outs to some connections, if it is due.
    pub(super) fn flush_fan_outs(&mut self) {
        if self.core.links.fan_outs.is_empty() {
            return self.core.links.fan_outs.forget_messages();
        }
        let began_ns = self.now_ns();
        let fan_outs = &mut self.core.links.fan_outs;
        fan_outs.observe(began_ns);
        if began_ns < fan_outs.due_ns() {
            return;
        }
        fan_outs.begin_slice();
        self.core.work.begin_fan_outs();
        while !self.core.work.is_phase_over()
            && let Some(slot) = self.core.links.next_fan_out()
        {
            self.flush_one(slot);
        }
        let now_ns = self.now_ns();
        self.core.links.fan_outs.end_slice(began_ns, now_ns);
    }

    #[inline]
    fn flush_one(&mut self, slot: u32) {
        let links = &mut self.core.links;
        let link = links.slot_mut(slot);
        let may_send = link.begin_flush();
        let Some(socket) = self.sockets[slot as usize].as_mut().filter(|_| may_send) else {
            return links.count_memory(slot);
        };
        match link.write_to(socket, &mut self.core.stats.writes) {
            Ok(flushed) => {
                self.core.work.charge(WRITE_UNITS + (flushed.bytes / BYTES_PER_UNIT) as u32);
                self.core.stats.bytes_written += flushed.bytes as u64;
                let has_pending = links.flushed(slot, flushed.bytes, self.core.clock.now_ms);
                if flushed.yields {
                    links.mark_dirty(slot);
                } else if !has_pending {
                    if links.drained(slot) {
                        self.drained.push_back(links.id(slot));
                    }
                    let is_lingering = links.slot_mut(slot).phase() == Phase::Lingering;
                    if is_lingering && socket.shutdown(Shutdown::Write).is_err() {
                        self.read_again.push(slot);
                    }
                }
                links.count_memory(slot);
            }
            Err(error) => {
                log_failure(&error);
                let conn = links.id(slot);
                self.peer_closed(conn);
                // `closed` was called after the service's `turn_ends`, so run another turn.
                self.core.links.request_turn();
            }
        }
    }

    /// Sends the TCP ACKs that the service requested.
    pub(super) fn confirm_receipts(&mut self) {
        for slot in self.core.links.drain_quickacks() {
            if let Some(socket) = &self.sockets[slot as usize]
                && let Err(error) = sockopt::set_tcp_quickack(socket, true)
            {
                log::debug!("cannot set TCP_QUICKACK on a connection: {error}");
            }
        }
    }

    /// Closes and hands over the connections that the service has released.
    pub(super) fn close_pending(&mut self) {
        for slot in self.core.links.take_pending_close() {
            let link = self.core.links.slot_mut(slot);
            let Some(socket) = self.sockets[slot as usize].as_mut() else { continue };
            match link.phase() {
                Phase::Free | Phase::Open | Phase::Lingering => {}
                Phase::Closing => {
                    let conn = ConnId { slot, generation: link.generation() };
                    self.core.common.discards.free(link.input.take());
                    // Closing with unread input would reset the connection and could destroy the last packet: shut down
                    // the write side, then read until the peer closes.
                    if link.end_output() {
                        // The next flush sends the end of the layer's stream and then shuts down.
                        self.core.links.mark_dirty(slot);
                    } else if link.output.is_empty() && socket.shutdown(Shutdown::Write).is_err() {
                        self.drop_socket(slot);
                        continue;
                    }
                    self.linger(conn);
                }
                Phase::Moving(shard) => {
                    let MovedLink { permit, protocol, transport, input, baggage } = link.take_moved();
                    let Some(mut socket) = self.sockets[slot as usize].take() else { continue };
                    self.core.links.release(slot);
                    self.core.common.arrivals.connection_closed(self.core.shard);
                    if let Err(error) = self.poll.registry().deregister(&mut socket) {
                        log::error!("cannot hand over a connection: {error}");
                        continue;
                    }
                    let shard = usize::from(shard);
                    let arrival = Arrival { socket, permit, protocol, transport, input, baggage };
                    self.core.common.arrivals.push(shard, arrival);
                    self.core.common.mailboxes.wake(shard);
                }
            }
        }
        self.end_lingering();
    }

    pub(super) fn drop_socket(&mut self, slot: u32) {
        if let Some(mut socket) = self.sockets[slot as usize].take() {
            if let Err(error) = self.poll.registry().deregister(&mut socket) {
                log::debug!("cannot deregister a connection: {error}");
            }
            self.core.work.charge(CLOSE_UNITS);
            let link = self.core.links.slot_mut(slot);
            self.core.common.discards.free(link.input.take());
            if link.phase() == Phase::Lingering {
                self.lingering.closed();
            }
            self.core.links.release(slot);
            self.core.common.arrivals.connection_closed(self.core.shard);
        }
    }
}
