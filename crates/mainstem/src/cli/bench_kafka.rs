//! Flags of `mainstem bench kafka`.

use clap::{Args, Subcommand, ValueEnum};
use mainstem_log::Compression;

use super::bench::{MeasureArgs, parse_rate};

/// Load a Kafka broker with batches that were encoded before, and report rates, latencies and what they cost.
///
/// Each request has one batch; all batches are the same. A topic that the broker did not have is made. All
/// partitions must live on the broker that is named.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchKafkaArgs {
    /// What is done
    #[command(subcommand)]
    pub(crate) work: BenchKafkaWork,
}

/// What is done.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchKafkaWork {
    /// Produce: so many requests in flight, or on schedule
    Produce(BenchProduceArgs),
    /// Fill a topic, then read it from its start again and again
    Fetch(BenchFetchArgs),
    /// Let consumers wait at the end of an empty topic
    Idle(BenchIdleArgs),
}

/// What all kinds of work take.
#[derive(Args, Debug)]
pub(crate) struct BenchKafkaCommon {
    /// Broker's host name or address
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Broker's port
    #[arg(long, value_name = "PORT", default_value_t = 9092)]
    pub(crate) port: u16,
    /// Topic, made if it is not there [default: a new one]
    #[arg(long, value_name = "NAME")]
    pub(crate) topic: Option<String>,
    /// Partitions, if the topic is made
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) partitions: u32,
    /// Connections; the partitions are dealt out among them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) connections: u32,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// What a batch looks like.
#[derive(Args, Debug)]
pub(crate) struct BenchBatchArgs {
    /// Records in a batch
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) records: u32,
    /// Bytes of a record's value
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) record_bytes: u32,
    /// How batches are compressed
    #[arg(long, value_enum, value_name = "CODEC", default_value_t = CodecArg::None)]
    pub(crate) compression: CodecArg,
}

/// Codecs of record batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodecArg {
    /// Not at all
    None,
    /// gzip
    Gzip,
    /// snappy, framed as Java does
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

/// Whose acknowledgement producers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcksArg {
    /// Nobody's
    #[value(name = "0")]
    None,
    /// The leader's
    #[value(name = "1")]
    Leader,
    /// That of all replicas in sync
    All,
}

/// Produce: so many requests in flight on each connection (closed loop), or on schedule (open loop).
///
/// In an open loop, latency counts from the moment a request was due, so a broker that stalls cannot hide it.
#[derive(Args, Debug)]
pub(crate) struct BenchProduceArgs {
    #[command(flatten)]
    pub(crate) common: BenchKafkaCommon,
    #[command(flatten)]
    pub(crate) batch: BenchBatchArgs,
    /// Whose acknowledgement a producer waits for
    #[arg(long, value_enum, value_name = "0|1|ALL", ignore_case = true, default_value_t = AcksArg::Leader)]
    pub(crate) acks: AcksArg,
    /// Open loop: requests per second, over all connections
    #[arg(long, value_name = "REQUESTS/S", conflicts_with = "window", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Closed loop: requests in flight on each connection [default without --rate: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) window: Option<u32>,
    /// Read everything by long polls at the same time, on one more connection, and report how late it comes
    #[arg(long)]
    pub(crate) consume: bool,
}

/// Fill a topic, then read it from its start again and again, with one request in flight on each connection.
#[derive(Args, Debug)]
pub(crate) struct BenchFetchArgs {
    #[command(flatten)]
    pub(crate) common: BenchKafkaCommon,
    #[command(flatten)]
    pub(crate) batch: BenchBatchArgs,
    /// What to produce first, in MiB; 0 reads what the topic has
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) fill: u32,
    /// Most bytes of one partition in one answer
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) partition_bytes: u32,
}

/// Let consumers wait at the end of an empty topic, each by long polls of half a second.
#[derive(Args, Debug)]
pub(crate) struct BenchIdleArgs {
    #[command(flatten)]
    pub(crate) common: BenchKafkaCommon,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem bench kafka produce                                         as fast as one connection goes
  mainstem bench kafka produce --acks all --window 64 --broker-pid $(pidof mainstem)
  mainstem bench kafka produce --connections 4 --partitions 4 --records 1200 --compression zstd
  mainstem bench kafka produce --records 1 --rate 1000 --consume       produce to fetch
  mainstem bench kafka fetch --fill 1024 --partitions 4
  mainstem bench kafka idle --connections 100 --broker-pid $(pidof mainstem)

Exit status: 0 when the run completed; 1 when it could not, or batches were refused or lost.";
