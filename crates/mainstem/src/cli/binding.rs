//! Flags of `mainstem binding`.

use clap::{ArgGroup, Args, Subcommand};

use super::connect::parse_pair;
use super::queue::HttpArgs;

/// Show, add and remove bindings between MQTT topics, work queues and Kafka topics.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BindingArgs {
    #[command(subcommand)]
    pub(crate) command: BindingCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem binding`.
#[derive(Subcommand, Debug)]
pub(crate) enum BindingCommand {
    /// Print all bindings
    List {
        /// Print each binding as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Add a binding; succeeds if the same binding exists
    Add(Box<BindingAddArgs>),
    /// Remove a binding; those declared in the configuration cannot be removed
    Remove {
        /// Name of the binding
        binding: String,
    },
}

/// Flags of `mainstem binding add`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("from").required(true).args(["from_mqtt", "from_topic"]))]
#[command(group = ArgGroup::new("to").required(true).args(["to_topic", "to_queue", "to_mqtt"]))]
pub(crate) struct BindingAddArgs {
    /// Name of the binding
    pub(crate) binding: String,
    /// Bind messages that match this topic filter
    #[arg(long, value_name = "FILTER")]
    pub(crate) from_mqtt: Option<String>,
    /// Bind records of this Kafka topic
    #[arg(long, value_name = "TOPIC", requires = "to_mqtt")]
    pub(crate) from_topic: Option<String>,
    /// Append to this Kafka topic
    #[arg(long, value_name = "TOPIC", requires = "from_mqtt")]
    pub(crate) to_topic: Option<String>,
    /// Send to this work queue
    #[arg(long, value_name = "QUEUE", requires = "from_mqtt")]
    pub(crate) to_queue: Option<String>,
    /// Publish to this topic name; {key}, {topic}, {partition}, {offset} and {header:NAME} are replaced by parts of the
    /// record
    #[arg(long, value_name = "TEMPLATE", requires = "from_topic")]
    pub(crate) to_mqtt: Option<String>,
    /// Source of the record or message key: topic, level:N, client or none
    #[arg(short, long, value_name = "WHAT", requires = "from_mqtt")]
    pub(crate) key: Option<String>,
    /// Number of partitions if the topic is created
    #[arg(long, value_name = "N", requires = "to_topic")]
    pub(crate) partitions: Option<u16>,
    /// Durability if the topic is created: fsync or os
    #[arg(long, value_name = "WHEN", requires = "to_topic")]
    pub(crate) durability: Option<String>,
    /// Configuration if the topic is created; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair, requires = "to_topic")]
    pub(crate) set: Vec<(String, String)>,
    /// Quality of service of the messages
    #[arg(short, long, value_name = "N", requires = "to_mqtt")]
    pub(crate) qos: Option<u8>,
    /// Publish retained messages
    #[arg(short, long, requires = "to_mqtt")]
    pub(crate) retain: bool,
    /// Start with the first record instead of the next one
    #[arg(long, requires = "to_mqtt")]
    pub(crate) from_beginning: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem binding add telemetry --from-mqtt 'plant/+/temp' --to-topic telemetry --partitions 4
  mainstem binding add alarms --from-mqtt 'plant/+/alarm' --to-queue alarms
  mainstem binding add commands --from-topic commands --to-mqtt 'plant/{key}/set'";
