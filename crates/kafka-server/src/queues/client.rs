//! Requests from threads that are no shards: the client, and a callback for the reply.

use std::sync::Arc;

use mainstem_queue_core::{QueueError, Reply, Request};

use super::command_queue::{Command, CommandKind, ReplyFn};
use crate::shared::Shared;

/// Sends requests to queues from any thread.
#[derive(Clone, Debug)]
pub struct QueueClient {
    shared: Arc<Shared>,
}

impl QueueClient {
    /// A client of the queues of these shards.
    pub fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// Sends a request to a queue. `answer` is called once: on a shard's thread, or at once if the shard is overloaded.
    pub fn send(&self, queue: &str, request: Request, answer: ReplyFn) {
        let shard = self.shared.shard_of_queue(queue);
        self.submit(shard, Command { kind: CommandKind::Queue(queue.into(), request), answer });
    }

    /// Stores a declaration under a name, or removes it. `answer` gets [`Reply::Done`] when that is durable.
    pub fn declare(&self, name: &str, text: Option<&str>, answer: ReplyFn) {
        self.submit(0, Command { kind: CommandKind::Declare(name.into(), text.map(Into::into)), answer });
    }

    fn submit(&self, shard: usize, command: Command) {
        if let Err(command) = self.shared.command_queues[shard].put(command) {
            (command.answer)(Reply::Refused(QueueError::Busy));
        }
    }

    /// The names of all queues, in order.
    pub fn queues(&self) -> Vec<Arc<str>> {
        self.shared.queues()
    }
}
