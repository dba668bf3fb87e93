//! What a topic is set to: Kafka's keys, their types, bounds and defaults, and one of our own.

use std::collections::BTreeMap;

use mainstem_kafka::ErrorCode;
use mainstem_log::{Cleanup, Compression, Durability, Options};

use crate::config::Config;
use crate::partition::Refused;

mod keys;

pub(crate) use keys::KEYS;

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
    /// -1, or within these bounds.
    Level(i64, i64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Some of these, or none, separated by commas.
    SomeOf(&'static [&'static str]),
    /// Pairs of a partition and a broker, or `*` for all.
    Replicas,
    /// What a work queue takes for its setting of this name.
    Queue(&'static str),
    /// A switch for what there is not: only `false`.
    Never,
    /// Anything.
    Text,
}

/// A key that a topic can be set with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// What a broker calls its default; empty if it does not.
    pub(crate) broker: &'static str,
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

/// The key of this name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Why a topic cannot be set to this, in Kafka's words; nothing if it can.
pub(crate) fn fault(set: &BTreeMap<String, String>) -> Option<String> {
    for (name, value) in set {
        match find(name) {
            None => return Some(format!("Unknown topic config name: {name}")),
            Some(key) => {
                if let Err(fault) = key.check(value) {
                    return Some(fault);
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
    /// The value of a topic that does not set it.
    pub(crate) fn default_value(&self, config: &Config) -> String {
        match self.default {
            Default_::Fixed(text) => text.to_owned(),
            Default_::Broker(of) => of(config),
        }
    }

    /// Why the key does not take a value, in Kafka's words for its sender.
    ///
    /// # Errors
    /// Those words.
    pub(crate) fn check(&self, value: &str) -> Result<(), String> {
        self.kind.check(value).map_err(|fault| match self.kind {
            Kind::Never => fault,
            _ => format!("Invalid value {value} for configuration {}: {fault}", self.name),
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
            Self::SomeOf(names) if parts(value).all(|part| names.contains(&part)) => Ok(()),
            Self::OneOf(names) | Self::SomeOf(names) => {
                Err(format!("String must be one of: {}", names.join(", ")))
            }
            Self::Replicas if trimmed == "*" || parts(value).all(is_replica) => Ok(()),
            Self::Replicas => {
                Err("it must be the literal '*' or a list of replicas in the following format: \
                 [partitionId]:[brokerId],[partitionId]:[brokerId],..."
                    .into())
            }
            Self::Never if is_boolean && !trimmed.eq_ignore_ascii_case("true") => Ok(()),
            Self::Never => Err("Tiered Storage functionality is disabled in the broker. \
                 Topic cannot be configured with remote log storage."
                .into()),
            Self::Queue(name) => {
                mainstem_queue::Config::from_pairs([(name, value)]).map(drop).map_err(|fault| fault.0)
            }
            Self::Text => Ok(()),
        }
    }

    /// Whether values are lists, to which can be added and taken away from.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::SomeOf(_) | Self::Replicas)
    }
}

/// What stands between the commas; an empty text is an empty list.
pub(crate) fn parts(list: &str) -> impl Iterator<Item = &str> {
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
    /// What it is set to as a work queue, if it is one.
    pub(crate) queue: Option<mainstem_queue::Config>,
}

/// What a topic is that is a work queue.
pub(crate) const QUEUE_ENABLED: &str = "queue.enabled";
/// What the keys of a queue's settings begin with.
pub(crate) const QUEUE: &str = "queue.";

/// What a topic with these keys is set to as a work queue, if it is one.
pub(crate) fn queue_of(set: &BTreeMap<String, String>) -> Option<mainstem_queue::Config> {
    let is_enabled = set.get(QUEUE_ENABLED).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    let settings = set.iter().filter(|(key, _)| *key != QUEUE_ENABLED);
    let settings = settings.filter_map(|(key, value)| Some((key.strip_prefix(QUEUE)?, value.as_str())));
    is_enabled.then(|| mainstem_queue::Config::from_pairs(settings).unwrap_or_default())
}

/// Why a topic of several partitions cannot be set to this; nothing if it can.
pub(crate) fn queue_fault(set: &BTreeMap<String, String>) -> Option<Refused> {
    let message = "A topic that is a work queue has one partition.";
    queue_of(set).map(|_| Refused::new(ErrorCode::InvalidPartitions, message))
}

impl TopicConfig {
    /// Why a topic of so many partitions cannot be changed from this to `next`; nothing if it can.
    pub(crate) fn change_fault(&self, next: &Self, partitions: i32) -> Option<Refused> {
        let refused = |message: &str| Some(Refused::new(ErrorCode::InvalidConfig, message));
        match (&self.queue, &next.queue) {
            (Some(_), None) => refused("A work queue cannot be made an ordinary topic."),
            (None, Some(_)) if partitions != 1 => refused("A topic that is a work queue has one partition."),
            _ => None,
        }
    }

    /// From what was set; it must have been checked.
    pub(crate) fn new(set: BTreeMap<String, String>, config: &Config) -> Self {
        let text = |name: &str| {
            let key = find(name).expect("a key of the table");
            set.get(name).cloned().unwrap_or_else(|| key.default_value(config))
        };
        let number = |name: &str| text(name).trim().parse::<i64>().unwrap_or(0);
        let limit = |name: &str| u64::try_from(number(name)).ok();
        let policy = text("cleanup.policy");
        let deletes = parts(&policy).any(|part| part == "delete");
        let is_compacted = parts(&policy).any(|part| part == "compact");
        let queue = queue_of(&set);
        let cleanup = match (deletes, is_compacted) {
            // What is settled goes, and nothing else.
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
            min_cleanable_dirty_ratio: text("min.cleanable.dirty.ratio").trim().parse().unwrap_or(0.5),
        };
        let timestamp_type = if text("message.timestamp.type") == "LogAppendTime" {
            TimestampType::LogAppend
        } else {
            TimestampType::Create
        };
        Self {
            message_bytes_max: number("max.message.bytes").max(0).unsigned_abs() as usize,
            timestamp_type,
            timestamp_before_max_ms: number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: number("message.timestamp.after.max.ms"),
            recompress,
            is_compacted: is_compacted && queue.is_none(),
            options,
            queue,
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

    /// As Apache Kafka 4.3 answers.
    #[test]
    fn values_are_refused_in_the_words_of_kafka() {
        for (name, value, fault) in [
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
            assert_eq!(super::fault(&set).as_deref(), Some(fault));
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
            assert_eq!(super::fault(&set), None, "{name}={value}");
        }
    }

    #[test]
    fn the_settings_of_queues_are_keys_with_the_same_defaults() {
        let settings = mainstem_queue::Config::default().pairs();
        let keys: BTreeMap<&str, String> = KEYS
            .iter()
            .filter_map(|key| Some((key.name.strip_prefix(QUEUE)?, key.default_value(&Config::default()))))
            .filter(|(name, _)| *name != "enabled")
            .collect();
        assert_eq!(keys, settings);
    }

    #[test]
    fn the_page_of_the_door_names_all_keys() {
        let page = include_str!("../../../docs/kafka.md");
        let section = page.split("### What topics can be set to").nth(1).expect("the section");
        let section = section.split("\n##").next().expect("its end");
        let name = |line: &str| line.strip_prefix("| `")?.split('`').next().map(str::to_owned);
        let mut told: Vec<String> = section.lines().filter_map(name).collect();
        told.sort_unstable();
        let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(told, known);
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
