//! Flags of `mainstem bench`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::bench_kafka::BenchKafkaArgs;
use super::bench_queue::BenchQueueArgs;
use super::connect::{HostPort, parse_seconds};
use super::tls::TlsArgs;

/// Protocol to benchmark.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Benchmark an MQTT broker; counts delivered messages
    Mqtt(Box<BenchMqttArgs>),
    /// Benchmark a Kafka broker with preencoded batches; counts acknowledged or fetched records
    Kafka(Box<BenchKafkaArgs>),
    /// Benchmark work queues over MQTT, NATS or AMQP; counts acknowledged or received messages
    Queue(Box<BenchQueueArgs>),
}

/// How publishers and subscribers are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScenarioArg {
    /// Every subscriber subscribes to every topic
    FanOut,
    /// Each publisher has its own topic; each subscriber subscribes to a part of the topics with a wildcard
    FanIn,
    /// Publisher i publishes to subscriber i
    Pairs,
    /// The subscribers form one shared subscription
    Shared,
}

/// Which part of a run with stored messages to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartArg {
    /// Store, then fetch
    Both,
    /// Store only
    Store,
    /// Fetch only
    Fetch,
}

/// Benchmark an MQTT broker and report throughput, latency and cost.
///
/// Each payload has the scheduled time of its message and a sequence number, so late, lost, duplicate and reordered
/// messages are detected. With --rate, the load follows a fixed schedule whether or not the broker keeps up (open
/// loop), and latency is measured from the scheduled time. With --window, each publisher keeps a fixed number of
/// messages in flight (closed loop), which measures the highest throughput; with --in-flight, all publishers together.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchMqttArgs {
    /// Broker's host name or address, and port
    #[arg(short, long, alias = "host", value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub(crate) broker: HostPort,
    /// Broker's port, if --broker has none
    #[arg(long, value_name = "PORT", default_value_t = 1883)]
    pub(crate) port: u16,
    /// Protocol version: 5, or 4 for 3.1.1
    #[arg(long, value_name = "4|5", default_value_t = 5, value_parser = clap::value_parser!(u8).range(4..=5))]
    pub(crate) version: u8,
    /// How publishers and subscribers are connected [default: fan-out, or none with --idle, --retained or --queued]
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
    /// fan-in: every subscriber subscribes to every topic instead of a part of them
    #[arg(long)]
    pub(crate) overlap: bool,
    /// Quality of service of publishes and subscriptions
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) qos: u8,
    /// Payload size in bytes, at least 16
    #[arg(long, value_name = "BYTES", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(16..=268_000_000))]
    pub(crate) payload: u32,
    /// Open loop: messages per second of all publishers together
    #[arg(long, value_name = "MSG/S", conflicts_with = "window", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// Closed loop: messages in flight per publisher; at QoS 0, a message is in flight until all subscribers have
    /// received it, above QoS 0 until it is acknowledged [default without --rate: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) window: Option<u32>,
    /// Closed loop: messages in flight over all publishers, which send in turn; a message is in flight until all
    /// subscribers have received it
    #[arg(long, value_name = "N", conflicts_with_all = ["window", "rate"],
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) in_flight: Option<u32>,
    /// Open at most this many connections per second [default: as fast as possible]
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) connect_rate: Option<f64>,
    /// Open N idle connections first and keep them open
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) idle: u32,
    /// Store N retained messages ret/0, ret/1, ..., then let one new subscriber fetch them all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) retained: u32,
    /// Store N messages for --subscribers offline sessions, each for one session in turn or, with --topics 1, for all;
    /// then let the sessions reconnect and receive them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) queued: u32,
    /// With --retained or --queued: only store, or only fetch what an earlier run stored
    #[arg(long, value_enum, value_name = "PART", default_value_t = PartArg::Both)]
    pub(crate) part: PartArg,
    /// Give subscribers persistent sessions
    #[arg(long)]
    pub(crate) durable: bool,
    /// Above QoS 0 with --rate: maximum number of unacknowledged messages per publisher
    #[arg(long, value_name = "N", default_value_t = 65_535, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_inflight: u16,
    /// Receive maximum of the subscribers (version 5); they acknowledge immediately, in one write per batch
    #[arg(long, value_name = "N", default_value_t = 65_535, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) receive_maximum: u16,
    /// With --rate: shortest sleep between messages; longer sleeps cost less CPU and add to the latency
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) tick: u32,
    /// Threads of the load generator; each serves a part of the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// User name for every connection
    #[arg(long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Password for every connection
    #[arg(long, value_name = "PASSWORD", requires = "username")]
    pub(crate) password: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    /// Print a line per second on stderr, even if it is not a terminal
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Duration of the measurement, and output.
#[derive(Args, Debug)]
pub(crate) struct MeasureArgs {
    /// Seconds to measure; a maximum for `queue consume`
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) duration: Duration,
    /// Seconds of load before the measurement; ignored if the run first fills a topic or a queue
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    pub(crate) warmup: Duration,
    /// Longest wait for messages in flight after the load ends
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) drain: Duration,
    /// Process id of the broker, to report its CPU time, memory and context switches from /proc
    #[arg(long, value_name = "PID")]
    pub(crate) broker_pid: Option<u32>,
    /// Print one line of JSON on stdout, and the table on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem bench mqtt --subscribers 1000 --rate 100                        fan-out at 100,000 deliveries/s
  mainstem bench mqtt --subscribers 1000 --window 10                       fan-out at full speed
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
