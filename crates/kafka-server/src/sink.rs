//! Sinks: records that other protocols write into topics.
//!
//! Other protocols deliver single records. An append per record would cost too much, so a sink collects the records of
//! one turn in one batch per partition, and appends it like a producer's batch. Records for a work queue are sent to
//! the queue instead.
//!
//! Each record gets exactly one result, after its append is durable or has failed. Records keep their order: if the
//! topic of a record does not exist yet, that record and all later ones wait until shard 0 has created the topic.

use std::sync::Arc;

use mainstem_kafka::partition_for_key;
use mainstem_partition::Waiter;
use mainstem_queue_core::{Reply, Request};
use mainstem_queue_server::{QueueOperation, QueueRequest, ReplyTo, Requester};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::binding_registry::BoundTopic;
use crate::catalogue::{PartitionId, Topic};
use crate::jobs::Job;
use crate::partition_message::{PartitionRequest, ProducePart};
use crate::pending::AfterTopicChange;
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, ShardMessage};
use crate::sinks::{SinkBatch, SinkRecord, SinkResult, SinkSend};
use crate::topic_change::NewTopic;

/// Validates a topic that another protocol writes to.
///
/// # Errors
/// The name or a configuration key is invalid. The message is for the operator.
pub fn check_topic(topic: &BoundTopic) -> Result<(), String> {
    if let Some(error) = crate::catalogue::new_name_error(&topic.name) {
        return Err(error);
    }
    for (key, value) in &topic.config {
        let known = crate::topic_config::find(key).ok_or_else(|| format!("a topic has no {key:?}"))?;
        known.check(value)?;
    }
    Ok(())
}

impl Shard {
    /// Accepts a record of another protocol. [`Shard::take_sink_results`] returns its result.
    pub fn sink(&mut self, io: &mut Io<'_, Mail>, record: &SinkRecord<'_>) {
        self.env.refresh();
        self.env.shared().bound.refresh(&mut self.bindings);
        match self.bound_topic(record.bound) {
            // Earlier records precede this one.
            Some(topic) if self.sinks.next_awaiting_topic().is_none() => self.add_record(io, &topic, record),
            _ => {
                self.sinks.push_awaiting_topic(record);
                self.batch_waiting_records(io);
            }
        }
    }

    /// Takes the tokens and results of finished records.
    pub fn take_sink_results(&mut self) -> Vec<(u64, SinkResult)> {
        self.sinks.take_results()
    }

    /// Whether other protocols should pause.
    pub fn is_sink_behind(&self) -> bool {
        self.sinks.is_behind()
    }

    fn bound_topic(&self, bound: usize) -> Option<Arc<Topic>> {
        self.env.catalogue().topic(&self.bindings.topics.get(bound)?.name).cloned()
    }

    /// Adds waiting records to batches while their topics exist, then requests the creation of the next missing topic.
    pub(crate) fn batch_waiting_records(&mut self, io: &mut Io<'_, Mail>) {
        self.env.refresh();
        while let Some(bound) = self.sinks.next_awaiting_topic() {
            let Some(topic) = self.bound_topic(bound) else {
                if self.sinks.request(bound) {
                    self.request_topic_creation(io, bound);
                }
                return;
            };
            if let Some(waiting) = self.sinks.pop_awaiting_topic() {
                self.add_record(io, &topic, &waiting.record());
            }
        }
    }

    /// Requests missing topics again.
    pub(crate) fn retry_topic_creation(&mut self, io: &mut Io<'_, Mail>) {
        self.sinks.clear_requests();
        self.batch_waiting_records(io);
    }

    fn request_topic_creation(&mut self, io: &mut Io<'_, Mail>, bound: usize) {
        if self.env.is_controller() {
            self.create_bound_topic(io, bound);
        } else {
            io.send(0, Mail(ShardMessage::CreateBoundTopic { bound }));
        }
    }

    /// Creates a bound topic on shard 0, if it does not exist.
    pub(crate) fn create_bound_topic(&mut self, io: &mut Io<'_, Mail>, bound: usize) {
        self.env.shared().bound.refresh(&mut self.bindings);
        let Some(topic) = self.bindings.topics.get(bound) else { return };
        let BoundTopic { name, partitions, config } = topic.clone();
        self.env.refresh();
        if self.env.catalogue().topic(&name).is_some() {
            return;
        }
        let new = NewTopic { name: Arc::clone(&name), partitions, config };
        self.create_topic(io, new, AfterTopicChange::BoundTopic(name));
    }

    /// A bound topic has been created, or not.
    pub(crate) fn on_bound_topic_created(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: &str,
        outcome: Result<(), AppendError>,
    ) {
        match outcome {
            Ok(()) => self.batch_waiting_records(io),
            Err(refused) => log::warn!("topic {name}: cannot create the topic of a binding: {refused:?}"),
        }
    }

    fn add_record(&mut self, io: &mut Io<'_, Mail>, topic: &Topic, record: &SinkRecord<'_>) {
        if topic.config.queue.is_some() {
            if let Some(full) = self.sinks.add_for_queue(&topic.name, record) {
                self.send_queue_batch(io, Arc::clone(&topic.name), full);
            }
            return;
        }
        let id = topic.partition(partition_for_key(record.partition_key, topic.partitions()));
        if let Some(full) = self.sinks.add(id, record, topic.config.partition.message_bytes_max) {
            self.append_sink_batch(io, id, full);
        }
    }

    /// Sends the batches of this turn to the partitions and queues.
    pub(crate) fn append_all_gathered(&mut self, io: &mut Io<'_, Mail>) {
        while let Some((queue, send)) = self.sinks.pop_send() {
            self.send_queue_batch(io, queue, send);
        }
        while let Some((id, batch)) = self.sinks.pop_batch() {
            self.append_sink_batch(io, id, batch);
        }
    }

    fn send_queue_batch(&mut self, io: &mut Io<'_, Mail>, queue: Arc<str>, mut send: SinkSend) {
        let job = self.jobs.add(Job::Sink(self.sinks.begin_send(&mut send)));
        let to = ReplyTo { shard: self.env.me(), requester: Requester::Job(job) };
        let operation = QueueOperation::Request(Request::Send(send.messages));
        self.route_queue_request(io, QueueRequest { queue, operation, to });
    }

    fn append_sink_batch(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, mut batch: SinkBatch) {
        let job = self.jobs.add(Job::Sink(self.sinks.begin(&mut batch)));
        let records = batch.builder.finish();
        match self.env.owner_of(id) {
            Ok(owner) if owner == self.env.me() => {
                let waiter = Waiter { job: JobId { shard: self.env.me(), job }, part: 0 };
                self.produce_local(io, waiter, id, records, None);
            }
            Ok(owner) => {
                let part = ProducePart { part: 0, id, records: records.to_vec(), transactional: None };
                self.send_partition_request(io, owner, job, PartitionRequest::Produce(vec![part]));
            }
            Err(_) => self.on_sink_appended(job, SinkResult::NotDurable),
        }
    }

    /// Records the result of a batch.
    pub(crate) fn on_sink_appended(&mut self, number: u64, result: SinkResult) {
        if let Some(Job::Sink(job)) = self.jobs.take(number) {
            self.sinks.settle(job, result);
        }
    }

    /// Records the results of messages sent to a queue.
    pub(crate) fn on_sink_enqueued(&mut self, number: u64, reply: &Reply) {
        let Reply::Sent(answers) = reply else {
            return self.on_sink_appended(number, SinkResult::NotDurable);
        };
        if let Some(Job::Sink(job)) = self.jobs.take(number) {
            self.sinks.settle_each(job, answers);
        }
    }
}
