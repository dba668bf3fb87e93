//! Errors of partitions, by cause. The server that owns the protocol maps causes to its error codes.

use std::fmt;

use mainstem_coordinator::Error as ProducerError;
use mainstem_log::Error as StoreError;

/// Why a partition rejects a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionError {
    /// The topic or partition does not exist, or was deleted while the request waited.
    UnknownPartition,
    /// The bytes are not a whole record batch, or its checksum is wrong.
    CorruptBatch,
    /// The batch or some of its records break a rule of the format or the topic.
    InvalidRecord {
        /// The broken rule.
        rule: String,
        /// Positions of the offending records in the batch; empty if the whole batch is at fault (KIP-467).
        records: Vec<i32>,
    },
    /// A timestamp is out of range, or has a type that producers must not set.
    InvalidTimestamp(String),
    /// The batch is larger than `max.message.bytes`.
    BatchTooLarge {
        /// Size of the batch, bytes.
        bytes: usize,
        /// The limit, bytes.
        bytes_max: usize,
    },
    /// The codec is not defined.
    UnsupportedCompression,
    /// The batch contradicts the state of its producer, or that of its transaction.
    Producer(ProducerError),
    /// The partition has forgotten the producer. Clients need the start of the log to tell why (KIP-360).
    UnknownProducer {
        /// First offset of the partition.
        log_start: u64,
    },
    /// The offset is not in the partition.
    OffsetOutOfRange,
    /// The manager of the partition admits no more for now.
    Full,
    /// The manager of the partition has not taken it over, or could not fill offsets that the log has lost.
    NotReady,
    /// The store failed.
    Store(StoreError),
}

impl PartitionError {
    pub(crate) fn rule(rule: impl Into<String>) -> Self {
        Self::InvalidRecord { rule: rule.into(), records: Vec::new() }
    }
}

impl From<StoreError> for PartitionError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPartition => f.write_str("no such partition"),
            Self::CorruptBatch => f.write_str("corrupt record batch"),
            Self::InvalidRecord { rule: text, .. } | Self::InvalidTimestamp(text) => f.write_str(text),
            Self::BatchTooLarge { bytes, bytes_max } => {
                write!(f, "a batch of {bytes} bytes, where max.message.bytes is {bytes_max}")
            }
            Self::UnsupportedCompression => f.write_str("unsupported compression codec"),
            Self::Producer(error) => write!(f, "{error}"),
            Self::UnknownProducer { .. } => f.write_str("the producer is not known any more"),
            Self::OffsetOutOfRange => f.write_str("offset out of range"),
            Self::Full => f.write_str("the partition is full"),
            Self::NotReady => f.write_str("the partition is not ready for appends"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for PartitionError {}
