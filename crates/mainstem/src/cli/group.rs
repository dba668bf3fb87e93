//! Flags of `mainstem group`.

use clap::{ArgGroup, Args, Subcommand};

use super::kafka::{KafkaArgs, Position, parse_position, parse_topic_partitions};

/// Consumer groups: show them, set their offsets, delete them.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct GroupArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: GroupCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,
}

/// What `mainstem group` does.
#[derive(Subcommand, Debug)]
pub(crate) enum GroupCommand {
    /// Print all groups and their states
    List,
    /// Print members, offsets and lag
    Describe {
        /// Groups
        #[arg(value_name = "GROUP", required = true)]
        groups: Vec<String>,
    },
    /// Delete groups that have no members, with their offsets
    Delete {
        /// Groups
        #[arg(value_name = "GROUP", required = true)]
        groups: Vec<String>,
    },
    /// Set the offsets of a group that has no members
    ResetOffsets(ResetOffsetsArgs),
}

/// Flags of `mainstem group reset-offsets`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("where").required(true).args(["to", "shift_by"]))]
#[command(group = ArgGroup::new("what").required(true).args(["topic", "all_topics"]))]
pub(crate) struct ResetOffsetsArgs {
    /// Group
    pub(crate) group: String,
    /// Topic, or some of its partitions; may be repeated
    #[arg(short, long, value_name = "TOPIC[:N,…]", value_parser = parse_topic_partitions)]
    pub(crate) topic: Vec<(String, Vec<i32>)>,
    /// All topics that the group has offsets of
    #[arg(long)]
    pub(crate) all_topics: bool,
    /// Where to: beginning, end, an offset, -N before the end, or @MS since 1970
    #[arg(long, value_name = "WHERE", value_parser = parse_position, allow_hyphen_values = true)]
    pub(crate) to: Option<Position>,
    /// By how much, from where the group is; below zero for back
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) shift_by: Option<i64>,
    /// Only print what would be set
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem group list
  mainstem group describe billing
  mainstem group reset-offsets billing -t orders --to beginning
  mainstem group reset-offsets billing --all-topics --shift-by -100 --dry-run

Exit status: 0 when all was done; 1 when something was refused, with the reason on stderr; 2 for a wrong flag.";
