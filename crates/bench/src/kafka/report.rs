//! Results of a Kafka run, as values, one line of JSON, or a table.

use std::fmt;

use mainstem_log::Compression;
use serde::Serialize;

use super::options::KafkaOptions;
use super::run::Measured;
use crate::error::BenchError;
use crate::monitor::Monitor;
use crate::report::{Latency, grouped, mib, number, per_second, rounded, row};

/// Results of a run. Serializes to the JSON that `--json` prints. Rates cover the measured part. Bytes are those of
/// record batches on the wire; MB and GB are powers of ten.
#[derive(Clone, Debug, Serialize)]
pub struct KafkaReport {
    /// Host and port.
    pub broker: String,
    /// Type of load.
    pub work: &'static str,
    /// Number of load connections, without the consumer of produced batches.
    pub connections: u32,
    /// Number of partitions of the topic.
    pub partitions: u32,
    /// Records per produced batch.
    pub records_per_batch: u32,
    /// Size of a record's value in bytes.
    pub record_bytes: usize,
    /// Compression of batches.
    pub compression: &'static str,
    /// Size of a produced batch in bytes.
    pub batch_bytes: Option<usize>,
    /// Length of the measured part, in seconds.
    pub seconds: f64,
    /// Connections opened per second, each including a first request, one after another.
    pub connections_per_s: f64,
    /// Responses per second.
    pub requests_per_s: f64,
    /// Records produced and acknowledged, or fetched, per second.
    pub records_per_s: f64,
    /// Batch bytes per second, in MB.
    pub mb_per_s: f64,
    /// Batches that did not start at the expected offset, over the whole run.
    pub gaps: u64,
    /// Results of producing, if batches were produced.
    pub produce: Option<ProduceReport>,
    /// Due time to receipt, if produced batches were consumed at the same time.
    pub delivery: Option<Latency>,
    /// Results of fetching, if a topic was read.
    pub fetch: Option<FetchReport>,
    /// Cost of the broker, if its process is known.
    pub cost: Option<KafkaCost>,
    /// CPU seconds of the generator per GB.
    pub generator_cpu_s_per_gb: Option<f64>,
    /// CPU time of the generator in percent of one core. Near 100, the generator is the bottleneck.
    pub generator_cpu_percent: f64,
}

/// Results of producing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProduceReport {
    /// `acks` as in the protocol: 0, 1, or -1 for all.
    pub acks: i16,
    /// Due time (open loop) or send time (closed loop) to acknowledgement; absent with `acks=0`.
    pub latency: Option<Latency>,
    /// Due time to send, in an open loop: the generator's own delay, included in the latency.
    pub lag: Option<Latency>,
    /// Batches that failed with an error, over the whole run.
    pub refused: u64,
    /// Error code of the first failed batch.
    pub first_refusal: Option<i16>,
    /// Requests without a response at the end.
    pub unanswered: u64,
    /// Records acknowledged (with `acks=0`: sent) that are not in the topic.
    pub missing: u64,
    /// Records acknowledged and not received, if produced batches were consumed at the same time.
    pub not_delivered: Option<u64>,
}

/// Results of fetching.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FetchReport {
    /// Records in the topic.
    pub records_there: u64,
    /// Number of passes over the topic in the measured part.
    pub passes: f64,
}

/// Cost of the broker during the measured part.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KafkaCost {
    /// CPU time in user mode, in seconds.
    pub cpu_user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub cpu_system_s: f64,
    /// CPU time (user and system), in percent of one core.
    pub cpu_percent: f64,
    /// CPU seconds per GB of record batches; absent without batches.
    pub cpu_s_per_gb: Option<f64>,
    /// CPU seconds per million records; absent without records.
    pub cpu_s_per_million: Option<f64>,
    /// Voluntary context switches of the broker's threads.
    pub voluntary_switches: u64,
    /// Time that its threads were runnable without a free core, in percent of the measured part. If high, the machine
    /// is the bottleneck.
    pub waited_percent: f64,
    /// Resident memory before the first connection, in MiB.
    pub rss_start_mib: f64,
    /// Peak resident memory over the samples of the run, in MiB.
    pub rss_peak_mib: f64,
    /// Peak resident memory since the broker started, in MiB.
    pub rss_life_peak_mib: f64,
}

impl KafkaReport {
    /// Fields common to all types of load.
    pub(super) fn new(
        options: &KafkaOptions,
        partitions: u32,
        measured: &Measured,
        monitor: &Monitor,
    ) -> Result<Self, BenchError> {
        let (time, counters) = (measured.time(), measured.counters());
        let (before, after) = measured.generator();
        let generator_cpu_s = after.cpu_s_since(&before);
        let per = |seconds, amount| per_unit(seconds, amount);
        let cost = match measured.broker() {
            None => None,
            Some((before, after)) => {
                let cpu_s = after.cpu_s_since(&before);
                let percent = |seconds: f64| rounded(100.0 * seconds / time.as_secs_f64());
                Some(KafkaCost {
                    cpu_user_s: rounded(after.user_s - before.user_s),
                    cpu_system_s: rounded(after.system_s - before.system_s),
                    cpu_percent: percent(cpu_s),
                    cpu_s_per_gb: per(cpu_s * 1e9, counters.bytes),
                    cpu_s_per_million: per(cpu_s * 1e6, counters.records),
                    voluntary_switches: after.voluntary_switches.saturating_sub(before.voluntary_switches),
                    waited_percent: percent(after.waited_s - before.waited_s),
                    rss_start_mib: mib(monitor.rss_start),
                    rss_peak_mib: mib(monitor.rss_peak),
                    rss_life_peak_mib: mib(monitor.rss_life_peak()?),
                })
            }
        };
        Ok(Self {
            broker: format!("{}:{}", options.host, options.port),
            work: options.work.name(),
            connections: options.connections,
            partitions,
            records_per_batch: options.shape.records,
            record_bytes: options.shape.record_bytes,
            compression: name(options.shape.compression),
            batch_bytes: None,
            seconds: rounded(time.as_secs_f64()),
            connections_per_s: 0.0,
            requests_per_s: per_second(counters.requests, time),
            records_per_s: per_second(counters.records, time),
            mb_per_s: rounded(per_second(counters.bytes, time) / 1e6),
            gaps: 0,
            produce: None,
            delivery: None,
            fetch: None,
            cost,
            generator_cpu_s_per_gb: per(generator_cpu_s * 1e9, counters.bytes),
            generator_cpu_percent: rounded(100.0 * generator_cpu_s / time.as_secs_f64()),
        })
    }
}

/// `seconds` divided by `amount`; `None` if `amount` is 0.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn per_unit(seconds: f64, amount: u64) -> Option<f64> {
    (amount > 0).then(|| rounded(seconds / amount as f64))
}

fn name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Snappy => "snappy",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
        Compression::Unknown(_) => "unknown",
    }
}

impl fmt::Display for KafkaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broker, work, connections, partitions, .. } = self;
        writeln!(f, "broker {broker}, {work}, {connections} connections, {partitions} partitions")?;
        row(f, "connected", &format!("{}/s", number(self.connections_per_s)))?;
        if let Some(bytes) = self.batch_bytes {
            let (records, each) = (self.records_per_batch, self.record_bytes);
            let bytes = grouped(bytes as u64);
            row(
                f,
                "batch",
                &format!("{records} records of {each} bytes, {}, {bytes} bytes", self.compression),
            )?;
        }
        let (records, mb) = (number(self.records_per_s), number(self.mb_per_s));
        let requests = number(self.requests_per_s);
        row(
            f,
            "answered",
            &format!("{requests} requests/s, {records} records/s, {mb} MB/s, for {:.1} s", self.seconds),
        )?;
        if let Some(produce) = &self.produce {
            produce.fmt(f)?;
        }
        if let Some(delivery) = &self.delivery {
            row(f, "produce to fetch", &delivery.to_string())?;
        }
        if let Some(fetch) = &self.fetch {
            let there = grouped(fetch.records_there);
            row(f, "passes", &format!("{:.2} over {there} records", fetch.passes))?;
        }
        row(f, "gaps between offsets", &grouped(self.gaps))?;
        if let Some(cost) = &self.cost {
            cost.fmt(f)?;
        }
        let percent = self.generator_cpu_percent;
        let per_gb = self.generator_cpu_s_per_gb.map(|cost| format!("{cost:.3} s per GB, "));
        row(f, "generator CPU", &format!("{}{percent:.0} % of a core", per_gb.unwrap_or_default()))
    }
}

impl fmt::Display for ProduceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(latency) = &self.latency {
            row(f, "latency", &latency.to_string())?;
        }
        if let Some(lag) = &self.lag {
            row(f, "  before sending", &lag.to_string())?;
        }
        let refused = self.first_refusal.map(|error| format!("{} (first: error {error})", self.refused));
        let rare = [
            ("refused", refused),
            ("unanswered", (self.unanswered > 0).then(|| grouped(self.unanswered))),
            ("missing", (self.missing > 0).then(|| grouped(self.missing))),
            ("not delivered", self.not_delivered.filter(|count| *count > 0).map(grouped)),
        ];
        for (name, text) in rare {
            if let Some(text) = text {
                row(f, name, &text)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for KafkaCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, system, percent) = (self.cpu_user_s, self.cpu_system_s, self.cpu_percent);
        let per_gb = self.cpu_s_per_gb.map(|cost| format!("{cost:.3} s per GB, ")).unwrap_or_default();
        row(
            f,
            "broker CPU",
            &format!("{per_gb}{percent:.2} % of a core ({user:.2} s user, {system:.2} s system)"),
        )?;
        let sleeps = grouped(self.voluntary_switches);
        row(
            f,
            "broker sleeps",
            &format!("{sleeps}, waited for a core {:.1} % of the time", self.waited_percent),
        )?;
        let (start, peak, life) = (self.rss_start_mib, self.rss_peak_mib, self.rss_life_peak_mib);
        row(f, "broker memory", &format!("peak {peak:.1} MiB (before: {start:.1}, ever: {life:.1})"))
    }
}
