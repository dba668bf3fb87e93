//! Flags of `mainstem consume`.

use std::time::Duration;

use clap::Args;

use super::connect::parse_seconds;
use super::kafka::{KafkaArgs, Position, parse_position};

/// Print the records of Kafka topics as they come.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ConsumeArgs {
    /// Topic; may be repeated
    #[arg(short, long, value_name = "TOPIC", required = true)]
    pub(crate) topic: Vec<String>,
    /// Partition; may be repeated [default: all]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Vec<i32>,
    /// Where to begin: beginning, end, stored, an offset, -N before the end, or @MS since 1970
    /// [default: beginning, or stored with -G]
    #[arg(short, long, value_name = "WHERE", value_parser = parse_position, allow_hyphen_values = true)]
    pub(crate) offset: Option<Position>,
    /// Where to stop, in the same words, for each partition
    #[arg(short, long, value_name = "WHERE", value_parser = parse_position, allow_hyphen_values = true)]
    pub(crate) until: Option<Position>,
    /// Share the partitions with the other members of this group, and commit what has been printed
    #[arg(short = 'G', long, value_name = "GROUP", conflicts_with_all = ["partition", "until"])]
    pub(crate) group: Option<String>,
    /// Exit after this many records
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit at the end of all partitions instead of waiting for more
    #[arg(short, long)]
    pub(crate) exit: bool,
    /// Exit after this many seconds, with status 27
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Also print records of transactions that are open or were aborted
    #[arg(long)]
    pub(crate) uncommitted: bool,
    /// Print by a format, see below
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "json", help_heading = "Output")]
    pub(crate) format: Option<String>,
    /// Print each record as one line of JSON
    #[arg(short = 'J', long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,
}

const AFTER_HELP: &str = "\
Format sequences (-f):
  %s value   %S its length, -1 without one   %k key   %K its length   %h headers as NAME=VALUE,…
  %t topic   %p partition   %o offset   %T timestamp, ms since 1970   %% a percent sign
  \\n \\r \\t \\0 \\\\ \\xHH: escapes

Examples:
  mainstem consume -t orders                           from the beginning, and on as records come
  mainstem consume -t orders -o end -f '%p %o %k %s\\n'  only what is new
  mainstem consume -t orders -o -10 -e                 the last ten of each partition
  mainstem consume -t orders -G billing                share the work, go on where the group left off

Exit status: 0 after -c records, at the ends with -e or -u, or after an interrupt; 27 when -W ran out; 1 for any
error; 2 for a wrong flag.";
