//! Flags of `mainstem sub`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use mainstem_mqtt::packet::QoS;

use super::connect::{ConnectArgs, parse_qos, parse_seconds};

/// Subscribe to topic filters and print messages.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = AFTER_HELP)]
#[command(group = ArgGroup::new("work").required(true).multiple(true).args(["topic", "unsubscribe", "url"]))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct SubArgs {
    /// Topic filter, also $share/GROUP/FILTER; may be repeated
    #[arg(short, long, value_name = "FILTER")]
    pub(crate) topic: Vec<String>,
    /// Do not print topics that match this filter; may be repeated
    #[arg(short = 'T', long, value_name = "FILTER")]
    pub(crate) filter_out: Vec<String>,
    /// Unsubscribe from this filter after subscribing; may be repeated
    #[arg(short = 'U', long, value_name = "FILTER")]
    pub(crate) unsubscribe: Vec<String>,
    /// Highest quality of service to receive: 0, 1 or 2 [default: 1 for work queues, otherwise 0]
    #[arg(short, long, value_name = "QOS", value_parser = parse_qos)]
    pub(crate) qos: Option<QoS>,
    /// Exit after this many messages
    #[arg(short = 'C', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit this many seconds after connecting, with status 27
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Exit once the broker has acknowledged the subscriptions
    #[arg(short = 'E', long)]
    pub(crate) exit_subscribed: bool,
    /// Reconnect when the connection breaks, with 1 to 30 seconds between attempts
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// Do not print retained messages
    #[arg(short = 'R', long)]
    pub(crate) no_retained: bool,
    /// Print retained messages only, and exit at the first other message
    #[arg(long, conflicts_with = "no_retained")]
    pub(crate) retained_only: bool,
    /// Clear every received retained message that is not filtered out
    #[arg(long)]
    pub(crate) remove_retained: bool,
    /// Print the topic before the payload
    #[arg(short, long, help_heading = "Output")]
    pub(crate) verbose: bool,
    /// Print in this format, see below
    #[arg(short = 'F', long, value_name = "FORMAT", conflicts_with_all = ["verbose", "json"], help_heading = "Output")]
    pub(crate) format: Option<String>,
    /// Print each message as one line of JSON with all its properties
    #[arg(long, conflicts_with = "verbose", help_heading = "Output")]
    pub(crate) json: bool,
    /// Do not print a newline after each message
    #[arg(short = 'N', long, help_heading = "Output")]
    pub(crate) no_newline: bool,
    /// Do not receive messages published by this client
    #[arg(long, help_heading = "Subscription options (version 5)")]
    pub(crate) no_local: bool,
    /// Keep the retain flag as it was published
    #[arg(long, help_heading = "Subscription options (version 5)")]
    pub(crate) retain_as_published: bool,
    /// Retained messages on subscribe: 0 send, 1 send for a new subscription only, 2 do not send
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2),
          help_heading = "Subscription options (version 5)")]
    pub(crate) retain_handling: u8,
    /// Subscription identifier, which the broker attaches to each message
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=268_435_455),
          help_heading = "Subscription options (version 5)")]
    pub(crate) subscription_id: Option<u32>,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help, help_heading = "Help")]
    pub(crate) help: Option<bool>,
}

const AFTER_HELP: &str = "\
Format sequences (-F), each with an optional width as in %-20t, %06l or %.10t:
  %t topic          %p payload          %x %X payload in hex      %l payload length     %q QoS
  %r retain flag    %m packet id        %d duplicate flag         %I date and time      %U unix time
  %j JSON, payload as text   %J JSON, payload as JSON   %A topic alias   %C content type
  %D correlation data   %E message expiry   %F payload format   %P user properties
  %R response topic     %S subscription id  %% a percent sign
  @Y @m @d @H @M @S @N @j @F @T @s @@: date and time in UTC     \\n \\t \\r \\0 \\a \\e \\v \\\\: escapes

Examples:
  mainstem sub -t 'plant/#' -v                           all topics under plant, with topic names
  mainstem sub -t plant/7/temp -C 1                      print one message and exit
  mainstem sub -t 'plant/+/temp' -F '@F @T %t %p'        with a time stamp
  mainstem sub -t '$share/workers/jobs' -q 1 --json      as a member of a shared subscription
  mainstem sub -t '$queue/jobs' -C 1                     receive and acknowledge a message of a work queue
  mainstem sub -t '#' --retained-only --remove-retained  clear all retained messages

Exit status: 0 after -C messages, an interrupt, or -E; 27 when -W expired; the reason code (128 and above)
when the broker refused the connection or every subscription; 1 for any other error; 2 for an invalid flag.";
