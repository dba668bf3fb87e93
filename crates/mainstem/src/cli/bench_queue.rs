//! Flags of `mainstem bench queue`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use mainstem_bench::{QueueDurability, QueueType};

use super::bench::{MeasureArgs, parse_rate};
use super::connect::HostPort;
use super::connect::parse_seconds;

/// Benchmark work queues, and report throughput, latency and cost.
///
/// The same load generator supports MQTT 5 (queues at `$queue/NAME`), AMQP 0-9-1 (RabbitMQ) and NATS (JetStream). Each
/// payload has the number of its message. At the end, the run compares the number of messages left on the server.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchQueueArgs {
    #[command(subcommand)]
    pub(crate) work: BenchQueueWork,
}

/// Workloads.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchQueueWork {
    /// Send messages with a fixed number in flight, or on a schedule
    Enqueue(BenchEnqueueArgs),
    /// Fill the queue, then receive and acknowledge all messages
    Consume(BenchConsumeArgs),
    /// Send messages on a schedule and receive them at the same time
    Flow(BenchFlowArgs),
}

/// Flags of all workloads.
#[derive(Args, Debug)]
pub(crate) struct BenchQueueCommon {
    /// Server's host name or address, and port
    #[arg(short, long, alias = "host", value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub(crate) broker: HostPort,
    /// Server's port, if --broker has none [default: depends on the protocol]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Protocol of the server
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t = QueueProtocolArg::Mqtt)]
    pub(crate) protocol: QueueProtocolArg,
    /// MQTT: address of the HTTP API, to create the queue and count its messages [default: do neither]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// MQTT: durability of the queue if it is created
    #[arg(long, value_enum, value_name = "DURABILITY", default_value_t = QueueDurabilityArg::Fsync)]
    pub(crate) durability: QueueDurabilityArg,
    /// AMQP: type of the queue
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = QueueTypeArg::Quorum)]
    pub(crate) queue_type: QueueTypeArg,
    /// Queue, created if it does not exist; should be empty [default: a new queue]
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Sending connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) publishers: u32,
    /// Unacknowledged messages per sending connection
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) in_flight: u32,
    /// Payload size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    pub(crate) payload: u32,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// Consumers.
#[derive(Args, Debug)]
pub(crate) struct BenchConsumersArgs {
    /// Receiving connections; each message goes to one of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) consumers: u32,
    /// Maximum number of unacknowledged messages per receiving connection
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) prefetch: u16,
}

/// Protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueProtocolArg {
    /// MQTT 5
    Mqtt,
    /// NATS with JetStream
    Nats,
    /// AMQP 0-9-1
    Amqp,
}

/// When a message is acknowledged to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueDurabilityArg {
    /// Once it is on disk
    Fsync,
    /// Once the operating system has it
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

/// Types of AMQP queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueTypeArg {
    /// A quorum queue: a replicated log
    Quorum,
    /// A classic queue
    Classic,
    /// A FluxMQ queue at `$queue/NAME`; its messages cannot be counted
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

/// Send messages with a fixed number in flight per publisher (closed loop), or on a schedule (open loop).
///
/// In an open loop, latency is measured from the scheduled time of a message, so that it includes stalls of the server.
#[derive(Args, Debug)]
pub(crate) struct BenchEnqueueArgs {
    #[command(flatten)]
    pub(crate) common: BenchQueueCommon,
    /// Open loop: messages per second of all publishers together
    #[arg(long, value_name = "MESSAGES/S", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
}

/// Fill the queue, then receive and acknowledge all messages.
#[derive(Args, Debug)]
pub(crate) struct BenchConsumeArgs {
    #[command(flatten)]
    pub(crate) common: BenchQueueCommon,
    #[command(flatten)]
    pub(crate) consumers: BenchConsumersArgs,
    /// Messages to send first
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) messages: u32,
    /// Longest time for filling the queue; the run goes on with the messages sent by then
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_seconds)]
    pub(crate) fill: Duration,
}

/// Send messages on a schedule and receive them at the same time. Latency is measured from the scheduled time.
#[derive(Args, Debug)]
pub(crate) struct BenchFlowArgs {
    #[command(flatten)]
    pub(crate) common: BenchQueueCommon,
    #[command(flatten)]
    pub(crate) consumers: BenchConsumersArgs,
    /// Messages per second of all publishers together
    #[arg(long, value_name = "MESSAGES/S", default_value = "1000", value_parser = parse_rate)]
    pub(crate) rate: f64,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem bench queue enqueue --http 127.0.0.1:8080 --broker-pid $(pidof mainstem)
  mainstem bench queue consume --http 127.0.0.1:8080 --durability os --consumers 4
  mainstem bench queue consume --protocol amqp --queue-type classic --payload 1024
  mainstem bench queue flow --protocol nats --rate 2000

Exit status: 0 when the run completed; 1 when it could not, or messages were rejected, lost or not settled.";
