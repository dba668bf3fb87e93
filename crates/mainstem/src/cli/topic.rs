//! Flags of `mainstem topic`.

use clap::{Args, Subcommand};

use super::connect::parse_pair;
use super::kafka::KafkaArgs;

/// Kafka topics: make, show, change and delete them.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TopicArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: TopicCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,
}

/// What `mainstem topic` does.
#[derive(Subcommand, Debug)]
pub(crate) enum TopicCommand {
    /// Make topics
    Create(TopicCreateArgs),
    /// Print the names of all topics
    List {
        /// Also those that the broker keeps for itself
        #[arg(long)]
        internal: bool,
    },
    /// Print partitions, offsets and configuration
    Describe {
        /// Topics; without any, all of them
        #[arg(value_name = "TOPIC")]
        topics: Vec<String>,
    },
    /// Delete topics and all that is in them
    Delete {
        /// Topics
        #[arg(value_name = "TOPIC", required = true)]
        topics: Vec<String>,
        /// A topic that is not there is no error
        #[arg(long)]
        if_exists: bool,
    },
    /// Print or change the configuration of a topic
    Config(TopicConfigArgs),
}

/// Flags of `mainstem topic create`.
#[derive(Args, Debug)]
pub(crate) struct TopicCreateArgs {
    /// Topics
    #[arg(value_name = "TOPIC", required = true)]
    pub(crate) topics: Vec<String>,
    /// Number of partitions [default: the broker's]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) partitions: Option<i32>,
    /// Number of copies, for clusters that have more than one [default: the broker's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    pub(crate) replication_factor: Option<i16>,
    /// Configuration of the topics; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) config: Vec<(String, String)>,
    /// A topic that is there already is no error
    #[arg(long)]
    pub(crate) if_not_exists: bool,
}

/// Flags of `mainstem topic config`.
#[derive(Args, Debug)]
pub(crate) struct TopicConfigArgs {
    /// Topic
    pub(crate) topic: String,
    /// Set a key; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) set: Vec<(String, String)>,
    /// Give a key its default back; may be repeated
    #[arg(short, long, value_name = "KEY")]
    pub(crate) unset: Vec<String>,
    /// Let the topic have this many partitions, more than it has
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) partitions: Option<i32>,
    /// Also print what has its default
    #[arg(short, long)]
    pub(crate) all: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem topic create orders -p 6 -c retention.ms=86400000
  mainstem topic describe orders
  mainstem topic config orders --set cleanup.policy=compact --unset retention.ms
  mainstem topic delete orders

Exit status: 0 when all was done; 1 when something was refused, with the reason on stderr; 2 for a wrong flag.";
