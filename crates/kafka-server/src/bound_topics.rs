//! Bound topics: carries out what the [`Bindings`] of a shard want.
//!
//! Other protocols deliver single records. An append per record would cost too much, so a sink collects the records of
//! one turn in one batch per partition, and appends it like a producer's batch. Records for a work queue are sent to
//! the queue instead.
//!
//! Each record gets exactly one result, after its append is durable or has failed. Records keep their order: if the
//! topic of a record does not exist yet, that record and all later ones wait until shard 0 has created the topic.
//!
//! Sources deliver records of this shard's partitions to other protocols, see [`crate::sources`].

use std::sync::Arc;

use mainstem_partition::Waiter;
use mainstem_queue_core::Request;
use mainstem_queue_server::{QueueOperation, QueueRequest, ReplyTo, Requester};
use mainstem_runtime::Io;

use crate::binding_registry::BoundTopic;
use crate::bindings::{Bindings, SinkEffect};
use crate::catalogue::PartitionId;
use crate::jobs::Job;
use crate::partition_message::{PartitionRequest, ProducePart};
use crate::pending::AfterTopicChange;
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, ShardMessage};
use crate::sinks::{SinkBatch, SinkJob, SinkRecord, SinkResult};
use crate::sources::SourceRecord;
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
    /// The topics that other protocols write to and read.
    pub fn bindings_mut(&mut self) -> &mut Bindings {
        &mut self.bindings
    }

    /// Takes the next records for other protocols; `None` if there are none. An empty result means that there may be
    /// more: call it again, in a later turn if the share of this one is used up.
    pub fn take_outgoing(&mut self, io: &mut Io<'_, Mail>) -> Option<Vec<SourceRecord>> {
        self.bindings.take_outgoing(&mut self.env, &mut self.storage, io)
    }

    /// Ends a fence. If `is_durable`, all records delivered before it are durable in the other protocol.
    pub fn end_source_fence(&mut self, io: &mut Io<'_, Mail>, token: u64, is_durable: bool) {
        self.bindings.end_source_fence(&mut self.storage, io, token, is_durable);
    }

    /// Accepts a record of another protocol. [`Bindings::take_sink_results`] returns its result.
    pub fn sink(&mut self, io: &mut Io<'_, Mail>, record: &SinkRecord<'_>) {
        if let Some(effect) = self.bindings.add(&mut self.env, record) {
            self.carry_out_sink_effect(io, effect);
        }
        if self.bindings.has_waiting() {
            self.batch_waiting_records(io);
        }
    }

    /// Adds waiting records to batches while their topics exist, then requests the creation of the next missing topic.
    pub(crate) fn batch_waiting_records(&mut self, io: &mut Io<'_, Mail>) {
        self.env.refresh();
        while let Some(effect) = self.bindings.next_waiting(&self.env) {
            self.carry_out_sink_effect(io, effect);
        }
    }

    /// Sends the batches of this turn to the partitions and queues.
    pub(crate) fn append_all_gathered(&mut self, io: &mut Io<'_, Mail>) {
        while let Some(effect) = self.bindings.next_batch() {
            self.carry_out_sink_effect(io, effect);
        }
    }

    fn carry_out_sink_effect(&mut self, io: &mut Io<'_, Mail>, effect: SinkEffect) {
        match effect {
            SinkEffect::Append { id, batch, job } => self.append_sink_batch(io, id, batch, job),
            SinkEffect::Send { queue, messages, job } => {
                let requester = Requester::Job(self.jobs.add(Job::Sink(job)));
                let to = ReplyTo { shard: self.env.me(), requester };
                let operation = QueueOperation::Request(Request::Send(messages));
                self.route_queue_request(io, QueueRequest { queue, operation, to });
            }
            SinkEffect::CreateTopic(bound) if self.env.is_controller() => self.create_bound_topic(io, bound),
            SinkEffect::CreateTopic(bound) => {
                io.send(0, Mail(ShardMessage::CreateBoundTopic { bound }));
            }
        }
    }

    fn append_sink_batch(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        mut batch: SinkBatch,
        job: SinkJob,
    ) {
        let Ok(owner) = self.env.owner_of(id) else {
            return self.bindings.settle(job, SinkResult::NotDurable);
        };
        let job = self.jobs.add(Job::Sink(job));
        let records = batch.builder.finish();
        if owner == self.env.me() {
            let waiter = Waiter { job: JobId { shard: owner, job }, part: 0 };
            self.produce_local(io, waiter, id, records, None);
        } else {
            let part = ProducePart { part: 0, id, records: records.to_vec(), transactional: None };
            self.send_partition_request(io, owner, job, PartitionRequest::Produce(vec![part]));
        }
    }

    /// Creates a bound topic on shard 0, if it does not exist.
    pub(crate) fn create_bound_topic(&mut self, io: &mut Io<'_, Mail>, bound: usize) {
        let Some(topic) = self.bindings.missing_topic(&mut self.env, bound) else { return };
        let BoundTopic { name, partitions, config } = topic;
        let new = NewTopic { name: Arc::clone(&name), partitions, config };
        self.create_topic(io, new, AfterTopicChange::BoundTopic(name));
    }
}
