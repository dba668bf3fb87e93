//! Drives the host of the shard's work queues: lends it what a call needs, and carries out its effects.
//!
//! What a queue does is in `mainstem_queue_server`. Here its batches are appended like a producer's, its errors become
//! those of queues, and its messages to other shards travel with those of this server.

use mainstem_coordinator::producer::TxnVerification;
use mainstem_kafka::ErrorCode;
use mainstem_partition::{IncomingBatch, Waiter};
use mainstem_queue_core::{ItemResult, QueueError, Reply, Request};
use mainstem_queue_server::{AppendTicket, Context, Effect, QueueHost, QueueRequest, ReplyTo};
use mainstem_runtime::Io;

use crate::append_error::{AppendError, Produced};
use crate::catalogue::PartitionId;
use crate::jobs::Job;
use crate::partition_requests::Appended;
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, ShardMessage};
use crate::timer::Timer;
use crate::topic_config::TopicConfig;

impl Shard {
    /// Calls the host of queues, and carries out its effects.
    pub(crate) fn with_queues<T>(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: impl FnOnce(&mut QueueHost<TopicConfig>, &mut Context<'_, TopicConfig>) -> T,
    ) -> T {
        let Self { env, storage, queues, .. } = self;
        env.refresh();
        let owner_of_store = |store_id| env.shared().owner(store_id);
        let ((stores, partitions), catalogue) = (storage.parts_mut(), env.catalogue());
        let now_ms = io.clock.unix_ms;
        let mut cx = Context { stores, partitions, catalogue, owner_of_store: &owner_of_store, now_ms };
        let result = call(queues, &mut cx);
        if self.queues.begin_effects() {
            while let Some(effect) = self.queues.poll_effect() {
                self.carry_out_queue_effect(io, effect);
            }
        }
        result
    }

    fn carry_out_queue_effect(&mut self, io: &mut Io<'_, Mail>, effect: Effect) {
        match effect {
            Effect::Append { id, mut batch, ticket } => {
                self.append_for_queue(io, id, ticket, batch.bytes());
                self.queues.on_append_tried(id, batch);
            }
            Effect::AppendTransfer { id, batch, is_synced, ticket } => {
                self.append_for_queue(io, id, ticket, &batch);
                if is_synced && let Ok((partition, store)) = self.storage.partition(&mut self.env, id) {
                    store.force_sync(partition.log());
                }
            }
            Effect::Open { id, request } => match self.open_queue(io, id) {
                Ok(()) => self.route_queue_request(io, request),
                Err(error) => self.reply_to_requester(io, request.to, Reply::Refused(error)),
            },
            Effect::SendRequest { shard, request } => {
                io.send(shard, Mail(ShardMessage::QueueRequest(Box::new(request))));
            }
            Effect::SendReply { to, reply } => {
                io.send(to.shard, Mail(ShardMessage::QueueReply { to, reply }));
            }
            Effect::ReplyToJob { job, reply } => {
                if let Some(job) = self.jobs.take_sink(job) {
                    self.bindings.settle_reply(job, &reply);
                }
            }
            Effect::Administer(request) => self.administer_queue(io, request),
            Effect::Declare { name, text, to } => self.declare(io, name, text, to),
            Effect::StartAdvanced(id) => self.storage.on_start_advanced(id),
            Effect::RemoveStateLog { store, log } => self.storage.remove_log(store, log),
            Effect::RemoveClosedStateLog(name) => self.storage.remove_state(&name),
            Effect::SetTimer(in_ms) => io.set_timer(io.clock.now_ms + in_ms, Timer::Queues.token()),
            Effect::RequestTurn => io.request_turn(),
        }
    }

    // --- requests

    /// Sends a request to a queue of any shard. [`Shard::take_queue_replies`] returns the reply with `token`.
    pub fn send_queue_request(&mut self, io: &mut Io<'_, Mail>, queue: &str, request: Request, token: u64) {
        self.with_queues(io, |queues, cx| queues.request(cx, queue, request, token));
    }

    /// Whether there are replies to the other protocols of this shard.
    pub fn has_queue_replies(&self) -> bool {
        self.queues.has_replies()
    }

    /// Takes the replies to the other protocols of this shard since the last call, with their tokens.
    pub fn take_queue_replies(&mut self) -> Vec<(u64, Reply)> {
        self.queues.take_replies()
    }

    /// Routes a request to the shard that can serve it.
    pub(crate) fn route_queue_request(&mut self, io: &mut Io<'_, Mail>, request: QueueRequest) {
        self.with_queues(io, |queues, cx| queues.route(cx, request));
    }

    /// Sends a reply to its requester.
    pub(crate) fn reply_to_requester(&mut self, io: &mut Io<'_, Mail>, to: ReplyTo, reply: Reply) {
        self.with_queues(io, |queues, cx| queues.reply(cx.now_ms, to, reply));
    }

    // --- partitions

    /// Opens a queue of this shard and its partition, if they are not open.
    fn open_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> Result<(), QueueError> {
        if self.queues.is_open(id) {
            return Ok(());
        }
        self.storage.partition(&mut self.env, id).map_err(|_| QueueError::Storage)?;
        let random = io.random();
        self.with_queues(io, |queues, cx| queues.open(cx, id, random))
    }

    /// Lets the manager of a partition act before an append: opens its queue, and fills lost offsets.
    pub(crate) fn prepare_partition(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        if let Err(error) = self.open_queue(io, id) {
            // The append that follows is refused for it.
            log::debug!("the queue of topic {} is not opened: {error}", id.topic.to_hex());
        }
        self.with_queues(io, |queues, cx| queues.fill_gap(cx, id));
    }

    fn append_for_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        ticket: AppendTicket,
        batch: &[u8],
    ) {
        let job = JobId { shard: self.env.me(), job: self.jobs.add(Job::QueueAppend(ticket)) };
        let waiter = Waiter { job, part: 0 };
        let appended = IncomingBatch::parse_internal(batch)
            .map_err(AppendError::from)
            .and_then(|incoming| self.append_incoming(io, waiter, id, &incoming, TxnVerification::Unknown));
        match appended {
            Ok(appended) => {
                debug_assert_eq!(appended, Appended::Yes, "queues send plain batches outside transactions");
            }
            Err(error) => self.send_produced(io, waiter, Err(error)),
        }
    }

    /// An append is durable, or has failed.
    pub(crate) fn on_queue_append(&mut self, io: &mut Io<'_, Mail>, number: u64, produced: &Produced) {
        let Some(Job::QueueAppend(ticket)) = self.jobs.take(number) else { return };
        let base: ItemResult<u64> =
            produced.outcome.as_ref().map(|info| info.base_offset).map_err(append_error);
        self.with_queues(io, |queues, cx| queues.on_appended(cx, ticket, &base));
    }

    /// Applies what has happened in the partitions of queues.
    #[inline]
    pub(crate) fn take_partition_events(&mut self, io: &mut Io<'_, Mail>) {
        // Called several times per turn, mostly for nothing.
        if self.storage.has_events() {
            self.with_queues(io, QueueHost::take_partition_events);
        }
    }

    // --- the turn

    /// Opens one new queue, and polls those that are ready. To be called when a turn begins, and before it ends.
    pub(crate) fn poll_queues(&mut self, io: &mut Io<'_, Mail>) {
        self.with_queues(io, QueueHost::begin_poll);
        if let Some(id) = self.queues.next_unopened()
            && let Err(error) = self.open_queue(io, id)
            && let Some(topic) = self.env.catalogue().topic_by_id(id.topic)
        {
            log::error!("queue {}: {error}", topic.name);
        }
        while self.queues.has_ready() {
            self.with_queues(io, QueueHost::poll_next);
        }
        self.with_queues(io, |queues, cx| queues.end_poll(cx.now_ms));
    }
}

/// Why messages of a queue were not appended.
fn append_error(error: &AppendError) -> QueueError {
    match error.code {
        ErrorCode::UnknownTopicOrPartition => QueueError::UnknownQueue,
        // The limit was higher when the message was admitted.
        ErrorCode::MessageTooLarge => QueueError::Invalid("a message that is too large".into()),
        _ => QueueError::Storage,
    }
}
