//! The part of a topic's configuration that its partitions enforce.

use mainstem_log::{Compression, Options};

/// Source of record timestamps (`message.timestamp.type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer sets them.
    Create,
    /// The broker sets them when it appends the batch.
    LogAppend,
}

/// Configuration of the partitions of one topic.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionConfig {
    /// Largest batch, bytes (`max.message.bytes`).
    pub message_bytes_max: usize,
    /// Source of record timestamps.
    pub timestamp_type: TimestampType,
    /// How far a timestamp may lie in the past, ms; `i64::MAX` for no limit (`message.timestamp.before.max.ms`).
    pub timestamp_before_max_ms: i64,
    /// How far a timestamp may lie in the future, ms (`message.timestamp.after.max.ms`).
    pub timestamp_after_max_ms: i64,
    /// Whether the records of compressed batches are validated, which decompresses them. Without it, only the checks
    /// that the topic asks for read them.
    pub checks_compressed_records: bool,
    /// Codec and level that batches are recompressed with; `None` keeps the producer's codec.
    pub recompress: Option<(Compression, Option<i32>)>,
    /// Whether the log is compacted, so that each record needs a key.
    pub is_compacted: bool,
    /// Whether a component of the broker consumes the partition and decides what remains in it. Its partitions report
    /// [`crate::PartitionEvent`]s.
    pub is_managed: bool,
    /// Options of the log.
    pub options: Options,
}

impl Default for PartitionConfig {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            message_bytes_max: 1024 * 1024 + 12,
            timestamp_type: TimestampType::Create,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 60 * 60 * 1000,
            checks_compressed_records: true,
            recompress: None,
            is_compacted: false,
            is_managed: false,
            options: Options::default(),
        }
    }
}
