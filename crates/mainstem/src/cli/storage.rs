//! Flags of `mainstem verify` and `mainstem repair`.

use std::path::PathBuf;

use clap::Args;

const VERIFY_HELP: &str = "\
Reads every checkpoint, journal, segment, checksum and index below DIR and changes nothing. Stop the broker first.
Exit status: 0 if every durable record is readable, 1 if not, 2 if DIR cannot be checked.";

const REPAIR_HELP: &str = "\
Copies every damaged file to DIR/damaged, keeps all records that are readable, lets readers skip the others, and rebuilds
damaged indexes. Stop the broker first. Exit status: 0 if nothing is damaged any more, 1 if a repair is needed, 2 if it
failed.";

/// Check a data directory offline.
#[derive(Args, Debug)]
#[command(after_help = VERIFY_HELP)]
pub(crate) struct VerifyArgs {
    /// Data directory of a broker, or directory of embedded queues
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub(crate) data: PathBuf,
    /// Print one JSON object
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// Accept the loss of damaged records in a data directory, offline.
#[derive(Args, Debug)]
#[command(after_help = REPAIR_HELP)]
pub(crate) struct RepairArgs {
    /// Data directory of a broker, or directory of embedded queues
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub(crate) data: PathBuf,
    /// Only print what is damaged and what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}
