//! Routing of requests to the shard that owns a queue, and of replies to the requesters.
//!
//! The catalogue says which shard that is. Requests that change the catalogue, and requests for queues that do not
//! exist, go to shard 0.

use std::sync::Arc;

use mainstem_queue_core::{QueueError, Reply, Request};
use mainstem_runtime::Io;

use super::command_queue::{Command, CommandKind};
use super::message::{QueueOperation, QueueRequest, ReplyTo, Requester};
use crate::catalogue::PartitionId;
use crate::shard::Shard;
use crate::shard_message::{Mail, ShardMessage};

impl Shard {
    /// Sends a request to a queue of any shard. [`Shard::take_queue_replies`] returns the reply with `token`.
    pub fn send_queue_request(&mut self, io: &mut Io<'_, Mail>, queue: &str, request: Request, token: u64) {
        let to = ReplyTo { shard: self.me, requester: Requester::Token(token) };
        self.route_queue_request(
            io,
            QueueRequest { queue: queue.into(), operation: QueueOperation::Request(request), to },
        );
    }

    /// Takes the requests of other threads.
    pub(super) fn take_client_commands(&mut self, io: &mut Io<'_, Mail>) {
        for Command { kind, answer } in Arc::clone(&self.shared).command_queues[self.me].take() {
            let client = self.queues.client_replies.insert(answer);
            let to = ReplyTo { shard: self.me, requester: Requester::Client(client) };
            match kind {
                CommandKind::Queue(queue, request) => {
                    self.route_queue_request(
                        io,
                        QueueRequest { queue, operation: QueueOperation::Request(request), to },
                    );
                }
                CommandKind::Declare(name, text) => self.declare(io, name, text, to),
            }
        }
    }

    /// Routes a request to the shard that can serve it.
    pub(crate) fn route_queue_request(&mut self, io: &mut Io<'_, Mail>, request: QueueRequest) {
        if self.is_draining() {
            return self.reply_to_requester(io, request.to, Reply::Refused(QueueError::Busy));
        }
        // A client that has changed a queue's settings finds them changed.
        self.sync_queues_with_catalogue();
        let changes_catalogue = matches!(
            request.operation,
            QueueOperation::Request(Request::Create { .. } | Request::Configure { .. } | Request::Delete)
        );
        let topic = self.catalogue.topic(&request.queue).cloned();
        let (false, Some(topic)) = (changes_catalogue, topic) else {
            if self.is_controller() {
                return self.administer_queue(io, request);
            }
            return io.send(0, Mail(ShardMessage::QueueRequest(Box::new(request))));
        };
        if topic.config.queue.is_none() && matches!(request.operation, QueueOperation::Request(_)) {
            return self.reply_to_requester(io, request.to, Reply::Refused(QueueError::NotAQueue));
        }
        let id = topic.partition(0);
        match self.owner_of(id) {
            Ok(owner) if owner == self.me => {
                self.serve_queue(io, id, request.operation, request.to);
            }
            Ok(owner) => io.send(owner, Mail(ShardMessage::QueueRequest(Box::new(request)))),
            Err(_) => self.reply_to_requester(io, request.to, Reply::Refused(QueueError::UnknownQueue)),
        }
    }

    /// Hands a request to a queue of this shard.
    fn serve_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        operation: QueueOperation,
        to: ReplyTo,
    ) {
        let request = match operation {
            QueueOperation::Transfer(messages, durability) => {
                return self.append_transfer(io, id, &messages, durability, to);
            }
            QueueOperation::Request(request) => request,
        };
        if let Err(error) = self.open_queue(io, id) {
            return self.reply_to_requester(io, to, Reply::Refused(error));
        }
        let served = self.with_engine(io, id, |engine, cx| {
            // A newer receive request of a consumer ends its older one. The consumer does not leave and stays the
            // active consumer. The other protocols of this shard wait for the reply before they send another.
            if let (Requester::Client(_), Request::Receive { group, consumer, .. }) = (to.requester, &request)
            {
                engine.end_waits(group, *consumer);
            }
            engine.handle(request, to, cx);
        });
        if served.is_none() {
            self.reply_to_requester(io, to, Reply::Refused(QueueError::UnknownQueue));
        }
        self.mark_queue_ready(io, id);
    }

    /// Delivers replies to other threads. Called after the commit: a reply must not tell of a state that the end of the
    /// process could lose.
    pub(crate) fn deliver_client_replies(&mut self) {
        for (answer, reply) in self.queues.ready_replies.drain(..) {
            answer(reply);
        }
    }

    /// Sends a reply to its requester.
    pub(crate) fn reply_to_requester(&mut self, io: &mut Io<'_, Mail>, to: ReplyTo, reply: Reply) {
        if to.shard != self.me {
            return io.send(to.shard, Mail(ShardMessage::QueueReply { to, reply }));
        }
        match to.requester {
            Requester::Token(token) => self.queues.replies.push((token, reply)),
            Requester::Client(client) => {
                if let Some(answer) = self.queues.client_replies.try_remove(client) {
                    self.queues.ready_replies.push((answer, reply));
                }
            }
            Requester::Queue(id) => self.on_transfer_reply(io, id, &reply),
            Requester::Sink(job) => self.on_sink_enqueued(job, &reply),
        }
    }
}
