//! One thread of the generator, from its first connection to its last delivery.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mainstem_mqtt::packet::{Disconnect, Packet};
use mio::Waker;

use crate::error::BenchError;
use crate::net::{Clock, Fault, Net};
use crate::opening::{Opener, SUBSCRIBER};
use crate::options::{Load, Options};
use crate::schedule::{Cursor, Schedule};
use crate::tally::Tally;
use crate::traffic::{Role, Traffic};

/// Connections being opened at once, within the accept queue of every broker.
const OPENING_MAX: usize = 64;
/// A connection that takes longer than this to open will not.
const OPENING_NS_MAX: u64 = 15_000_000_000;
/// How often upkeep runs: lost messages, pings, counters.
const UPKEEP_NS: u64 = 1_000_000_000;

/// Phases of a run, in order; see [`Shared::phase`].
pub(crate) const PHASE_IDLE: u32 = 0;
pub(crate) const PHASE_OPEN: u32 = 1;
pub(crate) const PHASE_LOAD: u32 = 2;
pub(crate) const PHASE_OVER: u32 = 3;

/// What the threads of a run tell each other.
#[derive(Debug)]
pub(crate) struct Shared {
    /// How far the run may go; only the coordinator raises it.
    phase: AtomicU32,
    /// When the load starts, on the run's clock. Set before [`PHASE_LOAD`].
    start_ns: AtomicU64,
    /// Messages each publisher sent over the whole run. Set before the thread counts in `stopped`.
    sent: Box<[AtomicU64]>,
    /// Threads whose publishers have stopped.
    stopped: AtomicUsize,
    /// Per thread: messages sent and delivered so far.
    counters: Box<[(AtomicU64, AtomicU64)]>,
    wakers: Box<[Arc<Waker>]>,
}

impl Shared {
    pub(crate) fn new(publishers: u32, wakers: Box<[Arc<Waker>]>) -> Self {
        Self {
            phase: AtomicU32::new(PHASE_IDLE),
            start_ns: AtomicU64::new(0),
            sent: (0..publishers).map(|_| AtomicU64::new(0)).collect(),
            stopped: AtomicUsize::new(0),
            counters: wakers.iter().map(|_| Default::default()).collect(),
            wakers,
        }
    }

    /// Lets every thread go on to `phase`.
    pub(crate) fn enter(&self, phase: u32) {
        self.phase.store(phase, Ordering::Release);
        for thread in 0..self.wakers.len() {
            self.wake(thread);
        }
    }

    /// Lets every thread start its load at `start_ns`.
    pub(crate) fn start_load(&self, start_ns: u64) {
        self.start_ns.store(start_ns, Ordering::Relaxed);
        self.enter(PHASE_LOAD);
    }

    /// Messages sent and delivered so far, over all threads.
    pub(crate) fn counters(&self) -> (u64, u64) {
        self.counters.iter().fold((0, 0), |(sent, delivered), (s, d)| {
            (sent + s.load(Ordering::Relaxed), delivered + d.load(Ordering::Relaxed))
        })
    }

    fn phase(&self) -> u32 {
        self.phase.load(Ordering::Acquire)
    }

    fn wake(&self, thread: usize) {
        // A thread that cannot be woken looks by itself within a tenth of a second.
        self.wakers[thread].wake().ok();
    }
}

/// What a thread reports while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its idle connections are open.
    Idle,
    /// Its publishers and subscribers are ready.
    Open,
    /// Its load is over, and so is the wait for stragglers.
    Drained,
}

/// The connections a thread opens: kind, and number within the kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share {
    pub(crate) idle: Vec<u32>,
    pub(crate) subscribers: Vec<u32>,
    pub(crate) publishers: Vec<u32>,
}

/// One thread.
pub(crate) struct Worker<'a> {
    pub(crate) thread: usize,
    pub(crate) options: &'a Options,
    pub(crate) shared: &'a Shared,
    pub(crate) clock: Clock,
    pub(crate) net: Net,
    pub(crate) traffic: Traffic,
    pub(crate) opener: Opener<'a>,
    pub(crate) share: Share,
    /// The rest of every payload behind its stamp.
    pub(crate) filler: &'a [u8],
    /// To the coordinator.
    pub(crate) tell: mpsc::Sender<Result<Event, BenchError>>,
    pub(crate) due: Due,
}

/// When upkeep and pings are due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    upkeep_ns: u64,
    ping_ns: u64,
}

impl Worker<'_> {
    /// Runs to the end. What was counted, or `None` if it gave up and said why.
    pub(crate) fn run(mut self) -> Option<Tally> {
        match self.phases() {
            Ok(()) => Some(self.traffic.tally),
            Err(error) => {
                self.tell(Err(error));
                None
            }
        }
    }

    fn phases(&mut self) -> Result<(), BenchError> {
        let share = std::mem::take(&mut self.share);
        self.open('i', &share.idle, |traffic, _| traffic.add_peer(Role::Idle))?;
        self.tell(Ok(Event::Idle));
        if self.wait_for(PHASE_OPEN)? {
            self.open(SUBSCRIBER, &share.subscribers, |traffic, (number, _)| traffic.add_subscriber(number))?;
            self.open('p', &share.publishers, |traffic, (_, position)| {
                traffic.add_peer(Role::Publisher(position));
            })?;
            self.tell(Ok(Event::Open));
        }
        if self.wait_for(PHASE_LOAD)? {
            self.load()?;
            self.tell(Ok(Event::Drained));
        }
        self.wait_for(PHASE_OVER)?;
        self.leave();
        Ok(())
    }

    fn tell(&self, event: Result<Event, BenchError>) {
        // The coordinator listens until every thread has ended.
        self.tell.send(event).expect("the coordinator listens");
    }

    /// Serves the connections until `phase` is entered. False if the run is over instead.
    fn wait_for(&mut self, phase: u32) -> Result<bool, BenchError> {
        loop {
            match self.shared.phase() {
                PHASE_OVER => return Ok(phase == PHASE_OVER),
                current if current >= phase => return Ok(true),
                _ => self.turn(None)?,
            }
        }
    }

    /// Opens connections, tells the traffic of each (number, and position in `numbers`), and waits until all
    /// are ready.
    fn open(
        &mut self,
        kind: char,
        numbers: &[u32],
        mut add: impl FnMut(&mut Traffic, (u32, usize)),
    ) -> Result<(), BenchError> {
        let before = self.net.len();
        #[expect(clippy::cast_precision_loss, reason = "a handful of threads")]
        let pace = self
            .options
            .connect_rate
            .map(|rate| Schedule::new(self.clock.now_ns(), rate / self.options.threads as f64, 1));
        let mut moved_ns = self.clock.now_ns();
        let mut ready_before = self.traffic.ready();
        let mut started = 0;
        while self.traffic.ready() < before + numbers.len() {
            let now_ns = self.clock.now_ns();
            let mut next_ns = None;
            while started < numbers.len() && before + started - self.traffic.ready() < OPENING_MAX {
                let due_ns = pace.map_or(0, |pace| pace.due_ns(0, started as u64));
                if due_ns > now_ns {
                    next_ns = Some(due_ns);
                    break;
                }
                let number = numbers[started];
                let index = (self.net.len() * self.options.threads + self.thread) as u32;
                self.opener.start(&mut self.net, index, kind, number)?;
                add(&mut self.traffic, (number, started));
                started += 1;
            }
            self.turn(next_ns)?;
            self.check_opening()?;
            if self.traffic.ready() != ready_before {
                (ready_before, moved_ns) = (self.traffic.ready(), now_ns);
            }
            if next_ns.is_none() && now_ns > moved_ns + OPENING_NS_MAX {
                let silent = Fault::new("no answer");
                return Err(BenchError::Open(self.opener.cannot_connect(&silent)));
            }
        }
        Ok(())
    }

    /// Nothing may break before the load starts, and the coordinator may have given up.
    fn check_opening(&self) -> Result<(), BenchError> {
        if let Some(fault) = &self.traffic.tally.first_fault {
            return Err(BenchError::Open(self.opener.cannot_connect(fault)));
        }
        if self.shared.phase() == PHASE_OVER {
            return Err(BenchError::Open("another thread could not open its connections".into()));
        }
        Ok(())
    }

    /// One turn of the loop: write what has collected, wait, read.
    fn turn(&mut self, until_ns: Option<u64>) -> Result<(), BenchError> {
        self.net.flush(&mut self.traffic);
        if self.net.turn(until_ns, &mut self.traffic)? {
            self.traffic.queue_all();
        }
        let now_ns = self.clock.now_ns();
        if now_ns >= self.due.upkeep_ns {
            self.due.upkeep_ns = now_ns + UPKEEP_NS;
            self.upkeep(now_ns);
        }
        Ok(())
    }

    fn upkeep(&mut self, now_ns: u64) {
        self.traffic.unstick();
        if self.traffic.keep_alive() > 0 && now_ns >= self.due.ping_ns {
            self.due.ping_ns = now_ns + u64::from(self.traffic.keep_alive()) * 1_000_000_000 / 2;
            self.send_to_all(&Packet::PingReq);
        }
    }

    fn send_to_all(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.options.version, &mut bytes).expect("the packet has no variable part");
        for id in 0..self.net.len() {
            if self.net.is_open(id) {
                self.net.output(id).extend_from_slice(&bytes);
            }
        }
    }

    /// The load: warm-up, measured part, drain.
    fn load(&mut self) -> Result<(), BenchError> {
        let start_ns = self.shared.start_ns.load(Ordering::Relaxed);
        let measured_ns = start_ns + nanos(self.options.warmup);
        let end_ns = measured_ns + nanos(self.options.duration);
        self.traffic.measure(measured_ns..end_ns);
        let publishers = self.shared.sent.len() as u32;
        let schedule = match self.options.load {
            Load::Rate(rate) => Some(Schedule::new(start_ns, rate, publishers)),
            Load::Window(_) => None,
        };
        let mut cursor = Cursor::default();
        let mut begun = false;
        loop {
            let now_ns = self.clock.now_ns();
            if now_ns >= end_ns {
                break;
            }
            let mut next_ns = Some(end_ns);
            if let Some(schedule) = &schedule {
                let due_ns = self.traffic.owe_due(schedule, &mut cursor, now_ns, end_ns);
                next_ns = due_ns.map(|due_ns| due_ns.max(now_ns + nanos(self.options.tick))).or(next_ns);
            } else if now_ns < start_ns {
                next_ns = Some(start_ns);
            } else if !begun {
                begun = true;
                self.traffic.owe_all();
            }
            self.traffic.pump(&mut self.net, schedule.as_ref(), self.filler, now_ns);
            self.share_progress();
            let until_ns = if self.traffic.is_busy() { Some(0) } else { next_ns };
            self.turn(until_ns)?;
        }
        if let Some(schedule) = &schedule {
            // What became due during the last turn still goes out.
            self.traffic.owe_due(schedule, &mut cursor, end_ns, end_ns);
            self.traffic.pump(&mut self.net, Some(schedule), self.filler, self.clock.now_ns());
        }
        self.drain(end_ns + nanos(self.options.drain))
    }

    /// Waits for what is still under way, until `deadline_ns`.
    fn drain(&mut self, deadline_ns: u64) -> Result<(), BenchError> {
        for (number, sent) in self.traffic.stop() {
            self.shared.sent[number as usize].store(sent, Ordering::Relaxed);
        }
        self.shared.stopped.fetch_add(1, Ordering::Release);
        let mut expected = None;
        loop {
            if expected.is_none() && self.shared.stopped.load(Ordering::Acquire) == self.shared.wakers.len() {
                let sent: Vec<u64> = self.shared.sent.iter().map(|n| n.load(Ordering::Relaxed)).collect();
                expected = Some(self.traffic.expected(&sent));
            }
            let complete =
                expected == Some(self.traffic.tally.delivered_ever) && self.traffic.is_acknowledged();
            self.share_progress();
            if complete || self.clock.now_ns() >= deadline_ns {
                return Ok(());
            }
            self.turn(Some(deadline_ns))?;
        }
    }

    fn share_progress(&mut self) {
        let (sent, delivered) = &self.shared.counters[self.thread];
        sent.store(self.traffic.tally.sent_ever, Ordering::Relaxed);
        delivered.store(self.traffic.tally.delivered_ever, Ordering::Relaxed);
        let shared = self.shared;
        self.traffic.wake_others(|thread| shared.wake(thread));
    }

    /// Says goodbye on every connection.
    fn leave(&mut self) {
        self.send_to_all(&Packet::Disconnect(Disconnect::default()));
        self.net.flush(&mut Farewell);
    }
}

/// Nobody listens any more: the broker closes each connection in answer to DISCONNECT.
struct Farewell;

impl crate::net::Handler for Farewell {
    fn packet(
        &mut self,
        _id: usize,
        _out: &mut Vec<u8>,
        _header: &mainstem_mqtt::Header,
        _frame: &[u8],
        _now_ns: u64,
    ) -> Result<(), Fault> {
        Ok(())
    }

    fn drained(&mut self, _id: usize) {}

    fn broken(&mut self, _id: usize, _fault: Fault) {}
}

/// A duration in nanoseconds, as the clock counts.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
