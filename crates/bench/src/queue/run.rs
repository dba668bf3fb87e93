//! From options to a report: opens the connections, puts the load on them, watches the server.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::amqp::Rabbit;
use super::links::Links;
use super::load::{Counters, Load};
use super::mqtt::Broker;
use super::nats::JetStream;
use super::options::{
    PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, QueueOptions, QueueProtocol, QueueType, QueueWork,
};
use super::report::{ConsumeReport, EnqueueReport, QueueReport};
use super::talk::{Role, Server, Talk};
use crate::error::BenchError;
use crate::monitor::Monitor;
use crate::net::Clock;
use crate::process::Usage;
use crate::report::{BrokerCost, Latency, mib, per_million, per_second, rounded};
use crate::sockets;
use crate::wire::filler;
use crate::worker::nanos;

/// How often memory is sampled.
const SAMPLE_NS: u64 = 100_000_000;
/// How long a server gets to settle what it was sent last.
const REST: Duration = Duration::from_millis(300);
/// How often the server is asked for what is in the queue.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Runs what `options` ask for, and says what was found.
///
/// # Errors
/// If the options contradict each other, the server cannot be reached, closes a connection or says what makes no
/// sense, or the machine refuses something. Messages that are refused or lost are part of the report.
pub fn run_queue(options: &QueueOptions) -> Result<QueueReport, BenchError> {
    check(options)?;
    let address = sockets::resolve(&options.host, options.port)?;
    sockets::raise_file_limit(options.publishers + options.consumers + 1)?;
    let named = options.queue.clone().unwrap_or_else(queue_name);
    let (queue, filler) = (named.as_str(), filler(options.payload_bytes));
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
            let below = if *queue_type == QueueType::Flux { "$queue/" } else { "" };
            let server =
                Rabbit { options, address, queue: &format!("{below}{queue}"), queue_type: *queue_type };
            Run::new(options, queue, &filler, server, monitor)?.run()
        }
    }
}

fn check(options: &QueueOptions) -> Result<(), BenchError> {
    let refuse = |why: &str| Err(BenchError::Options(why.into()));
    if options.publishers == 0 || options.consumers == 0 {
        return refuse("there must be a publisher and a consumer");
    }
    if !(1..=u32::from(u16::MAX)).contains(&options.in_flight) || options.prefetch == 0 {
        return refuse("1 to 65535 messages may be in flight");
    }
    if !(PAYLOAD_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(&options.payload_bytes) {
        return Err(BenchError::Options(format!(
            "a payload has {PAYLOAD_BYTES_MIN} to {PAYLOAD_BYTES_MAX} bytes"
        )));
    }
    if options.duration.is_zero() {
        return refuse("the measured part must last longer than nothing");
    }
    let name = options.queue.as_deref().unwrap_or("q");
    if !(1..=200).contains(&name.len())
        || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return refuse("the queue's name must be of letters, digits and -, which all servers take");
    }
    Ok(())
}

fn parse_address(text: &str) -> Result<SocketAddr, BenchError> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| BenchError::Options(format!("`{text}` is not HOST:PORT")))?;
    sockets::resolve(host, port)
}

/// A name that no other run takes.
fn queue_name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("bench-{}-{}", std::process::id(), since.as_millis())
}

/// What was sampled at one end of the measured part.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    counters: Counters,
    server: Option<Usage>,
    generator: Usage,
}

/// One run on one server.
struct Run<'a, S: Server> {
    options: &'a QueueOptions,
    server: S,
    clock: Clock,
    load: Load<'a>,
    links: Links<S::Talk>,
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
        let is_fed = !matches!(options.work, QueueWork::Enqueue { .. });
        let report = QueueReport {
            server: format!("{}:{}", options.host, options.port),
            protocol: options.protocol.name(),
            made: options.protocol.made(),
            queue: queue.to_owned(),
            work: options.work.name(),
            publishers: options.publishers,
            consumers: if is_fed { options.consumers } else { 0 },
            in_flight: options.in_flight,
            prefetch: options.prefetch,
            payload_bytes: options.payload_bytes,
            rate: options.work.rate(),
            ..QueueReport::default()
        };
        let load = Load::new(options.publishers, options.in_flight, filler);
        Ok(Self { options, server, clock, load, links: Links::new(clock)?, monitor, report })
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
            let (dialogue, talk) = self.server.open(role, number)?;
            self.links.add(dialogue, talk)?;
        }
        Ok(())
    }

    /// Lets consumers, whose connections come behind those of `publishers`, begin.
    fn begin(&mut self, publishers: u32) -> Result<(), BenchError> {
        for number in publishers..publishers + self.options.consumers {
            let (talk, out) = self.links.voice(number as usize);
            talk.begin(out);
        }
        self.links.flush()
    }

    /// Puts messages in, and takes them out at the same time if it is `fed_on`.
    fn enqueue(&mut self, is_fed_on: bool) -> Result<(), BenchError> {
        let options = self.options;
        self.open(Role::Publisher, options.publishers)?;
        if is_fed_on {
            self.open(Role::Consumer, options.consumers)?;
            self.begin(options.publishers)?;
        }
        let start_ns = self.clock.now_ns();
        let from_ns = start_ns + nanos(options.warmup);
        let to_ns = from_ns + nanos(options.duration);
        self.load.measure(from_ns..to_ns);
        match options.work.rate() {
            Some(rate) => self.load.on_schedule(start_ns, rate),
            None => self.load.all_at_once(u64::MAX),
        }
        self.until(from_ns, |_| false)?;
        let before = self.sample()?;
        self.until(to_ns, |_| false)?;
        let after = self.sample()?;
        let unsent = self.load.stop();
        let deadline_ns = self.clock.now_ns() + nanos(options.drain);
        self.until(deadline_ns, |load| {
            load.is_settled() && (!is_fed_on || load.counters.received >= load.counters.taken)
        })?;
        if is_fed_on {
            self.rest()?;
        }
        self.leave()?;
        let time = Duration::from_nanos(after.at_ns - before.at_ns);
        let messages = after.counters.taken - before.counters.taken;
        let taken = self.load.counters.taken;
        let missing = if is_fed_on {
            self.fed(after.counters.received - before.counters.received, time)?;
            None
        } else {
            self.depth(|depth| depth >= taken)?.map(|depth| taken.saturating_sub(depth))
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
        self.report.delivery = is_fed_on.then(|| Latency::of(&load.delivery));
        self.report.seconds = rounded(time.as_secs_f64());
        self.cost(&before, &after, &after, messages)
    }

    /// Puts so many messages in, or as many as there is time for.
    fn fill(&mut self, messages: u32, fill_max: Duration) -> Result<(), BenchError> {
        self.open(Role::Publisher, self.options.publishers)?;
        let start_ns = self.clock.now_ns();
        self.load.all_at_once(messages.into());
        self.until(start_ns + nanos(fill_max), Load::is_settled)?;
        self.load.stop();
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        self.until(deadline_ns, Load::is_settled)?;
        let took = Duration::from_nanos(self.clock.now_ns() - start_ns);
        self.leave()?;
        let taken = self.load.counters.taken;
        if let Some(refusal) = &self.load.first_refusal {
            return Err(BenchError::Broken(format!("the queue could not be filled: {refusal}")));
        }
        if let Some(depth) = self.depth(|depth| depth >= taken)?
            && depth < taken
        {
            return Err(BenchError::Broken(format!(
                "of {taken} messages acknowledged {depth} are in the queue"
            )));
        }
        self.report.consume = Some(ConsumeReport {
            filled: Some(taken),
            fill_s: Some(rounded(took.as_secs_f64())),
            ..ConsumeReport::default()
        });
        Ok(())
    }

    /// Takes out what is there, as far as there is time.
    fn consume(&mut self) -> Result<(), BenchError> {
        self.links = Links::new(self.clock)?;
        self.open(Role::Consumer, self.options.consumers)?;
        let before = self.sample()?;
        self.begin(0)?;
        let end_ns = before.at_ns + nanos(self.options.duration);
        let taken = self.load.counters.taken;
        self.until(end_ns, |load| load.counters.received >= taken)?;
        let end = self.sample()?;
        let is_empty = end.counters.received >= taken;
        let last_ns = if is_empty { self.load.received_last_ns } else { end.at_ns };
        let time = Duration::from_nanos(last_ns - before.at_ns);
        self.report.seconds = rounded(time.as_secs_f64());
        if is_empty {
            self.rest()?;
        }
        self.leave()?;
        self.fed(end.counters.received, time)?;
        let settled = if is_empty { self.sample()? } else { end };
        if !is_empty && let Some(consume) = &mut self.report.consume {
            // What was under way when the time was over may come back.
            consume.unsettled = None;
        }
        self.cost(&before, &end, &settled, end.counters.received)
    }

    /// Waits for acknowledgements that the server has been sent and has not looked at: some forget them when their
    /// connection ends.
    fn rest(&mut self) -> Result<(), BenchError> {
        self.until(self.clock.now_ns() + nanos(REST), |_| false)
    }

    /// Notes what consumers got, and what the server says is left.
    fn fed(&mut self, messages: u64, time: Duration) -> Result<(), BenchError> {
        let (counters, unanswered) = (self.load.counters, self.load.unanswered());
        let expected = counters.taken.saturating_sub(counters.received);
        let left = self.depth(|depth| depth == expected)?;
        let filled = self.report.consume.take().unwrap_or_default();
        self.report.consume = Some(ConsumeReport {
            messages,
            messages_per_s: per_second(messages, time),
            lost: left.map(|left| expected.saturating_sub(left)),
            repeated: self.load.repeated,
            // Those that were not answered may be there as well.
            unsettled: left.map(|left| left.saturating_sub(expected + unanswered)),
            ..filled
        });
        Ok(())
    }

    /// Goes on until `to_ns`, or until it is over.
    fn until(&mut self, to_ns: u64, is_over: impl Fn(&Load<'a>) -> bool) -> Result<(), BenchError> {
        let mut sample_ns = self.clock.now_ns() + SAMPLE_NS;
        loop {
            let now_ns = self.clock.now_ns();
            if now_ns >= to_ns || is_over(&self.load) {
                return self.links.flush();
            }
            if now_ns >= sample_ns {
                self.monitor.sample()?;
                sample_ns = now_ns + SAMPLE_NS;
            }
            let due_ns = self.load.owe_due(now_ns).unwrap_or(to_ns);
            let is_eager = self.load.pump(&mut self.links, now_ns);
            self.links.flush()?;
            let until_ns = if is_eager { 0 } else { due_ns.min(to_ns).min(sample_ns) };
            let load = &mut self.load;
            self.links.turn(Some(until_ns), |link, said, now_ns| load.heard(link, said, now_ns))?;
        }
    }

    /// Says goodbye on all connections, and waits until the server has heard it.
    fn leave(&mut self) -> Result<(), BenchError> {
        self.links.leave();
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        while !self.links.have_left() {
            if self.clock.now_ns() >= deadline_ns {
                return Err(BenchError::Broken("the server does not answer a goodbye".into()));
            }
            self.links.flush()?;
            let load = &mut self.load;
            self.links.turn(Some(deadline_ns), |link, said, now_ns| load.heard(link, said, now_ns))?;
        }
        Ok(())
    }

    /// Asks the server how many messages it has until that is as it should be, or for as long as there is time.
    fn depth(&mut self, is_good: impl Fn(u64) -> bool) -> Result<Option<u64>, BenchError> {
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        loop {
            let depth = self.server.depth()?;
            if depth.is_none_or(&is_good) || self.clock.now_ns() >= deadline_ns {
                return Ok(depth);
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    fn sample(&mut self) -> Result<Sample, BenchError> {
        self.monitor.sample()?;
        let (server, generator) = self.monitor.usage()?;
        Ok(Sample { at_ns: self.clock.now_ns(), counters: self.load.counters, server, generator })
    }

    /// Notes what it cost from `before` to `after`: the server until it had `settled` everything.
    fn cost(
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
