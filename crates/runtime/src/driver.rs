//! The event loop of one shard on `mio`: edge-triggered readiness, one read and one flush per connection and turn.
//!
//! A turn runs in fixed order: messages, reads, accepts, timers, then the service's `turn_ends`, outgoing messages,
//! flush, held input. Held input comes last, after the responses to all others have left: whoever causes little work
//! never waits for its own turn's share of those that cause much. What it leads to is committed and flushed by the next
//! turn, which begins at once. Messages are posted before any output is flushed, so that whatever a client does after
//! it sees an acknowledgment, on any shard, is handled after those messages. Since readiness is edge-triggered, a
//! connection that may have more input is listed in `read_again`. Work beyond the turn's budget ([`Work`]) waits for
//! the next turn, which then begins at once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Poll, Token};

use self::drain::Drain;
use self::fair_queue::FairQueue;
use self::handshakes::{HandshakeLimits, Handshakes};
use self::input::Held;
use self::linger::Lingering;
use self::proxied::{FIRST_PROXIED, Proxied};
use crate::accept::{Arrivals, Listener};
use crate::admission::Admission;
use crate::coalescing::Coalescing;
use crate::discard::Discards;
use crate::io::{Clock, Io, IoStats};
use crate::links::{ConnId, Links, READ_BUFFER_BYTES};
use crate::listener::LISTENERS_MAX;
use crate::mailbox::{Mailboxes, Mails};
use crate::memory::{MemoryBudget, ShardMemory};
use crate::service::Service;
use crate::timer::Wheel;
use crate::turn_times::{Monotonic, Stopwatch, TurnPhase, TurnTimes};
use crate::work::Work;

mod connect;
mod drain;
mod fair_queue;
mod flush;
mod handshakes;
mod input;
mod linger;
mod proxied;

pub(crate) const WAKE: Token = Token(usize::MAX);
const FIRST_LISTENER: usize = WAKE.0 - LISTENERS_MAX;

/// Maximum number of events per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Number of events above which a turn is busy.
const BUSY_EVENTS: usize = 4;
/// Poll interval for conditions that cannot wake the shard, ms.
const RETRY_MS: u64 = 10;
const NS_PER_MS: u64 = 1_000_000;

/// State shared by all shards.
pub(crate) struct Common<M> {
    pub(crate) mailboxes: Mailboxes<M>,
    pub(crate) arrivals: Arrivals,
    pub(crate) admission: Arc<Admission>,
    pub(crate) draining: AtomicBool,
    /// Number of draining shards without connections.
    pub(crate) empty: AtomicUsize,
    /// Time since the shards started.
    pub(crate) clock: Monotonic,
    pub(crate) turn_times: Arc<TurnTimes>,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) discards: Discards,
}

/// State of a shard that a service accesses through [`Io`].
struct Core<M> {
    shard: usize,
    clock: Clock,
    stats: IoStats,
    work: Work,
    links: Links,
    memory: ShardMemory,
    timers: Wheel,
    common: Arc<Common<M>>,
    outbox: Vec<Vec<M>>,
    random: u64,
}

impl<M> Core<M> {
    #[inline]
    fn io(&mut self) -> Io<'_, M> {
        Io {
            clock: self.clock,
            shard: self.shard,
            stats: &self.stats,
            work: &mut self.work,
            links: &mut self.links,
            memory: &self.memory,
            timers: &mut self.timers,
            mailboxes: &self.common.mailboxes,
            outbox: &mut self.outbox,
            random: &mut self.random,
            discards: Some(&self.common.discards),
            timer_mark: 0,
        }
    }
}

pub(crate) struct Driver<S: Service> {
    core: Core<S::Mail>,
    service: S,
    poll: Poll,
    listeners: Vec<Listener>,
    /// The listener that accepts first in the next turn.
    next_listener: usize,
    /// Number of connections assigned to the first shard before the others get any.
    first_shard_connections: usize,
    sockets: Vec<Option<TcpStream>>,
    buffer: Box<[u8]>,
    mails: Mails<S::Mail>,
    /// Connections to read again without an event: the last read filled the buffer, or the end was not reached yet.
    read_again: Vec<u32>,
    /// Connections that were ready when the turn had no share left for them: read first in the next one.
    unread: FairQueue<u32>,
    held: Held,
    /// Connections whose congested output has drained.
    drained: VecDeque<ConnId>,
    /// Tokens of due timers.
    due: VecDeque<u64>,
    /// Number of connections at the front of the dirty ones that the last turn had no time to flush.
    unflushed: usize,
    lingering: Lingering,
    proxied: Proxied,
    handshakes: Handshakes,
    handshake_limits: HandshakeLimits,
    /// Connections arrived since the last turn started.
    has_new_connections: bool,
    coalescing: Coalescing,
    drain: Drain,
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
        let shards = common.mailboxes.shards();
        // Run the first turn immediately: the service may set timers.
        let mut links = Links::default();
        links.request_turn();
        let core = Core {
            shard,
            clock: Clock::default(),
            stats: IoStats::default(),
            work: Work::default(),
            links,
            memory: common.memory.shard(shard),
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
            next_listener: 0,
            first_shard_connections: 0,
            sockets: Vec::new(),
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
            mails: Mails::default(),
            read_again: Vec::new(),
            unread: FairQueue::default(),
            held: Held::default(),
            drained: VecDeque::new(),
            due: VecDeque::new(),
            unflushed: 0,
            lingering: Lingering::default(),
            proxied: Proxied::default(),
            handshakes: Handshakes::default(),
            handshake_limits: HandshakeLimits { max: usize::MAX, timeout_ms: u64::MAX / 2 },
            has_new_connections: false,
            coalescing: Coalescing::with_max_us(0),
            drain: Drain::default(),
        })
    }

    /// Assigns this many connections to the first shard before the others get any.
    pub(crate) fn with_first_shard_connections(mut self, connections: usize) -> Self {
        self.first_shard_connections = connections;
        self
    }

    /// Sets the maximum number of handshakes of this shard, and the longest time for headers and handshakes.
    pub(crate) fn with_handshakes(mut self, max: usize, timeout: Duration) -> Self {
        self.handshake_limits = HandshakeLimits { max, timeout_ms: timeout.as_millis() as u64 };
        self
    }

    /// Sets the longest time between the start of a busy turn and the next turn.
    pub(crate) fn with_coalescing_us(mut self, max_us: u32) -> Self {
        self.coalescing = Coalescing::with_max_us(max_us);
        self
    }

    /// Sets the longest time that output of fan-outs waits for more.
    pub(crate) fn with_flush_delay_us(mut self, max_delay_us: u32) -> Self {
        self.core.links.fan_outs.set_max_delay_us(max_delay_us);
        self
    }

    /// Runs until a drain was requested and all connections are closed.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        let mut began_ns = 0;
        let mut is_busy = false;
        loop {
            let poll_timeout = self.poll_timeout();
            if is_busy && poll_timeout != Some(Duration::ZERO) {
                // More input is likely: handling it in one turn needs fewer system calls and context switches.
                let elapsed_ns = self.now_ns().saturating_sub(began_ns);
                let rest_ns = self.coalescing.pause_ns().saturating_sub(elapsed_ns);
                if rest_ns > 0 {
                    std::thread::sleep(Duration::from_nanos(rest_ns));
                }
            }
            match self.poll.poll(&mut events, poll_timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            let stopwatch = Stopwatch::begin(self.core.shard, self.core.common.clock);
            began_ns = stopwatch.began_ns();
            self.coalescing.note_turn(began_ns, self.core.stats.bytes_read, is_busy);
            // New connections wait for a response before they continue, so coalescing would only delay them.
            is_busy =
                events.iter().nth(BUSY_EVENTS).is_some() && !std::mem::take(&mut self.has_new_connections);
            if self.turn(&events, stopwatch) {
                return Ok(());
            }
        }
    }

    /// Runs one turn. Returns `true` when the shard must end.
    fn turn(&mut self, events: &Events, mut stopwatch: Stopwatch) -> bool {
        let times = Arc::clone(&self.core.common.turn_times);
        self.core.stats.turns += 1;
        self.core.clock = clock_at(stopwatch.began_ns());
        self.core.memory.begin_turn(self.core.clock.now_ms);
        // Accept wakes again before checking the mailboxes below.
        self.core.common.mailboxes.clear_wake(self.core.shard);
        self.core.work.begin_turn();
        self.service.turn_begins(&mut self.core.io());
        stopwatch.end_phase(&times, TurnPhase::Completion);
        let has_mail = self.take_mail();
        if self.drain(has_mail) {
            return true;
        }
        if has_mail {
            stopwatch.end_phase(&times, TurnPhase::Mailbox);
        }
        self.take_input(events);
        stopwatch.end_phase(&times, TurnPhase::Input);
        if self.fire_timers() {
            stopwatch.end_phase(&times, TurnPhase::Timers);
        }
        self.core.work.begin_background();
        self.service.turn_ends(&mut self.core.io());
        stopwatch.end_phase(&times, TurnPhase::Commit);
        // Before any acknowledgment is flushed: the client's next action, on any shard, must come after.
        self.send_mail();
        if self.drain.has_begun() {
            self.core.links.hurry_fan_outs();
        }
        self.flush();
        self.flush_fan_outs();
        self.confirm_receipts();
        self.close_pending();
        self.end_proxied();
        self.end_handshakes();
        // Connections that failed during the flush may have published wills.
        self.send_mail();
        stopwatch.end_phase(&times, TurnPhase::Flush);
        if !self.held.is_empty() {
            self.offer_held();
            stopwatch.end_phase(&times, TurnPhase::Held);
        }
        self.core.memory.set_connections(self.core.links.memory());
        stopwatch.end(&times);
        false
    }

    /// Handles drained outputs and input: sockets that are ready, new connections, handshakes.
    fn take_input(&mut self, events: &Events) {
        self.held.end_pauses(self.core.clock.now_ms);
        self.core.work.begin_reads(!self.held.is_empty());
        while !self.core.work.is_phase_over()
            && let Some(conn) = self.drained.pop_front()
        {
            self.service.drained(&mut self.core.io(), conn);
        }
        while !self.core.work.is_phase_over()
            && let Some((slot, _)) = self.unread.pop()
        {
            self.core.links.slot_mut(slot).input.read_now();
            self.read_in_turn(slot);
        }
        for slot in std::mem::take(&mut self.read_again) {
            self.read_in_turn(slot);
        }
        for event in events {
            self.event(event);
        }
        self.accept_more();
        self.read_handshakes();
    }

    /// Fires due timers. Returns whether there were any.
    fn fire_timers(&mut self) -> bool {
        self.core.timers.advance(self.core.clock.now_ms, &mut self.due);
        let is_due = !self.due.is_empty();
        self.core.work.begin_background();
        while !self.core.work.is_phase_over()
            && let Some(token) = self.due.pop_front()
        {
            self.service.timer(&mut self.core.io(), token);
        }
        is_due
    }

    /// Time since the shards started, ns.
    fn now_ns(&self) -> u64 {
        self.core.common.clock.now_ns()
    }

    /// How long the poll may block.
    fn poll_timeout(&mut self) -> Option<Duration> {
        let turn_requested = self.core.links.take_turn_request();
        if turn_requested
            || !self.read_again.is_empty()
            || !self.unread.is_empty()
            || self.handshakes.has_unread()
            || !self.drained.is_empty()
            || !self.due.is_empty()
            || self.core.work.has_mail
            || self.core.links.has_dirty()
        {
            return Some(Duration::ZERO);
        }
        let now = self.now_ns();
        let now_ms = now / NS_PER_MS;
        let mut wait = self.core.timers.next_in_ms(now_ms);
        let mut at_most = |ms: u64| wait = Some(wait.map_or(ms, |known| known.min(ms)));
        if !self.held.is_empty() {
            at_most(self.held.retry_ms());
        }
        for listener in self.listeners.iter().filter(|listener| listener.has_more) {
            at_most(listener.pause_ms());
        }
        if let Some(until_ms) = self.lingering.next_ms() {
            at_most(until_ms.saturating_sub(now_ms));
        }
        let times = [self.proxied.next_ms(), self.handshakes.next_ms(), self.held.next_pause_ms()];
        for until_ms in times.into_iter().flatten() {
            at_most(until_ms.saturating_sub(now_ms));
        }
        if let Some(drain_ms) = self.drain.poll_ms(now_ms, RETRY_MS) {
            at_most(drain_ms);
        }
        if !self.core.links.fan_outs.is_empty() {
            let rest_ns = self.core.links.fan_outs.due_ns().saturating_sub(now);
            at_most(rest_ns.div_ceil(NS_PER_MS));
        }
        wait.map(Duration::from_millis)
    }

    fn event(&mut self, event: &Event) {
        let token = event.token();
        if token == WAKE {
            return;
        }
        if token.0 >= FIRST_LISTENER {
            if let Some(listener) = self.listeners.get_mut(token.0 - FIRST_LISTENER) {
                listener.has_more = true;
            }
            return;
        }
        if token.0 >= FIRST_PROXIED {
            return self.read_header(token.0 - FIRST_PROXIED);
        }
        let slot = token.0 as u32;
        let Some(link) = self.core.links.at_mut(token.0) else { return };
        link.input.note_end(event.is_read_closed());
        if event.is_writable() && link.has_pending() {
            self.core.links.mark_dirty(slot);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read_in_turn(slot);
            if event.is_read_closed() && self.sockets.get(token.0).is_some_and(Option::is_some) {
                // No further event follows: keep reading until the end of the stream.
                self.read_again.push(slot);
            }
        }
    }

    /// Handles messages and connections from other shards. Returns whether there were messages.
    fn take_mail(&mut self) -> bool {
        let common = Arc::clone(&self.core.common);
        let me = self.core.shard;
        let mut mails = std::mem::take(&mut self.mails);
        let (mut has_mail, mut is_newest) = (false, false);
        self.core.work.begin_mail();
        let takes_mail = self.service.takes_mail(&mut self.core.io());
        while takes_mail && !self.core.work.is_phase_over() {
            if let Some((from, mail)) = mails.pop() {
                has_mail = true;
                self.core.work.note_mail();
                self.service.mail(&mut self.core.io(), from, mail);
            } else if std::mem::replace(&mut is_newest, true) {
                break;
            } else {
                common.mailboxes.collect(me, &mut mails);
            }
        }
        // What is left, or was not collected because of it, is for the next turn.
        self.core.work.has_mail = !is_newest || !mails.is_empty();
        self.mails = mails;
        for arrival in common.arrivals.take(me) {
            self.add_connection(arrival);
        }
        has_mail || self.core.work.has_mail
    }

    fn send_mail(&mut self) {
        for to in 0..self.core.outbox.len() {
            if !self.core.outbox[to].is_empty() {
                self.core.common.mailboxes.deliver(self.core.shard, to, &mut self.core.outbox[to]);
            }
        }
    }
}

/// The clocks of a turn that begins `now_ns` after the shards started.
fn clock_at(now_ns: u64) -> Clock {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Clock { now_ms: now_ns / NS_PER_MS, unix_ms: unix.as_millis() as u64 }
}
