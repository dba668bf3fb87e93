//! The command line: every subcommand and flag, as clap types. What they do lives in `serve` and `tool`.
//!
//! `mainstem` alone is `mainstem serve`, and serve's flags work with or without the word.

mod bench;
mod bench_kafka;
mod bench_queue;
mod binding;
mod connect;
mod consume;
mod group;
mod kafka;
mod produce;
mod publish;
mod queue;
mod subscribe;
mod topic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

pub(crate) use bench::{BenchCommand, BenchMqttArgs, PartArg, ScenarioArg};
pub(crate) use bench_kafka::{AcksArg, BenchBatchArgs, BenchKafkaArgs, BenchKafkaCommon, BenchKafkaWork};
pub(crate) use bench_queue::{
    BenchConsumersArgs, BenchQueueArgs, BenchQueueCommon, BenchQueueWork, QueueProtocolArg,
};
pub(crate) use binding::{BindingAddArgs, BindingArgs, BindingCommand};
pub(crate) use connect::{ConnectArgs, PacketKind, PropertyArg};
pub(crate) use consume::ConsumeArgs;
pub(crate) use group::{GroupArgs, GroupCommand, ResetOffsetsArgs};
pub(crate) use kafka::{KafkaArgs, Position};
pub(crate) use produce::ProduceArgs;
pub(crate) use publish::PubArgs;
pub(crate) use queue::{
    HttpArgs, OutputArgs, PeekArgs, QueueArgs, QueueCommand, ReceiveArgs, ReplayArgs, SendArgs,
};
pub(crate) use subscribe::SubArgs;
pub(crate) use topic::{TopicArgs, TopicCommand, TopicConfigArgs, TopicCreateArgs};

/// Reads the process's arguments. Prints help, version or a usage error and exits where those are due.
pub(crate) fn parse() -> Command {
    Cli::parse().into_command()
}

/// What the process was asked to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the broker (what `mainstem` does without a subcommand)
    Serve(ServeArgs),
    /// Publish messages: one, one per line of standard input, or a file
    Pub(Box<PubArgs>),
    /// Subscribe and print what arrives
    Sub(Box<SubArgs>),
    /// Make, show, change and delete Kafka topics
    Topic(Box<TopicArgs>),
    /// Append records to a Kafka topic
    Produce(Box<ProduceArgs>),
    /// Print the records of Kafka topics
    Consume(Box<ConsumeArgs>),
    /// Show and change consumer groups
    Group(Box<GroupArgs>),
    /// Make, show, empty and delete work queues; send messages and receive them
    Queue(Box<QueueArgs>),
    /// Show, add and remove bindings between MQTT topics, work queues and Kafka topics
    Binding(Box<BindingArgs>),
    /// Put load on a broker and measure it
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print the reference page of the configuration, from which docs/configuration.md is made
    #[command(hide = true)]
    ConfigReference,
}

/// Flags of `mainstem serve`; each overrides the configuration file.
#[derive(Args, Debug, Default)]
pub(crate) struct ServeArgs {
    /// TOML configuration file; without one, every key has its default
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: ./data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where MQTT clients connect; port 0 takes a free one, printed on stdout [default: 127.0.0.1:1883]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where Kafka clients connect; port 0 takes a free one, printed on stdout [default: 127.0.0.1:9092]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) kafka_listen: Option<SocketAddr>,
    /// Where the operations door listens, for HTTP; port 0 takes a free one, printed on stdout [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) http_listen: Option<SocketAddr>,
    /// Threads that serve connections; 0 means one per core [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,
    /// Override one configuration key, for example `mqtt.max_queued_messages=10`; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
}

/// One `--set section.key=value`, split but not yet interpreted.
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

/// A broker for MQTT in one binary. Without a subcommand it serves.
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
    use super::*;
    use clap::CommandFactory;

    fn parsed(line: &str) -> Command {
        Cli::try_parse_from(line.split_whitespace()).expect(line).into_command()
    }

    fn refused(line: &str) -> String {
        Cli::try_parse_from(line.split_whitespace()).expect_err(line).to_string()
    }

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_subcommand_means_serve_with_the_same_flags() {
        for line in
            ["mainstem --listen 127.0.0.1:0 --shards 2", "mainstem serve --listen 127.0.0.1:0 --shards 2"]
        {
            let Command::Serve(args) = parsed(line) else { panic!("{line} is not serve") };
            assert_eq!(args.listen, Some("127.0.0.1:0".parse().unwrap()));
            assert_eq!(args.shards, Some(2));
        }
        let Command::Serve(args) = parsed("mainstem") else { panic!("not serve") };
        assert!(args.config.is_none() && args.set.is_empty());
    }

    #[test]
    fn settings_split_at_the_first_equals_sign() {
        let Command::Serve(args) = parsed("mainstem --set mqtt.server_reference=a=b --set server.data=x")
        else {
            panic!("not serve")
        };
        assert_eq!(args.set[0], Setting { key: "mqtt.server_reference".into(), value: "a=b".into() });
        assert_eq!(args.set.len(), 2);
        assert!(refused("mainstem --set shards=1").contains("must name its section"));
        assert!(refused("mainstem --set mqtt.x").contains("SECTION.KEY=VALUE"));
    }

    #[test]
    fn pub_takes_the_familiar_short_flags() {
        let Command::Pub(args) =
            parsed("mainstem pub -h broker -p 1884 -t a/b -m hi -q 1 -r -i me -k 5 -u joe -P pw -V 311")
        else {
            panic!("not pub")
        };
        assert_eq!((args.connect.host.as_str(), args.connect.port), ("broker", Some(1884)));
        assert_eq!(args.topic.as_deref(), Some("a/b"));
        assert_eq!(args.message.as_deref(), Some("hi"));
        assert!(args.retain);
        assert_eq!(args.qos as u8, 1);
        assert_eq!(args.connect.protocol as u8, 4);
    }

    #[test]
    fn pub_takes_exactly_one_source_of_payload() {
        assert!(refused("mainstem pub -t a").contains("required"));
        assert!(refused("mainstem pub -t a -m x -l").contains("cannot be used with"));
        assert!(refused("mainstem pub -t a -n -s").contains("cannot be used with"));
    }

    #[test]
    fn properties_are_grouped_by_what_they_name() {
        let Command::Pub(args) = parsed(
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
    fn sub_needs_something_to_do() {
        assert!(refused("mainstem sub").contains("required"));
        assert!(refused("mainstem sub -t a --json -F %p").contains("cannot be used with"));
        assert!(refused("mainstem sub -t a -R --retained-only").contains("cannot be used with"));
        let Command::Sub(args) = parsed("mainstem sub -t a -t b -C 3 -W 1.5 -T x/# -v") else {
            panic!("not sub")
        };
        assert_eq!(args.topic, ["a", "b"]);
        assert_eq!(args.count, Some(3));
        assert_eq!(args.filter_out, ["x/#"]);
    }

    #[test]
    fn the_kafka_tools_take_their_broker_anywhere() {
        for line in ["mainstem topic -b h:1 describe orders", "mainstem topic describe orders --kafka h:1"] {
            let Command::Topic(args) = parsed(line) else { panic!("{line} is not topic") };
            assert_eq!(args.kafka.kafka, "h:1");
        }
        let Command::Group(args) = parsed("mainstem group list") else { panic!("not group") };
        assert_eq!(args.kafka.kafka, "127.0.0.1:9092");
    }

    #[test]
    fn produce_and_consume_refuse_what_contradicts() {
        assert!(refused("mainstem produce -m x").contains("--topic"));
        assert!(refused("mainstem produce -t t -m x -n").contains("cannot be used with"));
        assert!(refused("mainstem produce -t t -k a -K :").contains("cannot be used with"));
        assert!(refused("mainstem produce -t t -a 2").contains("expected 0, 1 or all"));
        assert!(refused("mainstem consume -t t -G g -p 0").contains("cannot be used with"));
        assert!(refused("mainstem group reset-offsets g -t t").contains("required"));
        assert!(refused("mainstem group reset-offsets g --to 0").contains("required"));
        let Command::Consume(args) = parsed("mainstem consume -t t -o -5 -u @9 -e") else {
            panic!("not consume")
        };
        assert_eq!((args.offset, args.until), (Some(Position::BeforeEnd(5)), Some(Position::Time(9))));
    }

    #[test]
    fn queue_takes_its_broker_anywhere_and_acknowledges_unless_told_otherwise() {
        for (line, no_ack) in [
            ("mainstem queue --http h:1 receive jobs -c 3 -W 0", false),
            ("mainstem queue receive jobs --no-ack --http h:1", true),
            ("mainstem queue receive jobs --no-ack --ack --http h:1", false),
        ] {
            let Command::Queue(args) = parsed(line) else { panic!("{line} is not queue") };
            assert_eq!(args.http.http, "h:1");
            let QueueCommand::Receive(args) = args.command else { panic!("{line} is not receive") };
            assert_eq!(args.no_ack, no_ack, "{line}");
        }
        assert!(refused("mainstem queue send jobs x --priority 10").contains("0..=9"));
        assert!(refused("mainstem queue configure jobs").contains("--set"));
        assert!(refused("mainstem queue replay jobs").contains("required"));
        assert!(refused("mainstem queue peek jobs -J -f x").contains("cannot be used with"));
    }

    #[test]
    fn bench_knows_its_two_kinds_of_load() {
        let Command::Bench(BenchCommand::Mqtt(args)) =
            parsed("mainstem bench mqtt --scenario pairs --publishers 4 --window 8 --qos 2 --payload 64")
        else {
            panic!("not bench mqtt")
        };
        assert_eq!((args.publishers, args.window, args.qos, args.payload), (Some(4), Some(8), 2, 64));
        assert!(refused("mainstem bench mqtt --rate 5 --window 8").contains("cannot be used with"));
        assert!(refused("mainstem bench mqtt --payload 15").contains("15"));
        let Command::Bench(BenchCommand::Kafka(args)) =
            parsed("mainstem bench kafka produce --acks ALL --rate 2000 --records 10 --consume")
        else {
            panic!("not bench kafka")
        };
        let BenchKafkaWork::Produce(args) = args.work else { panic!("not produce") };
        assert_eq!((args.acks, args.rate, args.batch.records), (AcksArg::All, Some(2000.0), 10));
        assert!(refused("mainstem bench kafka produce --rate 5 --window 8").contains("cannot be used with"));
        assert!(refused("mainstem bench kafka").contains("produce"));
    }
}
