//! A shard without threads or sockets, for tests, fuzz targets and simulators.
//!
//! The caller acts as the driver and as all peers: it feeds input, ends turns and sets the time. Everything else
//! behaves as under the real driver, and every run is deterministic.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::file::log_failure;
use crate::io::{Clock, Io, IoStats};
use crate::layer::TransportLayer;
use crate::links::{ConnId, Link, Links, MovedLink, Phase};
use crate::listener::ProtocolTag;
use crate::mailbox::{Mailboxes, Mails};
use crate::memory::{MemoryBudget, ShardMemory};
use crate::service::Service;
use crate::timer::Wheel;
use crate::transport::Transport;
use crate::work::Work;

/// A shard without threads or sockets. The caller acts as the driver and as all peers, and controls turns and time.
pub struct Detached<M> {
    shard: usize,
    clock: Clock,
    links: Links,
    memory: ShardMemory,
    timers: Wheel,
    mailboxes: Arc<Mailboxes<M>>,
    outbox: Vec<Vec<M>>,
    random: u64,
    work: Work,
    /// Held connections in the order in which their input is offered again.
    held: VecDeque<ConnId>,
    /// Connections that are held until a time, ms.
    paused: Vec<(u64, ConnId)>,
    /// Connections whose congested output has drained.
    drained: Vec<ConnId>,
    /// Connections whose peers have ended their layer's stream.
    ended: Vec<ConnId>,
    /// Connections with peers that do not read.
    stalled: Vec<ConnId>,
    departures: Vec<Departure>,
    mails: Mails<M>,
    /// Tokens of due timers.
    due: VecDeque<u64>,
    written: Vec<u8>,
}

/// A connection handed over to another shard. The caller must pass it to [`Detached::adopt`] there. A connection
/// without a layer can also be opened anew and fed `input`.
#[derive(Debug)]
pub struct Departure {
    /// Its former identifier, now stale.
    pub conn: ConnId,
    /// Target shard.
    pub to: usize,
    /// Unconsumed input.
    pub input: Vec<u8>,
    /// The rest of what moves with it.
    link: MovedLink,
}

impl<M> Io<'_, M> {
    /// Creates `shards` detached shards that share mailboxes, with random numbers seeded from `seed`.
    pub fn detached(shards: usize, seed: u64) -> Vec<Detached<M>> {
        Self::detached_within(&MemoryBudget::unlimited(shards), shards, seed)
    }

    /// Like [`Io::detached`], with a memory budget.
    pub fn detached_within(memory: &Arc<MemoryBudget>, shards: usize, seed: u64) -> Vec<Detached<M>> {
        let mailboxes = Arc::new(Mailboxes::new(vec![None; shards]));
        (0..shards)
            .map(|shard| Detached {
                shard,
                clock: Clock::default(),
                links: Links::default(),
                memory: memory.shard(shard),
                timers: Wheel::new(0),
                mailboxes: Arc::clone(&mailboxes),
                outbox: (0..shards).map(|_| Vec::new()).collect(),
                random: seed.wrapping_add(shard as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
                work: Work::default(),
                held: VecDeque::new(),
                paused: Vec::new(),
                drained: Vec::new(),
                ended: Vec::new(),
                stalled: Vec::new(),
                departures: Vec::new(),
                mails: Mails::default(),
                due: VecDeque::new(),
                written: Vec::new(),
            })
            .collect()
    }
}

/// Counters of a driver without sockets.
static NO_IO: IoStats = IoStats { turns: 0, reads: 0, writes: 0, bytes_read: 0, bytes_written: 0 };

impl<M: Send + 'static> Detached<M> {
    /// Returns the `Io` to call the service with.
    pub fn io(&mut self) -> Io<'_, M> {
        Io {
            clock: self.clock,
            shard: self.shard,
            stats: &NO_IO,
            work: &mut self.work,
            links: &mut self.links,
            memory: &self.memory,
            timers: &mut self.timers,
            mailboxes: &*self.mailboxes,
            outbox: &mut self.outbox,
            random: &mut self.random,
            discards: None,
            timer_mark: 0,
        }
    }

    /// Opens a connection to a listener of protocol 0.
    pub fn connect(&mut self, service: &mut impl Service<Mail = M>) -> ConnId {
        self.connect_to(service, ProtocolTag::default())
    }

    /// Opens a connection to a listener of `protocol`.
    pub fn connect_to(&mut self, service: &mut impl Service<Mail = M>, protocol: ProtocolTag) -> ConnId {
        self.open(service, protocol, Transport::Plain)
    }

    /// Opens a connection with a layer. What is fed and sent is then what passes through the socket.
    pub fn connect_through(
        &mut self,
        service: &mut impl Service<Mail = M>,
        protocol: ProtocolTag,
        layer: Box<dyn TransportLayer>,
    ) -> ConnId {
        self.open(service, protocol, Transport::layered(layer))
    }

    /// Accepts a connection that another shard has handed over.
    pub fn adopt(&mut self, service: &mut impl Service<Mail = M>, departure: Departure) -> ConnId {
        let MovedLink { permit, protocol, transport, baggage, .. } = departure.link;
        let conn = self.links.open();
        self.links.begin_accept(conn.slot, permit, baggage);
        self.accept(service, conn, protocol, transport);
        self.links.end_accept();
        if !departure.input.is_empty() {
            self.offer(service, conn, &departure.input, self.work.share(1));
        }
        self.note_stream_end(conn);
        conn
    }

    fn open(
        &mut self,
        service: &mut impl Service<Mail = M>,
        protocol: ProtocolTag,
        transport: Transport,
    ) -> ConnId {
        let conn = self.links.open();
        self.accept(service, conn, protocol, transport);
        conn
    }

    fn accept(
        &mut self,
        service: &mut impl Service<Mail = M>,
        conn: ConnId,
        protocol: ProtocolTag,
        transport: Transport,
    ) {
        self.links.set_transport(conn.slot, protocol, transport);
        service.accepted(&mut self.io(), conn, protocol);
    }

    /// Feeds input. Unconsumed input is retained until more arrives or, if the service holds it, until
    /// [`Detached::offer_held`]. Input for a closed connection is discarded, as a socket would.
    pub fn feed(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(conn) else { return };
        let must_queue = self.work.must_queue(link.input.debt(), self.held.len());
        if link.is_open() && !link.input.is_held() && must_queue {
            link.input.hold();
            self.held.push_back(conn);
        }
        match link.phase() {
            Phase::Open | Phase::Moving(_) if link.is_layered() => {
                return self.decode(service, conn, bytes);
            }
            Phase::Open if !link.input.is_held() => {}
            Phase::Open | Phase::Moving(_) => return link.input.append(bytes),
            Phase::Free | Phase::Closing | Phase::Lingering => return,
        }
        let share = self.work.share(self.held.len() + 1);
        if link.input.is_empty() {
            self.offer(service, conn, bytes, share);
        } else {
            let mut input = link.input.take();
            input.extend_from_slice(bytes);
            self.offer(service, conn, &input, share);
        }
    }

    /// Feeds bytes that a layer must decode.
    fn decode(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId, bytes: &[u8]) {
        let input = self.links.decode(conn.slot, bytes);
        self.work.charge(self.links.slot_mut(conn.slot).take_charge());
        if let Some(input) = input {
            let share = self.work.share(self.held.len() + 1);
            self.offer(service, conn, &input, share);
        }
        self.note_stream_end(conn);
    }

    /// Lets the next turn close a connection whose peer has ended the layer's stream.
    fn note_stream_end(&mut self, conn: ConnId) {
        if self.links.get(conn).is_some_and(Link::has_ended) {
            self.ended.push(conn);
        }
    }

    /// Offers the connection held longest its input again, if the service and the turn's budget accept any, and returns
    /// it. It may be held again. Call this before the turn ends and at most [`Detached::held_count`] times per turn: a
    /// connection held again waits for the next turn.
    pub fn offer_held(&mut self, service: &mut impl Service<Mail = M>) -> Option<ConnId> {
        if !service.takes_held(&mut self.io()) {
            return None;
        }
        let share = self.work.share(self.held.len());
        for _ in 0..self.held.len() {
            if self.work.is_phase_over() {
                break;
            }
            let Some(conn) = self.held.pop_front() else { break };
            let Some(link) = self.links.get_mut(conn).filter(|link| link.is_open()) else {
                continue;
            };
            let Some(allowance) = link.input.end_hold(share) else {
                self.held.push_back(conn);
                continue;
            };
            let input = link.input.take();
            self.offer(service, conn, &input, allowance);
            self.note_stream_end(conn);
            return Some(conn);
        }
        None
    }

    /// Whether the service holds the input of a connection.
    pub fn is_held(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(|link| link.input.is_held())
    }

    /// Number of held connections, including ones that have closed since.
    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    fn offer(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId, input: &[u8], allowance: u64) {
        let offer = self.work.begin_offer(allowance);
        let received = service.received(&mut self.io(), conn, input);
        let debt = self.work.end_offer(&offer);
        let rest = &input[received.consumed..];
        if let Some(link) = self.links.get_mut(conn) {
            link.input.end_offer(received.next_len, debt);
            link.input.keep_rest(rest);
            if received.hold {
                link.input.hold();
                if received.pause_ms > 0 {
                    self.paused.push((self.clock.now_ms + u64::from(received.pause_ms), conn));
                } else {
                    self.held.push_back(conn);
                }
            }
            self.links.count_memory(conn.slot);
        }
    }

    /// Number of unconsumed input bytes of a connection.
    pub fn unconsumed(&self, conn: ConnId) -> usize {
        self.links.get(conn).map_or(0, |link| link.input.len())
    }

    /// Target shard of a hand-over in this turn.
    pub fn bound_for(&self, conn: ConnId) -> Option<usize> {
        match self.links.get(conn)?.phase() {
            Phase::Moving(shard) => Some(usize::from(shard)),
            _ => None,
        }
    }

    /// Whether the connection still exists, possibly only to send its last output.
    pub fn is_known(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some()
    }

    /// Closes a connection from the peer's side. Returns its unsent output, up to the first file that cannot be read.
    pub fn hang_up(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId) -> Vec<u8> {
        if self.links.get(conn).is_none_or(|link| !link.is_open()) {
            return Vec::new();
        }
        service.closed(&mut self.io(), conn);
        let mut unsent = Vec::new();
        if let Err(error) = self.links.slot_mut(conn.slot).drain_to(&mut unsent) {
            log_failure(&error);
        }
        self.stalled.retain(|known| *known != conn);
        self.links.release(conn.slot);
        unsent
    }

    /// Tells the shard that the peer of a connection has closed it, while input from before is held. Its end follows
    /// with [`Detached::hang_up`].
    pub fn announce_close(&mut self, conn: ConnId) {
        if let Some(link) = self.links.get_mut(conn) {
            link.input.note_end(true);
        }
    }

    /// Makes the peer of a connection stop reading until [`Detached::resume`]. Output pending when the service closes
    /// the connection is still delivered.
    pub fn stall(&mut self, conn: ConnId) {
        if !self.stalled.contains(&conn) {
            self.stalled.push(conn);
        }
    }

    /// Makes the peer of a connection read again.
    pub fn resume(&mut self, conn: ConnId) {
        self.stalled.retain(|known| *known != conn);
        if self.links.get(conn).is_some() {
            self.links.mark_dirty(conn.slot);
        }
    }

    /// Drains the connections handed over to other shards.
    pub fn departures(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departures)
    }

    /// Whether another turn is required immediately.
    pub fn wants_turn(&self) -> bool {
        self.links.is_turn_requested()
            || self.work.has_mail
            || !self.due.is_empty()
            || !self.drained.is_empty()
            || !self.ended.is_empty()
    }

    /// Runs [`Detached::end_turn`] and [`Detached::begin_turn`]. Returns the output per connection.
    pub fn turn(&mut self, service: &mut impl Service<Mail = M>, clock: Clock) -> Vec<(ConnId, Vec<u8>)> {
        let mut sent = Vec::new();
        self.end_turn(service, |conn, bytes| sent.push((conn, bytes.to_vec())));
        self.begin_turn(service, clock);
        sent
    }

    /// Ends the turn: sends messages, passes all output to `take`, frees closed connections.
    pub fn end_turn(&mut self, service: &mut impl Service<Mail = M>, mut take: impl FnMut(ConnId, &[u8])) {
        self.work.begin_background();
        service.turn_ends(&mut self.io());
        for to in 0..self.outbox.len() {
            if !self.outbox[to].is_empty() {
                self.mailboxes.deliver(self.shard, to, &mut self.outbox[to]);
            }
        }
        // Without a clock there is nothing to wait for.
        self.links.hurry_fan_outs();
        let mut dirty = self.links.take_dirty();
        dirty.retain(|slot| !self.flush(service, *slot, &mut take));
        self.links.return_dirty(dirty);
        drop(self.links.drain_quickacks());
        self.close_pending(&mut take);
        self.memory.set_connections(self.links.memory());
    }

    /// Flushes one connection. Returns `false` if its peer is stalled.
    fn flush(
        &mut self,
        service: &mut impl Service<Mail = M>,
        slot: u32,
        take: &mut impl FnMut(ConnId, &[u8]),
    ) -> bool {
        let conn = self.links.id(slot);
        let link = self.links.slot_mut(slot);
        let is_stalled = link.is_open() && self.stalled.contains(&conn);
        if is_stalled {
            self.links.flushed(slot, 0, self.clock.now_ms);
            self.links.count_memory(slot);
            return false;
        }
        if !link.begin_flush() {
            self.links.count_memory(slot);
            return true;
        }
        self.written.clear();
        let outcome = link.drain_to(&mut self.written);
        if !self.written.is_empty() {
            take(conn, &self.written);
        }
        match outcome {
            Ok(count) => self.flushed(conn, count),
            Err(error) => {
                log_failure(&error);
                self.failed(service, conn);
            }
        }
        true
    }

    fn flushed(&mut self, conn: ConnId, count: usize) {
        if self.links.flushed(conn.slot, count, self.clock.now_ms) {
            // The layer's handshake is not complete.
            return self.links.count_memory(conn.slot);
        }
        if self.links.drained(conn.slot) {
            self.drained.push(conn);
        }
        self.links.count_memory(conn.slot);
    }

    /// Closes a connection whose output cannot be read from its file.
    fn failed(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId) {
        if self.links.slot_mut(conn.slot).is_open() {
            service.closed(&mut self.io(), conn);
            self.links.release(conn.slot);
        }
        // Connections in another phase are released by `close_pending` right after.
    }

    fn close_pending(&mut self, take: &mut impl FnMut(ConnId, &[u8])) {
        for slot in self.links.take_pending_close() {
            let conn = self.links.id(slot);
            let link = self.links.slot_mut(slot);
            if let Phase::Moving(to) = link.phase() {
                let (to, mut link) = (usize::from(to), link.take_moved());
                let input = std::mem::take(&mut link.input);
                self.departures.push(Departure { conn, to, input, link });
            } else if link.end_output() {
                self.written.clear();
                if let Err(error) = link.drain_to(&mut self.written) {
                    log_failure(&error);
                }
                if !self.written.is_empty() {
                    take(conn, &self.written);
                }
            }
            self.stalled.retain(|known| *known != conn);
            self.links.release(slot);
        }
    }

    /// Starts a turn at `clock`: delivers messages, reports drained outputs, fires timers.
    pub fn begin_turn(&mut self, service: &mut impl Service<Mail = M>, clock: Clock) {
        debug_assert!(clock.now_ms >= self.clock.now_ms, "time must not go back");
        self.clock = clock;
        self.links.take_turn_request();
        let ended = self.paused.extract_if(.., |(until_ms, _)| *until_ms <= clock.now_ms);
        self.held.extend(ended.map(|(_, conn)| conn));
        self.work.begin_turn();
        self.memory.begin_turn(clock.now_ms);
        service.turn_begins(&mut self.io());
        self.take_mail(service);
        self.work.begin_input();
        for conn in std::mem::take(&mut self.drained) {
            service.drained(&mut self.io(), conn);
        }
        for conn in std::mem::take(&mut self.ended) {
            if self.links.get(conn).is_some_and(Link::has_ended) {
                service.closed(&mut self.io(), conn);
                self.links.close_ended(conn.slot);
            }
        }
        self.timers.advance(clock.now_ms, &mut self.due);
        self.work.begin_background();
        while !self.work.is_phase_over()
            && let Some(token) = self.due.pop_front()
        {
            service.timer(&mut self.io(), token);
        }
        self.work.begin_input();
    }

    /// Delivers messages of other shards, as far as the turn's budget allows.
    fn take_mail(&mut self, service: &mut impl Service<Mail = M>) {
        self.work.begin_mail();
        let mut mails = std::mem::take(&mut self.mails);
        let mut is_new = false;
        while !self.work.is_phase_over() {
            if let Some((from, mail)) = mails.pop() {
                service.mail(&mut self.io(), from, mail);
            } else if std::mem::replace(&mut is_new, true) {
                break;
            } else {
                self.mailboxes.collect(self.shard, &mut mails);
            }
        }
        self.work.has_mail = !is_new || !mails.is_empty();
        self.mails = mails;
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::file::FileBytes;
    use crate::service::Received;

    /// A file of three bytes.
    struct Short;

    impl FileBytes for Short {
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
            let count = into.len().min(3 - at as usize);
            into[..count].fill(7);
            Ok(count)
        }
    }

    /// Responds to each input byte with that many bytes of the file, and counts closed connections.
    #[derive(Default)]
    struct Sender {
        closed: usize,
    }

    impl Service for Sender {
        type Mail = ();

        fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
            for len in bytes {
                io.output(conn).unwrap().push_file(Arc::new(Short), 0, usize::from(*len));
            }
            Received { consumed: bytes.len(), ..Received::default() }
        }

        fn closed(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId) {
            self.closed += 1;
        }

        fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, _mail: ()) {}

        fn drain(&mut self, _io: &mut Io<'_, ()>) {}
    }

    #[test]
    fn sends_file_ranges_and_closes_on_truncated_files() {
        let mut shard = Io::detached(1, 1).remove(0);
        let mut service = Sender::default();
        let conn = shard.connect(&mut service);
        shard.feed(&mut service, conn, &[2, 3]);
        assert_eq!(shard.turn(&mut service, Clock::default()), [(conn, vec![7; 5])]);
        assert!(shard.is_known(conn));

        shard.feed(&mut service, conn, &[4]);
        assert_eq!(shard.turn(&mut service, Clock::default()), [(conn, vec![7; 3])]);
        assert!(!shard.is_known(conn));
        assert_eq!(service.closed, 1);
    }
}
