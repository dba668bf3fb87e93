//! The loop of one shard on `mio`: edge-triggered readiness, one read and one flush per connection and turn.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::accept::{Arrival, Arrivals, Listener};
use crate::links::{ConnId, Links, Phase};
use crate::mailbox::{Mails, Post};
use crate::service::{Clock, Io, IoStats, Service};
use crate::timer::Wheel;

mod leave;

pub(crate) const WAKE: Token = Token(usize::MAX);
const FIRST_LISTENER: usize = usize::MAX - 256;

/// The buffer that all connections of a shard read into.
const READ_BUFFER_BYTES: usize = 128 * 1024;
/// Events taken from the kernel per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Events of a turn beyond which it counts as busy.
const BUSY_EVENTS: usize = 4;
/// How long a drain may take before the shard ends with connections open.
const DRAIN_MS: u64 = 5_000;
/// Turns without mail after which a shard that drains believes that none will come.
const QUIET_TURNS: u32 = 2;
/// Longest pause between two offers that no held connection gets on with, ms.
const VAIN_WAIT_MS_MAX: u64 = 8;
/// Longest sleep when the only thing to wait for cannot wake the shard.
const RETRY_MS: u64 = 10;

/// What a shard's driver shares with the other threads.
pub(crate) struct Common<M> {
    pub(crate) post: Post<M>,
    pub(crate) arrivals: Arrivals,
    pub(crate) draining: AtomicBool,
    /// Shards that have no connections left, while draining.
    pub(crate) empty: AtomicUsize,
    pub(crate) started: Instant,
}

/// Everything of a shard that a service may touch through [`Io`].
struct Core<M> {
    shard: usize,
    clock: Clock,
    stats: IoStats,
    others_wait: bool,
    links: Links,
    timers: Wheel,
    common: Arc<Common<M>>,
    outbox: Vec<Vec<M>>,
    random: u64,
}

impl<M> Core<M> {
    fn io(&mut self) -> Io<'_, M> {
        Io {
            clock: self.clock,
            shard: self.shard,
            stats: self.stats,
            others_wait: self.others_wait,
            links: &mut self.links,
            timers: &mut self.timers,
            post: &self.common.post,
            outbox: &mut self.outbox,
            random: &mut self.random,
            timer_mark: 0,
        }
    }
}

pub(crate) struct Driver<S: Service> {
    core: Core<S::Mail>,
    service: S,
    poll: Poll,
    listeners: Vec<Listener>,
    /// Connections that stay together on the first shard before the others get any.
    first_shard_connections: usize,
    sockets: Vec<Option<TcpStream>>,
    buffer: Box<[u8]>,
    mails: Mails<S::Mail>,
    /// Connections whose last read filled the buffer, or that have ended and have not been read to the end.
    again: Vec<u32>,
    held: VecDeque<ConnId>,
    /// No held connection got on when they were last offered their input: trying at once would only burn time.
    held_in_vain: bool,
    /// How long to wait then, ms: longer each time.
    vain_wait_ms: u64,
    /// Connections whose congested output has drained.
    drained: Vec<ConnId>,
    lingering: VecDeque<(ConnId, u64)>,
    /// Connections have come since this was last looked at.
    adopted: bool,
    /// Shortest time from the beginning of a busy turn to the next.
    coalesce: Duration,
    drain_until_ms: Option<u64>,
    /// This shard is counted among the empty ones.
    is_empty: bool,
    /// Turns without mail since all of them are.
    quiet_turns: u32,
}

impl<S: Service> Driver<S> {
    pub(crate) fn new(
        shard: usize,
        common: Arc<Common<S::Mail>>,
        poll: Poll,
        mut listeners: Vec<Listener>,
        service: S,
        seed: u64,
    ) -> io::Result<Self> {
        for (index, listener) in listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(FIRST_LISTENER + index))?;
        }
        let shards = common.post.shards();
        // The first turn comes at once: the service may have timers to set.
        let mut links = Links::default();
        links.soon = true;
        let core = Core {
            shard,
            clock: Clock::default(),
            stats: IoStats::default(),
            others_wait: false,
            links,
            timers: Wheel::new(0),
            common,
            outbox: (0..shards).map(|_| Vec::new()).collect(),
            random: seed | 1,
        };
        Ok(Self {
            core,
            service,
            poll,
            listeners,
            first_shard_connections: 0,
            sockets: Vec::new(),
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
            mails: Mails::default(),
            again: Vec::new(),
            held: VecDeque::new(),
            held_in_vain: false,
            vain_wait_ms: 1,
            drained: Vec::new(),
            lingering: VecDeque::new(),
            adopted: false,
            coalesce: Duration::ZERO,
            drain_until_ms: None,
            is_empty: false,
            quiet_turns: 0,
        })
    }

    /// Keeps this many connections together on the first shard.
    pub(crate) fn gathering(mut self, connections: usize) -> Self {
        self.first_shard_connections = connections;
        self
    }

    /// Lets a busy turn be followed by the next no sooner than this after its beginning.
    pub(crate) fn coalescing(mut self, span: Duration) -> Self {
        self.coalesce = span;
        self
    }

    /// Runs until the process is told to drain and all connections are gone.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        let mut due = Vec::new();
        let mut began = Instant::now();
        let mut is_busy = false;
        loop {
            let patience = self.patience();
            if is_busy && patience != Some(Duration::ZERO) {
                // More is about to come: taking it in one turn costs fewer calls and switches than in many.
                let rest = self.coalesce.saturating_sub(began.elapsed());
                if !rest.is_zero() {
                    std::thread::sleep(rest);
                }
            }
            match self.poll.poll(&mut events, patience) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            began = Instant::now();
            // Whoever connects waits for an answer to go on: nothing is gained by letting them wait together.
            is_busy = events.iter().nth(BUSY_EVENTS).is_some() && !std::mem::take(&mut self.adopted);
            self.core.stats.turns += 1;
            self.core.clock = self.read_clock();
            // From here on wakes count again: what they are about is looked at below.
            self.core.common.post.attend(self.core.shard);
            self.service.turn_begins(&mut self.core.io());
            if self.take_mail() {
                return Ok(());
            }
            for conn in std::mem::take(&mut self.drained) {
                self.service.drained(&mut self.core.io(), conn);
            }
            self.core.others_wait = !self.held.is_empty();
            for slot in std::mem::take(&mut self.again) {
                self.read(slot);
            }
            for event in &events {
                self.event(event);
            }
            self.accept_more();
            self.core.others_wait = false;
            self.offer_held();
            self.core.timers.advance(self.core.clock.now_ms, &mut due);
            for token in due.drain(..) {
                self.service.timer(&mut self.core.io(), token);
            }
            self.service.turn_ends(&mut self.core.io());
            // Before any acknowledgement leaves: what its receiver does next, on whatever shard, comes after.
            self.post_mail();
            self.flush();
            self.confirm_receipts();
            self.see_off();
            // Connections that failed in the flush may have left wills.
            self.post_mail();
        }
    }

    fn read_clock(&self) -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock {
            now_ms: self.core.common.started.elapsed().as_millis() as u64,
            unix_ms: unix.as_millis() as u64,
        }
    }

    /// How long the shard may sleep.
    fn patience(&mut self) -> Option<Duration> {
        let soon = std::mem::take(&mut self.core.links.soon);
        if soon || !self.again.is_empty() || !self.drained.is_empty() || !self.core.links.dirty.is_empty() {
            return Some(Duration::ZERO);
        }
        let now_ms = self.read_clock().now_ms;
        let mut wait = self.core.timers.next_in_ms(now_ms);
        let mut at_most = |ms: u64| wait = Some(wait.map_or(ms, |known| known.min(ms)));
        if !self.held.is_empty() {
            // A full mailbox wakes us when its receiver has emptied it; the bound is for safety only.
            at_most(if self.core.io().congested() {
                RETRY_MS
            } else {
                self.vain_wait_ms * u64::from(self.held_in_vain)
            });
        }
        if let Some(listener) = self.listeners.iter().find(|listener| listener.more) {
            at_most(if listener.is_failing() { RETRY_MS } else { 0 });
        }
        if let Some((_, until_ms)) = self.lingering.front() {
            at_most(until_ms.saturating_sub(now_ms));
        }
        if let Some(until_ms) = self.drain_until_ms {
            let pause_ms = if self.is_empty { 1 } else { RETRY_MS };
            at_most(until_ms.saturating_sub(now_ms).min(pause_ms));
        }
        wait.map(Duration::from_millis)
    }

    /// Mail, sockets and orders from other threads. True when the shard has drained and is to end.
    fn take_mail(&mut self) -> bool {
        let common = Arc::clone(&self.core.common);
        let me = self.core.shard;
        common.post.collect(me, &mut self.mails);
        let mut mails = std::mem::take(&mut self.mails);
        let has_mail = !mails.is_empty();
        for (from, mail) in mails.take() {
            self.service.mail(&mut self.core.io(), from, mail);
        }
        self.mails = mails;
        for arrival in common.arrivals.take(me) {
            self.adopt(arrival);
        }
        if !common.draining.load(Ordering::Acquire) {
            return false;
        }
        let now_ms = self.core.clock.now_ms;
        if let Some(until_ms) = self.drain_until_ms {
            return self.has_drained(has_mail) || now_ms >= until_ms;
        }
        self.drain_until_ms = Some(now_ms + DRAIN_MS);
        for listener in &mut self.listeners {
            if let Err(error) = listener.deregister(self.poll.registry()) {
                log::warn!("a listener could not be closed: {error}");
            }
        }
        self.listeners.clear();
        self.service.drain(&mut self.core.io());
        false
    }

    /// Whether this shard may end: nobody is connected anywhere, and mail has stopped coming. Until then others
    /// may still have something to say that is to be kept.
    fn has_drained(&mut self, has_mail: bool) -> bool {
        if self.core.links.open_count() > 0 {
            return false;
        }
        let common = &self.core.common;
        if !std::mem::replace(&mut self.is_empty, true) {
            common.empty.fetch_add(1, Ordering::AcqRel);
        }
        let all_are_empty = common.empty.load(Ordering::Acquire) == common.post.shards();
        self.quiet_turns = if has_mail || !all_are_empty { 0 } else { self.quiet_turns + 1 };
        self.quiet_turns > QUIET_TURNS
    }

    fn event(&mut self, event: &Event) {
        let token = event.token();
        if token == WAKE {
            return;
        }
        if token.0 >= FIRST_LISTENER {
            if let Some(listener) = self.listeners.get_mut(token.0 - FIRST_LISTENER) {
                listener.more = true;
            }
            return;
        }
        let slot = token.0 as u32;
        let Some(link) = self.core.links.slots.get_mut(token.0).filter(|link| link.phase != Phase::Free)
        else {
            return;
        };
        if event.is_writable() && !link.output.is_empty() {
            self.core.links.mark_dirty(slot);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read(slot);
            if event.is_read_closed() && self.sockets.get(token.0).is_some_and(Option::is_some) {
                // No further event will come: read on until the end has been seen.
                self.again.push(slot);
            }
        }
    }

    fn accept_more(&mut self) {
        for index in 0..self.listeners.len() {
            if !self.listeners[index].more {
                continue;
            }
            let mut arrivals = Vec::new();
            self.listeners[index].accept(|arrival| arrivals.push(arrival));
            for arrival in arrivals {
                let shard = self.core.common.arrivals.place(self.first_shard_connections);
                if shard == self.core.shard {
                    self.adopt(arrival);
                } else {
                    self.core.common.arrivals.push(shard, arrival);
                    self.core.common.post.wake(shard);
                }
            }
        }
    }

    fn adopt(&mut self, arrival: Arrival) {
        let Arrival { mut socket, listener, input } = arrival;
        let conn = self.core.links.open();
        self.adopted = true;
        self.core.common.arrivals.settled(self.core.shard);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut socket, Token(conn.slot()), interest) {
            log::error!("a connection could not be watched: {error}");
            self.core.links.release(conn.slot);
            self.core.common.arrivals.left(self.core.shard);
            return;
        }
        if self.sockets.len() <= conn.slot() {
            self.sockets.resize_with(conn.slot() + 1, || None);
        }
        self.core.links.arriving = socket.peer_addr().ok().map(|address| address.ip());
        self.sockets[conn.slot()] = Some(socket);
        self.core.links.slots[conn.slot()].listener = listener;
        self.service.accepted(&mut self.core.io(), conn, listener);
        self.core.links.arriving = None;
        if !input.is_empty() {
            self.offer(conn, input);
        }
    }

    /// Reads once from a connection and offers what came, together with what had been left over.
    fn read(&mut self, slot: u32) {
        let Some(socket) = self.sockets.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let link = &mut self.core.links.slots[slot as usize];
        if link.held || matches!(link.phase, Phase::Moving(_)) {
            return;
        }
        let conn = ConnId { slot, generation: link.generation };
        let closing = link.phase != Phase::Open;
        self.core.stats.reads += 1;
        let kept = link.partial.len();
        // A packet that outgrows the shared buffer is read in place, or it would be copied at every read.
        let in_place = !closing && kept + (link.next_len as usize) > READ_BUFFER_BYTES && kept > 0;
        let (outcome, room) = if in_place {
            let missing = (link.next_len as usize).saturating_sub(kept).clamp(4096, READ_BUFFER_BYTES);
            link.partial.resize(kept + missing, 0);
            let outcome = socket.read(&mut link.partial[kept..]);
            link.partial.truncate(kept + outcome.as_ref().copied().unwrap_or(0));
            (outcome, missing)
        } else {
            (socket.read(&mut self.buffer[kept..]), READ_BUFFER_BYTES - kept)
        };
        match outcome {
            Ok(0) => self.ended(conn),
            Ok(count) => {
                self.core.stats.bytes_read += count as u64;
                if count == room {
                    self.again.push(slot);
                }
                if closing {
                    return;
                }
                if in_place {
                    let input = std::mem::take(&mut self.core.links.slots[slot as usize].partial);
                    self.offer(conn, input);
                } else {
                    self.offer_buffer(conn, kept, count);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.again.push(slot),
            Err(error) => {
                log::debug!("a connection failed: {error}");
                self.ended(conn);
            }
        }
    }

    /// Offers the shared buffer's first bytes: `kept` that the connection had, and `count` behind them.
    fn offer_buffer(&mut self, conn: ConnId, kept: usize, count: usize) {
        if kept > 0 {
            let link = &mut self.core.links.slots[conn.slot()];
            self.buffer[..kept].copy_from_slice(&link.partial);
            link.partial.clear();
        }
        let input = &self.buffer[..kept + count];
        let received = self.service.received(&mut self.core.io(), conn, input);
        let rest = &self.buffer[received.consumed..kept + count];
        if let Some(link) = self.core.links.get_mut(conn) {
            link.next_len = received.next_len as u32;
            if rest.is_empty() {
                link.partial = Vec::new();
            } else {
                link.partial.reserve_exact(rest.len());
                link.partial.extend_from_slice(rest);
            }
            if received.hold {
                link.held = true;
                self.held.push_back(conn);
            }
        }
    }

    /// Offers input that the connection owns.
    fn offer(&mut self, conn: ConnId, mut input: Vec<u8>) {
        let received = self.service.received(&mut self.core.io(), conn, &input);
        if let Some(link) = self.core.links.get_mut(conn) {
            if received.consumed == input.len() {
                input = Vec::new();
            } else if received.consumed > 0 {
                input.drain(..received.consumed);
                input.shrink_to_fit();
            }
            link.next_len = received.next_len as u32;
            link.partial = input;
            if received.hold {
                link.held = true;
                self.held.push_back(conn);
            }
        }
    }

    fn offer_held(&mut self) {
        self.held_in_vain = !self.held.is_empty();
        for _ in 0..self.held.len() {
            if !self.service.takes_held(&mut self.core.io()) {
                self.held_in_vain = false;
                break;
            }
            let Some(conn) = self.held.pop_front() else { return };
            let Some(link) = self.core.links.get_mut(conn).filter(|link| link.phase == Phase::Open) else {
                continue;
            };
            link.held = false;
            let input = std::mem::take(&mut link.partial);
            let before = input.len();
            self.offer(conn, input);
            if self.core.links.get(conn).is_none_or(|link| link.partial.len() < before) {
                self.held_in_vain = false;
            }
            if self.core.links.get(conn).is_some_and(|link| !link.held) {
                // Readiness that came while it was held has been passed over.
                self.again.push(conn.slot);
            }
        }
        self.vain_wait_ms = if self.held_in_vain { (self.vain_wait_ms * 2).min(VAIN_WAIT_MS_MAX) } else { 1 };
    }

    /// The peer has gone.
    fn ended(&mut self, conn: ConnId) {
        if self.core.links.get(conn).is_some_and(|link| link.phase == Phase::Open) {
            self.service.closed(&mut self.core.io(), conn);
        }
        self.drop_socket(conn.slot);
    }

    fn post_mail(&mut self) {
        for to in 0..self.core.outbox.len() {
            if !self.core.outbox[to].is_empty() {
                self.core.common.post.deliver(self.core.shard, to, &mut self.core.outbox[to]);
            }
        }
    }
}
