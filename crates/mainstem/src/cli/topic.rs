//! Flags of `mainstem topic`.

use clap::{Args, Subcommand};

use super::connect::parse_pair;
use super::kafka::KafkaArgs;

/// Create, show, change and delete Kafka topics.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TopicArgs {
    #[command(subcommand)]
    pub(crate) command: TopicCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,
}

/// Subcommands of `mainstem topic`.
#[derive(Subcommand, Debug)]
pub(crate) enum TopicCommand {
    /// Create topics
    Create(TopicCreateArgs),
    /// Print the names of all topics
    List {
        /// Include internal topics
        #[arg(long)]
        internal: bool,
    },
    /// Print partitions, offsets and configuration
    Describe {
        /// Topics [default: all]
        #[arg(value_name = "TOPIC")]
        topics: Vec<String>,
    },
    /// Delete topics and their records
    Delete {
        /// Topics
        #[arg(value_name = "TOPIC", required = true)]
        topics: Vec<String>,
        /// Ignore topics that do not exist
        #[arg(long)]
        if_exists: bool,
    },
    /// Print or change the configuration of a topic
    #[command(alias = "configure")]
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
    /// Number of replicas, for clusters with several brokers [default: the broker's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    pub(crate) replication_factor: Option<i16>,
    /// Configuration of the topics; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) config: Vec<(String, String)>,
    /// Ignore topics that exist
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
    /// Reset a key to its default; may be repeated
    #[arg(short, long, value_name = "KEY")]
    pub(crate) unset: Vec<String>,
    /// Increase the number of partitions to this
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) partitions: Option<i32>,
    /// Print keys with default values too
    #[arg(short, long)]
    pub(crate) all: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem topic create orders -p 6 -c retention.ms=86400000
  mainstem topic describe orders
  mainstem topic config orders --set cleanup.policy=compact --unset retention.ms
  mainstem topic delete orders

Exit status: 0 when everything succeeded; 1 when something failed, with the reason on stderr; 2 for an invalid flag.";
