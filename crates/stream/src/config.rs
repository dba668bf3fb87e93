//! What the Kafka door is told at the start.

use mainstem_log::Durability;

use crate::sink::BoundTopic;
use crate::tail::Source;

/// Settings of the Kafka door. Names in parentheses are Kafka's.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Host that clients are told to connect to (`advertised.listeners`).
    pub advertised_host: String,
    /// Port that clients are told to connect to.
    pub advertised_port: u16,
    /// The one node's number (`node.id`).
    pub node_id: i32,
    /// Whether a topic that is produced to, or asked for, is made if it is not there
    /// (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Partitions of a topic whose creator names no number (`num.partitions`).
    pub partitions: i32,
    /// Partitions of all topics together, at most.
    pub partitions_max: i32,
    /// Largest request, bytes (`socket.request.max.bytes`).
    pub request_bytes_max: u32,
    /// Where partitions lie, as tools are told (`log.dirs`).
    pub log_dir: String,
    /// When an append of a topic that says nothing else counts as done.
    pub durability: Durability,
    /// Time for which a group that just got its first member waits for more, ms
    /// (`group.initial.rebalance.delay.ms`).
    pub group_initial_rebalance_delay_ms: u32,
    /// Shortest session timeout that a member of a group may ask for, ms (`group.min.session.timeout.ms`).
    pub group_session_timeout_min_ms: u32,
    /// Longest one, ms (`group.max.session.timeout.ms`).
    pub group_session_timeout_max_ms: u32,
    /// Time for which the offsets of an empty group are kept, ms (`offsets.retention.minutes`).
    pub offsets_retention_ms: u64,
    /// Retention of a topic that says nothing else, ms; negative for no limit (`log.retention.ms`).
    pub retention_ms: i64,
    /// The same in bytes per partition (`log.retention.bytes`).
    pub retention_bytes: i64,
    /// Size of a segment of a topic that says nothing else, bytes (`log.segment.bytes`).
    pub segment_bytes: u32,
    /// Largest record batch of a topic that says nothing else, bytes (`message.max.bytes`).
    pub message_bytes_max: u32,
    /// Whether a connection moves to the shard that has the partitions of its first Produce or Fetch.
    pub follows_partitions: bool,
    /// Topics that other doors write to.
    pub bound_topics: Vec<BoundTopic>,
    /// Topics that other doors read.
    pub sources: Vec<Source>,
    /// Whether a work queue that messages are sent to, or wanted from, is made if it is not there.
    pub queues_auto_create: bool,
    /// Bounds within which queues do what takes long. Operators have no reason to change them, tests do.
    pub queue_tuning: mainstem_queue::Tuning,
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
            request_bytes_max: 100 * 1024 * 1024,
            log_dir: "data".into(),
            durability: Durability::Fsync,
            group_initial_rebalance_delay_ms: 0,
            group_session_timeout_min_ms: 6_000,
            group_session_timeout_max_ms: 1_800_000,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1000,
            retention_ms: 7 * 24 * 60 * 60 * 1000,
            retention_bytes: -1,
            segment_bytes: 128 * 1024 * 1024,
            message_bytes_max: 1024 * 1024 + 12,
            follows_partitions: false,
            bound_topics: Vec::new(),
            sources: Vec::new(),
            queues_auto_create: true,
            queue_tuning: mainstem_queue::Tuning::default(),
        }
    }
}
