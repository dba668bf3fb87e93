//! What a topic is set to: Kafka's keys, their types, bounds and defaults, and one of our own.

use std::collections::BTreeMap;

use mainstem_log::{Cleanup, Compression, Durability, Options};

use crate::config::Config;

/// Our own key: when an append counts as done, `fsync` or `os`.
pub(crate) const DURABILITY: &str = "mainstem.durability";

/// What a key takes. Numbers in the order of the wire's config types where there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Boolean,
    /// Within these bounds.
    Int(i64, i64),
    Long(i64, i64),
    Double(f64, f64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Some of these, separated by commas.
    SomeOf(&'static [&'static str]),
    /// Anything; it is kept and has no effect on a single node.
    Text,
}

/// A key that a topic can be set with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Default_,
    pub(crate) doc: &'static str,
}

/// Where a default comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Default_ {
    /// It is always this.
    Fixed(&'static str),
    /// The broker's configuration says.
    Broker(fn(&Config) -> String),
}

use Default_::{Broker, Fixed};

const INT_MAX: i64 = i32::MAX as i64;

const fn key(name: &'static str, kind: Kind, default: Default_, doc: &'static str) -> Key {
    Key { name, kind, default, doc }
}

/// All keys, in the order of their names.
pub(crate) const KEYS: [Key; 26] = [
    key(
        "cleanup.policy",
        Kind::SomeOf(&["delete", "compact"]),
        Fixed("delete"),
        "Whether old records are removed by age and size, or of each key the newest is kept, or both.",
    ),
    key(
        "compression.gzip.level",
        Kind::Int(-1, 9),
        Fixed("-1"),
        "Level of gzip if compression.type is gzip.",
    ),
    key("compression.lz4.level", Kind::Int(1, 17), Fixed("9"), "Level of lz4 if compression.type is lz4."),
    key(
        "compression.type",
        Kind::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        Fixed("producer"),
        "How batches are kept: as the producer compressed them, or compressed anew.",
    ),
    key(
        "compression.zstd.level",
        Kind::Int(-131_072, 22),
        Fixed("3"),
        "Level of zstd if compression.type is zstd.",
    ),
    key(
        "delete.retention.ms",
        Kind::Long(0, i64::MAX),
        Fixed("86400000"),
        "How long compaction keeps a record without value, ms.",
    ),
    key(
        "file.delete.delay.ms",
        Kind::Long(0, i64::MAX),
        Fixed("60000"),
        "Accepted; files are removed at once, and stay readable to whoever reads them.",
    ),
    key(
        "flush.messages",
        Kind::Long(1, i64::MAX),
        Fixed("9223372036854775807"),
        "Accepted; mainstem.durability says what is synced.",
    ),
    key(
        "flush.ms",
        Kind::Long(0, i64::MAX),
        Fixed("9223372036854775807"),
        "Accepted; mainstem.durability says what is synced.",
    ),
    key(
        "follower.replication.throttled.replicas",
        Kind::Text,
        Fixed(""),
        "Accepted; there are no followers.",
    ),
    key(
        "index.interval.bytes",
        Kind::Int(0, INT_MAX),
        Fixed("4096"),
        "Accepted; the index has an interval of its own.",
    ),
    key("leader.replication.throttled.replicas", Kind::Text, Fixed(""), "Accepted; there are no followers."),
    key(
        DURABILITY,
        Kind::OneOf(&["fsync", "os"]),
        Broker(|config| durability_name(config.durability).to_owned()),
        "When an append counts as done: on disk, or in the hands of the operating system.",
    ),
    key(
        "max.compaction.lag.ms",
        Kind::Long(1, i64::MAX),
        Fixed("9223372036854775807"),
        "Accepted; min.cleanable.dirty.ratio decides when a log is compacted.",
    ),
    key(
        "max.message.bytes",
        Kind::Int(0, INT_MAX),
        Broker(|config| config.message_bytes_max.to_string()),
        "Largest record batch, as it is compressed, bytes.",
    ),
    key(
        "message.timestamp.after.max.ms",
        Kind::Long(0, i64::MAX),
        Fixed("3600000"),
        "How far ahead of the broker's clock a record's timestamp may be, ms.",
    ),
    key(
        "message.timestamp.before.max.ms",
        Kind::Long(0, i64::MAX),
        Fixed("9223372036854775807"),
        "How far behind the broker's clock a record's timestamp may be, ms.",
    ),
    key(
        "message.timestamp.type",
        Kind::OneOf(&["CreateTime", "LogAppendTime"]),
        Fixed("CreateTime"),
        "Whether a record's timestamp is its producer's, or the time of its arrival.",
    ),
    key(
        "min.cleanable.dirty.ratio",
        Kind::Double(0.0, 1.0),
        Fixed("0.5"),
        "Part of a log that must be uncompacted before it is compacted again.",
    ),
    key(
        "min.compaction.lag.ms",
        Kind::Long(0, i64::MAX),
        Fixed("0"),
        "Accepted; only closed segments are compacted.",
    ),
    key("min.insync.replicas", Kind::Int(1, INT_MAX), Fixed("1"), "Accepted; one replica is all there is."),
    key(
        "retention.bytes",
        Kind::Long(i64::MIN, i64::MAX),
        Broker(|config| config.retention_bytes.to_string()),
        "Size of a partition beyond which its oldest segments are removed, bytes; -1 for no limit.",
    ),
    key(
        "retention.ms",
        Kind::Long(-1, i64::MAX),
        Broker(|config| config.retention_ms.to_string()),
        "Age of its newest record from which on a segment is removed, ms; -1 for no limit.",
    ),
    key(
        "segment.bytes",
        Kind::Int(14, INT_MAX),
        Broker(|config| config.segment_bytes.to_string()),
        "Size from which on a segment is closed and another begun, bytes.",
    ),
    key("segment.ms", Kind::Long(1, i64::MAX), Fixed("604800000"), "Age from which on it is, ms."),
    key(
        "unclean.leader.election.enable",
        Kind::Boolean,
        Fixed("false"),
        "Accepted; there is nobody to elect.",
    ),
];

/// The key of this name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => "fsync",
        Durability::Os => "os",
    }
}

impl Key {
    /// The value of a topic that does not set it.
    pub(crate) fn default_value(&self, config: &Config) -> String {
        match self.default {
            Fixed(text) => text.to_owned(),
            Broker(of) => of(config),
        }
    }

    /// Why the key does not take a value, in words for its sender.
    ///
    /// # Errors
    /// Those words.
    pub(crate) fn check(&self, value: &str) -> Result<(), String> {
        let fault =
            |what: &str| Err(format!("Invalid value {value} for configuration {}: {what}", self.name));
        match self.kind {
            Kind::Boolean if matches!(value, "true" | "false") => Ok(()),
            Kind::Boolean => fault("Expected value to be either true or false"),
            Kind::Int(low, high) | Kind::Long(low, high) => match value.trim().parse::<i64>() {
                Ok(number) if (low..=high).contains(&number) => Ok(()),
                Ok(_) => fault(&format!("Value must be between {low} and {high}")),
                Err(_) => fault("Not a number of the right type"),
            },
            Kind::Double(low, high) => match value.trim().parse::<f64>() {
                Ok(number) if (low..=high).contains(&number) => Ok(()),
                Ok(_) => fault(&format!("Value must be between {low} and {high}")),
                Err(_) => fault("Not a number"),
            },
            Kind::OneOf(names) if names.contains(&value) => Ok(()),
            Kind::OneOf(names) => fault(&format!("String must be one of: {}", names.join(", "))),
            Kind::SomeOf(names) => {
                let is_known = |part: &str| names.contains(&part.trim());
                if !value.is_empty() && value.split(',').all(is_known) {
                    Ok(())
                } else {
                    fault(&format!("Must consist of: {}", names.join(", ")))
                }
            }
            Kind::Text => Ok(()),
        }
    }
}

/// Whose clock a record's timestamp is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampType {
    Create,
    LogAppend,
}

/// What a topic is set to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TopicConfig {
    /// What was set, by key; the rest has defaults.
    pub(crate) set: BTreeMap<String, String>,
    pub(crate) message_bytes_max: usize,
    pub(crate) timestamp_type: TimestampType,
    pub(crate) timestamp_before_max_ms: i64,
    pub(crate) timestamp_after_max_ms: i64,
    /// Codec that batches are compressed with anew; nothing to keep them as they come.
    pub(crate) recompress: Option<(Compression, Option<i32>)>,
    /// Each record needs a key.
    pub(crate) is_compacted: bool,
    pub(crate) options: Options,
}

impl TopicConfig {
    /// From what was set; it must have been checked.
    pub(crate) fn new(set: BTreeMap<String, String>, config: &Config) -> Self {
        let text = |name: &str| {
            let key = find(name).expect("a key of the table");
            set.get(name).cloned().unwrap_or_else(|| key.default_value(config))
        };
        let number = |name: &str| text(name).trim().parse::<i64>().unwrap_or(0);
        let limit = |name: &str| u64::try_from(number(name)).ok();
        let policy = text("cleanup.policy");
        let deletes = policy.split(',').any(|part| part.trim() == "delete");
        let is_compacted = policy.split(',').any(|part| part.trim() == "compact");
        let cleanup = match (deletes, is_compacted) {
            (true, true) => Cleanup::CompactAndDelete,
            (false, true) => Cleanup::Compact,
            _ => Cleanup::Delete,
        };
        let level = |name: &str| number(name) as i32;
        let recompress = match text("compression.type").as_str() {
            "uncompressed" => Some((Compression::None, None)),
            "gzip" => Some((Compression::Gzip, Some(level("compression.gzip.level")))),
            "snappy" => Some((Compression::Snappy, None)),
            "lz4" => Some((Compression::Lz4, Some(level("compression.lz4.level")))),
            "zstd" => Some((Compression::Zstd, Some(level("compression.zstd.level")))),
            _ => None,
        };
        let options = Options {
            durability: if text(DURABILITY) == "os" { Durability::Os } else { Durability::Fsync },
            segment_bytes: number("segment.bytes").max(1).cast_unsigned(),
            segment_ms: limit("segment.ms"),
            cleanup,
            retention_ms: limit("retention.ms"),
            retention_bytes: limit("retention.bytes"),
            delete_retention_ms: limit("delete.retention.ms").unwrap_or(0),
            min_cleanable_dirty_ratio: text("min.cleanable.dirty.ratio").trim().parse().unwrap_or(0.5),
        };
        let timestamp_type = if text("message.timestamp.type") == "LogAppendTime" {
            TimestampType::LogAppend
        } else {
            TimestampType::Create
        };
        Self {
            message_bytes_max: number("max.message.bytes").max(0) as usize,
            timestamp_type,
            timestamp_before_max_ms: number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: number("message.timestamp.after.max.ms"),
            recompress,
            is_compacted,
            options,
            set,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_values_that_their_keys_take() {
        for key in KEYS {
            assert_eq!(key.check(&key.default_value(&Config::default())), Ok(()), "{}", key.name);
        }
        assert!(KEYS.is_sorted_by_key(|key| key.name));
    }

    #[test]
    fn what_is_set_wins_over_the_default() {
        let set = [("cleanup.policy", "compact,delete"), ("retention.ms", "-1"), (DURABILITY, "os")];
        let set = set.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let config = TopicConfig::new(set, &Config::default());
        assert_eq!(config.options.cleanup, Cleanup::CompactAndDelete);
        assert_eq!(config.options.retention_ms, None);
        assert_eq!(config.options.durability, Durability::Os);
        assert!(config.is_compacted);
    }
}
