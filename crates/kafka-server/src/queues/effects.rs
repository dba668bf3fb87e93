//! Effects of queues, carried out on their partitions: a batch is appended like a producer's, a transfer is a request
//! to another queue, and a truncation moves the start of the partition.
//!
//! A queue that confirms messages before they are synced may lose some in a power failure, while its state log still
//! knows their offsets. A batch without messages fills those offsets before the next append, so that no offset is used
//! twice.

use mainstem_coordinator::producer::TxnVerification;
use mainstem_kafka::ErrorCode;
use mainstem_log::{BatchBuilder, BatchHeader, Durability, Store};
use mainstem_partition::{AbortedFilter, Admission, Partition};
use mainstem_queue_core::{
    Effect, ItemResult, MessageLog, PendingBatch, QueueError, Reply, TransferredMessage, transfer_batch,
};
use mainstem_runtime::Io;

use super::admin;
use super::message::{QueueAppend, QueueOperation, QueueRequest, ReplyTo, Requester};
use crate::append_error::Produced;
use crate::catalogue::PartitionId;
use crate::jobs::Job;
use crate::partition_message::PartitionResponse;
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail};

/// The partition of a queue as its engine sees it: consumers get committed messages only.
pub(super) struct MessagePartition<'a>(pub(super) &'a Partition);

impl MessageLog for MessagePartition<'_> {
    fn visible_to(&self, store: &dyn Store) -> u64 {
        self.0.watermarks(store).last_stable
    }

    fn skip(&self, offsets: std::ops::Range<u64>) -> impl FnMut(&BatchHeader) -> bool {
        let mut aborted = AbortedFilter::new(self.0.aborted(offsets));
        move |header| aborted.should_skip(header)
    }
}

impl Shard {
    pub(super) fn carry_out_effects(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        while let Some(open) = self.queues.open.get_mut(&id)
            && let Some(effect) = open.engine.poll_effect()
        {
            match effect {
                Effect::Reply { to, mut reply } => {
                    if let Reply::Info(info) = &mut reply {
                        info.settings = admin::settings_of(&open.topic);
                    }
                    self.reply_to_requester(io, to, reply);
                }
                Effect::Append(batch) => self.append_batch(io, id, batch),
                Effect::Transfer { queue, messages, durability } => {
                    let operation = QueueOperation::Transfer(messages, durability);
                    let to = ReplyTo { shard: self.me, requester: Requester::Queue(id) };
                    self.route_queue_request(io, QueueRequest { queue: queue.into(), operation, to });
                }
                Effect::Truncate(offset) => {
                    let store = &mut *self.stores[open.store].store;
                    if let Err(error) = store.truncate_prefix(open.engine.queue().messages_log(), offset) {
                        log::warn!("queue {}: settled messages are not removed: {error}", open.topic.name);
                    }
                    self.on_partition_start_advanced(id);
                }
            }
        }
    }

    fn append_batch(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, mut batch: PendingBatch) {
        let job = QueueAppend::Batch { id, number: batch.number() };
        self.append_for_queue(io, id, job, batch.bytes());
        if let Some(open) = self.queues.open.get_mut(&id) {
            open.engine.on_append_tried(batch);
        }
    }

    fn append_for_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, job: QueueAppend, batch: &[u8]) {
        let job = JobId { shard: self.me, job: self.jobs.add(Job::QueueAppend(job)) };
        if let Err(error) = self.append_here(io, (job, 0, id), batch, TxnVerification::Unknown) {
            let produced = Produced { part: 0, outcome: Err(error) };
            self.send_partition_response(io, job, PartitionResponse::Produced(produced));
        }
    }

    /// Appends transferred messages. The source settles them when it gets the reply, so the append is synced if the
    /// source asks for [`Durability::Fsync`], whatever this queue is configured for: otherwise a power failure could
    /// lose the messages, or lose them and keep their numbers.
    pub(super) fn append_transfer(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        messages: &[TransferredMessage],
        durability: Durability,
        to: ReplyTo,
    ) {
        if messages.is_empty() {
            return self.reply_to_requester(io, to, Reply::Sent(Vec::new()));
        }
        let mut builder = BatchBuilder::default();
        let batch = transfer_batch(messages, io.clock.unix_ms, &mut builder);
        let job = QueueAppend::Transfer { to, count: messages.len() as u64 };
        self.append_for_queue(io, id, job, batch.bytes());
        if durability == Durability::Fsync
            && let Ok((partition, store)) = self.partition(id)
        {
            store.force_sync(partition.log());
        }
    }

    /// An append is durable, or has failed.
    pub(crate) fn on_queue_append(&mut self, io: &mut Io<'_, Mail>, number: u64, produced: &Produced) {
        let Some(Job::QueueAppend(job)) = self.jobs.take(number) else { return };
        let base: ItemResult<u64> = match &produced.outcome {
            Ok(info) => Ok(info.base_offset),
            Err(error) => Err(match error.code {
                ErrorCode::UnknownTopicOrPartition => QueueError::UnknownQueue,
                // The limit was higher when the message was admitted.
                ErrorCode::MessageTooLarge => QueueError::Invalid("a message that is too large".into()),
                _ => QueueError::Storage,
            }),
        };
        match job {
            QueueAppend::Batch { id, number } => {
                self.with_engine(io, id, |engine, _| engine.on_appended(number, &base));
            }
            QueueAppend::Transfer { to, count } => {
                let place = |place| base.clone().map(|base| base + place);
                self.reply_to_requester(io, to, Reply::Sent((0..count).map(place).collect()));
            }
        }
    }

    /// Transferred messages are durable in another queue, or not.
    pub(super) fn on_transfer_reply(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, reply: &Reply) {
        if let Some(open) = self.queues.open.get_mut(&id) {
            open.engine.on_transferred(reply, io.clock.unix_ms);
            self.mark_queue_ready(io, id);
        }
    }

    /// Fills lost offsets of a queue. Returns whether the log reaches as far as the queue's state.
    pub(super) fn fill_gap(&mut self, io: &Io<'_, Mail>, id: PartitionId) -> bool {
        let Some(open) = self.queues.open.get_mut(&id) else { return true };
        let Some(partition) = self.partitions.get_mut(&id) else { return true };
        let store = &mut *self.stores[open.store].store;
        let gap = open.engine.gap(store, io.clock.unix_ms);
        let filled = gap.and_then(|gap| gap.map_or(Ok(()), |batch| partition.append_gap(store, &batch)));
        if let Err(error) = filled {
            open.engine.on_unreadable(&error);
        }
        open.engine.is_ready()
            || open.engine.queue().restored_to() <= partition.watermarks(store).high_watermark
    }

    /// Lets the manager of a partition act before an append: opens its queue, and fills lost offsets.
    pub(crate) fn prepare_partition(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        if !self.queues.open.contains_key(&id)
            && let Err(error) = self.open_queue(io, id)
        {
            // The append that follows is refused for it.
            log::debug!("the queue of topic {} is not opened: {error}", id.topic.to_hex());
        }
        self.fill_gap(io, id);
    }

    /// States what producers may append to the partition of a queue. To be called whenever that may have changed.
    pub(super) fn admit_producers(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        // What producers have appended since the last call counts.
        self.take_partition_events(io);
        let Some(open) = self.queues.open.get(&id) else { return };
        let queue = open.engine.queue();
        let [records, bytes] = open.engine.room(&self.stores[open.store].store.status(queue.messages_log()));
        self.partitions.admit(id, Admission { assigned_to: queue.restored_to(), records, bytes });
    }
}
