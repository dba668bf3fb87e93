//! Coordinator of a run: moves all threads through its phases, samples the broker, and builds the report.
//!
//! Only the coordinator advances the phase; a thread reports an [`Event`] when it has finished one. Usage is
//! sampled exactly at both ends of the measured part, so connecting, warm-up and draining cost nothing in the
//! report.

use std::sync::mpsc;
use std::time::Duration;

use crate::error::BenchError;
use crate::monitor::Monitor;
use crate::net::Clock;
use crate::options::{Load, Options, Scenario, WindowScope};
use crate::plan::Plan;
use crate::process::Usage;
use crate::report::{BrokerCost, IdleReport, Latency, TrafficReport, mib, per_million, per_second, rounded};
use crate::tally::Tally;
use crate::worker::{Event, PHASE_OPEN, Shared, nanos};

/// Interval between memory samples.
const SAMPLE: Duration = Duration::from_millis(100);
/// Delay before the load starts, so that every thread has woken up.
const LEAD_NS: u64 = 20_000_000;

/// Progress of a run, reported once a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Current phase.
    pub phase: &'static str,
    /// Time since the run began.
    pub elapsed: Duration,
    /// Messages sent in the last second.
    pub published_per_s: u64,
    /// Deliveries in the last second.
    pub delivered_per_s: u64,
    /// Resident memory of the broker, in MiB.
    pub rss_mib: Option<f64>,
}

/// Samples from both ends of the measured part.
pub(crate) struct Measured {
    connections_per_s: f64,
    before: (Option<Usage>, Usage),
    after: (Option<Usage>, Usage),
    rss_life_peak: u64,
}

/// The main thread's side of a run.
pub(crate) struct Coordinator<'a> {
    options: &'a Options,
    plan: &'a Plan,
    shared: &'a Shared,
    clock: Clock,
    events: mpsc::Receiver<Result<Event, BenchError>>,
    reported: Vec<Event>,
    monitor: Monitor,
    progress: &'a mut dyn FnMut(&Progress),
    /// Time of the last progress report in nanoseconds, and the counters (sent, delivered) at that time.
    last_progress: (u64, u64, u64),
}

impl<'a> Coordinator<'a> {
    /// # Errors
    /// If the broker process cannot be read from /proc.
    pub(crate) fn new(
        options: &'a Options,
        plan: &'a Plan,
        shared: &'a Shared,
        clock: Clock,
        events: mpsc::Receiver<Result<Event, BenchError>>,
        progress: &'a mut dyn FnMut(&Progress),
    ) -> Result<Self, BenchError> {
        let monitor = Monitor::new(options.broker_pid)?;
        let (reported, last_progress) = (Vec::new(), (0, 0, 0));
        Ok(Self { options, plan, shared, clock, events, reported, monitor, progress, last_progress })
    }

    /// Runs all phases: idle connections, connecting, warm-up, measured part, draining.
    ///
    /// # Errors
    /// The first error that a thread reports.
    pub(crate) fn run_phases(&mut self) -> Result<(Option<IdleReport>, Option<Measured>), BenchError> {
        let idle = self.idle()?;
        if self.options.scenario.is_none() {
            return Ok((idle, None));
        }
        let opening_ns = self.clock.now_ns();
        self.shared.advance_to(PHASE_OPEN);
        self.await_all("connecting", Event::Open)?;
        let took = Duration::from_nanos(self.clock.now_ns() - opening_ns);
        let connections = u64::from(self.plan.publishers + self.plan.subscribers);

        let start_ns = self.clock.now_ns() + LEAD_NS;
        self.shared.start_load(start_ns);
        let measured_ns = start_ns + nanos(self.options.warmup);
        self.sleep_until("warming up", measured_ns)?;
        let before = self.monitor.usage()?;
        self.sleep_until("measuring", measured_ns + nanos(self.options.duration))?;
        let after = self.monitor.usage()?;
        self.await_all("draining", Event::Drained)?;
        let rss_life_peak = self.monitor.rss_life_peak()?;
        let connections_per_s = per_second(connections, took);
        Ok((idle, Some(Measured { connections_per_s, before, after, rss_life_peak })))
    }

    /// Waits for the idle connections. Without a scenario, holds them for the duration and measures the broker's CPU.
    #[expect(clippy::cast_precision_loss, reason = "memory sizes stay far below 2^53")]
    fn idle(&mut self) -> Result<Option<IdleReport>, BenchError> {
        let began_ns = self.clock.now_ns();
        self.await_all("connecting", Event::Idle)?;
        let connections = self.options.idle;
        if connections == 0 {
            return Ok(None);
        }
        let took = Duration::from_nanos(self.clock.now_ns() - began_ns);
        let grown = self.monitor.sample()?.map(|now| now.saturating_sub(self.monitor.rss_start));
        let mut cpu_percent = None;
        if self.options.scenario.is_none() && !self.options.duration.is_zero() {
            let (before, _) = self.monitor.usage()?;
            self.sleep_until("holding", self.clock.now_ns() + nanos(self.options.duration))?;
            let (after, _) = self.monitor.usage()?;
            cpu_percent =
                after.zip(before).map(|(after, before)| self.percent_of_duration(after.cpu_s_since(&before)));
        }
        Ok(Some(IdleReport {
            connections,
            connections_per_s: per_second(u64::from(connections), took),
            rss_kib_per_connection: grown
                .map(|bytes| rounded(bytes as f64 / 1024.0 / f64::from(connections))),
            cpu_percent,
        }))
    }

    fn percent_of_duration(&self, cpu_s: f64) -> f64 {
        rounded(100.0 * cpu_s / self.options.duration.as_secs_f64())
    }

    /// Waits until every thread has reported `expected`.
    fn await_all(&mut self, phase: &'static str, expected: Event) -> Result<(), BenchError> {
        while self.reported.iter().filter(|event| **event == expected).count() < self.options.threads {
            self.receive_event(SAMPLE)?;
            self.sample(phase)?;
        }
        Ok(())
    }

    /// Waits until `until_ns`, or until a thread reports an error.
    fn sleep_until(&mut self, phase: &'static str, until_ns: u64) -> Result<(), BenchError> {
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(self.clock.now_ns()));
            if left.is_zero() {
                return Ok(());
            }
            self.receive_event(left.min(SAMPLE))?;
            self.sample(phase)?;
        }
    }

    /// Receives at most one event from a thread.
    fn receive_event(&mut self, timeout: Duration) -> Result<(), BenchError> {
        match self.events.recv_timeout(timeout) {
            Ok(Ok(event)) => self.reported.push(event),
            Ok(Err(error)) => return Err(error),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(BenchError::System("a generator thread ended early".into()));
            }
        }
        Ok(())
    }

    /// Samples memory, and reports progress once a second.
    fn sample(&mut self, phase: &'static str) -> Result<(), BenchError> {
        let resident = self.monitor.sample()?;
        let now_ns = self.clock.now_ns();
        let (then_ns, sent_then, delivered_then) = self.last_progress;
        let since = Duration::from_nanos(now_ns - then_ns);
        if since < Duration::from_secs(1) {
            return Ok(());
        }
        let (sent, delivered) = self.shared.counters();
        self.last_progress = (now_ns, sent, delivered);
        let rate = |count| per_second(count, since).round();
        #[expect(clippy::cast_sign_loss, reason = "rates are not negative")]
        (self.progress)(&Progress {
            phase,
            elapsed: Duration::from_nanos(now_ns),
            published_per_s: rate(sent - sent_then) as u64,
            delivered_per_s: rate(delivered - delivered_then) as u64,
            rss_mib: resident.map(mib),
        });
        Ok(())
    }

    /// Builds the traffic report from the merged counters and the samples.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub(crate) fn traffic_report(&self, tally: &Tally, measured: &Measured) -> TrafficReport {
        let expected = tally.published * u64::from(self.plan.copies());
        let duration = self.options.duration;
        let generator_cpu_s = measured.after.1.cpu_s_since(&measured.before.1);
        let (rate, window) = match self.options.load {
            Load::Rate(rate) => (Some(rate), None),
            Load::Window(window) => (None, Some(window)),
        };
        let is_shared = self.options.window_scope == WindowScope::Run;
        TrafficReport {
            scenario: self.options.scenario.unwrap_or(Scenario::FanOut).name(),
            publishers: self.plan.publishers,
            subscribers: self.plan.subscribers,
            topics: self.plan.topics,
            rate,
            window: window.filter(|_| !is_shared),
            in_flight: window.filter(|_| is_shared),
            seconds: duration.as_secs_f64(),
            connections_per_s: measured.connections_per_s,
            published: tally.published,
            unsent: tally.unsent,
            expected,
            delivered: tally.delivered,
            delivered_percent: if expected == 0 {
                100.0
            } else {
                // Rounded down, so that 100 means that nothing was lost.
                (1e5 * tally.delivered as f64 / expected as f64).floor() / 1e3
            },
            lost: expected - tally.delivered.min(expected),
            duplicates: tally.duplicates,
            out_of_order: tally.out_of_order,
            foreign: tally.foreign,
            refused: tally.refused,
            written_off: tally.written_off,
            publishes_per_s: per_second(tally.published, duration),
            deliveries_per_s: per_second(tally.arrivals, duration),
            latency: Latency::of(&tally.latency),
            lag: Latency::of(&tally.lag),
            broker: self.broker_cost(tally, measured),
            generator_cpu_s_per_million: per_million(generator_cpu_s, tally.arrivals),
            generator_cpu_percent: self.percent_of_duration(generator_cpu_s),
            generator_waited_percent: self
                .percent_of_duration(measured.after.1.waited_s - measured.before.1.waited_s),
        }
    }

    fn broker_cost(&self, tally: &Tally, measured: &Measured) -> Option<BrokerCost> {
        let (before, after) = measured.before.0.zip(measured.after.0)?;
        Some(BrokerCost {
            cpu_user_s: rounded(after.user_s - before.user_s),
            cpu_system_s: rounded(after.system_s - before.system_s),
            cpu_s_per_million: per_million(after.cpu_s_since(&before), tally.arrivals),
            voluntary_switches: after.voluntary_switches.saturating_sub(before.voluntary_switches),
            waited_percent: self.percent_of_duration(after.waited_s - before.waited_s),
            rss_start_mib: mib(self.monitor.rss_start),
            rss_peak_mib: mib(self.monitor.rss_peak),
            rss_life_peak_mib: mib(measured.rss_life_peak),
        })
    }
}
