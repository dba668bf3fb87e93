//! One generator thread: opens its connections, runs the load, drains, disconnects.
//!
//! A thread owns its connections and publishers. Threads share only atomics: the phase, sent counts per publisher
//! (so that receivers know how many deliveries to expect when draining), and progress counters.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mainstem_mqtt::packet::{Disconnect, Packet};
use mio::Waker;

use crate::error::BenchError;
use crate::handshake::{Opener, SUBSCRIBER};
use crate::net::{Clock, Fault, Net};
use crate::options::{Load, Options};
use crate::schedule::{Cursor, Schedule};
use crate::tally::Tally;
use crate::traffic::{Role, Traffic};

/// Maximum connections being opened at once, within the accept queue of common brokers.
const OPENING_MAX: usize = 64;
/// Timeout of connection setup without progress.
const OPENING_NS_MAX: u64 = 15_000_000_000;
/// Interval of periodic maintenance: write-offs of lost messages, pings.
const MAINTENANCE_NS: u64 = 1_000_000_000;

/// Phases of a run, in order; see [`Shared::phase`].
pub(crate) const PHASE_IDLE: u32 = 0;
pub(crate) const PHASE_OPEN: u32 = 1;
pub(crate) const PHASE_LOAD: u32 = 2;
pub(crate) const PHASE_OVER: u32 = 3;

/// State shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Current phase; only the coordinator advances it.
    phase: AtomicU32,
    /// Start of the load on the run's clock. Set before [`PHASE_LOAD`].
    start_ns: AtomicU64,
    /// Messages sent per publisher over the whole run. Set before the thread increments `stopped`.
    sent: Box<[AtomicU64]>,
    /// Number of threads whose publishers have stopped.
    stopped: AtomicUsize,
    /// Messages sent and delivered so far, per thread.
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

    /// Advances every thread to `phase`.
    pub(crate) fn advance_to(&self, phase: u32) {
        self.phase.store(phase, Ordering::Release);
        for thread in 0..self.wakers.len() {
            self.wake(thread);
        }
    }

    /// Starts the load on every thread at `start_ns`.
    pub(crate) fn start_load(&self, start_ns: u64) {
        self.start_ns.store(start_ns, Ordering::Relaxed);
        self.advance_to(PHASE_LOAD);
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
        // If the wakeup fails, the thread polls again within 100 ms anyway.
        self.wakers[thread].wake().ok();
    }
}

/// Progress event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The idle connections are open.
    Idle,
    /// Publishers and subscribers are ready.
    Open,
    /// The load and the drain are over.
    Drained,
}

/// The connections of a thread: numbers per kind.
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
    /// Payload bytes after the stamp.
    pub(crate) filler: &'a [u8],
    pub(crate) events: mpsc::Sender<Result<Event, BenchError>>,
    pub(crate) due: Due,
}

/// Due times of maintenance and pings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    maintenance_ns: u64,
    ping_ns: u64,
}

impl Worker<'_> {
    /// Runs all phases. Returns the counters, or `None` after an error, which goes to the coordinator.
    pub(crate) fn run(mut self) -> Option<Tally> {
        match self.phases() {
            Ok(()) => Some(self.traffic.tally),
            Err(error) => {
                self.report(Err(error));
                None
            }
        }
    }

    fn phases(&mut self) -> Result<(), BenchError> {
        let share = std::mem::take(&mut self.share);
        self.open('i', &share.idle, |traffic, _| traffic.add_peer(Role::Idle))?;
        self.report(Ok(Event::Idle));
        if self.wait_for(PHASE_OPEN)? {
            self.open(SUBSCRIBER, &share.subscribers, |traffic, (number, _)| traffic.add_subscriber(number))?;
            self.open('p', &share.publishers, |traffic, (_, position)| {
                traffic.add_peer(Role::Publisher(position));
            })?;
            self.report(Ok(Event::Open));
        }
        if self.wait_for(PHASE_LOAD)? {
            self.load()?;
            self.report(Ok(Event::Drained));
        }
        self.wait_for(PHASE_OVER)?;
        self.disconnect_all();
        Ok(())
    }

    fn report(&self, event: Result<Event, BenchError>) {
        // The coordinator holds the receiver until every thread has ended.
        self.events.send(event).expect("the coordinator holds the receiver");
    }

    /// Serves the connections until `phase`. Returns false if the run ended instead.
    fn wait_for(&mut self, phase: u32) -> Result<bool, BenchError> {
        loop {
            match self.shared.phase() {
                PHASE_OVER => return Ok(phase == PHASE_OVER),
                current if current >= phase => return Ok(true),
                _ => self.turn(None)?,
            }
        }
    }

    /// Opens connections, calls `add` for each (number, and index in `numbers`), and waits until all are ready.
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
        let mut progress_ns = self.clock.now_ns();
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
                (ready_before, progress_ns) = (self.traffic.ready(), now_ns);
            }
            if next_ns.is_none() && now_ns > progress_ns + OPENING_NS_MAX {
                let timeout = Fault::new("no response");
                return Err(BenchError::Open(self.opener.cannot_connect(&timeout)));
            }
        }
        Ok(())
    }

    /// Fails if a connection broke during setup, or if the coordinator ended the run.
    fn check_opening(&self) -> Result<(), BenchError> {
        if let Some(fault) = &self.traffic.tally.first_fault {
            return Err(BenchError::Open(self.opener.cannot_connect(fault)));
        }
        if self.shared.phase() == PHASE_OVER {
            return Err(BenchError::Open("another thread could not open its connections".into()));
        }
        Ok(())
    }

    /// One turn of the loop: flush output, wait, read.
    fn turn(&mut self, until_ns: Option<u64>) -> Result<(), BenchError> {
        self.net.flush(&mut self.traffic);
        if self.net.turn(until_ns, &mut self.traffic)? {
            self.traffic.queue_all();
        }
        let now_ns = self.clock.now_ns();
        if now_ns >= self.due.maintenance_ns {
            self.due.maintenance_ns = now_ns + MAINTENANCE_NS;
            self.run_maintenance(now_ns);
        }
        Ok(())
    }

    fn run_maintenance(&mut self, now_ns: u64) {
        self.traffic.write_off_stalled();
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

    /// Runs warm-up, measured part and drain.
    fn load(&mut self) -> Result<(), BenchError> {
        let start_ns = self.shared.start_ns.load(Ordering::Relaxed);
        let measured_ns = start_ns + nanos(self.options.warmup);
        let end_ns = measured_ns + nanos(self.options.duration);
        self.traffic.set_measured(measured_ns..end_ns);
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
                let due_ns = self.traffic.release_due(schedule, &mut cursor, now_ns, end_ns);
                next_ns = due_ns.map(|due_ns| due_ns.max(now_ns + nanos(self.options.tick))).or(next_ns);
            } else if now_ns < start_ns {
                next_ns = Some(start_ns);
            } else if !begun {
                begun = true;
                self.traffic.start_unlimited();
            }
            if begun {
                self.traffic.release_in_flight();
            }
            self.traffic.send_queued(&mut self.net, schedule.as_ref(), self.filler, now_ns);
            self.share_progress();
            let until_ns = if self.traffic.is_busy() { Some(0) } else { next_ns };
            self.turn(until_ns)?;
        }
        if let Some(schedule) = &schedule {
            // Messages that became due during the last turn are still sent.
            self.traffic.release_due(schedule, &mut cursor, end_ns, end_ns);
            self.traffic.send_queued(&mut self.net, Some(schedule), self.filler, self.clock.now_ns());
        }
        self.drain(end_ns + nanos(self.options.drain))
    }

    /// Waits for outstanding deliveries and acknowledgements, until `deadline_ns`.
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

    /// Sends DISCONNECT on every connection.
    fn disconnect_all(&mut self) {
        self.send_to_all(&Packet::Disconnect(Disconnect::default()));
        self.net.flush(&mut IgnoreEvents);
    }
}

/// Ignores all events: after DISCONNECT the broker closes each connection.
struct IgnoreEvents;

impl crate::net::Handler for IgnoreEvents {
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

/// A duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
