//! Flags of `mainstem queue`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::connect::{parse_pair, parse_seconds};
use super::tls::TlsArgs;

/// Create, show, purge and delete work queues; send and receive messages.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    pub(crate) command: QueueCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Connection flags of the tools that use the HTTP API.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct HttpArgs {
    /// Address of the broker's HTTP API, or its URL: `https://host[:port]`
    #[arg(
        short = 'b',
        long,
        alias = "http",
        value_name = "HOST[:PORT]",
        default_value = "127.0.0.1:8080",
        global = true
    )]
    pub(crate) broker: String,
    /// Name of the user; also the environment variable `MAINSTEM_USERNAME`
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) username: Option<String>,
    /// Password of the user; also the environment variable `MAINSTEM_PASSWORD`, which other users of this machine
    /// do not see
    #[arg(long, value_name = "PASSWORD", global = true)]
    pub(crate) password: Option<String>,
    /// Longest wait for a response
    #[arg(
    long = "request-timeout",
    value_name = "SECONDS",
    default_value = "30",
    value_parser = parse_seconds,
    global = true
    )]
    pub(crate) request_timeout: Duration,
    /// Print no errors; rely on the exit status
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    /// TLS flags.
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Subcommands of `mainstem queue`.
#[derive(Subcommand, Debug)]
pub(crate) enum QueueCommand {
    /// Create a queue; succeeds if it exists with the same settings
    Create {
        /// Queue
        queue: String,
        /// Setting of the queue; may be repeated
        #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
        set: Vec<(String, String)>,
    },
    /// Change settings of a queue
    #[command(name = "config", alias = "configure")]
    Configure {
        /// Queue
        queue: String,
        /// Setting to change; may be repeated
        #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair, required = true)]
        set: Vec<(String, String)>,
    },
    /// Print all queues and their message counts
    List,
    /// Print the settings, message counts and groups of a queue
    Info {
        /// Queue
        queue: String,
        /// Print as JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Print unsettled messages without leasing them
    Peek(PeekArgs),
    /// Discard all messages
    Purge {
        /// Queue
        queue: String,
        /// Discard only for this group
        #[arg(short, long, value_name = "GROUP")]
        group: Option<String>,
    },
    /// Return dead letters to the queues they came from
    Redrive {
        /// Queue with the dead letters
        queue: String,
        /// Maximum number of messages [default: all]
        #[arg(short, long, value_name = "N")]
        max: Option<u64>,
    },
    /// Deliver settled messages to a group again
    Replay(ReplayArgs),
    /// Remove a group; the last group of a queue cannot be removed
    RemoveGroup {
        /// Queue
        queue: String,
        /// Group
        group: String,
    },
    /// Delete a queue and its messages
    Delete {
        /// Queue
        queue: String,
    },
    /// Send one message, or one per line of standard input
    Send(SendArgs),
    /// Receive messages and print them
    Receive(ReceiveArgs),
}

/// Flags of `mainstem queue peek`.
#[derive(Args, Debug)]
pub(crate) struct PeekArgs {
    /// Queue
    pub(crate) queue: String,
    /// Group whose view to show
    #[arg(short, long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: String,
    /// First offset to show
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub(crate) from: u64,
    /// Maximum number of messages
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) max: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Output of messages.
#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// Print in this format, see below
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "json", help_heading = "Output")]
    pub(crate) format: Option<String>,
    /// Print each message as one line of JSON
    #[arg(short = 'J', long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Flags of `mainstem queue replay`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("where").required(true).args(["from_offset", "from_time_ms"]))]
pub(crate) struct ReplayArgs {
    /// Queue
    pub(crate) queue: String,
    /// Group
    #[arg(short, long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: String,
    /// Start at this offset
    #[arg(long, value_name = "OFFSET")]
    pub(crate) from_offset: Option<u64>,
    /// Start at the first message at or after this time, in ms since 1970
    #[arg(long, value_name = "MS")]
    pub(crate) from_time_ms: Option<u64>,
}

/// Flags of `mainstem queue send`.
#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// Queue; created if it does not exist and the broker creates queues automatically
    pub(crate) queue: String,
    /// Send this text [default: send each line of standard input that is not empty]
    #[arg(allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// Key; messages with the same key are delivered one at a time, in order
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// Priority; messages with a higher priority are delivered first
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) priority: Option<u8>,
    /// Delay before the first delivery
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) delay: Option<Duration>,
    /// Time after which the message expires
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) ttl: Option<Duration>,
    /// Deduplication id; a later message with the same id within the queue's window is discarded
    #[arg(long, value_name = "TEXT")]
    pub(crate) dedup_id: Option<String>,
    /// Header; may be repeated
    #[arg(short = 'H', long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) header: Vec<(String, String)>,
    /// Print the offset of each message
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Flags of `mainstem queue receive`.
#[derive(Args, Debug)]
pub(crate) struct ReceiveArgs {
    /// Queue
    pub(crate) queue: String,
    /// Group to receive as
    #[arg(short, long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: String,
    /// Exit after this many messages
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit when no message arrives for this long; with status 27 if -c is not reached [default: wait forever]
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) wait: Option<Duration>,
    /// Maximum number of messages per request
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) max: u64,
    /// Duration of the lease [default: the queue's setting]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) lease: Option<Duration>,
    /// Acknowledge printed messages (default)
    #[arg(long, overrides_with = "no_ack")]
    pub(crate) ack: bool,
    /// Do not acknowledge: messages are delivered again when their lease ends
    #[arg(long, overrides_with = "ack")]
    pub(crate) no_ack: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

const AFTER_HELP: &str = "\
Format sequences (-f):
  %s body   %S its length   %k key   %K its length   %h headers as NAME=VALUE,…
  %q queue   %o offset   %c number of deliveries   %r receipt   %x state   %T arrival, ms since 1970
  %% a percent sign   \\n \\r \\t \\0 \\\\ \\xHH: escapes

Examples:
  mainstem queue create jobs --set lease_ms=60000 --set max_deliveries=3
  mainstem queue send jobs 'resize cat.png' --key cat.png
  cat urls | mainstem queue send jobs
  mainstem queue receive jobs                     print messages and acknowledge them
  mainstem queue receive jobs -W 0 -f '%o %s\\n'   without waiting for new messages
  mainstem queue peek jobs.dead -J
  mainstem queue redrive jobs.dead

Exit status: 0 when everything succeeded; 27 when -W expired before -c was reached; 1 when something failed, with the
reason on stderr; 2 for an invalid flag.";
