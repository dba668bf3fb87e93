//! Sinks of one shard: records that other protocols write, on their way into batches.
//!
//! The records of one turn form one batch per partition, and one send per work queue. Records whose topic does not
//! exist yet wait in order. What is in flight is counted, so that the other protocols can pause.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_log::BatchBuilder;
use mainstem_partition::AppendInfo;
use mainstem_queue_core::{ItemResult, NewMessage, QueueError};

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;
use crate::partition_message::RECORD_OVERHEAD_BYTES;

/// Most bytes of one batch, unless a single record is larger.
const BATCH_BYTES: usize = 256 * 1024;
/// Bytes in flight beyond which other protocols should pause.
const IN_FLIGHT_BYTES_PAUSE: usize = 32 * 1024 * 1024;
/// The same for records whose topic does not exist yet.
const AWAITING_TOPIC_BYTES_PAUSE: usize = 1024 * 1024;

/// A record that another protocol writes.
#[derive(Clone, Copy, Debug)]
pub struct SinkRecord<'a> {
    /// Number of the topic: its index in [`crate::Config::bound_topics`], or the result of
    /// [`crate::Shared::bind_topic`].
    pub bound: usize,
    /// Record key.
    pub key: Option<&'a [u8]>,
    /// Partitioning key: records with the same one go to the same partition, in order.
    pub partition_key: &'a [u8],
    /// Record value.
    pub value: &'a [u8],
    /// Encoded headers, with their count first.
    pub headers: &'a [u8],
    /// Timestamp, ms since 1970. A work queue uses its own time of arrival.
    pub timestamp_ms: i64,
    /// Token that [`crate::Bindings::take_sink_results`] returns.
    pub token: u64,
}

/// The result of writing a record of another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkResult {
    /// It is as durable as its topic requires.
    Durable,
    /// It failed, or its outcome is unknown; a retry is safe.
    NotDurable,
    /// The topic has no room, or the record is too large.
    NoRoom,
    /// The topic does not accept such a record.
    Invalid,
}

impl SinkResult {
    /// The result of each record in a batch.
    pub(crate) fn of(outcome: &Result<AppendInfo, AppendError>) -> Self {
        match outcome {
            Ok(_) => Self::Durable,
            Err(refused) => match refused.code {
                ErrorCode::PolicyViolation | ErrorCode::MessageTooLarge => Self::NoRoom,
                ErrorCode::InvalidRecord | ErrorCode::InvalidTimestamp => Self::Invalid,
                _ => Self::NotDurable,
            },
        }
    }

    /// The result of a message sent to a queue.
    fn of_message(answer: &ItemResult<u64>) -> Self {
        match answer {
            Ok(_) => Self::Durable,
            Err(QueueError::Full | QueueError::TooLarge { .. } | QueueError::TooMany) => Self::NoRoom,
            Err(QueueError::Invalid(_)) => Self::Invalid,
            Err(_) => Self::NotDurable,
        }
    }
}

impl SinkRecord<'_> {
    /// Most bytes of the record in a batch.
    fn size(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.len() + self.headers.len() + RECORD_OVERHEAD_BYTES
    }
}

/// The records of other protocols on one shard.
#[derive(Debug, Default)]
pub(crate) struct Sinks {
    batches: BTreeMap<PartitionId, SinkBatch>,
    /// Records for queues, by queue name. A queue may accept some of them only.
    sends: BTreeMap<Arc<str>, SinkSend>,
    /// Records whose topic does not exist yet, in order.
    awaiting_topic: VecDeque<AwaitingTopic>,
    awaiting_topic_bytes: usize,
    /// Topics whose creation has been requested.
    requested: Vec<usize>,
    /// Bytes of appends in flight.
    bytes: usize,
    results: Vec<(u64, SinkResult)>,
}

/// A batch for one partition.
#[derive(Debug, Default)]
pub(crate) struct SinkBatch {
    pub(crate) builder: BatchBuilder,
    tokens: Vec<u64>,
}

/// Messages for one queue.
#[derive(Debug, Default)]
pub(crate) struct SinkSend {
    messages: Vec<NewMessage>,
    tokens: Vec<u64>,
    bytes: usize,
}

/// A record whose topic does not exist yet.
#[derive(Debug)]
pub(crate) struct AwaitingTopic {
    bound: usize,
    key: Option<Vec<u8>>,
    partition_key: Vec<u8>,
    value: Vec<u8>,
    headers: Vec<u8>,
    timestamp_ms: i64,
    token: u64,
}

impl AwaitingTopic {
    pub(crate) fn record(&self) -> SinkRecord<'_> {
        SinkRecord {
            bound: self.bound,
            key: self.key.as_deref(),
            partition_key: &self.partition_key,
            value: &self.value,
            headers: &self.headers,
            timestamp_ms: self.timestamp_ms,
            token: self.token,
        }
    }

    fn bytes(&self) -> usize {
        self.value.len() + self.headers.len() + RECORD_OVERHEAD_BYTES
    }
}

/// Records in flight.
#[derive(Debug)]
pub(crate) struct SinkJob {
    tokens: Vec<u64>,
    bytes: usize,
}

impl Sinks {
    /// Whether the other protocols should pause.
    pub(crate) fn is_behind(&self) -> bool {
        self.bytes > IN_FLIGHT_BYTES_PAUSE || self.awaiting_topic_bytes > AWAITING_TOPIC_BYTES_PAUSE
    }

    /// Lets a record wait for its topic.
    pub(crate) fn push_awaiting_topic(&mut self, record: &SinkRecord<'_>) {
        let SinkRecord { bound, key, partition_key, value, headers, timestamp_ms, token } = *record;
        let waiting = AwaitingTopic {
            bound,
            key: key.map(<[u8]>::to_vec),
            partition_key: partition_key.to_vec(),
            value: value.to_vec(),
            headers: headers.to_vec(),
            timestamp_ms,
            token,
        };
        self.awaiting_topic_bytes += waiting.bytes();
        self.awaiting_topic.push_back(waiting);
    }

    /// The topic of the first record that waits for one.
    pub(crate) fn next_awaiting_topic(&self) -> Option<usize> {
        self.awaiting_topic.front().map(|waiting| waiting.bound)
    }

    /// Takes the first record that waits for its topic, which exists now.
    pub(crate) fn pop_awaiting_topic(&mut self) -> Option<AwaitingTopic> {
        let waiting = self.awaiting_topic.pop_front()?;
        self.awaiting_topic_bytes -= waiting.bytes();
        self.requested.retain(|requested| *requested != waiting.bound);
        Some(waiting)
    }

    /// Notes that a topic is requested. Returns false if it was requested before.
    pub(crate) fn request(&mut self, bound: usize) -> bool {
        let is_new = !self.requested.contains(&bound);
        if is_new {
            self.requested.push(bound);
        }
        is_new
    }

    /// Lets missing topics be requested again.
    pub(crate) fn clear_requests(&mut self) {
        self.requested.clear();
    }

    /// Adds a record to the batch of a partition. Returns the batch to append first, if the record does not fit.
    pub(crate) fn add(
        &mut self,
        id: PartitionId,
        record: &SinkRecord<'_>,
        message_bytes_max: usize,
    ) -> Option<SinkBatch> {
        let batch = self.batches.entry(id).or_default();
        let is_full = batch.builder.len() + record.size() > BATCH_BYTES.min(message_bytes_max);
        let full = (is_full && !batch.tokens.is_empty()).then(|| std::mem::take(batch));
        let SinkRecord { key, value, headers, timestamp_ms, token, .. } = *record;
        batch.builder.push_with_headers(timestamp_ms, key, Some(value), headers);
        batch.tokens.push(token);
        full
    }

    /// Adds a record to the messages for a queue. Returns the messages to send first, if there are many.
    pub(crate) fn add_for_queue(&mut self, queue: &Arc<str>, record: &SinkRecord<'_>) -> Option<SinkSend> {
        let send = self.sends.entry(Arc::clone(queue)).or_default();
        let is_full = send.bytes + record.size() > BATCH_BYTES;
        let full = (is_full && !send.tokens.is_empty()).then(|| std::mem::take(send));
        send.bytes += record.size();
        send.messages.push(NewMessage {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.to_vec(),
            headers: record.headers.to_vec(),
        });
        send.tokens.push(record.token);
        full
    }

    /// Takes a batch of this turn.
    pub(crate) fn pop_batch(&mut self) -> Option<(PartitionId, SinkBatch)> {
        self.batches.pop_first()
    }

    /// Takes the messages of this turn for a queue.
    pub(crate) fn pop_send(&mut self) -> Option<(Arc<str>, SinkSend)> {
        self.sends.pop_first()
    }

    /// A batch is in flight.
    pub(crate) fn begin(&mut self, batch: &mut SinkBatch) -> SinkJob {
        self.begin_job(std::mem::take(&mut batch.tokens), batch.builder.len())
    }

    /// Messages for a queue are in flight.
    pub(crate) fn begin_send(&mut self, send: SinkSend) -> (Vec<NewMessage>, SinkJob) {
        (send.messages, self.begin_job(send.tokens, send.bytes))
    }

    fn begin_job(&mut self, tokens: Vec<u64>, bytes: usize) -> SinkJob {
        self.bytes += bytes;
        SinkJob { tokens, bytes }
    }

    /// Ends a batch: all its records have the same result.
    pub(crate) fn settle(&mut self, job: SinkJob, result: SinkResult) {
        self.bytes -= job.bytes;
        self.results.extend(job.tokens.into_iter().map(|token| (token, result)));
    }

    /// Ends messages that a queue has answered one by one.
    pub(crate) fn settle_each(&mut self, job: SinkJob, answers: &[ItemResult<u64>]) {
        self.bytes -= job.bytes;
        let results = answers.iter().map(SinkResult::of_message);
        self.results.extend(job.tokens.into_iter().zip(results));
    }

    /// Whether records are finished.
    pub(crate) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// Takes the tokens and results of finished records.
    pub(crate) fn take_results(&mut self) -> Vec<(u64, SinkResult)> {
        std::mem::take(&mut self.results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::TopicId;

    const ID: PartitionId = PartitionId { topic: TopicId([1; 16]), index: 0 };

    fn record(value: &[u8], token: u64) -> SinkRecord<'_> {
        SinkRecord { bound: 4, key: None, partition_key: b"", value, headers: &[0], timestamp_ms: 1, token }
    }

    #[test]
    fn a_batch_that_is_full_is_returned_before_the_record_that_does_not_fit() {
        let mut sinks = Sinks::default();
        let value = vec![0; 1000];
        assert!(sinks.add(ID, &record(&value, 1), 500).is_none(), "a single record may be larger");
        let mut full = sinks.add(ID, &record(&value, 2), 500).expect("the first batch is full");
        let job = sinks.begin(&mut full);
        assert_eq!((full.builder.records(), sinks.bytes), (1, job.bytes));
        sinks.settle(job, SinkResult::Durable);
        assert_eq!(sinks.take_results(), [(1, SinkResult::Durable)]);
        assert_eq!(sinks.bytes, 0);
        assert_eq!(sinks.pop_batch().map(|(_, batch)| batch.tokens), Some(vec![2]));
        assert!(sinks.pop_batch().is_none());
    }

    #[test]
    fn records_wait_for_their_topic_in_order_and_it_is_requested_once() {
        let mut sinks = Sinks::default();
        let value = vec![0; AWAITING_TOPIC_BYTES_PAUSE / 2];
        sinks.push_awaiting_topic(&record(&value, 1));
        assert!(!sinks.is_behind());
        sinks.push_awaiting_topic(&record(&value, 2));
        assert!(sinks.is_behind());
        assert!(sinks.request(4) && !sinks.request(4));
        for token in [1, 2] {
            let waiting = sinks.pop_awaiting_topic().expect("it waits");
            assert_eq!(waiting.record().token, token);
        }
        assert!(sinks.pop_awaiting_topic().is_none());
        assert_eq!(sinks.awaiting_topic_bytes, 0);
        assert!(sinks.request(4), "the topic may be deleted again");
    }

    #[test]
    fn a_queue_answers_each_message() {
        let mut sinks = Sinks::default();
        let queue: Arc<str> = "queue".into();
        assert!(sinks.add_for_queue(&queue, &record(b"a", 1)).is_none());
        assert!(sinks.add_for_queue(&queue, &record(b"b", 2)).is_none());
        let (_, send) = sinks.pop_send().expect("it has messages");
        let (messages, job) = sinks.begin_send(send);
        assert_eq!(messages.len(), 2);
        sinks.settle_each(job, &[Ok(7), Err(QueueError::Full)]);
        assert_eq!(sinks.take_results(), [(1, SinkResult::Durable), (2, SinkResult::NoRoom)]);
        assert_eq!(sinks.bytes, 0);
    }
}
