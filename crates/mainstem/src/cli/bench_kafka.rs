//! Flags of `mainstem bench kafka`.

use clap::{Args, Subcommand, ValueEnum};
use mainstem_log::Compression;

use super::bench::{MeasureArgs, parse_rate};
use super::connect::HostPort;

/// Benchmark a Kafka broker with preencoded batches, and report throughput, latency and cost.
///
/// Each request has one batch, and all batches are equal. The topic is created if it does not exist. All partitions
/// must be on the given broker.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchKafkaArgs {
    #[command(subcommand)]
    pub(crate) work: BenchKafkaWork,
}

/// Workloads.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchKafkaWork {
    /// Produce with a fixed number of requests in flight, or on a schedule
    Produce(BenchProduceArgs),
    /// Fill a topic, then fetch it from the start repeatedly
    Fetch(BenchFetchArgs),
    /// Keep consumers waiting on an empty topic
    Idle(BenchIdleArgs),
}

/// Flags of all workloads.
#[derive(Args, Debug)]
pub(crate) struct BenchKafkaCommon {
    /// Broker's host name or address, and port
    #[arg(short, long, alias = "host", value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub(crate) broker: HostPort,
    /// Broker's port, if --broker has none
    #[arg(long, value_name = "PORT", default_value_t = 9092)]
    pub(crate) port: u16,
    /// Topic, created if it does not exist [default: a new topic]
    #[arg(long, value_name = "NAME")]
    pub(crate) topic: Option<String>,
    /// Number of partitions if the topic is created
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) partitions: u32,
    /// Connections; each uses a part of the partitions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) connections: u32,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// Contents of a batch.
#[derive(Args, Debug)]
pub(crate) struct BenchBatchArgs {
    /// Records per batch
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) records: u32,
    /// Bytes per record value
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) record_bytes: u32,
    /// Compression of batches
    #[arg(long, value_enum, value_name = "CODEC", default_value_t = CodecArg::None)]
    pub(crate) compression: CodecArg,
}

/// Codecs of record batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodecArg {
    /// No compression
    None,
    /// gzip
    Gzip,
    /// snappy, in the framing of the Java client
    Snappy,
    /// lz4
    Lz4,
    /// zstd
    Zstd,
}

impl From<CodecArg> for Compression {
    fn from(codec: CodecArg) -> Self {
        match codec {
            CodecArg::None => Self::None,
            CodecArg::Gzip => Self::Gzip,
            CodecArg::Snappy => Self::Snappy,
            CodecArg::Lz4 => Self::Lz4,
            CodecArg::Zstd => Self::Zstd,
        }
    }
}

/// Acknowledgement that producers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcksArg {
    /// None
    #[value(name = "0")]
    None,
    /// From the leader
    #[value(name = "1")]
    Leader,
    /// From all in-sync replicas
    All,
}

/// Produce with a fixed number of requests in flight per connection (closed loop), or on a schedule (open loop).
///
/// In an open loop, latency is measured from the scheduled time of a request, so that it includes stalls of the broker.
#[derive(Args, Debug)]
pub(crate) struct BenchProduceArgs {
    #[command(flatten)]
    pub(crate) common: BenchKafkaCommon,
    #[command(flatten)]
    pub(crate) batch: BenchBatchArgs,
    /// Acknowledgement to wait for
    #[arg(long, value_enum, value_name = "0|1|ALL", ignore_case = true, default_value_t = AcksArg::Leader)]
    pub(crate) acks: AcksArg,
    /// Open loop: requests per second of all connections together
    #[arg(long, value_name = "REQUESTS/S", conflicts_with = "window", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Closed loop: requests in flight per connection [default without --rate: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) window: Option<u32>,
    /// Fetch all records at the same time with long polls on another connection, and report the delivery latency
    #[arg(long)]
    pub(crate) consume: bool,
}

/// Fill a topic, then fetch it from the start repeatedly, with one request in flight per connection.
#[derive(Args, Debug)]
pub(crate) struct BenchFetchArgs {
    #[command(flatten)]
    pub(crate) common: BenchKafkaCommon,
    #[command(flatten)]
    pub(crate) batch: BenchBatchArgs,
    /// MiB to produce first; 0 fetches the existing records
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) fill: u32,
    /// Maximum bytes of one partition in a response
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) partition_bytes: u32,
}

/// Keep consumers waiting on an empty topic, each with long polls of half a second.
#[derive(Args, Debug)]
pub(crate) struct BenchIdleArgs {
    #[command(flatten)]
    pub(crate) common: BenchKafkaCommon,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem bench kafka produce                                         one connection at full speed
  mainstem bench kafka produce --acks all --window 64 --broker-pid $(pidof mainstem)
  mainstem bench kafka produce --connections 4 --partitions 4 --records 1200 --compression zstd
  mainstem bench kafka produce --records 1 --rate 1000 --consume       latency from produce to fetch
  mainstem bench kafka fetch --fill 1024 --partitions 4
  mainstem bench kafka idle --connections 100 --broker-pid $(pidof mainstem)

Exit status: 0 when the run completed; 1 when it could not, or batches were rejected or lost.";
