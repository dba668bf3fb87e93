//! Input: reads sockets, decodes what a layer encodes, and offers the result to the service.
//!
//! All connections share one read buffer. Input that the service does not consume is kept by its connection: most of
//! the time there is none, and an idle connection then owns no memory. A held connection is not read, so its peer is
//! slowed down by TCP; the service is offered its input again in the turns in which it takes held input.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};
use std::net::IpAddr;

use super::fair_queue::FairQueue;
use super::{Driver, RETRY_MS};
use crate::links::{ConnId, Link, Phase, READ_BUFFER_BYTES};
use crate::service::Service;
use crate::work::divide;

/// Cost of a read, without the handling of what was read, units.
pub(super) const READ_UNITS: u32 = 8;
/// Bytes read for one unit more.
const BYTES_PER_UNIT: usize = 512;
/// The same for the rest of a large packet, which goes to memory that nothing has used before.
const LARGE_BYTES_PER_UNIT: usize = 128;
/// Maximum retry interval while no held connection makes progress, ms.
const HELD_RETRY_MS_MAX: u64 = 8;

/// A held connection: until when, ms; slot and generation; address of the client. The first to end is the greatest.
type Paused = Reverse<(u64, u32, u32, Option<IpAddr>)>;

/// Held connections, in the order in which they are offered their input.
#[derive(Debug)]
pub(super) struct Held {
    queue: FairQueue<ConnId>,
    /// Connections that are held at least until a time.
    paused: BinaryHeap<Paused>,
    /// No connection made progress when last offered its input; an immediate retry would waste CPU.
    blocked: bool,
    /// The service took no held input at all.
    is_refused: bool,
    /// Delay of the next retry, ms; grows exponentially.
    retry_ms: u64,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            queue: FairQueue::default(),
            paused: BinaryHeap::new(),
            blocked: false,
            is_refused: false,
            retry_ms: 1,
        }
    }
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    /// How long to wait before the next offer, ms.
    pub(super) fn retry_ms(&self) -> u64 {
        match (self.is_refused, self.blocked) {
            // What the service waits for wakes the shard, such as the receiver of a full mailbox.
            (true, _) => RETRY_MS,
            (false, true) => self.retry_ms,
            (false, false) => 0,
        }
    }

    fn add(&mut self, conn: ConnId, address: Option<IpAddr>) {
        self.queue.push(address, conn);
    }

    /// Adds a connection in `pause_ms`.
    fn add_after(&mut self, conn: ConnId, address: Option<IpAddr>, pause_ms: u32, now_ms: u64) {
        if pause_ms == 0 {
            self.add(conn, address);
        } else {
            let until_ms = now_ms + u64::from(pause_ms);
            self.paused.push(Reverse((until_ms, conn.slot, conn.generation, address)));
        }
    }

    /// Adds the connections whose pause is over.
    pub(super) fn end_pauses(&mut self, now_ms: u64) {
        while let Some(Reverse((until_ms, slot, generation, address))) = self.paused.peek().copied()
            && until_ms <= now_ms
        {
            self.paused.pop();
            self.add(ConnId { slot, generation }, address);
        }
    }

    /// When the next pause is over, ms.
    pub(super) fn next_pause_ms(&self) -> Option<u64> {
        self.paused.peek().map(|Reverse((until_ms, ..))| *until_ms)
    }

    fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
        self.retry_ms = if blocked { (self.retry_ms * 2).min(HELD_RETRY_MS_MAX) } else { 1 };
    }
}

impl<S: Service> Driver<S> {
    /// Reads once from a connection and offers the input together with the unconsumed rest.
    pub(super) fn read(&mut self, slot: u32) {
        let Some(socket) = self.sockets.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let link = self.core.links.slot_mut(slot);
        if matches!(link.phase(), Phase::Moving(_)) {
            return;
        }
        if !link.is_open() {
            // Also if it was held when it was closed: the end of its stream must be read.
            return self.discard_input(slot);
        }
        if link.input.is_held() {
            return;
        }
        let conn = ConnId { slot, generation: link.generation() };
        if self.core.work.is_phase_over() {
            return self.read_later(slot);
        }
        if self.core.work.must_queue(link.input.debt(), self.held.len()) {
            link.input.hold();
            return self.held.add(conn, link.client_address());
        }
        let is_layered = link.is_layered();
        if is_layered && link.has_ended() {
            return self.close_ended(conn);
        }
        self.core.stats.reads += 1;
        self.core.work.note_read(slot);
        self.core.work.charge(READ_UNITS);
        let rest_len = if is_layered { 0 } else { link.input.len() };
        let in_place = !is_layered && link.input.reads_in_place();
        let (outcome, room) = if in_place {
            link.input.read_in_place(socket)
        } else {
            (socket.read(&mut self.buffer[rest_len..]), READ_BUFFER_BYTES - rest_len)
        };
        match outcome {
            Ok(0) => self.peer_closed(conn),
            Ok(count) => {
                self.core.stats.bytes_read += count as u64;
                let bytes_per_unit = if in_place { LARGE_BYTES_PER_UNIT } else { BYTES_PER_UNIT };
                self.core.work.charge((count / bytes_per_unit) as u32);
                if count == room || self.core.links.slot_mut(slot).input.has_ended() {
                    // There may be more, or the end of the stream, of which no event tells again.
                    self.read_again.push(slot);
                }
                if is_layered {
                    self.decode(conn, count);
                } else if in_place {
                    let input = self.core.links.slot_mut(slot).input.take();
                    self.offer(conn, input);
                } else {
                    self.offer_buffer(conn, rest_len, count);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.read_again.push(slot),
            Err(error) => {
                log::debug!("connection failed: {error}");
                self.peer_closed(conn);
            }
        }
    }

    /// Reads a connection in the next turn, since this one has no share left for it, and then before those that were
    /// read in this one: otherwise a few that always have input would use up every turn.
    fn read_later(&mut self, slot: u32) {
        let link = self.core.links.slot_mut(slot);
        if link.input.read_later() {
            self.unread.push(link.client_address(), slot);
        }
    }

    /// Share of a connection that was just read: one of those of its client, beside those of others that wait.
    fn read_share(&self, conn: ConnId) -> u64 {
        let queue = &self.held.queue;
        let waiting = if queue.is_empty() {
            0
        } else {
            queue.addresses() + queue.len_of(self.core.links.at(conn.slot()).and_then(Link::client_address))
        };
        self.core.work.read_share(waiting)
    }

    /// Decodes the first `count` bytes of the shared buffer and offers the input in them.
    fn decode(&mut self, conn: ConnId, count: usize) {
        let input = self.core.links.decode(conn.slot, &self.buffer[..count]);
        self.core.work.charge(self.core.links.slot_mut(conn.slot).take_charge());
        if let Some(input) = input {
            self.offer(conn, input);
        }
        self.note_stream_end(conn);
    }

    /// Lets the next turn close a connection whose peer has ended the layer's stream, so that responses to the last
    /// input are flushed before, as they are if the peer closes its socket.
    pub(super) fn note_stream_end(&mut self, conn: ConnId) {
        if self.core.links.get(conn).is_some_and(Link::has_ended) {
            self.read_again.push(conn.slot);
        }
    }

    fn close_ended(&mut self, conn: ConnId) {
        self.service.closed(&mut self.core.io(), conn);
        self.core.links.close_ended(conn.slot);
    }

    /// Closes a connection whose handshake is not complete.
    pub(super) fn abort_handshake(&mut self, conn: ConnId) {
        if self.core.links.get(conn).is_some_and(Link::is_open) {
            self.core.links.end_handshake(conn.slot);
            self.close_ended(conn);
            // `closed` was called after the service's `turn_ends`, so run another turn.
            self.core.links.request_turn();
        }
    }

    /// Offers the start of the shared buffer: `rest_len` bytes left from before, and `count` new ones after them.
    fn offer_buffer(&mut self, conn: ConnId, rest_len: usize, count: usize) {
        if rest_len > 0 {
            self.core.links.slot_mut(conn.slot).input.move_to(&mut self.buffer);
        }
        let input = &self.buffer[..rest_len + count];
        let offer = self.core.work.begin_offer(self.read_share(conn));
        let received = self.service.received(&mut self.core.io(), conn, input);
        let debt = self.core.work.end_offer(&offer);
        let rest = &self.buffer[received.consumed..rest_len + count];
        if let Some(link) = self.core.links.get_mut(conn) {
            link.input.end_offer(received.next_len, debt);
            link.input.keep_rest(rest);
            if received.hold {
                link.input.hold();
                let now_ms = self.core.clock.now_ms;
                self.held.add_after(conn, link.client_address(), received.pause_ms, now_ms);
            }
            self.core.links.count_memory(conn.slot);
        }
    }

    /// Offers input from a buffer that the connection owns.
    pub(super) fn offer(&mut self, conn: ConnId, input: Vec<u8>) {
        let allowance = self.read_share(conn);
        self.offer_within(conn, input, allowance);
    }

    /// Offers input from a buffer that the connection owns, for work within an allowance. Returns whether that was used
    /// up.
    fn offer_within(&mut self, conn: ConnId, mut input: Vec<u8>, allowance: u64) -> bool {
        let offer = self.core.work.begin_offer(allowance);
        let received = self.service.received(&mut self.core.io(), conn, &input);
        let is_used_up = self.core.work.has_used_up(&offer);
        let debt = self.core.work.end_offer(&offer);
        if received.consumed > 0 {
            let rest = input[received.consumed..].to_vec();
            self.core.common.discards.free(std::mem::replace(&mut input, rest));
        }
        if let Some(link) = self.core.links.get_mut(conn) {
            link.input.end_offer(received.next_len, debt);
            link.input.set(input);
            if received.hold {
                link.input.hold();
                let now_ms = self.core.clock.now_ms;
                self.held.add_after(conn, link.client_address(), received.pause_ms, now_ms);
            }
            self.core.links.count_memory(conn.slot);
        }
        is_used_up
    }

    /// Offers held connections their input again, each once, as long as the service takes it and their share of the
    /// turn lasts. The addresses of clients have equal shares, and the connections of an address share theirs.
    pub(super) fn offer_held(&mut self) {
        self.core.work.begin_held();
        let was_blocked = self.held.blocked;
        let mut blocked = !self.held.is_empty();
        let (units, addresses) = (self.core.work.share(1), self.held.queue.addresses());
        let turn = self.core.stats.turns;
        let mut offered = Vec::new();
        let (mut has_offered, mut is_refused) = (false, false);
        while !self.held.is_empty() {
            is_refused = !self.service.takes_held(&mut self.core.io());
            if is_refused || self.core.work.is_phase_over() {
                blocked = false;
                break;
            }
            let Some((conn, count)) = self.held.queue.pop() else { break };
            let Some(link) = self.core.links.get_mut(conn).filter(|link| link.is_open()) else {
                continue;
            };
            if link.input.was_offered_in(turn) {
                offered.push((conn, link.client_address()));
                continue;
            }
            let Some(allowance) = link.input.end_hold(divide(units, addresses * count)) else {
                self.held.add(conn, link.client_address());
                blocked = false;
                continue;
            };
            has_offered = true;
            let input = link.input.take();
            let before = input.len();
            let is_used_up = self.offer_within(conn, input, allowance);
            if is_used_up || self.core.links.get(conn).is_none_or(|link| link.input.len() < before) {
                blocked = false;
            }
            if self.core.links.get(conn).is_some_and(|link| !link.input.is_held()) {
                // Readiness events were ignored while the connection was held.
                self.read_again.push(conn.slot);
            }
        }
        for (conn, address) in offered {
            self.held.add(conn, address);
        }
        self.held.set_blocked(blocked);
        // The next turn ends what began here: it commits, sends messages and flushes.
        let has_mail = self.core.outbox.iter().any(|mails| !mails.is_empty());
        self.held.is_refused = is_refused && !has_offered;
        let waits = self.held.is_refused || blocked && was_blocked;
        if !waits || has_mail || self.core.links.has_pending_close() {
            self.core.links.request_turn();
        }
    }

    /// Handles the end of a connection by the peer.
    pub(super) fn peer_closed(&mut self, conn: ConnId) {
        if self.core.links.get(conn).is_some_and(Link::is_open) {
            self.service.closed(&mut self.core.io(), conn);
        }
        self.drop_socket(conn.slot);
    }
}
