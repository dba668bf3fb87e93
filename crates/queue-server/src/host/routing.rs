//! Routing of requests to the shard that owns a queue, and of replies to the requesters.
//!
//! The catalogue says which shard that is. Requests that change the catalogue, and requests for queues that do not
//! exist, go to shard 0, whose owner administers the catalogue.

use std::sync::Arc;

use mainstem_log::{BatchBuilder, Durability};
use mainstem_partition::PartitionId;
use mainstem_queue_core::{QueueError, Reply, Request, TransferredMessage, transfer_batch};

use super::QueueHost;
use crate::command_queue::{Command, CommandKind};
use crate::context::{Context, QueueTopicConfig};
use crate::effect::{Append, AppendTicket, Effect};
use crate::message::{QueueOperation, QueueRequest, ReplyTo, Requester};

/// The shard whose owner administers the catalogue.
const CONTROLLER: usize = 0;

impl<C: QueueTopicConfig> QueueHost<C> {
    /// Sends a request to a queue of any shard. [`QueueHost::take_replies`] returns the reply with `token`.
    pub fn request(&mut self, cx: &mut Context<'_, C>, queue: &str, request: Request, token: u64) {
        let to = ReplyTo { shard: self.me, requester: Requester::Token(token) };
        self.route(cx, QueueRequest { queue: queue.into(), operation: QueueOperation::Request(request), to });
    }

    /// Handles a request of another thread.
    pub(super) fn handle_command(&mut self, cx: &mut Context<'_, C>, command: Command) {
        let Command { kind, answer } = command;
        let client = self.replies.add_client(answer);
        let to = ReplyTo { shard: self.me, requester: Requester::Client(client) };
        match kind {
            CommandKind::Queue(queue, request) => {
                self.route(cx, QueueRequest { queue, operation: QueueOperation::Request(request), to });
            }
            CommandKind::Declare(name, text) => self.effects.push(Effect::Declare { name, text, to }),
        }
    }

    /// Routes a request to the shard that can serve it.
    pub fn route(&mut self, cx: &mut Context<'_, C>, request: QueueRequest) {
        if self.is_draining {
            return self.reply(cx.now_ms, request.to, Reply::Refused(QueueError::Busy));
        }
        // A client that has changed a queue's settings finds them changed.
        self.sync_with_catalogue(cx);
        let changes_catalogue = matches!(
            request.operation,
            QueueOperation::Request(Request::Create { .. } | Request::Configure { .. } | Request::Delete)
        );
        let topic = cx.catalogue.topic(&request.queue).map(Arc::clone);
        let (false, Some(topic)) = (changes_catalogue, topic) else {
            return self.effects.push(if self.me == CONTROLLER {
                Effect::Administer(request)
            } else {
                Effect::SendRequest { shard: CONTROLLER, request }
            });
        };
        if !topic.config.is_queue() && matches!(request.operation, QueueOperation::Request(_)) {
            return self.reply(cx.now_ms, request.to, Reply::Refused(QueueError::NotAQueue));
        }
        let id = topic.partition(0);
        match cx.owner(id) {
            Some(owner) if owner == self.me => self.serve(cx, id, request),
            Some(shard) => self.effects.push(Effect::SendRequest { shard, request }),
            None => self.reply(cx.now_ms, request.to, Reply::Refused(QueueError::UnknownQueue)),
        }
    }

    /// Hands a request to a queue of this shard.
    fn serve(&mut self, cx: &mut Context<'_, C>, id: PartitionId, request: QueueRequest) {
        let is_open = self.is_open(id);
        let QueueRequest { queue, operation, to } = request;
        let request = match operation {
            QueueOperation::Transfer(messages, durability) => {
                return self.append_transfer(cx, id, &messages, durability, to);
            }
            operation if !is_open => {
                let request = QueueRequest { queue, operation, to };
                return self.effects.push(Effect::Open { id, request });
            }
            QueueOperation::Request(request) => request,
        };
        let served = self.with_engine(cx, id, |engine, cx| {
            // A newer receive request of a consumer ends its older one. The consumer does not leave and stays the
            // active consumer. The other protocols of this shard wait for the reply before they send another.
            if let (Requester::Client(_), Request::Receive { group, consumer, .. }) = (to.requester, &request)
            {
                engine.end_waits(group, *consumer);
            }
            engine.handle(request, to, cx);
        });
        if served.is_none() {
            self.reply(cx.now_ms, to, Reply::Refused(QueueError::UnknownQueue));
        }
        self.mark_ready(id);
    }

    /// Appends transferred messages. The source settles them when it gets the reply, so the append is synced if the
    /// source asks for [`Durability::Fsync`], whatever this queue is configured for: otherwise a power failure could
    /// lose the messages, or lose them and keep their numbers.
    fn append_transfer(
        &mut self,
        cx: &Context<'_, C>,
        id: PartitionId,
        messages: &[TransferredMessage],
        durability: Durability,
        to: ReplyTo,
    ) {
        if messages.is_empty() {
            return self.reply(cx.now_ms, to, Reply::Sent(Vec::new()));
        }
        let mut builder = BatchBuilder::default();
        let batch = transfer_batch(messages, cx.now_ms, &mut builder).bytes().to_vec();
        let ticket = AppendTicket(Append::Transfer { to, count: messages.len() as u64 });
        let is_synced = durability == Durability::Fsync;
        self.effects.push(Effect::AppendTransfer { id, batch, is_synced, ticket });
    }

    /// Delivers replies to other threads. To be called after the commit: a reply must not tell of a state that the end
    /// of the process could lose.
    pub fn deliver_client_replies(&mut self) {
        self.replies.deliver_to_clients();
    }

    /// Sends a reply to its requester.
    pub fn reply(&mut self, now_ms: u64, to: ReplyTo, reply: Reply) {
        if to.shard != self.me {
            return self.effects.push(Effect::SendReply { to, reply });
        }
        match to.requester {
            Requester::Token(token) => self.replies.reply_to_protocol(token, reply),
            Requester::Client(client) => self.replies.reply_to_client(client, reply),
            Requester::Queue(id) => self.on_transfer_reply(now_ms, id, &reply),
            Requester::Job(job) => self.effects.push(Effect::ReplyToJob { job, reply }),
        }
    }

    /// Transferred messages are durable in another queue, or not.
    fn on_transfer_reply(&mut self, now_ms: u64, id: PartitionId, reply: &Reply) {
        if let Some(open) = self.open.get_mut(id) {
            open.engine.on_transferred(reply, now_ms);
            self.mark_ready(id);
        }
    }
}
