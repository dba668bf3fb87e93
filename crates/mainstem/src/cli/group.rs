//! Flags of `mainstem group`.

use clap::{ArgGroup, Args, Subcommand};

use super::kafka::{KafkaArgs, Position, parse_position, parse_topic_partitions};

/// Show consumer groups, set their offsets, and delete them.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    pub(crate) command: GroupCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,
}

/// Subcommands of `mainstem group`.
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
    /// Delete groups without members, and their offsets
    Delete {
        /// Groups
        #[arg(value_name = "GROUP", required = true)]
        groups: Vec<String>,
    },
    /// Set the offsets of a group without members
    ResetOffsets(ResetOffsetsArgs),
}

/// Flags of `mainstem group reset-offsets`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("where").required(true).args(["to", "shift_by"]))]
#[command(group = ArgGroup::new("what").required(true).args(["topic", "all_topics"]))]
pub(crate) struct ResetOffsetsArgs {
    /// Group
    pub(crate) group: String,
    /// Topic, optionally with partitions; may be repeated
    #[arg(short, long, value_name = "TOPIC[:N,…]", value_parser = parse_topic_partitions)]
    pub(crate) topic: Vec<(String, Vec<i32>)>,
    /// All topics for which the group has offsets
    #[arg(long)]
    pub(crate) all_topics: bool,
    /// New position: beginning, end, an offset, -N before the end, or @MS since 1970
    #[arg(long, value_name = "WHERE", value_parser = parse_position, allow_hyphen_values = true)]
    pub(crate) to: Option<Position>,
    /// Number of records to move from the current position; negative to move back
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) shift_by: Option<i64>,
    /// Print the new offsets without setting them
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

const AFTER_HELP: &str = "\
Examples:
  mainstem group list
  mainstem group describe billing
  mainstem group reset-offsets billing -t orders --to beginning
  mainstem group reset-offsets billing --all-topics --shift-by -100 --dry-run

Exit status: 0 when everything succeeded; 1 when something failed, with the reason on stderr; 2 for an invalid flag.";
