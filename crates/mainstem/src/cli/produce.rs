//! Flags of `mainstem produce`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::bench_kafka::CodecArg;
use super::connect::parse_pair;
use super::kafka::KafkaArgs;

/// Append records to a Kafka topic, wait until the broker has acknowledged them, and exit.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
#[command(group = ArgGroup::new("source").args(["message", "file", "stdin", "null"]))]
pub(crate) struct ProduceArgs {
    /// Topic; created if it does not exist and the broker creates topics automatically
    #[arg(short, long, value_name = "TOPIC")]
    pub(crate) topic: String,
    /// Partition [default: by hash of the key, or in turn without a key]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Option<i32>,
    /// Key of all records
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// Separator between key and value in each line
    #[arg(short = 'K', long, value_name = "TEXT", conflicts_with_all = ["key", "source"])]
    pub(crate) key_delimiter: Option<String>,
    /// Header of all records; may be repeated
    #[arg(short = 'H', long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) header: Vec<(String, String)>,
    /// Append this text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) message: Option<String>,
    /// Append the contents of a file as one record
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Append all of standard input as one record
    #[arg(short, long)]
    pub(crate) stdin: bool,
    /// Append a record without a value: a tombstone for its key
    #[arg(short, long)]
    pub(crate) null: bool,
    /// Compression of batches
    #[arg(short = 'z', long, value_name = "CODEC", value_enum, default_value_t = CodecArg::None)]
    pub(crate) codec: CodecArg,
    /// Compression level of the codec
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) level: Option<i32>,
    /// Acknowledgement to wait for: 0 none, 1 the leader, all the in-sync replicas
    #[arg(short, long, value_name = "0|1|all", default_value = "all", value_parser = parse_acks)]
    pub(crate) acks: i16,
    /// Print topic, partition, first offset and number of records of each batch
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,
}

fn parse_acks(text: &str) -> Result<i16, String> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "all" | "-1" => Ok(-1),
        _ => Err("expected 0, 1 or all".into()),
    }
}

const AFTER_HELP: &str = "\
Without -m, -f, -s or -n, each line of standard input becomes a record. Empty lines are skipped.

Examples:
  mainstem produce -t orders -k 17 -m '{\"total\": 3}'      one record
  tail -f app.log | mainstem produce -t logs -z zstd      one record per line
  printf 'a=1\\nb=2\\n' | mainstem produce -t kv -K =       keys and values
  mainstem produce -t kv -k a -n                          a tombstone

Exit status: 0 when every record was acknowledged; 1 for any error; 2 for an invalid flag.";
