//! New connections: accepted here, or passed on by other shards.
//!
//! One shard has the listening sockets and deals connections out, by how many each shard has. A storm of connections
//! must not delay the others: a turn accepts a limited number, and listeners take turns.

use std::time::Instant;

use mio::{Interest, Token};

use super::Driver;
use crate::accept::{ACCEPTS_PER_TURN, Arrival};
use crate::service::Service;

/// Cost of accepting a connection, units.
const ACCEPT_UNITS: u32 = 100;

impl<S: Service> Driver<S> {
    /// Accepts connections from listeners that have more, and assigns each to a shard. The listeners share the number
    /// of connections of a turn; those of which nothing was accepted begin the next one.
    pub(super) fn accept_more(&mut self) {
        if !self.listeners.iter().any(|listener| listener.has_more) {
            return;
        }
        let now = Instant::now();
        let mut room = ACCEPTS_PER_TURN;
        let count = self.listeners.len();
        let first = self.next_listener % count;
        for index in (first..count).chain(0..first) {
            let listener = &mut self.listeners[index];
            if room == 0 || !listener.may_accept(now) {
                continue;
            }
            let mut arrivals = Vec::new();
            let tried =
                listener.accept(&self.core.common.admission, now, room, |arrival| arrivals.push(arrival));
            room -= tried;
            self.core.work.charge(tried as u32 * ACCEPT_UNITS);
            self.next_listener = index + 1;
            let has_proxies = self.listeners[index].has_proxies();
            for arrival in arrivals {
                if has_proxies {
                    self.await_header(arrival);
                } else {
                    self.deal(arrival);
                }
            }
        }
    }

    /// Assigns a new connection to a shard.
    pub(super) fn deal(&mut self, arrival: Arrival) {
        let shard = self.core.common.arrivals.choose_shard(self.first_shard_connections);
        if shard == self.core.shard {
            self.add_connection(arrival);
        } else {
            self.core.common.arrivals.push(shard, arrival);
            self.core.common.mailboxes.wake(shard);
        }
    }

    /// Takes ownership of a connection, new or handed over by another shard.
    pub(super) fn add_connection(&mut self, arrival: Arrival) {
        let Arrival { mut socket, permit, protocol, transport, input, baggage } = arrival;
        let conn = self.core.links.open();
        self.has_new_connections = true;
        self.core.common.arrivals.connection_opened(self.core.shard);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut socket, Token(conn.slot()), interest) {
            log::error!("cannot register a connection for events: {error}");
            self.core.links.release(conn.slot);
            self.core.common.arrivals.connection_closed(self.core.shard);
            return;
        }
        if self.sockets.len() <= conn.slot() {
            self.sockets.resize_with(conn.slot() + 1, || None);
        }
        self.core.links.begin_accept(conn.slot, permit, baggage);
        self.sockets[conn.slot()] = Some(socket);
        self.core.links.set_transport(conn.slot, protocol, transport);
        self.begin_handshake(conn);
        self.service.accepted(&mut self.core.io(), conn, protocol);
        self.core.links.end_accept();
        if !input.is_empty() {
            self.offer(conn, input);
        }
        self.note_stream_end(conn);
    }
}
