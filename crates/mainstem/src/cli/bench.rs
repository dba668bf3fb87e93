//! Flags of `mainstem bench`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::bench_kafka::BenchKafkaArgs;
use super::bench_queue::BenchQueueArgs;
use super::connect::parse_seconds;

/// Kinds of load.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Load an MQTT broker; counts what is delivered, not what is sent
    Mqtt(Box<BenchMqttArgs>),
    /// Load a Kafka broker with batches encoded before; counts what is acknowledged or read
    Kafka(Box<BenchKafkaArgs>),
    /// Load a server of work queues over MQTT, NATS or AMQP; counts what is acknowledged or received
    Queue(Box<BenchQueueArgs>),
}

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScenarioArg {
    /// Every subscriber takes every topic
    FanOut,
    /// Each publisher has its own topic; the subscribers divide the topics by wildcard
    FanIn,
    /// Publisher i sends to subscriber i
    Pairs,
    /// The subscribers form one shared subscription
    Shared,
}

/// What is done of storing messages and fetching them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartArg {
    /// Store, then fetch
    Both,
    /// Store only
    Store,
    /// Fetch only
    Fetch,
}

/// Load an MQTT broker and report what it delivered, how late, and at what cost.
///
/// Every payload carries the moment its message was due and a sequence number, so that late, lost, repeated and
/// reordered messages are all found. With --rate the load follows a fixed schedule whether or not the broker
/// keeps up (open loop), and latency counts from the schedule. With --window each publisher keeps a fixed
/// number of messages in flight (closed loop), which finds the highest throughput.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchMqttArgs {
    /// Broker's host name or address
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Broker's port
    #[arg(long, value_name = "PORT", default_value_t = 1883)]
    pub(crate) port: u16,
    /// Protocol version: 5, or 4 for 3.1.1
    #[arg(long, value_name = "4|5", default_value_t = 5, value_parser = clap::value_parser!(u8).range(4..=5))]
    pub(crate) version: u8,
    /// Who talks to whom [default: fan-out, or none with --idle, --retained or --queued]
    #[arg(long, value_enum)]
    pub(crate) scenario: Option<ScenarioArg>,
    /// Publishing connections [default: 1; pairs: as many as subscribers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) publishers: Option<u32>,
    /// Subscribing connections [default: 1; pairs: as many as publishers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) subscribers: Option<u32>,
    /// Topics [default: fan-out and shared 1, fan-in and pairs one per publisher]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) topics: Option<u32>,
    /// fan-in: every subscriber takes every topic, instead of a part each
    #[arg(long)]
    pub(crate) overlap: bool,
    /// Quality of service of publishes and subscriptions
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) qos: u8,
    /// Payload size in bytes, at least 16
    #[arg(long, value_name = "BYTES", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(16..=268_000_000))]
    pub(crate) payload: u32,
    /// Open loop: messages per second, over all publishers
    #[arg(long, value_name = "MSG/S", conflicts_with = "window", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Closed loop: messages in flight per publisher; at QoS 0 a message is in flight until all its receivers
    /// have it, above until it is acknowledged [default without --rate: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) window: Option<u32>,
    /// Open at most this many connections per second [default: as fast as possible]
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) connect_rate: Option<f64>,
    /// Open N idle connections first, and keep them open
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) idle: u32,
    /// Store N retained messages ret/0, ret/1, ..., then let one new subscriber fetch them all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) retained: u32,
    /// Store N messages for sessions that are away, one for each of --subscribers sessions in turn or, with --topics 1,
    /// each for all; then let them come back for them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) queued: u32,
    /// With --retained or --queued: only store, or only fetch what another run stored
    #[arg(long, value_enum, value_name = "PART", default_value_t = PartArg::Both)]
    pub(crate) part: PartArg,
    /// Subscribers have sessions that outlive their connections
    #[arg(long)]
    pub(crate) durable: bool,
    /// Above QoS 0 with --rate: most unacknowledged messages per publisher
    #[arg(long, value_name = "N", default_value_t = 65_535, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_inflight: u16,
    /// Receive maximum of the subscribers (version 5); they acknowledge at once, in one write per turn
    #[arg(long, value_name = "N", default_value_t = 65_535, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) receive_maximum: u16,
    /// With --rate: shortest sleep between messages; longer costs the generator less, and adds to the latency
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) tick: u32,
    /// Threads of the generator; connections are dealt out among them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// User name for every connection
    #[arg(long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Password for every connection
    #[arg(long, value_name = "PASSWORD", requires = "username")]
    pub(crate) password: Option<String>,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    /// Print a line per second on stderr, even if that is no terminal
    #[arg(long)]
    pub(crate) progress: bool,
}

/// How long it is measured, and what is said of it.
#[derive(Args, Debug)]
pub(crate) struct MeasureArgs {
    /// Measured seconds; of `queue consume`, the most there are
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) duration: Duration,
    /// Seconds of load before the measured part; none where something is filled first
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    pub(crate) warmup: Duration,
    /// Longest wait for what is under way after the load ends
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) drain: Duration,
    /// Process of the broker: its CPU time, memory and context switches are read from /proc
    #[arg(long, value_name = "PID")]
    pub(crate) broker_pid: Option<u32>,
    /// Print one line of JSON on stdout, and the table on stderr instead
    #[arg(long)]
    pub(crate) json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem bench mqtt --subscribers 1000 --rate 100                        fan-out at 100,000 deliveries/s
  mainstem bench mqtt --subscribers 1000 --window 10                       fan-out, as fast as it goes
  mainstem bench mqtt --scenario pairs --publishers 100 --qos 1 --window 20
  mainstem bench mqtt --scenario fan-in --publishers 500 --subscribers 4 --rate 50000
  mainstem bench mqtt --scenario shared --publishers 4 --subscribers 16 --qos 1 --rate 20000
  mainstem bench mqtt --idle 10000 --duration 5 --broker-pid $(pidof mainstem)
  mainstem bench mqtt --retained 100000 --qos 1
  mainstem bench mqtt --queued 1000000 --subscribers 1000 --qos 1 --version 4

Exit status: 0 when the run completed; 1 when it could not start or a connection broke.";

/// A rate per second.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 && rate <= 1e9 => Ok(rate),
        _ => Err("expected a number per second above 0".into()),
    }
}
