//! The end of a turn: output is flushed, and connections that the service is done with are closed or moved.

use std::net::Shutdown;

use rustix::net::sockopt;

use super::Driver;
use crate::accept::Arrival;
use crate::file::log_failure;
use crate::links::{ConnId, Phase};
use crate::service::Service;

/// How long a connection that the service has closed may take to read its last bytes.
const LINGER_MS: u64 = 2_000;

impl<S: Service> Driver<S> {
    /// Hands all output to the kernel, as far as it takes it.
    pub(super) fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.core.links.dirty);
        for slot in dirty.drain(..) {
            let links = &mut self.core.links;
            let link = &mut links.slots[slot as usize];
            link.dirty = false;
            let may_leave = link.phase != Phase::Free && !link.holds_output;
            let Some(socket) = self.sockets[slot as usize].as_mut().filter(|_| may_leave) else {
                continue;
            };
            match link.output.write_to(socket, &mut self.core.stats.writes) {
                Ok(flushed) => {
                    self.core.stats.bytes_written += flushed.bytes as u64;
                    links.flushed(slot, flushed.bytes, self.core.clock.now_ms);
                    let link = &mut links.slots[slot as usize];
                    if flushed.yields {
                        link.dirty = true;
                        links.dirty.push(slot);
                    } else if link.output.is_empty() {
                        links.pool.reclaim(&mut link.output);
                        if link.phase == Phase::Lingering && socket.shutdown(Shutdown::Write).is_err() {
                            self.again.push(slot);
                        }
                        if link.congested {
                            link.congested = false;
                            self.drained.push(ConnId { slot, generation: link.generation });
                        }
                    }
                }
                Err(error) => {
                    log_failure(&error);
                    let conn = links.id(slot);
                    self.ended(conn);
                    // The service has heard of it after its turn has ended, and may want to end another.
                    self.core.links.soon = true;
                }
            }
        }
        // Flushing may have ended connections, and their wills may have made others dirty.
        if self.core.links.dirty.is_empty() {
            self.core.links.dirty = dirty;
        }
    }

    /// Lets the kernel confirm what it has received, where the service asked for that.
    pub(super) fn confirm_receipts(&mut self) {
        for slot in self.core.links.quick.drain(..) {
            if let Some(socket) = &self.sockets[slot as usize]
                && let Err(error) = sockopt::set_tcp_quickack(socket, true)
            {
                log::debug!("a connection is about to fail: {error}");
            }
        }
    }

    /// Closes and moves the connections that the service is done with.
    pub(super) fn see_off(&mut self) {
        for slot in std::mem::take(&mut self.core.links.leaving) {
            let link = &mut self.core.links.slots[slot as usize];
            let Some(socket) = self.sockets[slot as usize].as_mut() else { continue };
            match link.phase {
                Phase::Free | Phase::Open | Phase::Lingering => {}
                Phase::Closing => {
                    let conn = ConnId { slot, generation: link.generation };
                    link.partial = Vec::new();
                    link.phase = Phase::Lingering;
                    // Closing with unread input would reset the connection and could take our last packet
                    // with it: send the end, then read on until the peer closes.
                    if link.output.is_empty() && socket.shutdown(Shutdown::Write).is_err() {
                        self.drop_socket(slot);
                        continue;
                    }
                    self.lingering.push_back((conn, self.core.clock.now_ms + LINGER_MS));
                    self.again.push(slot);
                }
                Phase::Moving(shard) => {
                    let (input, listener) = (std::mem::take(&mut link.partial), link.listener);
                    let Some(mut socket) = self.sockets[slot as usize].take() else { continue };
                    self.core.links.release(slot);
                    self.core.common.arrivals.left(self.core.shard);
                    if let Err(error) = self.poll.registry().deregister(&mut socket) {
                        log::error!("a connection could not be moved: {error}");
                        continue;
                    }
                    let shard = usize::from(shard);
                    self.core.common.arrivals.push(shard, Arrival { socket, listener, input });
                    self.core.common.post.wake(shard);
                }
            }
        }
        self.end_lingering();
    }

    fn end_lingering(&mut self) {
        while let Some((conn, until_ms)) = self.lingering.front().copied() {
            let link = self.core.links.get(conn);
            if link.is_some() && self.core.clock.now_ms < until_ms {
                break;
            }
            if link.is_some() {
                self.drop_socket(conn.slot);
            }
            self.lingering.pop_front();
        }
    }

    pub(super) fn drop_socket(&mut self, slot: u32) {
        if let Some(mut socket) = self.sockets[slot as usize].take() {
            if let Err(error) = self.poll.registry().deregister(&mut socket) {
                log::debug!("a connection was not being watched: {error}");
            }
            self.core.links.release(slot);
            self.core.common.arrivals.left(self.core.shard);
        }
    }
}
