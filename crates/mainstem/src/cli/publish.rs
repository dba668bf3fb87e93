//! Flags of `mainstem pub`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use mainstem_mqtt::packet::QoS;

use super::connect::{ConnectArgs, parse_pair, parse_qos, parse_seconds};

/// Publish messages to one topic, wait until the broker has acknowledged them, and exit.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = AFTER_HELP)]
#[command(group = ArgGroup::new("source").required(true).args(["message", "file", "lines", "null", "stdin"]))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct PubArgs {
    /// Topic to publish to; --url may name it instead
    #[arg(short, long, value_name = "TOPIC", required_unless_present = "url")]
    pub(crate) topic: Option<String>,
    /// Publish this text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) message: Option<String>,
    /// Publish the contents of a file as one message
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Publish each line of standard input as a message
    #[arg(short = 'l', long = "stdin-line")]
    pub(crate) lines: bool,
    /// Publish an empty message; with --retain, this clears the retained message
    #[arg(short, long = "null-message")]
    pub(crate) null: bool,
    /// Publish all of standard input as one message
    #[arg(short = 's', long = "stdin-file")]
    pub(crate) stdin: bool,
    /// Quality of service: 0 at most once, 1 at least once, 2 exactly once
    #[arg(short, long, value_name = "QOS", default_value = "0", value_parser = parse_qos)]
    pub(crate) qos: QoS,
    /// Publish as a retained message, which later subscribers receive
    #[arg(short, long)]
    pub(crate) retain: bool,
    /// Publish the message this many times
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "lines",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) repeat: u64,
    /// Pause between repetitions, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub(crate) repeat_delay: Duration,
    /// Maximum number of unacknowledged messages (also limited by the broker's receive maximum)
    #[arg(short = 'M', long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_inflight: u16,
    /// Longest wait for an acknowledgement
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub(crate) ack_timeout: Duration,
    /// User property of the message; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair, help_heading = "Message properties (version 5)")]
    pub(crate) user_property: Vec<(String, String)>,
    /// Content type
    #[arg(long, value_name = "TEXT", help_heading = "Message properties (version 5)")]
    pub(crate) content_type: Option<String>,
    /// Response topic
    #[arg(long, value_name = "TOPIC", help_heading = "Message properties (version 5)")]
    pub(crate) response_topic: Option<String>,
    /// Correlation data
    #[arg(long, value_name = "TEXT", help_heading = "Message properties (version 5)")]
    pub(crate) correlation_data: Option<String>,
    /// Message expiry, in seconds
    #[arg(long, value_name = "SECONDS", help_heading = "Message properties (version 5)")]
    pub(crate) message_expiry: Option<u32>,
    /// Topic alias: send the topic once, then only this number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "Message properties (version 5)")]
    pub(crate) topic_alias: Option<u16>,
    /// Payload format indicator: 1 for UTF-8 text, 0 for bytes
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1),
          help_heading = "Message properties (version 5)")]
    pub(crate) payload_format: Option<u8>,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help, help_heading = "Help")]
    pub(crate) help: Option<bool>,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem pub -t plant/7/temp -m 21.5                   one message
  mainstem pub -t plant/7/temp -m 21.5 -q 1 -r           acknowledged and retained
  mainstem pub -t plant/7/temp -n -r                     clear the retained message
  tail -f app.log | mainstem pub -t logs/app -l -q 1     one message per line
  mainstem pub -t rpc/add -m '[1,2]' --response-topic rpc/reply --correlation-data 17

Exit status: 0 when every message was sent and, above QoS 0, acknowledged; the reason code (128 and above) when
the broker refused the connection or a message; 1 for any other error; 2 for an invalid flag.";
