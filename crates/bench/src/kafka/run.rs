//! Runs a Kafka benchmark: opens the connections, drives the load through its phases, samples the broker.
//!
//! With `acks=0` there are no responses to count, so the end offsets of the topic count the records instead. After
//! every produce run the end offsets must cover all acknowledged records.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;

use super::batch;
use super::control::{Bound, Control};
use super::event_loop::{EventLoop, Handler};
use super::fetch::{Fetch, Position, Reader};
use super::options::{Acks, KafkaOptions, Work};
use super::produce::{Pace, Produce, ProduceSpec};
use super::report::{FetchReport, KafkaReport, ProduceReport};
use super::wire::FetchLimits;
use crate::error::BenchError;
use crate::monitor::Monitor;
use crate::net::Clock;
use crate::options::Load as Pacing;
use crate::process::Usage;
use crate::report::{Latency, per_second};
use crate::sockets;
use crate::worker::nanos;

/// Interval between memory samples.
const SAMPLE_NS: u64 = 100_000_000;
/// Requests in flight per connection while filling a topic.
const FILL_WINDOW: u32 = 4;
/// Consumer defaults (`fetch.max.wait.ms`, `fetch.min.bytes`, `max.partition.fetch.bytes`).
const LONG_POLL: FetchLimits = FetchLimits { max_wait_ms: 500, min_bytes: 1, partition_bytes: 1 << 20 };

/// Completed requests so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: u64,
    pub(super) records: u64,
    /// Bytes of batches on the wire.
    pub(super) bytes: u64,
}

/// A type of load.
pub(super) trait Load: Handler + Sized {
    /// Sends the first requests. The load starts at `start_ns`; `measured` is the measured part.
    ///
    /// # Errors
    /// If a connection broke.
    fn begin(
        &mut self,
        event_loop: &mut EventLoop,
        start_ns: u64,
        measured: Range<u64>,
    ) -> Result<(), BenchError>;

    /// Sends the requests due by now. Returns when the next one is due.
    ///
    /// # Errors
    /// If a connection broke.
    fn send_due(&mut self, event_loop: &mut EventLoop, now_ns: u64) -> Result<Option<u64>, BenchError>;

    /// Completed requests so far.
    fn counters(&self) -> Counters;

    /// Stops sending.
    fn stop(&mut self);

    /// Whether sending has stopped and all responses have arrived.
    fn is_settled(&self) -> bool;
}

/// Partitions of a connection. With more connections than partitions, connections share a partition.
pub(super) fn assigned_partitions(conn: u32, connections: u32, partitions: u32) -> Vec<u32> {
    if connections > partitions {
        vec![conn % partitions]
    } else {
        (conn..partitions).step_by(connections as usize).collect()
    }
}

/// Sample at one end of the measured part.
struct Sample {
    at_ns: u64,
    counters: Counters,
    broker: Option<Usage>,
    generator: Usage,
}

/// Samples at both ends of the measured part.
pub(super) struct Measured {
    before: Sample,
    after: Sample,
}

impl Measured {
    pub(super) fn time(&self) -> Duration {
        Duration::from_nanos(self.after.at_ns - self.before.at_ns)
    }

    pub(super) fn counters(&self) -> Counters {
        let (before, after) = (&self.before.counters, &self.after.counters);
        Counters {
            requests: after.requests - before.requests,
            records: after.records - before.records,
            bytes: after.bytes - before.bytes,
        }
    }

    /// Usage of the broker at both ends.
    pub(super) fn broker(&self) -> Option<(Usage, Usage)> {
        self.before.broker.zip(self.after.broker)
    }

    /// Usage of the generator at both ends.
    pub(super) fn generator(&self) -> (Usage, Usage) {
        (self.before.generator, self.after.generator)
    }
}

/// Runs the benchmark and returns the results.
///
/// # Errors
/// If the options contradict each other, the broker cannot be reached, closes a connection or violates the protocol,
/// or a system call fails. Failed batches are part of the report instead.
pub fn run_kafka(options: &KafkaOptions) -> Result<KafkaReport, BenchError> {
    check(options)?;
    let broker = sockets::resolve(&options.host, options.port)?;
    sockets::raise_file_limit(options.connections + 1)?;
    let mut monitor = Monitor::new(options.broker_pid)?;
    let mut control = Control::open(broker)?;
    let topic = options.topic.clone().unwrap_or_else(topic_name);
    let partitions = control.ensure_topic(&topic, options.partitions)?;
    let run = Run { options, topic: &topic, partitions, broker, clock: Clock::start() };
    match options.work {
        Work::Produce { acks, load, consume } => run.produce(&mut control, &mut monitor, acks, load, consume),
        Work::Fetch { fill_bytes, partition_bytes } => {
            if fill_bytes > 0 {
                run.fill(fill_bytes)?;
            }
            let limits = FetchLimits { partition_bytes: partition_bytes.cast_signed(), ..LONG_POLL };
            run.fetch(&mut control, &mut monitor, limits)
        }
        Work::Idle => run.fetch(&mut control, &mut monitor, LONG_POLL),
    }
}

fn check(options: &KafkaOptions) -> Result<(), BenchError> {
    let reject = |why: &str| Err(BenchError::Options(why.into()));
    if options.connections == 0 || options.partitions == 0 {
        return reject("connections and partitions must be at least 1");
    }
    if options.duration.is_zero() {
        return reject("the duration must be longer than 0");
    }
    match options.work {
        Work::Produce { consume: true, .. } if options.connections > options.partitions => {
            reject("consuming produced batches requires at most as many connections as partitions")
        }
        Work::Produce { acks: Acks::None, load: Pacing::Rate(_), consume: false } => {
            reject("acks=0 on a schedule measures nothing: consume the batches, or require acknowledgements")
        }
        Work::Produce { load: Pacing::Window(0), .. } => reject("the window must be at least 1"),
        _ => Ok(()),
    }
}

/// Summary of a histogram; `None` if it is empty.
fn latency_of(times: &Histogram<u64>) -> Option<Latency> {
    (!times.is_empty()).then(|| Latency::of(times))
}

/// A unique topic name.
fn topic_name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("bench-{}-{}", std::process::id(), since.as_millis())
}

/// Context of a run, common to all types of load.
struct Run<'a> {
    options: &'a KafkaOptions,
    topic: &'a str,
    partitions: u32,
    broker: SocketAddr,
    clock: Clock,
}

impl<'a> Run<'a> {
    fn spec(&self, acks: Acks) -> Result<ProduceSpec<'a>, BenchError> {
        let shape = self.options.shape;
        let batch = batch::build(shape)?;
        Ok(ProduceSpec {
            topic: self.topic,
            partitions: self.partitions,
            acks,
            batch,
            records: shape.records,
        })
    }

    /// Opens connections. Returns them and the rate per second.
    fn open(&self, connections: u32) -> Result<(EventLoop, f64), BenchError> {
        let began_ns = self.clock.now_ns();
        let event_loop = EventLoop::open(self.broker, connections, self.clock)?;
        let took = Duration::from_nanos(self.clock.now_ns() - began_ns);
        Ok((event_loop, per_second(connections.into(), took)))
    }

    fn produce(
        &self,
        control: &mut Control,
        monitor: &mut Monitor,
        acks: Acks,
        pacing: Pacing,
        consume: bool,
    ) -> Result<KafkaReport, BenchError> {
        let connections = self.options.connections;
        let (mut event_loop, connections_per_s) = self.open(connections + u32::from(consume))?;
        let spec = self.spec(acks)?;
        let batch_bytes = spec.batch.len();
        let pace = match pacing {
            Pacing::Rate(rate) => Pace::Rate(rate),
            Pacing::Window(window) => Pace::Window(window),
        };
        let mut load = Produce::new(spec, connections, pace, u64::MAX, self.clock);
        self.warm_partitions()?;
        let began = self.offsets(control, Bound::End)?;
        if consume {
            let positions = began.iter().zip(0..);
            let positions = positions.map(|(offset, partition)| Position::new(partition, *offset, None));
            load.attach_consumer(Reader::new(self.topic, LONG_POLL, positions.collect()));
        }
        let before: u64 = began.iter().sum();
        let records = u64::from(self.options.shape.records);
        let mut stored = |load: &Produce<'_>| -> Result<Counters, BenchError> {
            if acks != Acks::None {
                return Ok(load.counters());
            }
            let records_stored = self.offsets(control, Bound::End)?.iter().sum::<u64>() - before;
            let requests = records_stored / records;
            Ok(Counters { requests, records: records_stored, bytes: requests * batch_bytes as u64 })
        };
        let measured = self.run_load(&mut load, &mut event_loop, monitor, &mut stored)?;
        let expected = match acks {
            Acks::None => load.sent() * records,
            _ => load.counters().records,
        };
        let missing = self.missing(control, before + expected)?;
        let mut report = KafkaReport::new(self.options, self.partitions, &measured, monitor)?;
        report.connections_per_s = connections_per_s;
        report.batch_bytes = Some(batch_bytes);
        let consumed = load.consumed();
        report.delivery = consumed.and_then(|(latency, _, _)| latency_of(latency));
        report.produce = Some(ProduceReport {
            acks: acks as i16,
            latency: latency_of(&load.latency),
            lag: latency_of(&load.lag),
            refused: load.refused,
            first_refusal: load.first_refusal,
            unanswered: load.unanswered(),
            missing,
            not_delivered: consumed.map(|(_, seen, _)| expected.saturating_sub(seen)),
        });
        report.gaps = consumed.map_or(0, |(_, _, gaps)| gaps);
        Ok(report)
    }

    /// Produces one batch to each partition, so that one-time work per partition is not measured.
    fn warm_partitions(&self) -> Result<(), BenchError> {
        self.produce_only(self.spec(Acks::Leader)?, 1, self.partitions.into())
    }

    /// Produces at least `bytes` bytes.
    fn fill(&self, bytes: u64) -> Result<(), BenchError> {
        let spec = self.spec(Acks::Leader)?;
        let batches = bytes.div_ceil(spec.batch.len() as u64);
        self.produce_only(spec, self.options.connections.min(self.partitions), batches)
    }

    fn produce_only(&self, spec: ProduceSpec<'a>, connections: u32, batches: u64) -> Result<(), BenchError> {
        let (mut event_loop, _) = self.open(connections)?;
        let mut load = Produce::new(spec, connections, Pace::Window(FILL_WINDOW), batches, self.clock);
        load.begin(&mut event_loop, self.clock.now_ns(), 0..0)?;
        while !load.is_settled() {
            event_loop.turn(None, &mut load)?;
        }
        match load.first_refusal {
            None => Ok(()),
            Some(error) => Err(BenchError::Broken(format!("Produce was refused: error {error}"))),
        }
    }

    /// Reads the existing records repeatedly; in an empty topic, long-polls.
    fn fetch(
        &self,
        control: &mut Control,
        monitor: &mut Monitor,
        limits: FetchLimits,
    ) -> Result<KafkaReport, BenchError> {
        let begin = self.offsets(control, Bound::Start)?;
        let end = self.offsets(control, Bound::End)?;
        let records: u64 = end.iter().sum::<u64>() - begin.iter().sum::<u64>();
        let is_idle = self.options.work == Work::Idle;
        if (records == 0) != is_idle {
            let why = if is_idle { "the topic is not empty" } else { "the topic is empty" };
            return Err(BenchError::Options(why.into()));
        }
        let connections = self.options.connections;
        let (mut event_loop, connections_per_s) = self.open(connections)?;
        let reader = |conn| {
            let position = |partition: u32| {
                let (begin, end) = (begin[partition as usize], end[partition as usize]);
                Position::new(partition, begin, (end > begin).then_some(end))
            };
            let positions = assigned_partitions(conn, connections, self.partitions).into_iter().map(position);
            Reader::new(self.topic, limits, positions.collect())
        };
        let mut load = Fetch::new((0..connections).map(reader).collect());
        let measured = self.run_load(&mut load, &mut event_loop, monitor, &mut |load| Ok(load.counters()))?;
        let mut report = KafkaReport::new(self.options, self.partitions, &measured, monitor)?;
        report.connections_per_s = connections_per_s;
        report.gaps = load.gaps();
        #[expect(clippy::cast_precision_loss, reason = "record counts stay far below 2^53")]
        let passes = measured.counters().records as f64 / records.max(1) as f64;
        report.fetch = Some(FetchReport { records_there: records, passes });
        Ok(report)
    }

    /// Runs a load through warm-up, measured part and drain.
    fn run_load<L: Load>(
        &self,
        load: &mut L,
        event_loop: &mut EventLoop,
        monitor: &mut Monitor,
        counted: &mut dyn FnMut(&L) -> Result<Counters, BenchError>,
    ) -> Result<Measured, BenchError> {
        let start_ns = self.clock.now_ns();
        let from_ns = start_ns + nanos(self.options.warmup);
        let to_ns = from_ns + nanos(self.options.duration);
        load.begin(event_loop, start_ns, from_ns..to_ns)?;
        self.run_until(from_ns, load, event_loop, monitor)?;
        let before = self.sample(load, monitor, counted)?;
        self.run_until(to_ns, load, event_loop, monitor)?;
        let after = self.sample(load, monitor, counted)?;
        load.stop();
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        while !load.is_settled() && self.clock.now_ns() < deadline_ns {
            event_loop.turn(Some(deadline_ns), load)?;
        }
        Ok(Measured { before, after })
    }

    /// Runs the event loop until `to_ns`.
    fn run_until<L: Load>(
        &self,
        to_ns: u64,
        load: &mut L,
        event_loop: &mut EventLoop,
        monitor: &mut Monitor,
    ) -> Result<(), BenchError> {
        let mut sample_ns = self.clock.now_ns() + SAMPLE_NS;
        loop {
            let now_ns = self.clock.now_ns();
            if now_ns >= to_ns {
                return Ok(());
            }
            if now_ns >= sample_ns {
                monitor.sample()?;
                sample_ns = now_ns + SAMPLE_NS;
            }
            let due_ns = load.send_due(event_loop, now_ns)?.unwrap_or(to_ns);
            event_loop.turn(Some(due_ns.min(to_ns).min(sample_ns)), load)?;
        }
    }

    fn sample<L: Load>(
        &self,
        load: &L,
        monitor: &mut Monitor,
        counted: &mut dyn FnMut(&L) -> Result<Counters, BenchError>,
    ) -> Result<Sample, BenchError> {
        monitor.sample()?;
        let counters = counted(load)?;
        let (broker, generator) = monitor.usage()?;
        Ok(Sample { at_ns: self.clock.now_ns(), counters, broker, generator })
    }

    fn offsets(&self, control: &mut Control, bound: Bound) -> Result<Vec<u64>, BenchError> {
        let offsets = control.offsets(self.topic, self.partitions, bound)?;
        let offsets =
            offsets.ok_or_else(|| BenchError::Broken("a partition no longer has offsets".into()))?;
        Ok(offsets.into_iter().map(i64::cast_unsigned).collect())
    }

    /// Number of expected records that are not in the topic. Waits for records sent with `acks=0`.
    fn missing(&self, control: &mut Control, expected: u64) -> Result<u64, BenchError> {
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        loop {
            let missing = expected.saturating_sub(self.offsets(control, Bound::End)?.iter().sum());
            if missing == 0 || self.clock.now_ns() >= deadline_ns {
                return Ok(missing);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_partitions_among_connections() {
        assert_eq!([assigned_partitions(0, 2, 5), assigned_partitions(1, 2, 5)], [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!([assigned_partitions(0, 5, 2), assigned_partitions(3, 5, 2)], [vec![0], vec![1]]);
        assert_eq!(assigned_partitions(0, 1, 1), [0]);
    }
}
