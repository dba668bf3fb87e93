//! The configuration of consumer groups: the keys that administrators set, their bounds, and how clients see them.

use mainstem_coordinator::group::GroupConfig;
use mainstem_kafka::ErrorCode;

use crate::append_error::AppendError;
use crate::config::Config;
use crate::config_entries::{ConfigType, Entry, Source, Synonym};
use crate::topic_change::{ConfigChange, ConfigOperation};

const SESSION_TIMEOUT: &str = "consumer.session.timeout.ms";
const HEARTBEAT_INTERVAL: &str = "consumer.heartbeat.interval.ms";

/// A key of the configuration of groups.
struct GroupKey {
    name: &'static str,
    /// The setting of the broker that applies if the key is not set.
    broker: &'static str,
    doc: &'static str,
    broker_value: fn(&Config) -> u32,
    setting: fn(&mut GroupConfig) -> &mut Option<u32>,
}

static KEYS: [GroupKey; 2] = [
    GroupKey {
        name: HEARTBEAT_INTERVAL,
        broker: "group.consumer.heartbeat.interval.ms",
        doc: "Interval of the heartbeats of members of the consumer protocol, ms.",
        broker_value: |config| config.group_consumer_heartbeat_interval_ms,
        setting: |config| &mut config.heartbeat_interval_ms,
    },
    GroupKey {
        name: SESSION_TIMEOUT,
        broker: "group.consumer.session.timeout.ms",
        doc: "Time without a heartbeat after which a member of the consumer protocol is removed, ms.",
        broker_value: |config| config.group_consumer_session_timeout_ms,
        setting: |config| &mut config.session_timeout_ms,
    },
];

/// The configuration after a change.
///
/// # Errors
/// A key is unknown, a value is invalid, or the heartbeats would not be more frequent than sessions are long.
pub(crate) fn altered(
    before: GroupConfig,
    change: &ConfigChange,
    broker: &Config,
) -> Result<GroupConfig, AppendError> {
    let invalid = |message: String| AppendError::new(ErrorCode::InvalidConfig, message);
    let mut config = if change.replaces_all { GroupConfig::default() } else { before };
    for step in &change.steps {
        let key = KEYS.iter().find(|key| key.name == step.name);
        let key = key.ok_or_else(|| invalid(format!("Unknown group config name: {}", step.name)))?;
        let setting = (key.setting)(&mut config);
        match (step.operation, &step.value) {
            (Some(ConfigOperation::Delete), _) => *setting = None,
            (Some(ConfigOperation::Set), Some(value)) => {
                let parsed =
                    value.parse().ok().filter(|value| (1..=i32::MAX.cast_unsigned()).contains(value));
                let error = || invalid(format!("Invalid value {value} for configuration {}", key.name));
                *setting = Some(parsed.ok_or_else(error)?);
            }
            _ => return Err(invalid(format!("{} is not a list", key.name))),
        }
    }
    let [heartbeat, session] =
        KEYS.each_ref().map(|key| (key.setting)(&mut config).unwrap_or_else(|| (key.broker_value)(broker)));
    if heartbeat >= session {
        return Err(invalid(format!("{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")));
    }
    Ok(config)
}

/// The configuration of a group.
pub(crate) fn of_group(mut config: GroupConfig, broker: &Config) -> Vec<Entry> {
    let defaults = Config::default();
    let entry = |key: &GroupKey| {
        let set = *(key.setting)(&mut config);
        let (ours, default) = ((key.broker_value)(broker), (key.broker_value)(&defaults));
        let synonym = |name, value: u32, source| Synonym { name, value: value.to_string(), source };
        let mut synonyms: Vec<Synonym> =
            set.into_iter().map(|value| synonym(key.name, value, Source::Group)).collect();
        if ours != default {
            synonyms.push(synonym(key.broker, ours, Source::Broker));
        }
        synonyms.push(synonym(key.broker, default, Source::Default));
        Entry {
            name: key.name,
            value: synonyms[0].value.clone(),
            source: synonyms[0].source,
            is_read_only: false,
            config_type: ConfigType::Int,
            doc: key.doc,
            synonyms,
        }
    };
    KEYS.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic_change::ConfigStep;

    fn change(replaces_all: bool, steps: &[(&str, Option<ConfigOperation>, &str)]) -> ConfigChange {
        let step = |(name, operation, value): &(&str, Option<ConfigOperation>, &str)| ConfigStep {
            name: (*name).into(),
            operation: *operation,
            value: Some((*value).into()),
        };
        let steps = steps.iter().map(step).collect();
        ConfigChange { resource_type: 32, resource_name: "g".into(), replaces_all, steps }
    }

    #[test]
    fn changes_are_checked_together() {
        let broker = Config::default();
        let set = Some(ConfigOperation::Set);
        let apply =
            |before, replaces_all, steps: &[_]| altered(before, &change(replaces_all, steps), &broker);
        let both = apply(
            GroupConfig::default(),
            false,
            &[(HEARTBEAT_INTERVAL, set, "50000"), (SESSION_TIMEOUT, set, "60000")],
        );
        let both = both.unwrap();
        assert_eq!((both.heartbeat_interval_ms, both.session_timeout_ms), (Some(50_000), Some(60_000)));
        for steps in [
            [(HEARTBEAT_INTERVAL, set, "60000")],
            [(SESSION_TIMEOUT, Some(ConfigOperation::Delete), "")],
            [(SESSION_TIMEOUT, set, "0")],
            [(SESSION_TIMEOUT, set, "x")],
            [(SESSION_TIMEOUT, set, "2147483648")],
            [(SESSION_TIMEOUT, Some(ConfigOperation::Append), "1")],
            [("share.session.timeout.ms", set, "1")],
        ] {
            assert_eq!(apply(both, false, &steps).unwrap_err().code, ErrorCode::InvalidConfig, "{steps:?}");
        }
        assert_eq!(apply(both, true, &[]).unwrap(), GroupConfig::default());
    }

    #[test]
    fn values_of_the_group_come_first() {
        let broker = Config { group_consumer_session_timeout_ms: 9_000, ..Config::default() };
        let entries =
            of_group(GroupConfig { session_timeout_ms: Some(8_000), ..GroupConfig::default() }, &broker);
        let sources = |entry: &Entry| entry.synonyms.iter().map(|synonym| synonym.source).collect::<Vec<_>>();
        assert_eq!((entries[0].value.as_str(), entries[0].source), ("5000", Source::Default));
        assert_eq!((entries[1].value.as_str(), entries[1].source), ("8000", Source::Group));
        assert_eq!(sources(&entries[1]), [Source::Group, Source::Broker, Source::Default]);
    }
}
