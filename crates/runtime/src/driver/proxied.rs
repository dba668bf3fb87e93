//! Connections from proxies whose header of the PROXY protocol has not arrived.
//!
//! They belong to no shard and no service yet: both learn the address of the client, which the header tells. Headers
//! are looked at in the socket and taken out of it when they are complete, so that what follows is read as usual. The
//! limits of connections bound the number of those that wait, a deadline their time.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::Instant;

use mainstem_quota::LogThrottle;
use mio::{Interest, Token};
use slab::Slab;

use super::Driver;
use crate::accept::Arrival;
use crate::admission::Permit;
use crate::proxy::{HEADER_BYTES_MAX, Header, parse};
use crate::service::Service;

/// Tokens of these connections: beyond those of slots.
pub(super) const FIRST_PROXIED: usize = 1 << 40;

/// The connections that wait for a header.
#[derive(Debug, Default)]
pub(super) struct Proxied {
    waiting: Slab<Waiting>,
    /// Keys and numbers of connections, some of which wait no more, and their deadlines, ms.
    deadlines: VecDeque<(usize, u64, u64)>,
    next_number: u64,
    log: LogThrottle,
}

#[derive(Debug)]
struct Waiting {
    arrival: Arrival,
    number: u64,
}

impl Proxied {
    /// When the next must be closed, ms.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.deadlines.front().map(|(_, _, until_ms)| *until_ms)
    }

    /// Closes all of them.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.deadlines.clear();
    }

    fn refuse(&mut self, arrival: &Arrival, reason: &str) {
        if let Some(count) = self.log.count(Instant::now()) {
            let permit = arrival.permit.as_ref();
            let name = permit.map_or("", |permit| permit.listener());
            let peer = permit.and_then(Permit::peer).map_or_else(String::new, |peer| peer.to_string());
            log::warn!(
                "{name}: {count} connections from proxies closed, the last from {peer} because {reason}"
            );
        }
    }
}

impl<S: Service> Driver<S> {
    /// Lets a new connection wait for its header.
    pub(super) fn await_header(&mut self, mut arrival: Arrival) {
        let entry = self.proxied.waiting.vacant_entry();
        let key = entry.key();
        let token = Token(FIRST_PROXIED + key);
        if let Err(error) = self.poll.registry().register(&mut arrival.socket, token, Interest::READABLE) {
            log::error!("cannot register a connection for events: {error}");
            return;
        }
        self.proxied.next_number += 1;
        let number = self.proxied.next_number;
        entry.insert(Waiting { arrival, number });
        let until_ms = self.core.clock.now_ms + self.handshake_limits.timeout_ms;
        self.proxied.deadlines.push_back((key, number, until_ms));
        // It has often arrived with the connection.
        self.read_header(key);
    }

    /// Looks for the header of a connection, and deals the connection out once it is complete.
    pub(super) fn read_header(&mut self, key: usize) {
        let Some(waiting) = self.proxied.waiting.get_mut(key) else { return };
        let socket = &mut waiting.arrival.socket;
        let bytes = &mut self.buffer[..HEADER_BYTES_MAX];
        let header = match socket.peek(bytes) {
            Ok(0) => Err("it ended before its header".to_owned()),
            Ok(count) => parse(&bytes[..count]).map_err(str::to_owned),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Header::Incomplete)
            }
            Err(error) => Err(error.to_string()),
        };
        if header == Ok(Header::Incomplete) {
            return;
        }
        let mut arrival = self.proxied.waiting.remove(key).arrival;
        if let Err(error) = self.poll.registry().deregister(&mut arrival.socket) {
            log::error!("cannot hand over a connection: {error}");
            return;
        }
        match header {
            Ok(Header::Complete(len, client)) => {
                // The bytes are there, and one read takes them all.
                let taken = arrival.socket.read(&mut self.buffer[..len]);
                let is_admitted = match (client, &mut arrival.permit) {
                    (Some(client), Some(permit)) => permit.identify(client).is_ok(),
                    _ => true,
                };
                if matches!(taken, Ok(count) if count == len) && is_admitted {
                    self.deal(arrival);
                }
            }
            Ok(Header::Incomplete) => {}
            Err(reason) => self.proxied.refuse(&arrival, &reason),
        }
    }

    /// Closes the connections whose header is overdue.
    pub(super) fn end_proxied(&mut self) {
        let now_ms = self.core.clock.now_ms;
        while let Some((key, number, _)) =
            self.proxied.deadlines.pop_front_if(|(_, _, until_ms)| *until_ms <= now_ms)
        {
            if self.proxied.waiting.get(key).is_some_and(|waiting| waiting.number == number) {
                let waiting = self.proxied.waiting.remove(key);
                self.proxied.refuse(&waiting.arrival, "its header has not arrived in time");
            }
        }
    }
}
