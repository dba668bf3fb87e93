//! From options to a report: opens the connections, puts the load on them, watches the broker.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;

use super::batch;
use super::control::{Bound, Control};
use super::fetch::{Fetch, Position, Reader};
use super::links::{Handler, Links};
use super::options::{Acks, KafkaOptions, Work};
use super::produce::{Goods, Pace, Produce};
use super::report::{FetchReport, KafkaReport, ProduceReport};
use super::wire::Patience;
use crate::error::BenchError;
use crate::monitor::Monitor;
use crate::net::Clock;
use crate::options::Load as Pacing;
use crate::process::Usage;
use crate::report::{Latency, per_second};
use crate::sockets;
use crate::worker::nanos;

/// How often memory is sampled.
const SAMPLE_NS: u64 = 100_000_000;
/// Requests in flight on each connection while a topic is filled.
const FILL_WINDOW: u32 = 4;
/// What consumers ask for by default (`fetch.max.wait.ms`, `fetch.min.bytes`, `max.partition.fetch.bytes`).
const LONG_POLL: Patience = Patience { max_wait_ms: 500, min_bytes: 1, partition_bytes: 1 << 20 };

/// What was answered so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: u64,
    pub(super) records: u64,
    /// Bytes of batches, as they were on the wire.
    pub(super) bytes: u64,
}

/// What is done on the connections.
pub(super) trait Load: Handler + Sized {
    /// Sends what comes first. The load begins at `start_ns`; `measured` is the part that counts.
    ///
    /// # Errors
    /// If a connection is gone.
    fn begin(&mut self, links: &mut Links, start_ns: u64, measured: Range<u64>) -> Result<(), BenchError>;

    /// Sends what is due by now; when the next is.
    ///
    /// # Errors
    /// If a connection is gone.
    fn send_due(&mut self, links: &mut Links, now_ns: u64) -> Result<Option<u64>, BenchError>;

    /// What was answered so far.
    fn counters(&self) -> Counters;

    /// Sends nothing more.
    fn stop(&mut self);

    /// Nothing more is sent, and everything has been answered.
    fn is_settled(&self) -> bool;
}

/// The partitions of connection `link`: each has one, or each partition has one.
pub(super) fn dealt(link: u32, connections: u32, partitions: u32) -> Vec<u32> {
    if connections > partitions {
        vec![link % partitions]
    } else {
        (link..partitions).step_by(connections as usize).collect()
    }
}

/// What was sampled at one end of the measured part.
struct Sample {
    at_ns: u64,
    counters: Counters,
    broker: Option<Usage>,
    generator: Usage,
}

/// Both ends of the measured part.
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

    /// Usage of the broker before and after.
    pub(super) fn broker(&self) -> Option<(Usage, Usage)> {
        self.before.broker.zip(self.after.broker)
    }

    /// Usage of the generator before and after.
    pub(super) fn generator(&self) -> (Usage, Usage) {
        (self.before.generator, self.after.generator)
    }
}

/// Runs what `options` ask for, and says what was found.
///
/// # Errors
/// If the options contradict each other, the broker cannot be reached, closes a connection or says what makes no
/// sense, or the machine refuses something. Batches that are refused are part of the report.
pub fn run_kafka(options: &KafkaOptions) -> Result<KafkaReport, BenchError> {
    check(options)?;
    let broker = sockets::resolve(&options.host, options.port)?;
    sockets::raise_file_limit(options.connections + 1)?;
    let mut monitor = Monitor::new(options.broker_pid)?;
    let mut control = Control::open(broker)?;
    let topic = options.topic.clone().unwrap_or_else(topic_name);
    let partitions = control.topic(&topic, options.partitions)?;
    let run = Run { options, topic: &topic, partitions, broker, clock: Clock::start() };
    match options.work {
        Work::Produce { acks, load, consume } => run.produce(&mut control, &mut monitor, acks, load, consume),
        Work::Fetch { fill_bytes, partition_bytes } => {
            if fill_bytes > 0 {
                run.fill(fill_bytes)?;
            }
            let patience = Patience { partition_bytes: partition_bytes.cast_signed(), ..LONG_POLL };
            run.fetch(&mut control, &mut monitor, patience)
        }
        Work::Idle => run.fetch(&mut control, &mut monitor, LONG_POLL),
    }
}

fn check(options: &KafkaOptions) -> Result<(), BenchError> {
    let refuse = |why: &str| Err(BenchError::Options(why.into()));
    if options.connections == 0 || options.partitions == 0 {
        return refuse("there must be a connection and a partition");
    }
    if options.duration.is_zero() {
        return refuse("the measured part must last longer than nothing");
    }
    match options.work {
        Work::Produce { consume: true, .. } if options.connections > options.partitions => {
            refuse("to follow what is produced, each partition must have one producer")
        }
        Work::Produce { acks: Acks::None, load: Pacing::Rate(_), consume: false } => {
            refuse("on schedule and without answers there is nothing to see: read it, or wait for answers")
        }
        Work::Produce { load: Pacing::Window(0), .. } => refuse("the window must be at least 1"),
        _ => Ok(()),
    }
}

/// The distribution, if there is anything in it.
fn latency_of(times: &Histogram<u64>) -> Option<Latency> {
    (!times.is_empty()).then(|| Latency::of(times))
}

/// A name that no other run takes.
fn topic_name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("bench-{}-{}", std::process::id(), since.as_millis())
}

/// What all kinds of work share.
struct Run<'a> {
    options: &'a KafkaOptions,
    topic: &'a str,
    partitions: u32,
    broker: SocketAddr,
    clock: Clock,
}

impl<'a> Run<'a> {
    fn goods(&self, acks: Acks) -> Result<Goods<'a>, BenchError> {
        let shape = self.options.shape;
        let batch = batch::make(shape)?;
        Ok(Goods { topic: self.topic, partitions: self.partitions, acks, batch, records: shape.records })
    }

    /// Opens connections; also how many a second.
    fn open(&self, connections: u32) -> Result<(Links, f64), BenchError> {
        let began_ns = self.clock.now_ns();
        let links = Links::open(self.broker, connections, self.clock)?;
        let took = Duration::from_nanos(self.clock.now_ns() - began_ns);
        Ok((links, per_second(connections.into(), took)))
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
        let (mut links, connections_per_s) = self.open(connections + u32::from(consume))?;
        let goods = self.goods(acks)?;
        let batch_bytes = goods.batch.len();
        let pace = match pacing {
            Pacing::Rate(rate) => Pace::Rate(rate),
            Pacing::Window(window) => Pace::Window(window),
        };
        let mut load = Produce::new(goods, connections, pace, u64::MAX, self.clock);
        self.touch()?;
        let began = self.offsets(control, Bound::End)?;
        if consume {
            let positions = began.iter().zip(0..);
            let positions = positions.map(|(offset, partition)| Position::new(partition, *offset, None));
            load.follow(Reader::new(self.topic, LONG_POLL, positions.collect()));
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
        let measured = self.drive(&mut load, &mut links, monitor, &mut stored)?;
        let promised = match acks {
            Acks::None => load.sent() * records,
            _ => load.counters().records,
        };
        let missing = self.missing(control, before + promised)?;
        let mut report = KafkaReport::new(self.options, self.partitions, &measured, monitor)?;
        report.connections_per_s = connections_per_s;
        report.batch_bytes = Some(batch_bytes);
        let followed = load.followed();
        report.delivery = followed.and_then(|(latency, _, _)| latency_of(latency));
        report.produce = Some(ProduceReport {
            acks: acks as i16,
            latency: latency_of(&load.latency),
            lag: latency_of(&load.lag),
            refused: load.refused,
            first_refusal: load.first_refusal,
            unanswered: load.unanswered(),
            missing,
            not_delivered: followed.map(|(_, seen, _)| promised.saturating_sub(seen)),
        });
        report.gaps = followed.map_or(0, |(_, _, gaps)| gaps);
        Ok(report)
    }

    /// Produces one batch to each partition: what a broker does once for a partition is not what is measured.
    fn touch(&self) -> Result<(), BenchError> {
        self.produce_only(self.goods(Acks::Leader)?, 1, self.partitions.into())
    }

    /// Produces until so many bytes have been taken.
    fn fill(&self, bytes: u64) -> Result<(), BenchError> {
        let goods = self.goods(Acks::Leader)?;
        let batches = bytes.div_ceil(goods.batch.len() as u64);
        self.produce_only(goods, self.options.connections.min(self.partitions), batches)
    }

    fn produce_only(&self, goods: Goods<'a>, connections: u32, batches: u64) -> Result<(), BenchError> {
        let (mut links, _) = self.open(connections)?;
        let mut load = Produce::new(goods, connections, Pace::Window(FILL_WINDOW), batches, self.clock);
        load.begin(&mut links, self.clock.now_ns(), 0..0)?;
        while !load.is_settled() {
            links.turn(None, &mut load)?;
        }
        match load.first_refusal {
            None => Ok(()),
            Some(error) => Err(BenchError::Broken(format!("Produce was refused: error {error}"))),
        }
    }

    /// Reads what is there again and again; if nothing is, waits for it.
    fn fetch(
        &self,
        control: &mut Control,
        monitor: &mut Monitor,
        patience: Patience,
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
        let (mut links, connections_per_s) = self.open(connections)?;
        let reader = |link| {
            let position = |partition: u32| {
                let (begin, end) = (begin[partition as usize], end[partition as usize]);
                Position::new(partition, begin, (end > begin).then_some(end))
            };
            let positions = dealt(link, connections, self.partitions).into_iter().map(position);
            Reader::new(self.topic, patience, positions.collect())
        };
        let mut load = Fetch::new((0..connections).map(reader).collect());
        let measured = self.drive(&mut load, &mut links, monitor, &mut |load| Ok(load.counters()))?;
        let mut report = KafkaReport::new(self.options, self.partitions, &measured, monitor)?;
        report.connections_per_s = connections_per_s;
        report.gaps = load.gaps();
        #[expect(clippy::cast_precision_loss, reason = "record counts stay far below 2^53")]
        let passes = measured.counters().records as f64 / records.max(1) as f64;
        report.fetch = Some(FetchReport { records_there: records, passes });
        Ok(report)
    }

    /// Takes a load through warm-up, measured part and draining.
    fn drive<L: Load>(
        &self,
        load: &mut L,
        links: &mut Links,
        monitor: &mut Monitor,
        counted: &mut dyn FnMut(&L) -> Result<Counters, BenchError>,
    ) -> Result<Measured, BenchError> {
        let start_ns = self.clock.now_ns();
        let from_ns = start_ns + nanos(self.options.warmup);
        let to_ns = from_ns + nanos(self.options.duration);
        load.begin(links, start_ns, from_ns..to_ns)?;
        self.until(from_ns, load, links, monitor)?;
        let before = self.sample(load, monitor, counted)?;
        self.until(to_ns, load, links, monitor)?;
        let after = self.sample(load, monitor, counted)?;
        load.stop();
        let deadline_ns = self.clock.now_ns() + nanos(self.options.drain);
        while !load.is_settled() && self.clock.now_ns() < deadline_ns {
            links.turn(Some(deadline_ns), load)?;
        }
        Ok(Measured { before, after })
    }

    /// Goes on until `to_ns`.
    fn until<L: Load>(
        &self,
        to_ns: u64,
        load: &mut L,
        links: &mut Links,
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
            let due_ns = load.send_due(links, now_ns)?.unwrap_or(to_ns);
            links.turn(Some(due_ns.min(to_ns).min(sample_ns)), load)?;
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
            offsets.ok_or_else(|| BenchError::Broken("a partition has no offsets any more".into()))?;
        Ok(offsets.into_iter().map(i64::cast_unsigned).collect())
    }

    /// Records that the broker promised to have and has not. What was sent without answers may take its time.
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
    fn partitions_are_dealt_out_whole() {
        assert_eq!([dealt(0, 2, 5), dealt(1, 2, 5)], [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!([dealt(0, 5, 2), dealt(3, 5, 2)], [vec![0], vec![1]]);
        assert_eq!(dealt(0, 1, 1), [0]);
    }
}
