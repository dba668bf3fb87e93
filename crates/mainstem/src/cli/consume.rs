//! Flags of `mainstem consume`.

use std::time::Duration;

use clap::Args;

use super::connect::parse_seconds;
use super::kafka::{KafkaArgs, Position, parse_position};

/// Print the records of Kafka topics.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ConsumeArgs {
    /// Topic; may be repeated
    #[arg(short, long, value_name = "TOPIC", required = true)]
    pub(crate) topic: Vec<String>,
    /// Partition; may be repeated [default: all]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Vec<i32>,
    /// Start position: beginning, end, stored, an offset, -N before the end, or @MS since 1970
    /// [default: beginning, or stored with -G]
    #[arg(short, long, value_name = "WHERE", value_parser = parse_position, allow_hyphen_values = true)]
    pub(crate) offset: Option<Position>,
    /// End position of each partition, in the same notation
    #[arg(short, long, value_name = "WHERE", value_parser = parse_position, allow_hyphen_values = true)]
    pub(crate) until: Option<Position>,
    /// Join this consumer group, and commit the offsets of printed records
    #[arg(short = 'G', long, value_name = "GROUP", conflicts_with_all = ["partition", "until"])]
    pub(crate) group: Option<String>,
    /// Exit after this many records
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit at the end of all partitions instead of waiting for new records
    #[arg(short, long)]
    pub(crate) exit: bool,
    /// Exit after this many seconds, with status 27
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Print records of open and aborted transactions too
    #[arg(long)]
    pub(crate) uncommitted: bool,
    /// Print in this format, see below
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
  mainstem consume -t orders                           from the beginning, then new records
  mainstem consume -t orders -o end -f '%p %o %k %s\\n'  only new records
  mainstem consume -t orders -o -10 -e                 the last ten records of each partition
  mainstem consume -t orders -G billing                as a group member, from the committed offsets

Exit status: 0 after -c records, at the end with -e or -u, or after an interrupt; 27 when -W expired; 1 for any
error; 2 for an invalid flag.";
