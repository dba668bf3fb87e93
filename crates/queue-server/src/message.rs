//! Requests to a queue and replies to their requesters, as shards exchange them.

use std::sync::Arc;

use mainstem_log::Durability;
use mainstem_partition::PartitionId;
use mainstem_queue_core::{Request, TransferredMessage};

/// A request, or messages of another queue.
#[derive(Debug)]
pub enum QueueOperation {
    /// From a protocol.
    Request(Request),
    /// From another queue: messages that move here, and the durability that they need.
    Transfer(Vec<TransferredMessage>, Durability),
}

/// An operation with its queue and its requester.
#[derive(Debug)]
pub struct QueueRequest {
    /// Name of the queue.
    pub queue: Arc<str>,
    /// The operation.
    pub operation: QueueOperation,
    /// The requester.
    pub to: ReplyTo,
}

/// The recipient of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Its shard.
    pub shard: usize,
    /// The requester on that shard.
    pub requester: Requester,
}

/// A requester on its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// Another protocol, by its token.
    Token(u64),
    /// Another thread, by its key in the host's table of such requesters.
    Client(usize),
    /// A queue with transfers in flight.
    Queue(PartitionId),
    /// The owner of the host, by the number of its job.
    Job(u64),
}
