//! What the node is set to, under the names that Kafka's tools look for. All of it is read only.

use crate::config::Config;
use crate::topic_config::Kind;

/// What the values are made of.
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a Config,
    /// Where clients are told to connect to.
    pub(crate) advertised: String,
    pub(crate) shards: usize,
}

/// A key of the node's configuration.
pub(crate) struct BrokerKey {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) value: fn(&Facts<'_>) -> String,
    pub(crate) doc: &'static str,
}

const INT: Kind = Kind::Int(i32::MIN as i64, i32::MAX as i64);
const LONG: Kind = Kind::Long(i64::MIN, i64::MAX);

const fn key(
    name: &'static str,
    kind: Kind,
    value: fn(&Facts<'_>) -> String,
    doc: &'static str,
) -> BrokerKey {
    BrokerKey { name, kind, value, doc }
}

/// All keys, in the order of their names.
pub(crate) const KEYS: &[BrokerKey] = &[
    key(
        "advertised.listeners",
        Kind::Text,
        |facts| format!("PLAINTEXT://{}", facts.advertised),
        "Where clients are told to connect to.",
    ),
    key(
        "auto.create.topics.enable",
        Kind::Boolean,
        |facts| facts.config.auto_create_topics.to_string(),
        "Whether a topic that is asked for is made if it is not there.",
    ),
    key("broker.id", INT, |facts| facts.config.node_id.to_string(), "The node's number."),
    key("compression.type", Kind::Text, |_| "producer".into(), "How batches are kept."),
    key(
        "default.replication.factor",
        INT,
        |_| "1".into(),
        "Replicas of a topic whose creator names no number: there is one node.",
    ),
    key("delete.topic.enable", Kind::Boolean, |_| "true".into(), "Whether topics can be deleted."),
    key(
        "group.initial.rebalance.delay.ms",
        INT,
        |facts| facts.config.group_initial_rebalance_delay_ms.to_string(),
        "Time for which a group that just got its first member waits for more, ms.",
    ),
    key(
        "group.max.session.timeout.ms",
        INT,
        |facts| facts.config.group_session_timeout_max_ms.to_string(),
        "Longest session timeout that a member of a group may ask for, ms.",
    ),
    key(
        "group.min.session.timeout.ms",
        INT,
        |facts| facts.config.group_session_timeout_min_ms.to_string(),
        "Shortest session timeout that a member of a group may ask for, ms.",
    ),
    key("log.cleanup.policy", Kind::SomeOf(&[]), |_| "delete".into(), "What becomes of old records."),
    key("log.dirs", Kind::SomeOf(&[]), |facts| facts.config.log_dir.clone(), "Where partitions lie."),
    key(
        "log.message.timestamp.type",
        Kind::Text,
        |_| "CreateTime".into(),
        "Whose clock the timestamps of records are of.",
    ),
    key(
        "log.retention.bytes",
        LONG,
        |facts| facts.config.retention_bytes.to_string(),
        "Size of a partition beyond which its oldest segments are removed, bytes; -1 for no limit.",
    ),
    key(
        "log.retention.ms",
        LONG,
        |facts| facts.config.retention_ms.to_string(),
        "Age from which on a segment is removed, ms; -1 for no limit.",
    ),
    key(
        "log.segment.bytes",
        INT,
        |facts| facts.config.segment_bytes.to_string(),
        "Size from which on a segment is closed and another begun, bytes.",
    ),
    key(
        crate::topic_config::DURABILITY,
        Kind::Text,
        |facts| crate::topic_config::durability_name(facts.config.durability).into(),
        "When an append counts as done: on disk, or in the hands of the operating system.",
    ),
    key(
        "mainstem.partitions.max",
        INT,
        |facts| facts.config.partitions_max.to_string(),
        "Partitions of all topics together, at most.",
    ),
    key(
        "message.max.bytes",
        INT,
        |facts| facts.config.message_bytes_max.to_string(),
        "Largest record batch, as it is compressed, bytes.",
    ),
    key("min.insync.replicas", INT, |_| "1".into(), "Replicas that must have a batch: the one there is."),
    key("node.id", INT, |facts| facts.config.node_id.to_string(), "The node's number."),
    key("num.io.threads", INT, |facts| facts.shards.to_string(), "Threads that serve requests: the shards."),
    key(
        "num.partitions",
        INT,
        |facts| facts.config.partitions.to_string(),
        "Partitions of a topic whose creator names no number.",
    ),
    key(
        "offsets.retention.minutes",
        INT,
        |facts| (facts.config.offsets_retention_ms / 60_000).to_string(),
        "Time for which the offsets of an empty group are kept, minutes.",
    ),
    key("process.roles", Kind::SomeOf(&[]), |_| "broker,controller".into(), "The one node is both."),
    key(
        "socket.request.max.bytes",
        INT,
        |facts| facts.config.request_bytes_max.to_string(),
        "Largest request, bytes.",
    ),
    key(
        "unclean.leader.election.enable",
        Kind::Boolean,
        |_| "false".into(),
        "Whether a replica that lags may lead: there is none.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_their_values_are_of_their_kinds() {
        assert!(KEYS.is_sorted_by_key(|key| key.name));
        let config = Config::default();
        let facts = Facts { config: &config, advertised: "host:9092".into(), shards: 2 };
        for key in KEYS {
            let value = (key.value)(&facts);
            let fits = match key.kind {
                Kind::Boolean => value.parse::<bool>().is_ok(),
                Kind::Int(..) => value.parse::<i32>().is_ok(),
                Kind::Long(..) => value.parse::<i64>().is_ok(),
                _ => true,
            };
            assert!(fits, "{}={value}", key.name);
        }
    }
}
