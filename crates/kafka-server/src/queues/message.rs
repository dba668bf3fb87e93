//! Requests to a queue and replies to their requesters, as shards exchange them.

use std::sync::Arc;

use mainstem_log::Durability;
use mainstem_queue_core::{Request, TransferredMessage};

use crate::catalogue::PartitionId;

/// A request, or messages of another queue.
#[derive(Debug)]
pub(crate) enum QueueOperation {
    /// From a protocol.
    Request(Request),
    /// From another queue: messages that move here, and the durability that they need.
    Transfer(Vec<TransferredMessage>, Durability),
}

/// An operation with its queue and its requester.
#[derive(Debug)]
pub(crate) struct QueueRequest {
    pub(crate) queue: Arc<str>,
    pub(crate) operation: QueueOperation,
    pub(crate) to: ReplyTo,
}

/// The recipient of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) shard: usize,
    pub(crate) requester: Requester,
}

/// A requester on its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// Another protocol, by its token.
    Token(u64),
    /// Another thread, by its key in `client_replies`.
    Client(usize),
    /// A queue with transfers in flight.
    Queue(PartitionId),
    /// A binding, by the number of its job.
    Sink(u64),
}

/// An append for a queue that is not durable yet.
#[derive(Debug)]
pub(crate) enum QueueAppend {
    /// A batch of the queue's engine, by its number.
    Batch { id: PartitionId, number: u64 },
    /// Messages of another queue.
    Transfer { to: ReplyTo, count: u64 },
}
