//! Flags of `mainstem backup` and `mainstem restore`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};

use super::queue::HttpArgs;

const BACKUP_HELP: &str = "\
TARGET is a directory, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX; credentials come from the
usual environment variables. A running broker takes a snapshot, for which it stops for some milliseconds; run the
command on its machine, as its user. What the newest backup has already is not stored again.";

const RESTORE_HELP: &str = "\
The data directory must be missing or empty. Until everything is restored and checked, no broker starts on it.";

/// Back up the data of a broker, while it runs.
#[derive(Args, Debug)]
#[command(after_help = BACKUP_HELP, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BackupCommand>,
    /// Where to store the backup
    #[arg(required = true)]
    pub(crate) target: Option<String>,
    /// Back up this data directory, which no broker uses
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem backup`.
#[derive(Subcommand, Debug)]
pub(crate) enum BackupCommand {
    /// List the backups, oldest first
    List {
        /// Where the backups are
        target: String,
        /// Print one JSON object per line
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Read everything that a backup needs, and compare it with its checksums
    Check {
        /// Where the backups are
        target: String,
        /// Which backup.
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Remove old backups, and what only they need
    Prune {
        /// Where the backups are
        target: String,
        /// How many backups stay, the newest ones
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        /// How long what another command may be using stays: backups that were the newest, and new objects
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
        grace: Duration,
    },
}

/// Restore a data directory from a backup.
#[derive(Args, Debug)]
#[command(after_help = RESTORE_HELP)]
pub(crate) struct RestoreArgs {
    /// Where the backups are
    pub(crate) target: String,
    /// Data directory to restore into
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub(crate) data: PathBuf,
    /// Which backup.
    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// A backup; the newest without a flag.
#[derive(Args, Debug)]
pub(crate) struct WhichArgs {
    /// The backup with this identifier
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// The newest backup that is not later, such as `2027-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "id")]
    pub(crate) at: Option<u64>,
}

/// Parses a duration such as `24h` or `1h 30m`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(duration).map_err(|_| "it is negative".to_owned())
}

/// Parses a time in UTC as Unix time in ms.
fn parse_time(text: &str) -> Result<u64, String> {
    let time: Timestamp = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    u64::try_from(time.as_millisecond()).map_err(|_| "it is before 1970".to_owned())
}

/// A Unix time in ms as text, in UTC.
pub(crate) fn format_time(unix_ms: u64) -> String {
    let time = Timestamp::from_second((unix_ms / 1000).cast_signed());
    time.map_or_else(|_| unix_ms.to_string(), |time| time.to_string())
}
