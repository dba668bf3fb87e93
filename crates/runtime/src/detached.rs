//! A shard without threads or sockets: what a test, a fuzz target or a simulator drives a service with.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::file::log_failure;
use crate::links::{ConnId, Links, Phase};
use crate::mailbox::{Mails, Post};
use crate::service::{Clock, Io, IoStats, Service};
use crate::timer::Wheel;

/// One shard without threads or sockets. Whoever has it plays the driver and all peers, and decides when a
/// turn ends and what time it is; everything else happens as under the real driver.
pub struct Detached<M> {
    shard: usize,
    clock: Clock,
    links: Links,
    timers: Wheel,
    post: Arc<Post<M>>,
    outbox: Vec<Vec<M>>,
    random: u64,
    others_wait: bool,
    /// Connections whose input the service holds, in the order in which they are offered it again.
    held: VecDeque<ConnId>,
    /// Connections whose congested output has drained.
    drained: Vec<ConnId>,
    /// Connections whose peers do not read.
    stalled: Vec<ConnId>,
    departures: Vec<Departure>,
    mails: Mails<M>,
    due: Vec<u64>,
    written: Vec<u8>,
}

/// A connection that left for another shard: it is to be opened there and fed `input`.
#[derive(Debug)]
pub struct Departure {
    /// Its identifier here, which is stale.
    pub conn: ConnId,
    /// The shard it goes to.
    pub to: usize,
    /// Input that was not consumed.
    pub input: Vec<u8>,
}

impl<M> Io<'_, M> {
    /// `shards` detached shards that share mailboxes, with randomness from `seed`.
    pub fn detached(shards: usize, seed: u64) -> Vec<Detached<M>> {
        let post = Arc::new(Post::new(vec![None; shards]));
        (0..shards)
            .map(|shard| Detached {
                shard,
                clock: Clock::default(),
                links: Links::default(),
                timers: Wheel::new(0),
                post: Arc::clone(&post),
                outbox: (0..shards).map(|_| Vec::new()).collect(),
                random: seed.wrapping_add(shard as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
                others_wait: false,
                held: VecDeque::new(),
                drained: Vec::new(),
                stalled: Vec::new(),
                departures: Vec::new(),
                mails: Mails::default(),
                due: Vec::new(),
                written: Vec::new(),
            })
            .collect()
    }
}

impl<M: Send + 'static> Detached<M> {
    /// What the service is to be called with.
    pub fn io(&mut self) -> Io<'_, M> {
        Io {
            clock: self.clock,
            shard: self.shard,
            stats: IoStats::default(),
            others_wait: self.others_wait,
            links: &mut self.links,
            timers: &mut self.timers,
            post: &*self.post,
            outbox: &mut self.outbox,
            random: &mut self.random,
            timer_mark: 0,
        }
    }

    /// Opens a connection to the first listener and tells the service.
    pub fn connect(&mut self, service: &mut impl Service<Mail = M>) -> ConnId {
        self.connect_to(service, 0)
    }

    /// Opens a connection to the listener of this number and tells the service.
    pub fn connect_to(&mut self, service: &mut impl Service<Mail = M>, listener: usize) -> ConnId {
        let conn = self.links.open();
        service.accepted(&mut self.io(), conn, listener);
        conn
    }

    /// Feeds input; what the service does not take waits for more, or, if the service holds it, for
    /// [`Detached::offer_held`]. Input for a connection that has gone is thrown away, as a socket would.
    pub fn feed(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(conn) else { return };
        match link.phase {
            Phase::Open if !link.held => {}
            Phase::Open | Phase::Moving(_) => return link.partial.extend_from_slice(bytes),
            Phase::Free | Phase::Closing | Phase::Lingering => return,
        }
        self.others_wait = !self.held.is_empty();
        if link.partial.is_empty() {
            self.offer(service, conn, bytes);
        } else {
            let mut input = std::mem::take(&mut link.partial);
            input.extend_from_slice(bytes);
            self.offer(service, conn, &input);
        }
        self.others_wait = false;
    }

    /// Offers the connection that has been held longest its input again, if the service takes any: the
    /// connection, which may be held once more. To be called before the turn ends, and not more often than
    /// [`Detached::held_count`] says: what is held again waits for the next turn.
    pub fn offer_held(&mut self, service: &mut impl Service<Mail = M>) -> Option<ConnId> {
        if !service.takes_held(&mut self.io()) {
            return None;
        }
        while let Some(conn) = self.held.pop_front() {
            if let Some(link) = self.links.get_mut(conn).filter(|link| link.phase == Phase::Open) {
                link.held = false;
                let input = std::mem::take(&mut link.partial);
                self.offer(service, conn, &input);
                return Some(conn);
            }
        }
        None
    }

    /// Whether the service holds the input of a connection.
    pub fn is_held(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(|link| link.held)
    }

    /// Connections whose input the service holds; some of them may have gone.
    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    fn offer(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId, input: &[u8]) {
        let received = service.received(&mut self.io(), conn, input);
        let rest = &input[received.consumed..];
        if let Some(link) = self.links.get_mut(conn) {
            link.partial.extend_from_slice(rest);
            if received.hold {
                link.held = true;
                self.held.push_back(conn);
            }
        }
    }

    /// Bytes fed to a connection that the service has not consumed.
    pub fn unconsumed(&self, conn: ConnId) -> usize {
        self.links.get(conn).map_or(0, |link| link.partial.len())
    }

    /// The shard that the service is handing the connection over to, until the turn ends.
    pub fn bound_for(&self, conn: ConnId) -> Option<usize> {
        match self.links.get(conn)?.phase {
            Phase::Moving(shard) => Some(usize::from(shard)),
            _ => None,
        }
    }

    /// Whether the connection is still here, be it only to send its last output.
    pub fn is_known(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some()
    }

    /// Tells the service that the peer has gone. Returns output that never left, up to what cannot be read.
    pub fn hang_up(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId) -> Vec<u8> {
        if self.links.get(conn).is_none_or(|link| link.phase != Phase::Open) {
            return Vec::new();
        }
        service.closed(&mut self.io(), conn);
        let mut unsent = Vec::new();
        let output = &mut self.links.slots[conn.slot()].output;
        if let Err(error) = output.drain_to(&mut unsent) {
            log_failure(&error);
        }
        self.stalled.retain(|known| *known != conn);
        self.links.release(conn.slot);
        unsent
    }

    /// Lets the peer of a connection read nothing until [`Detached::resume`]. What waits for it when the
    /// service closes the connection leaves all the same.
    pub fn stall(&mut self, conn: ConnId) {
        if !self.stalled.contains(&conn) {
            self.stalled.push(conn);
        }
    }

    /// Lets the peer of a connection read again.
    pub fn resume(&mut self, conn: ConnId) {
        self.stalled.retain(|known| *known != conn);
        if let Some(link) = self.links.get_mut(conn)
            && !link.dirty
        {
            link.dirty = true;
            self.links.dirty.push(conn.slot);
        }
    }

    /// Connections that left for other shards since this was last asked.
    pub fn departures(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departures)
    }

    /// Whether the service has asked for another turn at once.
    pub fn wants_turn(&self) -> bool {
        self.links.soon || !self.drained.is_empty()
    }

    /// [`Detached::end_turn`] and [`Detached::begin_turn`]; returns the output: pairs of connection and bytes.
    pub fn turn(&mut self, service: &mut impl Service<Mail = M>, clock: Clock) -> Vec<(ConnId, Vec<u8>)> {
        let mut sent = Vec::new();
        self.end_turn(service, |conn, bytes| sent.push((conn, bytes.to_vec())));
        self.begin_turn(service, clock);
        sent
    }

    /// Ends the turn: posts mail, hands all output to `take`, frees closed connections.
    pub fn end_turn(&mut self, service: &mut impl Service<Mail = M>, mut take: impl FnMut(ConnId, &[u8])) {
        service.turn_ends(&mut self.io());
        for to in 0..self.outbox.len() {
            if !self.outbox[to].is_empty() {
                self.post.deliver(self.shard, to, &mut self.outbox[to]);
            }
        }
        let mut dirty = std::mem::take(&mut self.links.dirty);
        dirty.retain(|slot| !self.flush(service, *slot, &mut take));
        dirty.append(&mut self.links.dirty);
        self.links.dirty = dirty;
        self.links.quick.clear();
        self.see_off();
    }

    /// True unless the output has to wait.
    fn flush(
        &mut self,
        service: &mut impl Service<Mail = M>,
        slot: u32,
        take: &mut impl FnMut(ConnId, &[u8]),
    ) -> bool {
        let conn = self.links.id(slot);
        let link = &mut self.links.slots[slot as usize];
        let waits = link.phase == Phase::Open && self.stalled.contains(&conn);
        if waits {
            self.links.flushed(slot, 0, self.clock.now_ms);
            return false;
        }
        link.dirty = false;
        if link.phase == Phase::Free || link.holds_output {
            return true;
        }
        self.written.clear();
        let outcome = link.output.drain_to(&mut self.written);
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
        self.links.flushed(conn.slot, count, self.clock.now_ms);
        let link = &mut self.links.slots[conn.slot()];
        self.links.pool.reclaim(&mut link.output);
        if std::mem::take(&mut link.congested) {
            self.drained.push(conn);
        }
    }

    /// What the connection waits for cannot be read: it ends.
    fn failed(&mut self, service: &mut impl Service<Mail = M>, conn: ConnId) {
        if self.links.slots[conn.slot()].phase == Phase::Open {
            service.closed(&mut self.io(), conn);
            self.links.release(conn.slot);
        }
        // Others are seen off right after, whatever they have left.
    }

    fn see_off(&mut self) {
        for slot in std::mem::take(&mut self.links.leaving) {
            let conn = self.links.id(slot);
            let link = &mut self.links.slots[slot as usize];
            if let Phase::Moving(to) = link.phase {
                let input = std::mem::take(&mut link.partial);
                self.departures.push(Departure { conn, to: usize::from(to), input });
            }
            self.stalled.retain(|known| *known != conn);
            self.links.release(slot);
        }
    }

    /// Begins a turn at `clock`: delivers mail, tells whose output has drained, fires timers.
    pub fn begin_turn(&mut self, service: &mut impl Service<Mail = M>, clock: Clock) {
        debug_assert!(clock.now_ms >= self.clock.now_ms, "time goes back");
        self.clock = clock;
        self.links.soon = false;
        service.turn_begins(&mut self.io());
        self.post.collect(self.shard, &mut self.mails);
        let mut mails = std::mem::take(&mut self.mails);
        for (from, mail) in mails.take() {
            service.mail(&mut self.io(), from, mail);
        }
        self.mails = mails;
        for conn in std::mem::take(&mut self.drained) {
            service.drained(&mut self.io(), conn);
        }
        let mut due = std::mem::take(&mut self.due);
        self.timers.advance(clock.now_ms, &mut due);
        for token in due.drain(..) {
            service.timer(&mut self.io(), token);
        }
        self.due = due;
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

    /// Answers each input byte with as many bytes of the file, and counts the connections that are lost.
    #[derive(Default)]
    struct Sender {
        closed: usize,
    }

    impl Service for Sender {
        type Mail = ();

        fn accepted(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId, _listener: usize) {}

        fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
            for len in bytes {
                io.output(conn).unwrap().push_file(Arc::new(Short), 0, usize::from(*len));
            }
            Received { consumed: bytes.len(), ..Received::default() }
        }

        fn drained(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId) {}

        fn closed(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId) {
            self.closed += 1;
        }

        fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, _mail: ()) {}

        fn timer(&mut self, _io: &mut Io<'_, ()>, _token: u64) {}

        fn turn_begins(&mut self, _io: &mut Io<'_, ()>) {}

        fn takes_held(&mut self, _io: &mut Io<'_, ()>) -> bool {
            true
        }

        fn turn_ends(&mut self, _io: &mut Io<'_, ()>) {}

        fn drain(&mut self, _io: &mut Io<'_, ()>) {}
    }

    #[test]
    fn a_range_of_a_file_leaves_and_one_that_is_not_there_ends_the_connection() {
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
