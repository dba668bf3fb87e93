//! Errors of partitions as Kafka error codes, for responses to clients.
//!
//! Partitions report causes, since they serve other protocols too. What a Kafka client does next depends on the code,
//! whether it tries again, reports, or stops; each cause has the code with which Kafka's own clients do the right
//! thing, in one table.

use mainstem_coordinator::Error as ProducerError;
use mainstem_kafka::ErrorCode;
use mainstem_log::{Error as StoreError, Malformed};
use mainstem_partition::{AppendInfo, PartitionError};

/// A Kafka error with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppendError {
    pub(crate) code: ErrorCode,
    /// `None` if the code says it all.
    pub(crate) message: Option<String>,
    /// Positions of the offending records in the batch; empty if the whole batch is at fault (KIP-467).
    pub(crate) records: Vec<i32>,
    /// First offset of the partition, if the client needs it to handle the error.
    pub(crate) log_start: Option<u64>,
}

impl AppendError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()), records: Vec::new(), log_start: None }
    }
}

impl From<ErrorCode> for AppendError {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: None, records: Vec::new(), log_start: None }
    }
}

impl From<PartitionError> for AppendError {
    fn from(error: PartitionError) -> Self {
        let code = error_code(&error);
        match error {
            PartitionError::InvalidRecord { rule, records } => {
                Self { code, message: Some(rule), records, log_start: None }
            }
            PartitionError::UnknownProducer { log_start } => {
                Self { log_start: Some(log_start), ..Self::new(code, error.to_string()) }
            }
            PartitionError::InvalidTimestamp(_)
            | PartitionError::BatchTooLarge { .. }
            | PartitionError::Store(_) => Self::new(code, error.to_string()),
            PartitionError::Full => Self::new(code, "the queue is full"),
            PartitionError::UnknownPartition
            | PartitionError::CorruptBatch
            | PartitionError::UnsupportedCompression
            | PartitionError::Producer(_)
            | PartitionError::NotReady
            | PartitionError::OffsetOutOfRange => code.into(),
        }
    }
}

impl From<StoreError> for AppendError {
    fn from(error: StoreError) -> Self {
        PartitionError::Store(error).into()
    }
}

/// The error code for a cause.
pub(crate) fn error_code(error: &PartitionError) -> ErrorCode {
    match error {
        PartitionError::UnknownPartition => ErrorCode::UnknownTopicOrPartition,
        PartitionError::CorruptBatch => ErrorCode::CorruptMessage,
        PartitionError::InvalidRecord { .. } => ErrorCode::InvalidRecord,
        PartitionError::InvalidTimestamp(_) => ErrorCode::InvalidTimestamp,
        PartitionError::BatchTooLarge { .. } => ErrorCode::MessageTooLarge,
        PartitionError::UnsupportedCompression => ErrorCode::UnsupportedCompressionType,
        PartitionError::Producer(error) => producer_error_code(*error),
        PartitionError::UnknownProducer { .. } => ErrorCode::UnknownProducerId,
        PartitionError::OffsetOutOfRange => ErrorCode::OffsetOutOfRange,
        PartitionError::Full => ErrorCode::PolicyViolation,
        PartitionError::NotReady => ErrorCode::KafkaStorageError,
        PartitionError::Store(error) => store_error_code(error),
    }
}

fn producer_error_code(error: ProducerError) -> ErrorCode {
    ErrorCode::from_code(error.code()).unwrap_or(ErrorCode::UnknownServerError)
}

fn store_error_code(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::Malformed(Malformed::Checksum | Malformed::Length) => ErrorCode::CorruptMessage,
        StoreError::Malformed(_) => ErrorCode::InvalidRecord,
        StoreError::OutOfRange => ErrorCode::OffsetOutOfRange,
        StoreError::Full
        | StoreError::TooManyFiles
        | StoreError::Broken
        | StoreError::Corrupt { .. }
        | StoreError::System(_) => ErrorCode::KafkaStorageError,
    }
}

/// The result of one append, for the request that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Produced {
    /// Number of the partition within the request.
    pub(crate) part: u32,
    pub(crate) outcome: Result<AppendInfo, AppendError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_which_records_are_invalid_and_why() {
        let error = PartitionError::InvalidRecord { rule: "no key".into(), records: vec![1, 3] };
        let converted = AppendError::from(error);
        assert_eq!(
            (converted.code, converted.message.as_deref()),
            (ErrorCode::InvalidRecord, Some("no key"))
        );
        assert_eq!(converted.records, [1, 3]);
    }

    #[test]
    fn a_checksum_is_the_fault_of_the_client_and_a_full_disk_is_not() {
        let code = |error: StoreError| AppendError::from(error).code;
        assert_eq!(code(StoreError::Malformed(Malformed::Checksum)), ErrorCode::CorruptMessage);
        assert_eq!(code(StoreError::Full), ErrorCode::KafkaStorageError);
        let fenced = PartitionError::Producer(ProducerError::InvalidProducerEpoch);
        assert_eq!(error_code(&fenced), ErrorCode::InvalidProducerEpoch);
    }
}
