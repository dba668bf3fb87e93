//! Flags of `mainstem queue`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::connect::{parse_pair, parse_seconds};

/// Work queues: make, show, empty and delete them; send messages and receive them.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct QueueArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: QueueCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Connection flags of the tools that speak HTTP.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct HttpArgs {
    /// Operations door of the broker
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", global = true)]
    pub(crate) http: String,
    /// Longest time to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds, global = true)]
    pub(crate) patience: Duration,
    /// Print no errors; the exit status still tells
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
}

/// What `mainstem queue` does.
#[derive(Subcommand, Debug)]
pub(crate) enum QueueCommand {
    /// Make a queue; one that is there and set to the same is no error
    Create {
        /// Queue
        queue: String,
        /// Set a key; may be repeated
        #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
        set: Vec<(String, String)>,
    },
    /// Set some keys of a queue to something else
    Configure {
        /// Queue
        queue: String,
        /// Set a key; may be repeated
        #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair, required = true)]
        set: Vec<(String, String)>,
    },
    /// Print all queues and how many messages they have
    List,
    /// Print what a queue is set to, its messages and its groups
    Info {
        /// Queue
        queue: String,
        /// Print it as JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Print messages that are not settled, without taking them
    Peek(PeekArgs),
    /// Throw away all messages
    Purge {
        /// Queue
        queue: String,
        /// Only those of one group
        #[arg(short, long, value_name = "GROUP")]
        group: Option<String>,
    },
    /// Send dead letters back to the queues they came from
    Redrive {
        /// Queue that has them
        queue: String,
        /// Most messages [default: all]
        #[arg(short, long, value_name = "N")]
        max: Option<u64>,
    },
    /// Let a group have messages again that it has settled
    Replay(ReplayArgs),
    /// Remove a group, and what it has not settled; the only one of a queue stays
    RemoveGroup {
        /// Queue
        queue: String,
        /// Group
        group: String,
    },
    /// Delete a queue and all that is in it
    Delete {
        /// Queue
        queue: String,
    },
    /// Send messages: one, or one per line of standard input
    Send(SendArgs),
    /// Take messages and print them
    Receive(ReceiveArgs),
}

/// Flags of `mainstem queue peek`.
#[derive(Args, Debug)]
pub(crate) struct PeekArgs {
    /// Queue
    pub(crate) queue: String,
    /// As which group has them
    #[arg(short, long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: String,
    /// The first offset
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub(crate) from: u64,
    /// Most messages
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) max: u64,
    /// How they are printed.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How messages are printed.
#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// Print by a format, see below
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
    /// From this offset on
    #[arg(long, value_name = "OFFSET")]
    pub(crate) from_offset: Option<u64>,
    /// From the first message of this time on, ms since 1970
    #[arg(long, value_name = "MS")]
    pub(crate) from_time_ms: Option<u64>,
}

/// Flags of `mainstem queue send`.
#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// Queue; made by the broker if it is not there and the broker does such things
    pub(crate) queue: String,
    /// Send this text; without it, each line of standard input that is not empty
    #[arg(allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// Key: messages with the same are delivered one after the other
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// Messages with a higher priority come first
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) priority: Option<u8>,
    /// Deliver after this time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) delay: Option<Duration>,
    /// Deliver no more after this time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) ttl: Option<Duration>,
    /// Of messages with the same identifier only the first counts, within the queue's window
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
    /// Group whose messages these are
    #[arg(short, long, value_name = "GROUP", default_value = "default")]
    pub(crate) group: String,
    /// Exit after this many messages
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit when no message comes for this long; with -c, and too few, with status 27 [default: wait for ever]
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) wait: Option<Duration>,
    /// Most messages that are taken at once
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) max: u64,
    /// How long messages are taken for [default: as the queue says]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) lease: Option<Duration>,
    /// Acknowledge what has been printed (what happens anyhow)
    #[arg(long, overrides_with = "no_ack")]
    pub(crate) ack: bool,
    /// Only print: messages come again when their lease ends
    #[arg(long, overrides_with = "ack")]
    pub(crate) no_ack: bool,
    /// How they are printed.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

const AFTER_HELP: &str = "\
Format sequences (-f):
  %s body   %S its length   %k key   %K its length   %h headers as NAME=VALUE,…
  %q queue   %o offset   %c how often it was delivered   %r receipt   %x state   %T arrival, ms since 1970
  %% a percent sign   \\n \\r \\t \\0 \\\\ \\xHH: escapes

Examples:
  mainstem queue create jobs --set lease_ms=60000 --set max_deliveries=3
  mainstem queue send jobs 'resize cat.png' --key cat.png
  cat urls | mainstem queue send jobs
  mainstem queue receive jobs                     print what comes, and acknowledge it
  mainstem queue receive jobs -W 0 -f '%o %s\\n'   only what is there
  mainstem queue peek jobs.dead -J
  mainstem queue redrive jobs.dead

Exit status: 0 when all was done; 27 when -W ran out before -c; 1 when something was refused, with the reason on
stderr; 2 for a wrong flag.";
