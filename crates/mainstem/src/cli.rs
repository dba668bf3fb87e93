//! The command line: every subcommand and flag, as clap types. `serve` and `tool` implement them.
//!
//! `mainstem` without a subcommand is `mainstem serve`, with the same flags.

mod backup;
mod bench;
mod bench_kafka;
mod bench_queue;
mod binding;
mod cert;
mod config;
mod connect;
mod consume;
mod group;
mod kafka;
mod key;
mod monitoring;
mod produce;
mod publish;
mod queue;
mod quota;
mod storage;
mod subscribe;
mod tls;
mod topic;
mod user;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

pub(crate) use backup::{BackupArgs, BackupCommand, RestoreArgs, WhichArgs, format_time};
pub(crate) use bench::{BenchCommand, BenchMqttArgs, PartArg, ScenarioArg};
pub(crate) use bench_kafka::{AcksArg, BenchBatchArgs, BenchKafkaArgs, BenchKafkaCommon, BenchKafkaWork};
pub(crate) use bench_queue::{
    BenchConsumersArgs, BenchQueueArgs, BenchQueueCommon, BenchQueueWork, QueueProtocolArg,
};
pub(crate) use binding::{BindingAddArgs, BindingArgs, BindingCommand};
pub(crate) use cert::CertArgs;
pub(crate) use config::{ConfigArgs, ConfigCommand, ConfigReloadArgs, ConfigSourceArgs};
pub(crate) use connect::{ConnectArgs, HostPort, PacketKind, PropertyArg, with_default_port};
pub(crate) use consume::ConsumeArgs;
pub(crate) use group::{GroupArgs, GroupCommand, ResetOffsetsArgs};
pub(crate) use kafka::{KafkaArgs, Position};
pub(crate) use key::{KeyArgs, KeyCommand};
pub(crate) use monitoring::{MonitoringArgs, MonitoringCommand};
pub(crate) use produce::ProduceArgs;
pub(crate) use publish::PubArgs;
pub(crate) use queue::{
    HttpArgs, OutputArgs, PeekArgs, QueueArgs, QueueCommand, ReceiveArgs, ReplayArgs, SendArgs,
};
pub(crate) use quota::{BanArgs, BanCommand, BanSubjectArgs, EntityArgs, QuotaArgs, QuotaCommand};
pub(crate) use storage::{RepairArgs, VerifyArgs};
pub(crate) use subscribe::SubArgs;
pub(crate) use tls::TlsArgs;
pub(crate) use topic::{TopicArgs, TopicCommand, TopicConfigArgs, TopicCreateArgs};
pub(crate) use user::{
    AclAddArgs, AclArgs, AclCommand, AclExplainArgs, NewPasswordArgs, UserArgs, UserCommand,
};

/// Parses the arguments of the process. Exits after printing help, the version or a usage error.
pub(crate) fn parse() -> Command {
    Cli::parse().into_command()
}

/// The subcommand to run.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the broker (default without a subcommand)
    Serve(ServeArgs),
    /// Publish MQTT messages: one, one per line of standard input, or a file
    Pub(Box<PubArgs>),
    /// Subscribe to MQTT topics and print messages
    Sub(Box<SubArgs>),
    /// Create, show, change and delete Kafka topics
    Topic(Box<TopicArgs>),
    /// Append records to a Kafka topic
    Produce(Box<ProduceArgs>),
    /// Print the records of Kafka topics
    Consume(Box<ConsumeArgs>),
    /// Show and change consumer groups
    Group(Box<GroupArgs>),
    /// Create, show, purge and delete work queues; send and receive messages
    Queue(Box<QueueArgs>),
    /// Show, add and remove bindings between MQTT topics, work queues and Kafka topics
    Binding(Box<BindingArgs>),
    /// Add, show, change and delete users
    User(Box<UserArgs>),
    /// Add, show and delete API keys, with which programs log in
    Key(Box<KeyArgs>),
    /// Add, show, delete and explain access rules
    Acl(Box<AclArgs>),
    /// Set, show and delete quotas of users, client ids and addresses
    Quota(Box<QuotaArgs>),
    /// Ban users, client ids and networks
    Ban(Box<BanArgs>),
    /// Make certificates for TLS: an authority, the broker's and those of clients
    Cert(CertArgs),
    /// Check, show, compare and reload configurations
    Config(Box<ConfigArgs>),
    /// Print dashboards for Grafana and alerts for Prometheus
    Monitoring(MonitoringArgs),
    /// Benchmark a broker
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Back up a running broker to a directory or an object store; list, check and prune backups
    Backup(Box<BackupArgs>),
    /// Restore a data directory from a backup
    Restore(RestoreArgs),
    /// Check every file of a data directory while no broker runs
    Verify(VerifyArgs),
    /// Repair a damaged data directory while no broker runs
    Repair(RepairArgs),
    /// Print the reference of all metrics, docs/metrics.md
    #[command(hide = true)]
    MetricsReference,
}

/// Flags of `mainstem serve`; each overrides the configuration file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeArgs {
    /// TOML configuration file [default: none, every key has its default]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: ./data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address or host name for MQTT clients; "" disables MQTT, port 0 picks a free port, printed on stdout
    /// [default: 127.0.0.1:1883]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// Address or host name for Kafka clients; "" disables Kafka, port 0 picks a free port, printed on stdout
    /// [default: 127.0.0.1:9092]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) kafka_listen: Option<String>,
    /// Address or host name of the HTTP API; "" disables it, port 0 picks a free port, printed on stdout
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) http_listen: Option<String>,
    /// Number of threads that serve connections; 0 means one per core [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,
    /// Override one configuration key, for example `mqtt.max_queued_messages=10`; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
}

/// One `--set section.key=value`. The value is not parsed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// `section.key`.
    pub(crate) key: String,
    /// The text after the first `=`.
    pub(crate) value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected SECTION.KEY=VALUE")?;
        let (section, name) =
            key.trim().split_once('.').ok_or("the key must name its section: SECTION.KEY")?;
        if section.is_empty() || name.is_empty() {
            return Err("the key must name its section: SECTION.KEY".into());
        }
        Ok(Self { key: key.trim().into(), value: value.trim().into() })
    }
}

/// A broker for MQTT, Kafka clients and work queues. Without a subcommand it runs the broker.
#[derive(Parser, Debug)]
#[command(name = "mainstem", version, args_conflicts_with_subcommands = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

impl Cli {
    fn into_command(self) -> Command {
        self.command.unwrap_or(Command::Serve(self.serve))
    }
}

#[cfg(test)]
mod tests {
    use super::connect::HostPort;
    use super::*;
    use clap::CommandFactory;

    fn parse_line(line: &str) -> Command {
        Cli::try_parse_from(line.split_whitespace()).expect(line).into_command()
    }

    fn usage_error(line: &str) -> String {
        Cli::try_parse_from(line.split_whitespace()).expect_err(line).to_string()
    }

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_the_default_subcommand() {
        for line in
            ["mainstem --listen 127.0.0.1:0 --shards 2", "mainstem serve --listen 127.0.0.1:0 --shards 2"]
        {
            let Command::Serve(args) = parse_line(line) else { panic!("{line} is not serve") };
            assert_eq!(args.listen.as_deref(), Some("127.0.0.1:0"));
            assert_eq!(args.shards, Some(2));
        }
        let Command::Serve(args) = parse_line("mainstem") else { panic!("not serve") };
        assert!(args.config.is_none() && args.set.is_empty());
    }

    #[test]
    fn settings_split_at_the_first_equals_sign() {
        let Command::Serve(args) = parse_line("mainstem --set mqtt.server_reference=a=b --set server.data=x")
        else {
            panic!("not serve")
        };
        assert_eq!(args.set[0], Setting { key: "mqtt.server_reference".into(), value: "a=b".into() });
        assert_eq!(args.set.len(), 2);
        assert!(usage_error("mainstem --set shards=1").contains("must name its section"));
        assert!(usage_error("mainstem --set mqtt.x").contains("SECTION.KEY=VALUE"));
    }

    #[test]
    fn pub_takes_the_short_flags_of_mosquitto() {
        let Command::Pub(args) =
            parse_line("mainstem pub -h broker -p 1884 -t a/b -m hi -q 1 -r -i me -k 5 -u joe -P pw -V 311")
        else {
            panic!("not pub")
        };
        let port_of_host = |host: &str| HostPort { host: host.into(), port: None };
        assert_eq!((&args.connect.broker, args.connect.port), (&port_of_host("broker"), Some(1884)));
        assert_eq!(args.topic.as_deref(), Some("a/b"));
        assert_eq!(args.message.as_deref(), Some("hi"));
        assert!(args.retain);
        assert_eq!(args.qos as u8, 1);
        assert_eq!(args.connect.protocol as u8, 4);
    }

    #[test]
    fn pub_takes_exactly_one_source_of_payload() {
        assert!(usage_error("mainstem pub -t a").contains("required"));
        assert!(usage_error("mainstem pub -t a -m x -l").contains("cannot be used with"));
        assert!(usage_error("mainstem pub -t a -n -s").contains("cannot be used with"));
    }

    #[test]
    fn groups_properties_by_packet() {
        let Command::Pub(args) = parse_line(
            "mainstem pub -t a -n -D publish user-property k v -D connect receive-maximum 9 -D PUBLISH content-type t/p",
        ) else {
            panic!("not pub")
        };
        let properties = args.connect.properties().unwrap();
        assert_eq!(
            properties,
            [
                PropertyArg::new(PacketKind::Publish, "user-property", "k", Some("v")),
                PropertyArg::new(PacketKind::Connect, "receive-maximum", "9", None),
                PropertyArg::new(PacketKind::Publish, "content-type", "t/p", None),
            ]
        );
    }

    #[test]
    fn sub_requires_a_topic() {
        assert!(usage_error("mainstem sub").contains("required"));
        assert!(usage_error("mainstem sub -t a --json -F %p").contains("cannot be used with"));
        assert!(usage_error("mainstem sub -t a -R --retained-only").contains("cannot be used with"));
        let Command::Sub(args) = parse_line("mainstem sub -t a -t b -C 3 -W 1.5 -T x/# -v") else {
            panic!("not sub")
        };
        assert_eq!(args.topic, ["a", "b"]);
        assert_eq!(args.count, Some(3));
        assert_eq!(args.filter_out, ["x/#"]);
    }

    #[test]
    fn kafka_tools_take_the_broker_flag_anywhere() {
        for line in ["mainstem topic -b h:1 describe orders", "mainstem topic describe orders --kafka h:1"] {
            let Command::Topic(args) = parse_line(line) else { panic!("{line} is not topic") };
            assert_eq!(args.kafka.broker, "h:1");
        }
        let Command::Group(args) = parse_line("mainstem group list") else { panic!("not group") };
        assert_eq!(args.kafka.broker, "127.0.0.1:9092");
    }

    #[test]
    fn every_client_tool_takes_the_same_broker_flag() {
        let broker = |line: &str| match parse_line(line) {
            Command::Pub(args) => args.connect.broker.to_string(),
            Command::Sub(args) => args.connect.broker.to_string(),
            Command::Topic(args) => args.kafka.broker,
            Command::Produce(args) => args.kafka.broker,
            Command::Consume(args) => args.kafka.broker,
            Command::Group(args) => args.kafka.broker,
            Command::Queue(args) => args.http.broker,
            Command::Binding(args) => args.http.broker,
            Command::User(args) => args.http.broker,
            Command::Key(args) => args.http.broker,
            Command::Acl(args) => args.http.broker,
            Command::Quota(args) => args.http.broker,
            Command::Ban(args) => args.http.broker,
            Command::Bench(BenchCommand::Mqtt(args)) => args.broker.to_string(),
            Command::Bench(BenchCommand::Kafka(args)) => match args.work {
                BenchKafkaWork::Idle(args) => args.common.broker.to_string(),
                _ => panic!("not idle"),
            },
            Command::Bench(BenchCommand::Queue(args)) => match args.work {
                BenchQueueWork::Enqueue(args) => args.common.broker.to_string(),
                _ => panic!("not enqueue"),
            },
            _ => panic!("{line} is no client tool"),
        };
        for tool in [
            "pub -t a -n",
            "sub -t a",
            "topic list",
            "produce -t a -n",
            "consume -t a",
            "group list",
            "queue list",
            "binding list",
            "user list",
            "key list",
            "acl list",
            "quota list",
            "ban list",
            "bench mqtt",
            "bench kafka idle",
            "bench queue enqueue",
        ] {
            for flag in ["--broker", "-b"] {
                assert_eq!(broker(&format!("mainstem {tool} {flag} h:1")), "h:1", "{tool} {flag}");
            }
        }
        for line in
            ["mainstem pub -t a -n --host h:1", "mainstem sub -t a -h h:1", "mainstem queue list --http h:1"]
        {
            assert_eq!(broker(line), "h:1");
        }
    }

    #[test]
    fn produce_and_consume_reject_contradicting_flags() {
        assert!(usage_error("mainstem produce -m x").contains("--topic"));
        assert!(usage_error("mainstem produce -t t -m x -n").contains("cannot be used with"));
        assert!(usage_error("mainstem produce -t t -k a -K :").contains("cannot be used with"));
        assert!(usage_error("mainstem produce -t t -a 2").contains("expected 0, 1 or all"));
        assert!(usage_error("mainstem consume -t t -G g -p 0").contains("cannot be used with"));
        assert!(usage_error("mainstem group reset-offsets g -t t").contains("required"));
        assert!(usage_error("mainstem group reset-offsets g --to 0").contains("required"));
        let Command::Consume(args) = parse_line("mainstem consume -t t -o -5 -u @9 -e") else {
            panic!("not consume")
        };
        assert_eq!((args.offset, args.until), (Some(Position::BeforeEnd(5)), Some(Position::Time(9))));
    }

    #[test]
    fn queue_takes_the_broker_flag_anywhere_and_acknowledges_by_default() {
        for (line, no_ack) in [
            ("mainstem queue --http h:1 receive jobs -c 3 -W 0", false),
            ("mainstem queue receive jobs --no-ack --http h:1", true),
            ("mainstem queue receive jobs --no-ack --ack --http h:1", false),
        ] {
            let Command::Queue(args) = parse_line(line) else { panic!("{line} is not queue") };
            assert_eq!(args.http.broker, "h:1");
            let QueueCommand::Receive(args) = args.command else { panic!("{line} is not receive") };
            assert_eq!(args.no_ack, no_ack, "{line}");
        }
        assert!(usage_error("mainstem queue send jobs x --priority 10").contains("0..=9"));
        assert!(usage_error("mainstem queue configure jobs").contains("--set"));
        assert!(usage_error("mainstem queue replay jobs").contains("required"));
        assert!(usage_error("mainstem queue peek jobs -J -f x").contains("cannot be used with"));
    }

    #[test]
    fn bench_takes_open_and_closed_loop_load() {
        let Command::Bench(BenchCommand::Mqtt(args)) =
            parse_line("mainstem bench mqtt --scenario pairs --publishers 4 --window 8 --qos 2 --payload 64")
        else {
            panic!("not bench mqtt")
        };
        assert_eq!((args.publishers, args.window, args.qos, args.payload), (Some(4), Some(8), 2, 64));
        assert!(usage_error("mainstem bench mqtt --rate 5 --window 8").contains("cannot be used with"));
        assert!(usage_error("mainstem bench mqtt --payload 15").contains("15"));
        let Command::Bench(BenchCommand::Kafka(args)) =
            parse_line("mainstem bench kafka produce --acks ALL --rate 2000 --records 10 --consume")
        else {
            panic!("not bench kafka")
        };
        let BenchKafkaWork::Produce(args) = args.work else { panic!("not produce") };
        assert_eq!((args.acks, args.rate, args.batch.records), (AcksArg::All, Some(2000.0), 10));
        assert!(
            usage_error("mainstem bench kafka produce --rate 5 --window 8").contains("cannot be used with")
        );
        assert!(usage_error("mainstem bench kafka").contains("produce"));
    }
}
