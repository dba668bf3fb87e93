//! Configurations as clients see them: each key with its value, source and type.
//!
//! Kafka resolves a value at three levels: topic, broker, default. Tools show the effective value and the values that
//! it overrides (the synonyms). An entry therefore lists all levels that have a value, the effective one first.

use crate::broker_config::{self, BrokerKey, Facts};
use crate::config::Config;
use crate::topic_config::{DefaultValue, KEYS, Key, Kind, TopicConfig};

/// Where a value comes from (Kafka's `ConfigSource`, with its numbers on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum Source {
    /// Set for the topic.
    Topic = 1,
    /// From the configuration of the node.
    Broker = 4,
    /// The default.
    Default = 5,
    /// A log level.
    Logger = 6,
    /// Set for the group.
    Group = 8,
}

/// Type of a value (Kafka's `ConfigType`, with its numbers on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum ConfigType {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

impl From<Kind> for ConfigType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Boolean | Kind::OnlyFalse => Self::Boolean,
            Kind::Int(..) | Kind::Level(..) => Self::Int,
            Kind::Long(..) => Self::Long,
            Kind::Double(..) => Self::Double,
            Kind::ListOf(_) | Kind::Replicas => Self::List,
            Kind::OneOf(_) | Kind::Queue(_) | Kind::Text => Self::String,
        }
    }
}

/// A value of a key at one level, such as topic or default (Kafka's config synonyms).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Synonym {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) source: Source,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) source: Source,
    pub(crate) is_read_only: bool,
    pub(crate) config_type: ConfigType,
    pub(crate) doc: &'static str,
    /// The effective value first, then those it overrides.
    pub(crate) synonyms: Vec<Synonym>,
}

/// The configuration of a topic.
pub(crate) fn of_topic(topic: &TopicConfig, config: &Config) -> Vec<Entry> {
    KEYS.iter().map(|key| topic_entry(key, topic.set.get(key.name), config)).collect()
}

fn topic_entry(key: &'static Key, set: Option<&String>, config: &Config) -> Entry {
    let mut synonyms = Vec::new();
    if let Some(value) = set {
        synonyms.push(Synonym { name: key.name, value: value.clone(), source: Source::Topic });
    }
    let default = key.default_value(&Config::default());
    let broker = key.default_value(config);
    if !key.broker.is_empty() {
        if matches!(key.default, DefaultValue::Broker(_)) && broker != default {
            synonyms.push(Synonym { name: key.broker, value: broker.clone(), source: Source::Broker });
        }
        synonyms.push(Synonym { name: key.broker, value: default, source: Source::Default });
    }
    let effective = synonyms.first().map(|synonym| (synonym.value.clone(), synonym.source));
    let (value, source) = effective.unwrap_or((broker, Source::Default));
    let config_type = key.kind.into();
    Entry { name: key.name, value, source, is_read_only: false, config_type, doc: key.doc, synonyms }
}

/// The configuration of the node.
pub(crate) fn of_broker(facts: &Facts<'_>) -> Vec<Entry> {
    let defaults = Config::default();
    let default = Facts { config: &defaults, advertised: String::new(), shards: 0 };
    broker_config::KEYS.iter().map(|key| broker_entry(key, facts, &default)).collect()
}

fn broker_entry(key: &'static BrokerKey, facts: &Facts<'_>, default: &Facts<'_>) -> Entry {
    let value = (key.value)(facts);
    let default = (key.value)(default);
    let source = if value == default { Source::Default } else { Source::Broker };
    let synonyms = vec![Synonym { name: key.name, value: value.clone(), source }];
    Entry {
        name: key.name,
        value,
        source,
        is_read_only: true,
        config_type: key.kind.into(),
        doc: key.doc,
        synonyms,
    }
}

/// The log level of the broker.
pub(crate) fn of_loggers() -> Vec<Entry> {
    let value = log::max_level().to_string();
    let synonym = Synonym { name: "root", value: value.clone(), source: Source::Logger };
    vec![Entry {
        name: "root",
        value,
        source: Source::Logger,
        is_read_only: true,
        config_type: ConfigType::String,
        doc: "Least severe level that the broker logs.",
        synonyms: vec![synonym],
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_values_override_broker_values() {
        let config = Config { retention_ms: 5, ..Config::default() };
        let set = [("retention.ms".to_owned(), "7".to_owned())].into();
        let entries = of_topic(&TopicConfig::new(set, &config), &config);
        let entry = |name: &str| entries.iter().find(|entry| entry.name == name).unwrap();
        let retention = entry("retention.ms");
        assert_eq!((retention.value.as_str(), retention.source), ("7", Source::Topic));
        let sources: Vec<Source> = retention.synonyms.iter().map(|synonym| synonym.source).collect();
        assert_eq!(sources, [Source::Topic, Source::Broker, Source::Default]);
        assert_eq!(entry("cleanup.policy").source, Source::Default);
        assert_eq!(entry("segment.jitter.ms").config_type, ConfigType::Long);
    }
}
