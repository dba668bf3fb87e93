//! Configuration of topics: Kafka's keys, their types, bounds and defaults, and the keys of Mainstem.
//!
//! Kafka's tools must be able to set and read every key that they know, and expect Kafka's errors. The table [`KEYS`]
//! is therefore the only list of keys: validation, defaults, `DescribeConfigs` and the documentation follow it.
//!
//! [`TopicConfig`] stores the keys that are set as text, because tools read them back as they were written, and derives
//! the typed settings once, so that no append parses text.

use std::collections::BTreeMap;

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_log::{Cleanup, Compression, Durability, Options};
use mainstem_partition::{PartitionConfig, TimestampType};

use crate::append_error::AppendError;
use crate::config::Config;

mod keys;

pub(crate) use keys::KEYS;

/// Mainstem's key for whether the records of compressed batches are validated.
pub(crate) const CHECKS_COMPRESSED_RECORDS: &str = "mainstem.compressed.records.check";
/// Mainstem's key for the durability of appends: `fsync` or `os`.
pub(crate) const DURABILITY: &str = "mainstem.durability";

/// The values that a key accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Boolean,
    /// Within these bounds.
    Int(i64, i64),
    Long(i64, i64),
    Double(f64, f64),
    /// -1, or within these bounds.
    Level(i64, i64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Some of these, or none, separated by commas.
    ListOf(&'static [&'static str]),
    /// Pairs of partition and broker, or `*` for all.
    Replicas,
    /// A setting of work queues with this name.
    Queue(&'static str),
    /// A switch of an unsupported feature. It accepts only `false`.
    OnlyFalse,
    /// Anything.
    Text,
}

/// A configuration key of topics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// Name of the broker configuration that sets the default; empty if there is none.
    pub(crate) broker: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: DefaultValue,
    pub(crate) doc: &'static str,
}

/// Where a default comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DefaultValue {
    /// A constant.
    Fixed(&'static str),
    /// From the broker configuration.
    Broker(fn(&Config) -> String),
}

/// The key with this name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Names of all keys, ordered.
pub fn topic_config_keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name)
}

/// The error of an invalid configuration, with Kafka's message.
pub(crate) fn config_error(set: &BTreeMap<String, String>) -> Option<String> {
    for (name, value) in set {
        match find(name) {
            None => return Some(format!("Unknown topic config name: {name}")),
            Some(key) => {
                if let Err(error) = key.check(value) {
                    return Some(error);
                }
            }
        }
    }
    let number = |name: &str| set.get(name)?.trim().parse::<i64>().ok();
    let (least, most) = (number("min.compaction.lag.ms"), number("max.compaction.lag.ms"));
    if let (Some(least), Some(most)) = (least, most)
        && least > most
    {
        return Some(format!(
            "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        ));
    }
    None
}

pub(crate) fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => "fsync",
        Durability::Os => "os",
    }
}

impl Key {
    /// The value for topics that do not set the key.
    pub(crate) fn default_value(&self, config: &Config) -> String {
        match self.default {
            DefaultValue::Fixed(text) => text.to_owned(),
            DefaultValue::Broker(of) => of(config),
        }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// The value is invalid. The message is Kafka's.
    pub(crate) fn check(&self, value: &str) -> Result<(), String> {
        self.kind.check(value).map_err(|error| match self.kind {
            Kind::OnlyFalse => error,
            _ => format!("Invalid value {value} for configuration {}: {error}", self.name),
        })
    }
}

impl Kind {
    fn check(self, value: &str) -> Result<(), String> {
        let trimmed = value.trim();
        let is_boolean = trimmed.eq_ignore_ascii_case("true") || trimmed.eq_ignore_ascii_case("false");
        match self {
            Self::Boolean if is_boolean => Ok(()),
            Self::Boolean => Err("Expected value to be either true or false".into()),
            Self::Int(low, high) => {
                let number = trimmed.parse::<i32>().map_err(|_| "Not a number of type INT")?;
                within(
                    i64::from(number),
                    low,
                    high,
                    &format!("at least {low}"),
                    &format!("no more than {high}"),
                )
            }
            Self::Long(low, high) => {
                let number = trimmed.parse::<i64>().map_err(|_| "Not a number of type LONG")?;
                within(number, low, high, &format!("at least {low}"), &format!("no more than {high}"))
            }
            Self::Double(low, high) => {
                let number = trimmed.parse::<f64>().map_err(|_| "Not a number of type DOUBLE")?;
                within(number, low, high, &format!("at least {low}"), &format!("no more than {high}"))
            }
            Self::Level(low, high) => match trimmed.parse::<i32>().map(i64::from) {
                Ok(number) if number == -1 || (low..=high).contains(&number) => Ok(()),
                Ok(_) => Err(format!("Value must be between {low} and {high} or equal to -1")),
                Err(_) => Err("Not a number of type INT".into()),
            },
            Self::OneOf(names) if names.contains(&value) => Ok(()),
            Self::ListOf(names) if list_items(value).all(|part| names.contains(&part)) => Ok(()),
            Self::OneOf(names) | Self::ListOf(names) => {
                Err(format!("String must be one of: {}", names.join(", ")))
            }
            Self::Replicas if trimmed == "*" || list_items(value).all(is_replica) => Ok(()),
            Self::Replicas => {
                Err("it must be the literal '*' or a list of replicas in the following format: \
                 [partitionId]:[brokerId],[partitionId]:[brokerId],..."
                    .into())
            }
            Self::OnlyFalse if is_boolean && !trimmed.eq_ignore_ascii_case("true") => Ok(()),
            Self::OnlyFalse => Err("Tiered Storage functionality is disabled in the broker. \
                 Topic cannot be configured with remote log storage."
                .into()),
            Self::Queue(name) => {
                mainstem_queue_core::Config::from_pairs([(name, value)]).map(drop).map_err(|error| error.0)
            }
            Self::Text => Ok(()),
        }
    }

    /// Whether values are lists that support append and subtract.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::ListOf(_) | Self::Replicas)
    }
}

/// The entries of a comma-separated list; an empty text is an empty list.
pub(crate) fn list_items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn is_replica(pair: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    pair.split_once(':').is_some_and(|(partition, broker)| is_number(partition) && is_number(broker))
}

fn within<T: PartialOrd + Copy>(number: T, low: T, high: T, least: &str, most: &str) -> Result<(), String> {
    if number < low {
        Err(format!("Value must be {least}"))
    } else if number <= high {
        Ok(())
    } else {
        Err(format!("Value must be {most}"))
    }
}

/// The configuration of a topic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TopicConfig {
    /// The keys that are set; the others have defaults.
    pub(crate) set: BTreeMap<String, String>,
    /// What the partitions enforce. A work queue manages its partition.
    pub(crate) partition: Arc<PartitionConfig>,
    /// Settings of the work queue, if the topic is one.
    pub(crate) queue: Option<mainstem_queue_core::Config>,
}

/// Value of `max.compaction.lag.ms` that stands for no limit.
const NO_LAG_LIMIT_MS: u64 = i64::MAX as u64;
/// The key that makes a topic a work queue.
pub(crate) const QUEUE_ENABLED: &str = "queue.enabled";
/// Prefix of the keys with queue settings.
pub(crate) const QUEUE: &str = "queue.";

/// The settings of the work queue, if the topic is one.
pub(crate) fn queue_of(set: &BTreeMap<String, String>) -> Option<mainstem_queue_core::Config> {
    let is_enabled = set.get(QUEUE_ENABLED).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    let settings = set.iter().filter(|(key, _)| *key != QUEUE_ENABLED);
    let settings = settings.filter_map(|(key, value)| Some((key.strip_prefix(QUEUE)?, value.as_str())));
    is_enabled.then(|| mainstem_queue_core::Config::from_pairs(settings).unwrap_or_default())
}

/// The error of this configuration for a topic with several partitions; `None` if it is valid.
pub(crate) fn queue_error(set: &BTreeMap<String, String>) -> Option<AppendError> {
    let message = "A topic that is a work queue has one partition.";
    queue_of(set).map(|_| AppendError::new(ErrorCode::InvalidPartitions, message))
}

impl TopicConfig {
    /// The error of a change to `next` for a topic with this many partitions; `None` if the change is valid.
    pub(crate) fn change_error(&self, next: &Self, partitions: i32) -> Option<AppendError> {
        let error = |message: &str| Some(AppendError::new(ErrorCode::InvalidConfig, message));
        match (&self.queue, &next.queue) {
            (Some(_), None) => error("A work queue cannot be made an ordinary topic."),
            (None, Some(_)) if partitions != 1 => error("A topic that is a work queue has one partition."),
            _ => None,
        }
    }

    /// Builds the configuration from the keys that are set, which must be valid.
    pub(crate) fn new(set: BTreeMap<String, String>, config: &Config) -> Self {
        let text = |name: &str| {
            let key = find(name).expect("the name is in the table");
            set.get(name).cloned().unwrap_or_else(|| key.default_value(config))
        };
        let number = |name: &str| text(name).trim().parse::<i64>().unwrap_or(0);
        let limit = |name: &str| u64::try_from(number(name)).ok();
        let policy = text("cleanup.policy");
        let deletes = list_items(&policy).any(|part| part == "delete");
        let is_compacted = list_items(&policy).any(|part| part == "compact");
        let queue = queue_of(&set);
        let cleanup = match (deletes, is_compacted) {
            // The queue deletes its settled messages.
            _ if queue.is_some() => Cleanup::Manual,
            (true, true) => Cleanup::CompactAndDelete,
            (false, true) => Cleanup::Compact,
            (true, false) => Cleanup::Delete,
            (false, false) => Cleanup::Manual,
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
            min_compaction_lag_ms: limit("min.compaction.lag.ms").unwrap_or(0),
            max_compaction_lag_ms: limit("max.compaction.lag.ms").filter(|lag_ms| *lag_ms < NO_LAG_LIMIT_MS),
            min_cleanable_dirty_ratio: text("min.cleanable.dirty.ratio").trim().parse().unwrap_or(0.5),
        };
        let timestamp_type = if text("message.timestamp.type") == "LogAppendTime" {
            TimestampType::LogAppend
        } else {
            TimestampType::Create
        };
        let partition = PartitionConfig {
            message_bytes_max: number("max.message.bytes").max(0).unsigned_abs() as usize,
            timestamp_type,
            timestamp_before_max_ms: number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: number("message.timestamp.after.max.ms"),
            checks_compressed_records: text(CHECKS_COMPRESSED_RECORDS).trim().eq_ignore_ascii_case("true"),
            recompress,
            is_compacted: is_compacted && queue.is_none(),
            is_managed: queue.is_some(),
            options,
        };
        Self { partition: Arc::new(partition), queue, set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_values_of_their_keys() {
        for key in KEYS {
            assert_eq!(key.check(&key.default_value(&Config::default())), Ok(()), "{}", key.name);
        }
        assert!(KEYS.is_sorted_by_key(|key| key.name));
    }

    /// The messages are those of Apache Kafka 4.3.
    #[test]
    fn invalid_values_get_kafkas_error_messages() {
        for (name, value, error) in [
            (
                "retention.ms",
                "abc",
                "Invalid value abc for configuration retention.ms: Not a number of type LONG",
            ),
            (
                "retention.ms",
                "-2",
                "Invalid value -2 for configuration retention.ms: Value must be at least -1",
            ),
            (
                "segment.bytes",
                "10",
                "Invalid value 10 for configuration segment.bytes: Value must be at least 1048576",
            ),
            (
                "compression.gzip.level",
                "0",
                "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
            ),
            (
                "cleanup.policy",
                "foo",
                "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
            ),
            (
                "preallocate",
                "maybe",
                "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
            ),
            ("foo", "bar", "Unknown topic config name: foo"),
        ] {
            let set = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert_eq!(super::config_error(&set).as_deref(), Some(error));
        }
        for (name, value) in [
            ("cleanup.policy", ""),
            ("cleanup.policy", "compact, delete"),
            ("preallocate", " TRUE "),
            ("retention.ms", " 7 "),
            ("leader.replication.throttled.replicas", "*"),
            ("leader.replication.throttled.replicas", "0:1,1:1"),
        ] {
            let set = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert_eq!(super::config_error(&set), None, "{name}={value}");
        }
    }

    #[test]
    fn queue_settings_are_topic_keys_with_the_same_defaults() {
        let settings = mainstem_queue_core::Config::default().pairs();
        let keys: BTreeMap<&str, String> = KEYS
            .iter()
            .filter_map(|key| Some((key.name.strip_prefix(QUEUE)?, key.default_value(&Config::default()))))
            .filter(|(name, _)| *name != "enabled")
            .collect();
        assert_eq!(keys, settings);
    }

    #[test]
    fn documentation_lists_all_keys() {
        let page = include_str!("../../../docs/kafka.md");
        let section = page.split("### Topic configuration").nth(1).expect("the section");
        let section = section.split("\n##").next().expect("its end");
        let name = |line: &str| line.strip_prefix("| `")?.split('`').next().map(str::to_owned);
        let mut documented: Vec<String> = section.lines().filter_map(name).collect();
        documented.sort_unstable();
        let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(documented, known);
    }

    #[test]
    fn set_values_override_defaults() {
        let set = [("cleanup.policy", "compact,delete"), ("retention.ms", "-1"), (DURABILITY, "os")];
        let set = set.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let config = TopicConfig::new(set, &Config::default());
        assert_eq!(config.partition.options.cleanup, Cleanup::CompactAndDelete);
        assert_eq!(config.partition.options.retention_ms, None);
        assert_eq!(config.partition.options.durability, Durability::Os);
        assert!(config.partition.is_compacted);
    }
}
