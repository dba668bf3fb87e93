//! The configuration of the node, under the names that Kafka's tools read.
//!
//! Tools read these keys with `DescribeConfigs`, for example to show the defaults of topics. All keys are read-only,
//! because the node reads its configuration only at startup. Each value derives from [`Facts`], so it cannot differ
//! from the behavior.

use crate::config::Config;
use crate::topic_config::Kind;

/// The facts that the values derive from.
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a Config,
    /// Host and port that clients connect to.
    pub(crate) advertised: String,
    pub(crate) shards: usize,
}

/// A configuration key of the node.
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

/// All keys, ordered by name.
pub(crate) const KEYS: &[BrokerKey] = &[
    key(
        "advertised.listeners",
        Kind::Text,
        |facts| format!("PLAINTEXT://{}", facts.advertised),
        "Address that clients connect to.",
    ),
    key(
        "auto.create.topics.enable",
        Kind::Boolean,
        |facts| facts.config.auto_create_topics.to_string(),
        "Whether a Metadata request creates missing topics.",
    ),
    key("broker.id", INT, |facts| facts.config.node_id.to_string(), "Identifier of the node."),
    key("compression.type", Kind::Text, |_| "producer".into(), "Codec of stored batches."),
    key(
        "connections.max.idle.ms",
        LONG,
        |facts| facts.config.connections_max_idle_ms.to_string(),
        "How long a connection may be idle before it is closed, ms.",
    ),
    key(
        "default.replication.factor",
        INT,
        |_| "1".into(),
        "Replicas of a topic that is created without a replication factor; there is one node.",
    ),
    key("delete.topic.enable", Kind::Boolean, |_| "true".into(), "Whether topics can be deleted."),
    key(
        "group.consumer.assignors",
        Kind::ListOf(&[]),
        |_| "uniform,range".into(),
        "The assignors of the consumer protocol; the first one is the default.",
    ),
    key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        |facts| facts.config.group_consumer_heartbeat_interval_ms.to_string(),
        "Interval of the heartbeats of members of the consumer protocol, ms.",
    ),
    key(
        "group.consumer.migration.policy",
        Kind::Text,
        |_| "bidirectional".into(),
        "Whether a group with members can change between the classic and the consumer protocol.",
    ),
    key(
        "group.consumer.session.timeout.ms",
        INT,
        |facts| facts.config.group_consumer_session_timeout_ms.to_string(),
        "Time without a heartbeat after which a member of the consumer protocol is removed, ms.",
    ),
    key(
        "group.coordinator.rebalance.protocols",
        Kind::ListOf(&[]),
        |_| "classic,consumer".into(),
        "The protocols that groups may use.",
    ),
    key(
        "group.initial.rebalance.delay.ms",
        INT,
        |facts| facts.config.group_initial_rebalance_delay_ms.to_string(),
        "How long a new group waits for more members before its first rebalance, ms.",
    ),
    key(
        "group.max.session.timeout.ms",
        INT,
        |facts| facts.config.group_session_timeout_max_ms.to_string(),
        "Longest session timeout that a group member may request, ms.",
    ),
    key(
        "group.min.session.timeout.ms",
        INT,
        |facts| facts.config.group_session_timeout_min_ms.to_string(),
        "Shortest session timeout that a group member may request, ms.",
    ),
    key("log.cleanup.policy", Kind::ListOf(&[]), |_| "delete".into(), "Cleanup of old records."),
    key("log.dirs", Kind::ListOf(&[]), |facts| facts.config.log_dir.clone(), "Directory of the partitions."),
    key("log.message.timestamp.type", Kind::Text, |_| "CreateTime".into(), "Source of record timestamps."),
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
        "Age at which a segment is removed, ms; -1 for no limit.",
    ),
    key(
        "log.segment.bytes",
        INT,
        |facts| facts.config.segment_bytes.to_string(),
        "Size at which a segment is closed and a new one begins, bytes.",
    ),
    key(
        crate::topic_config::CHECKS_COMPRESSED_RECORDS,
        Kind::Boolean,
        |facts| facts.config.checks_compressed_records.to_string(),
        "Whether compressed batches are decompressed to validate their records before they are stored.",
    ),
    key(
        crate::topic_config::DURABILITY,
        Kind::Text,
        |facts| crate::topic_config::durability_name(facts.config.durability).into(),
        "When an append is acknowledged: after the sync to disk (fsync), or after the write to the operating system (os).",
    ),
    key(
        "mainstem.partitions.max",
        INT,
        |facts| facts.config.partitions_max.to_string(),
        "Most partitions of all topics together.",
    ),
    key(
        "mainstem.producer.bytes.max",
        LONG,
        |facts| facts.config.producer_bytes_max.to_string(),
        "Most memory of the producers of all partitions, bytes.",
    ),
    key(
        "mainstem.transactional.id.bytes.max",
        LONG,
        |facts| facts.config.transactional_id_bytes_max.to_string(),
        "Most memory of transactional ids and their transactions, bytes.",
    ),
    key(
        "message.max.bytes",
        INT,
        |facts| facts.config.message_bytes_max.to_string(),
        "Largest record batch after compression, bytes.",
    ),
    key(
        "min.insync.replicas",
        INT,
        |_| "1".into(),
        "Replicas that must store a batch; each partition has one replica.",
    ),
    key("node.id", INT, |facts| facts.config.node_id.to_string(), "Identifier of the node."),
    key("num.io.threads", INT, |facts| facts.shards.to_string(), "Threads that serve requests: the shards."),
    key(
        "num.partitions",
        INT,
        |facts| facts.config.partitions.to_string(),
        "Partitions of a topic that is created without a number of partitions.",
    ),
    key(
        "offsets.retention.minutes",
        INT,
        |facts| (facts.config.offsets_retention_ms / 60_000).to_string(),
        "How long the offsets of an empty group are retained, minutes.",
    ),
    key("process.roles", Kind::ListOf(&[]), |_| "broker,controller".into(), "Roles of the only node."),
    key(
        "producer.id.expiration.ms",
        LONG,
        |facts| facts.config.producer_id_expiration_ms.to_string(),
        "Idle time after which a partition forgets a producer, ms.",
    ),
    key(
        "queued.max.request.bytes",
        LONG,
        |facts| facts.config.queued_request_bytes_max.to_string(),
        "Most bytes of requests that have not arrived completely; -1 for no limit but the memory budget.",
    ),
    key(
        "socket.request.max.bytes",
        INT,
        |facts| facts.config.request_bytes_max.to_string(),
        "Largest request, bytes.",
    ),
    key(
        "transactional.id.expiration.ms",
        LONG,
        |facts| facts.config.transactional_id_expiration_ms.to_string(),
        "Idle time after which a transactional id is removed, ms.",
    ),
    key(
        "unclean.leader.election.enable",
        Kind::Boolean,
        |_| "false".into(),
        "Whether a lagging replica may become leader; there are no followers.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_values_match_their_kinds() {
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
