//! Flags of `mainstem binding`.

use clap::{ArgGroup, Args, Subcommand};

use super::connect::parse_pair;
use super::queue::HttpArgs;

/// Bindings between MQTT topics, work queues and Kafka topics: show, add and remove them.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BindingArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: BindingCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// What `mainstem binding` does.
#[derive(Subcommand, Debug)]
pub(crate) enum BindingCommand {
    /// Print all bindings
    List {
        /// Print each as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Add a binding; one that is there and the same is no error
    Add(Box<BindingAddArgs>),
    /// Remove a binding that was added
    Remove {
        /// Name
        binding: String,
    },
}

/// Flags of `mainstem binding add`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("from").required(true).args(["from_mqtt", "from_topic"]))]
#[command(group = ArgGroup::new("to").required(true).args(["to_topic", "to_queue", "to_mqtt"]))]
pub(crate) struct BindingAddArgs {
    /// What it is called
    pub(crate) binding: String,
    /// Messages that meet this topic filter
    #[arg(long, value_name = "FILTER")]
    pub(crate) from_mqtt: Option<String>,
    /// Records of this Kafka topic
    #[arg(long, value_name = "TOPIC", requires = "to_mqtt")]
    pub(crate) from_topic: Option<String>,
    /// Become records of this Kafka topic
    #[arg(long, value_name = "TOPIC", requires = "from_mqtt")]
    pub(crate) to_topic: Option<String>,
    /// Go into this work queue
    #[arg(long, value_name = "QUEUE", requires = "from_mqtt")]
    pub(crate) to_queue: Option<String>,
    /// Are published to this topic name, in which {key}, {topic}, {partition}, {offset} and {header:NAME} stand for parts of a
    /// record
    #[arg(long, value_name = "TEMPLATE", requires = "from_topic")]
    pub(crate) to_mqtt: Option<String>,
    /// What becomes the key: topic, level:N, client or none
    #[arg(short, long, value_name = "WHAT", requires = "from_mqtt")]
    pub(crate) key: Option<String>,
    /// Partitions of a topic that is made
    #[arg(long, value_name = "N", requires = "to_topic")]
    pub(crate) partitions: Option<u16>,
    /// When a record of a topic that is made counts as kept: fsync or os
    #[arg(long, value_name = "WHEN", requires = "to_topic")]
    pub(crate) durability: Option<String>,
    /// Set a key of a topic that is made; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair, requires = "to_topic")]
    pub(crate) set: Vec<(String, String)>,
    /// With which quality of service it is published
    #[arg(short, long, value_name = "N", requires = "to_mqtt")]
    pub(crate) qos: Option<u8>,
    /// Publish it retained
    #[arg(short, long, requires = "to_mqtt")]
    pub(crate) retain: bool,
    /// Begin with all records that there are
    #[arg(long, requires = "to_mqtt")]
    pub(crate) from_beginning: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem binding add telemetry --from-mqtt 'plant/+/temp' --to-topic telemetry --partitions 4
  mainstem binding add alarms --from-mqtt 'plant/+/alarm' --to-queue alarms
  mainstem binding add commands --from-topic commands --to-mqtt 'plant/{key}/set'";
