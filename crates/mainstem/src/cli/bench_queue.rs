//! Flags of `mainstem bench queue`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use mainstem_bench::{QueueDurability, QueueType};

use super::bench::{MeasureArgs, parse_rate};
use super::connect::parse_seconds;

/// Load a server of work queues, and report rates, latencies and what they cost.
///
/// The same generator speaks MQTT 5 (queues are below `$queue/`), AMQP 0-9-1 (RabbitMQ) and NATS (JetStream). Each
/// payload says which message it is, and at the end the server is asked how many messages it still has.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchQueueArgs {
    /// What is done
    #[command(subcommand)]
    pub(crate) work: BenchQueueWork,
}

/// What is done.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchQueueWork {
    /// Put messages in: so many in flight, or on schedule
    Enqueue(BenchEnqueueArgs),
    /// Fill the queue, then take out and acknowledge what is there
    Consume(BenchConsumeArgs),
    /// Put messages in on schedule, and take them out at the same time
    Flow(BenchFlowArgs),
}

/// What all kinds of work take.
#[derive(Args, Debug)]
pub(crate) struct BenchQueueCommon {
    /// Server's host name or address
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Server's port [default: that of the protocol]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// What is spoken there
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t = QueueProtocolArg::Mqtt)]
    pub(crate) protocol: QueueProtocolArg,
    /// MQTT: the HTTP API that makes the queue and counts its messages; without it, neither is done
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// MQTT: when a message is acknowledged, set where the queue is made
    #[arg(long, value_enum, value_name = "DURABILITY", default_value_t = QueueDurabilityArg::Fsync)]
    pub(crate) durability: QueueDurabilityArg,
    /// AMQP: the type of the queue
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = QueueTypeArg::Quorum)]
    pub(crate) queue_type: QueueTypeArg,
    /// Queue, made if it is not there; it should be empty [default: a new one]
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Connections that put messages in
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) publishers: u32,
    /// Messages that each of them has in flight, unacknowledged
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) in_flight: u32,
    /// Bytes of a payload
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    pub(crate) payload: u32,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// Who takes messages out.
#[derive(Args, Debug)]
pub(crate) struct BenchConsumersArgs {
    /// Connections that take messages out; each message goes to one of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) consumers: u32,
    /// Messages that each of them may have unacknowledged
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) prefetch: u16,
}

/// What the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueProtocolArg {
    /// MQTT 5
    Mqtt,
    /// NATS with JetStream
    Nats,
    /// AMQP 0-9-1
    Amqp,
}

/// When a message counts as kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueDurabilityArg {
    /// Once the disk has it
    Fsync,
    /// Once the system has it
    Os,
}

impl From<QueueDurabilityArg> for QueueDurability {
    fn from(durability: QueueDurabilityArg) -> Self {
        match durability {
            QueueDurabilityArg::Fsync => Self::Fsync,
            QueueDurabilityArg::Os => Self::Os,
        }
    }
}

/// Types of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueTypeArg {
    /// A replicated log
    Quorum,
    /// What all queues once were
    Classic,
    /// FluxMQ's, below `$queue/`, which does not say how many messages it has
    Flux,
}

impl From<QueueTypeArg> for QueueType {
    fn from(queue_type: QueueTypeArg) -> Self {
        match queue_type {
            QueueTypeArg::Quorum => Self::Quorum,
            QueueTypeArg::Classic => Self::Classic,
            QueueTypeArg::Flux => Self::Flux,
        }
    }
}

/// Put messages in: so many in flight for each publisher (closed loop), or on schedule (open loop).
///
/// In an open loop, latency counts from the moment a message was due, so a server that stalls cannot hide it.
#[derive(Args, Debug)]
pub(crate) struct BenchEnqueueArgs {
    #[command(flatten)]
    pub(crate) common: BenchQueueCommon,
    /// Open loop: messages per second, over all publishers
    #[arg(long, value_name = "MESSAGES/S", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
}

/// Fill the queue, then take out and acknowledge what is there.
#[derive(Args, Debug)]
pub(crate) struct BenchConsumeArgs {
    #[command(flatten)]
    pub(crate) common: BenchQueueCommon,
    #[command(flatten)]
    pub(crate) consumers: BenchConsumersArgs,
    /// Messages to fill it with
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) messages: u32,
    /// Most seconds to fill it; what is there then has to do
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_seconds)]
    pub(crate) fill: Duration,
}

/// Put messages in on schedule, and take them out at the same time; latency counts from the moment a message was due.
#[derive(Args, Debug)]
pub(crate) struct BenchFlowArgs {
    #[command(flatten)]
    pub(crate) common: BenchQueueCommon,
    #[command(flatten)]
    pub(crate) consumers: BenchConsumersArgs,
    /// Messages per second, over all publishers
    #[arg(long, value_name = "MESSAGES/S", default_value = "1000", value_parser = parse_rate)]
    pub(crate) rate: f64,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem bench queue enqueue --http 127.0.0.1:8080 --broker-pid $(pidof mainstem)
  mainstem bench queue consume --http 127.0.0.1:8080 --durability os --consumers 4
  mainstem bench queue consume --protocol amqp --queue-type classic --payload 1024
  mainstem bench queue flow --protocol nats --rate 2000

Exit status: 0 when the run completed; 1 when it could not, or messages were refused, lost or not settled.";
