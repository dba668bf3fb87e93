//! Settings of the Kafka server.

use std::sync::Arc;

use mainstem_log::Durability;
use mainstem_sasl::Mechanism;

use crate::binding_registry::{BoundTopic, Source};

/// Settings of the Kafka server. Names in parentheses are Kafka's.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "switches that operators set independently of each other")]
pub struct Config {
    /// Host that clients connect to (`advertised.listeners`).
    pub advertised_host: String,
    /// Port that clients connect to.
    pub advertised_port: u16,
    /// Identifier of the only node (`node.id`).
    pub node_id: i32,
    /// Whether a Produce or Metadata request creates a topic that does not exist
    /// (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Partitions of a topic that is created without a number (`num.partitions`).
    pub partitions: i32,
    /// Most partitions of all topics together.
    pub partitions_max: i32,
    /// How long a connection may be idle before it is closed, ms (`connections.max.idle.ms`).
    pub connections_max_idle_ms: u64,
    /// The listeners, in the order of their numbers. One that is not here has the defaults.
    pub listeners: Vec<ListenerSettings>,
    /// How long a connection may take to log in, ms.
    pub log_in_timeout_ms: u64,
    /// How long a failed log-in is not answered, ms (`connection.failed.authentication.delay.ms`).
    pub failed_authentication_delay_ms: u32,
    /// How long a session lasts until the client must log in again, ms; 0 for no limit (`connections.max.reauth.ms`).
    pub connections_max_reauth_ms: u64,
    /// Largest request, bytes (`socket.request.max.bytes`).
    pub request_bytes_max: u32,
    /// Most bytes of unfinished large requests; negative for no limit but the memory budget
    /// (`queued.max.request.bytes`).
    pub queued_request_bytes_max: i64,
    /// Log directory that tools display (`log.dirs`).
    pub log_dir: String,
    /// Default of `mainstem.durability`.
    pub durability: Durability,
    /// Time that a new group waits for more members, ms
    /// (`group.initial.rebalance.delay.ms`).
    pub group_initial_rebalance_delay_ms: u32,
    /// Shortest session timeout of a group member, ms (`group.min.session.timeout.ms`).
    pub group_session_timeout_min_ms: u32,
    /// Longest session timeout of a group member, ms (`group.max.session.timeout.ms`).
    pub group_session_timeout_max_ms: u32,
    /// Time without a heartbeat after which a member of the consumer protocol is removed, ms
    /// (`group.consumer.session.timeout.ms`).
    pub group_consumer_session_timeout_ms: u32,
    /// Interval of the heartbeats of members of the consumer protocol, ms
    /// (`group.consumer.heartbeat.interval.ms`).
    pub group_consumer_heartbeat_interval_ms: u32,
    /// Retention of the offsets of an empty group, ms (`offsets.retention.minutes`).
    pub offsets_retention_ms: u64,
    /// Idle time after which a transactional id is removed, ms (`transactional.id.expiration.ms`).
    pub transactional_id_expiration_ms: u64,
    /// Most memory of transactional ids and their transactions, bytes.
    pub transactional_id_bytes_max: usize,
    /// Idle time after which a partition forgets a producer, ms (`producer.id.expiration.ms`).
    pub producer_id_expiration_ms: u64,
    /// Most memory of the producers of all partitions, bytes.
    pub producer_bytes_max: usize,
    /// Default of `mainstem.compressed.records.check`.
    pub checks_compressed_records: bool,
    /// Default retention, ms; negative for no limit (`log.retention.ms`).
    pub retention_ms: i64,
    /// Default retention in bytes per partition; negative for no limit (`log.retention.bytes`).
    pub retention_bytes: i64,
    /// Default segment size, bytes (`log.segment.bytes`).
    pub segment_bytes: u32,
    /// Default limit of a record batch, bytes (`message.max.bytes`).
    pub message_bytes_max: u32,
    /// Whether a connection moves to the shard that owns the partitions of its first Produce or Fetch.
    pub follows_partitions: bool,
    /// Topics that other protocols write to.
    pub bound_topics: Vec<BoundTopic>,
    /// Topic to which the events of the audit log are appended, and to which no client may produce.
    pub audit_topic: Option<Arc<str>>,
    /// Topics that other protocols read.
    pub sources: Vec<Source>,
    /// Whether a send or receive creates a work queue that does not exist.
    pub queues_auto_create: bool,
    /// Bounds of the background work of queues. Tests change them; operators have no reason to.
    pub queue_tuning: mainstem_queue_core::Tuning,
}

/// Settings of a listener.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListenerSettings {
    /// Name of the listener, which rules may have as a condition.
    pub name: Arc<str>,
    /// Mechanisms of SASL that it offers; if there are any, its clients must log in (`sasl.enabled.mechanisms`).
    pub mechanisms: Vec<Mechanism>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            advertised_host: "127.0.0.1".into(),
            advertised_port: 9092,
            node_id: 1,
            auto_create_topics: true,
            partitions: 1,
            partitions_max: 20_000,
            connections_max_idle_ms: 600_000,
            listeners: Vec::new(),
            log_in_timeout_ms: 30_000,
            failed_authentication_delay_ms: 100,
            connections_max_reauth_ms: 0,
            request_bytes_max: 100 * 1024 * 1024,
            queued_request_bytes_max: -1,
            log_dir: "data".into(),
            durability: Durability::Fsync,
            group_initial_rebalance_delay_ms: 0,
            group_session_timeout_min_ms: 6_000,
            group_session_timeout_max_ms: 1_800_000,
            group_consumer_session_timeout_ms: 45_000,
            group_consumer_heartbeat_interval_ms: 5_000,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1000,
            transactional_id_expiration_ms: 7 * 24 * 60 * 60 * 1000,
            transactional_id_bytes_max: 128 * 1024 * 1024,
            producer_id_expiration_ms: 24 * 60 * 60 * 1000,
            producer_bytes_max: 64 * 1024 * 1024,
            checks_compressed_records: true,
            retention_ms: 7 * 24 * 60 * 60 * 1000,
            retention_bytes: -1,
            segment_bytes: 128 * 1024 * 1024,
            message_bytes_max: 1024 * 1024 + 12,
            follows_partitions: false,
            bound_topics: Vec::new(),
            audit_topic: None,
            sources: Vec::new(),
            queues_auto_create: true,
            queue_tuning: mainstem_queue_core::Tuning::default(),
        }
    }
}
