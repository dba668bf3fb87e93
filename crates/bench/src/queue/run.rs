//! Runs a queue benchmark: opens the connections, drives the load, samples the server, checks the queue depth.
//!
//! A run is trusted only as far as it can be verified: acknowledged messages must be delivered or still be in the
//! queue, and acknowledged deliveries must have left it. The depth is polled, because servers update it late.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::amqp::Rabbit;
use super::event_loop::EventLoop;
use super::load::{Counters, Load};
use super::mqtt::Broker;
use super::nats::JetStream;
use super::options::{
    PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, QueueOptions, QueueProtocol, QueueType, QueueWork,
};
use super::protocol::{Protocol, Role, Server};
use super::report::{ConsumeReport, EnqueueReport, QueueReport};
use crate::error::BenchError;
use crate::monitor::Monitor;
use crate::net::Clock;
use crate::process::Usage;
use crate::report::{BrokerCost, Latency, mib, per_million, per_second, rounded};
use crate::sockets;
use crate::wire::filler;
use crate::worker::nanos;

/// Interval between memory samples.
const SAMPLE_NS: u64 = 100_000_000;
/// Time for the server to process the last acknowledgements.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Interval between queries of the queue depth.
const DEPTH_POLL: Duration = Duration::from_millis(20);

/// Runs the benchmark and returns the results.
///
/// # Errors
/// If the options contradict each other, the server cannot be reached, closes a connection or violates the protocol,
/// or a system call fails. Refused and lost messages are part of the report instead.
pub fn run_queue(options: &QueueOptions) -> Result<QueueReport, BenchError> {
    check(options)?;
    let address = sockets::resolve(&options.host, options.port)?;
    sockets::raise_file_limit(options.publishers + options.consumers + 1)?;
    let name = options.queue.clone().unwrap_or_else(queue_name);
    let (queue, filler) = (name.as_str(), filler(options.payload_bytes));
    let monitor = Monitor::new(options.broker_pid)?;
    match &options.protocol {
        QueueProtocol::Mqtt { http, durability } => {
            let http = http.as_deref().map(parse_address).transpose()?;
            let durability = *durability;
            let server = Broker { options, address, queue, http, durability, filler: &filler };
            Run::new(options, queue, &filler, server, monitor)?.run()
        }
        QueueProtocol::Nats => {
            Run::new(options, queue, &filler, JetStream { options, address, queue }, monitor)?.run()
        }
        QueueProtocol::Amqp(queue_type) => {
            let prefix = if *queue_type == QueueType::Flux { "$queue/" } else { "" };
            let server =
                Rabbit { options, address, queue: &format!("{prefix}{queue}"), queue_type: *queue_type };
            Run::new(options, queue, &filler, server, monitor)?.run()
        }
    }
}

fn check(options: &QueueOptions) -> Result<(), BenchError> {
    let reject = |why: &str| Err(BenchError::Options(why.into()));
    if options.publishers == 0 || options.consumers == 0 {
        return reject("publishers and consumers must be at least 1");
    }
    if !(1..=u32::from(u16::MAX)).contains(&options.in_flight) || options.prefetch == 0 {
        return reject("in-flight and prefetch must be 1 to 65535");
    }
    if !(PAYLOAD_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(&options.payload_bytes) {
        return Err(BenchError::Options(format!(
            "the payload must be {PAYLOAD_BYTES_MIN} to {PAYLOAD_BYTES_MAX} bytes"
        )));
    }
    if options.duration.is_zero() {
        return reject("the duration must be longer than 0");
    }
    let name = options.queue.as_deref().unwrap_or("q");
    if !(1..=200).contains(&name.len())
        || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return reject("the queue name must be 1 to 200 letters, digits and `-`, which all servers accept");
    }
    Ok(())
}

fn parse_address(text: &str) -> Result<SocketAddr, BenchError> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| BenchError::Options(format!("`{text}` is not HOST:PORT")))?;
    sockets::resolve(host, port)
}

/// A unique queue name.
fn queue_name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("bench-{}-{}", std::process::id(), since.as_millis())
}

/// Sample at one end of the measured part.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    counters: Counters,
    server: Option<Usage>,
    generator: Usage,
}

/// One run against one server.
struct Run<'a, S: Server> {
    options: &'a QueueOptions,
    server: S,
    clock: Clock,
    load: Load<'a>,
    event_loop: EventLoop<S::Protocol>,
    monitor: Monitor,
    report: QueueReport,
}

impl<'a, S: Server> Run<'a, S> {
    fn new(
        options: &'a QueueOptions,
        queue: &str,
        filler: &'a [u8],
        server: S,
        monitor: Monitor,
    ) -> Result<Self, BenchError> {
        let clock = Clock::start();
        let has_consumers = !matches!(options.work, QueueWork::Enqueue { .. });
        let report = QueueReport {
            server: format!("{}:{}", options.host, options.port),
            protocol: options.protocol.name(),
            made: options.protocol.made(),
            queue: queue.to_owned(),
            work: options.work.name(),
            publishers: options.publishers,
            consumers: if has_consumers { options.consumers } else { 0 },
            in_flight: options.in_flight,
            prefetch: options.prefetch,
            payload_bytes: options.payload_bytes,
            rate: options.work.rate(),
            ..QueueReport::default()
        };
        let load = Load::new(options.publishers, options.in_flight, filler);
        Ok(Self { options, server, clock, load, event_loop: EventLoop::new(clock)?, monitor, report })
    }

    fn run(mut self) -> Result<QueueReport, BenchError> {
        self.server.declare()?;
        match self.options.work {
            QueueWork::Enqueue { .. } => self.enqueue(false)?,
            QueueWork::Consume { messages, fill_max } => {
                self.fill(messages, fill_max)?;
                self.consume()?;
            }
            QueueWork::Flow { .. } => self.enqueue(true)?,
        }
        self.report.foreign = self.load.foreign;
        Ok(self.report)
    }

    fn open(&mut self, role: Role, count: u32) -> Result<(), BenchError> {
        for number in 0..count {
            let (conn, protocol) = self.server.open(role, number)?;
            self.event_loop.add(conn, protocol)?;
        }
        Ok(())
    }

    /// Starts the consumers, whose connections follow those of `publishers`.
    fn start_consumers(&mut self, publishers: u32) -> Result<(), BenchError> {
        for number in publishers..publishers + self.options.consumers {
            let (protocol, out) = self.event_loop.output(number as usize);
            protocol.start_consuming(out);
        }
        self.event_loop.flush()
    }

    /// Enqueues messages, and consumes them at the same time if `is_consumed`.
    fn enqueue(&mut self, is_consumed: bool) -> Result<(), BenchError> {
        let options = self.options;
        self.open(Role::Publisher, options.publishers)?;
        if is_consumed {
            self.open(Role::Consumer, options.consumers)?;
            self.start_consumers(options.publishers)?;
        }
        let start_ns = self.clock.now_ns();
        let from_ns = start_ns + nanos(options.warmup);
        let to_ns = from_ns + nanos(options.duration);
        self.load.set_measured(from_ns..to_ns);
        match options.work.rate() {
            Some(rate) => self.load.start_schedule(start_ns, rate),
            None => self.load.start_closed_loop(u64::MAX),
        }
        self.run_until(from_ns, |_| false)?;
        let before = self.sample()?;
        self.run_until(to_ns, |_| false)?;
        let after = self.sample()?;
        let unsent = self.load.stop();
        let deadline_ns = self.clock.now_ns() + nanos(options.drain);
        self.run_until(deadline_ns, |load| {
            load.is_settled() && (!is_consumed || load.counters.received >= load.counters.acknowledged)
        })?;
        if is_consumed {
            self.settle()?;
        }
        self.close()?;
        let time = Duration::from_nanos(after.at_ns - before.at_ns);
        let messages = after.counters.acknowledged - before.counters.acknowledged;
        let acknowledged = self.load.counters.acknowledged;
        let missing = if is_consumed {
            self.report_consumed(after.counters.received - before.counters.received, time)?;
            None
        } else {
            self.depth(|depth| depth >= acknowledged)?.map(|depth| acknowledged.saturating_sub(depth))
        };
        let load = &self.load;
        self.report.enqueue = Some(EnqueueReport {
            messages,
            messages_per_s: per_second(messages, time),
            latency: Latency::of(&load.latency),
            lag: options.work.rate().map(|_| Latency::of(&load.lag)),
            unsent,
            refused: load.refused,
            first_refusal: load.first_refusal.clone(),
            unanswered: load.unanswered(),
            missing,
        });
        self.report.delivery = is_consumed.then(|| Latency::of(&load.delivery));
        self.report.seconds = rounded(time.as_secs_f64());
        self.report_cost(&before, &after, &after, messages)
    }

    /// Fills the queue with `messages`, or as many as possible within `fill_max`.
    fn fill(&mut self, messages: u32, fill_max: Duration) -> Result<(), BenchError> {
        self.open(Role::Publisher, self.options.publishers)?;
        let start_ns = self.clock.now_ns();
        self.load.start_closed_loop(messages.into());
        self.run_until(start_ns + nanos(fill_max), Load::is_settled)?;
        self.load.stop();
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        self.run_until(deadline_ns, Load::is_settled)?;
        let took = Duration::from_nanos(self.clock.now_ns() - start_ns);
        self.close()?;
        let acknowledged = self.load.counters.acknowledged;
        if let Some(refusal) = &self.load.first_refusal {
            return Err(BenchError::Broken(format!("cannot fill the queue: {refusal}")));
        }
        if let Some(depth) = self.depth(|depth| depth >= acknowledged)?
            && depth < acknowledged
        {
            return Err(BenchError::Broken(format!(
                "only {depth} of {acknowledged} acknowledged messages are in the queue"
            )));
        }
        self.report.consume = Some(ConsumeReport {
            filled: Some(acknowledged),
            fill_s: Some(rounded(took.as_secs_f64())),
            ..ConsumeReport::default()
        });
        Ok(())
    }

    /// Consumes the filled queue until it is empty or the duration is over.
    fn consume(&mut self) -> Result<(), BenchError> {
        self.event_loop = EventLoop::new(self.clock)?;
        self.open(Role::Consumer, self.options.consumers)?;
        let before = self.sample()?;
        self.start_consumers(0)?;
        let end_ns = before.at_ns + nanos(self.options.duration);
        let acknowledged = self.load.counters.acknowledged;
        self.run_until(end_ns, |load| load.counters.received >= acknowledged)?;
        let end = self.sample()?;
        let is_empty = end.counters.received >= acknowledged;
        let last_ns = if is_empty { self.load.received_last_ns } else { end.at_ns };
        let time = Duration::from_nanos(last_ns - before.at_ns);
        self.report.seconds = rounded(time.as_secs_f64());
        if is_empty {
            self.settle()?;
        }
        self.close()?;
        self.report_consumed(end.counters.received, time)?;
        let settled = if is_empty { self.sample()? } else { end };
        if !is_empty && let Some(consume) = &mut self.report.consume {
            // Messages in flight at the end of the duration return to the queue.
            consume.unsettled = None;
        }
        self.report_cost(&before, &end, &settled, end.counters.received)
    }

    /// Gives the server time to process acknowledgements. Some servers drop unprocessed ones when the connection
    /// closes.
    fn settle(&mut self) -> Result<(), BenchError> {
        self.run_until(self.clock.now_ns() + nanos(SETTLE_TIME), |_| false)
    }

    /// Reports the consumed messages, checked against the remaining depth.
    fn report_consumed(&mut self, messages: u64, time: Duration) -> Result<(), BenchError> {
        let (counters, unanswered) = (self.load.counters, self.load.unanswered());
        let expected = counters.acknowledged.saturating_sub(counters.received);
        let left = self.depth(|depth| depth == expected)?;
        let filled = self.report.consume.take().unwrap_or_default();
        self.report.consume = Some(ConsumeReport {
            messages,
            messages_per_s: per_second(messages, time),
            lost: left.map(|left| expected.saturating_sub(left)),
            repeated: self.load.repeated,
            // Unanswered messages may be in the queue as well.
            unsettled: left.map(|left| left.saturating_sub(expected + unanswered)),
            ..filled
        });
        Ok(())
    }

    /// Runs the event loop until `to_ns`, or until `is_done`.
    fn run_until(&mut self, to_ns: u64, is_done: impl Fn(&Load<'a>) -> bool) -> Result<(), BenchError> {
        let mut sample_ns = self.clock.now_ns() + SAMPLE_NS;
        loop {
            let now_ns = self.clock.now_ns();
            if now_ns >= to_ns || is_done(&self.load) {
                return self.event_loop.flush();
            }
            if now_ns >= sample_ns {
                self.monitor.sample()?;
                sample_ns = now_ns + SAMPLE_NS;
            }
            let due_ns = self.load.release_due(now_ns).unwrap_or(to_ns);
            let has_more = self.load.send_due(&mut self.event_loop, now_ns);
            self.event_loop.flush()?;
            let until_ns = if has_more { 0 } else { due_ns.min(to_ns).min(sample_ns) };
            let load = &mut self.load;
            self.event_loop
                .turn(Some(until_ns), |conn, event, now_ns| load.handle_event(conn, event, now_ns))?;
        }
    }

    /// Closes all connections, and waits until the server has processed everything sent before.
    fn close(&mut self) -> Result<(), BenchError> {
        self.event_loop.start_close();
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        while !self.event_loop.all_closed() {
            if self.clock.now_ns() >= deadline_ns {
                return Err(BenchError::Broken(
                    "the server does not confirm the close of a connection".into(),
                ));
            }
            self.event_loop.flush()?;
            let load = &mut self.load;
            self.event_loop
                .turn(Some(deadline_ns), |conn, event, now_ns| load.handle_event(conn, event, now_ns))?;
        }
        Ok(())
    }

    /// Polls the queue depth until it `is_expected`, or until the drain timeout. Returns the last depth.
    fn depth(&mut self, is_expected: impl Fn(u64) -> bool) -> Result<Option<u64>, BenchError> {
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        loop {
            let depth = self.server.depth()?;
            if depth.is_none_or(&is_expected) || self.clock.now_ns() >= deadline_ns {
                return Ok(depth);
            }
            std::thread::sleep(DEPTH_POLL);
        }
    }

    fn sample(&mut self) -> Result<Sample, BenchError> {
        self.monitor.sample()?;
        let (server, generator) = self.monitor.usage()?;
        Ok(Sample { at_ns: self.clock.now_ns(), counters: self.load.counters, server, generator })
    }

    /// Reports the cost since `before`: of the generator until `after`, of the server until `settled`.
    fn report_cost(
        &mut self,
        before: &Sample,
        after: &Sample,
        settled: &Sample,
        messages: u64,
    ) -> Result<(), BenchError> {
        let percent = |part_s: f64, end: &Sample| {
            let seconds = Duration::from_nanos(end.at_ns - before.at_ns).as_secs_f64();
            rounded(100.0 * part_s / seconds)
        };
        let generator_s = after.generator.cpu_s_since(&before.generator);
        self.report.generator_cpu_s_per_million = per_million(generator_s, messages);
        self.report.generator_cpu_percent = percent(generator_s, after);
        let Some((from, to)) = before.server.zip(settled.server) else { return Ok(()) };
        self.report.cost = Some(BrokerCost {
            cpu_user_s: rounded(to.user_s - from.user_s),
            cpu_system_s: rounded(to.system_s - from.system_s),
            cpu_s_per_million: per_million(to.cpu_s_since(&from), messages),
            voluntary_switches: to.voluntary_switches.saturating_sub(from.voluntary_switches),
            waited_percent: percent(to.waited_s - from.waited_s, settled),
            rss_start_mib: mib(self.monitor.rss_start),
            rss_peak_mib: mib(self.monitor.rss_peak),
            rss_life_peak_mib: mib(self.monitor.rss_life_peak()?),
        });
        Ok(())
    }
}
