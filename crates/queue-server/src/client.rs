//! Requests from threads that are no shards: the client, and a callback for the reply.

use std::fmt;
use std::sync::Arc;

use mainstem_queue_core::{QueueError, Reply, Request};

use crate::command_queue::{Command, CommandKind, CommandQueues, ReplyFn};

/// Knows which queues a broker has.
pub trait QueueDirectory: fmt::Debug + Send + Sync {
    /// The shard that owns a queue, or the shard that would create it.
    fn shard_of_queue(&self, name: &str) -> usize;

    /// The names of all queues, in order.
    fn queues(&self) -> Vec<Arc<str>>;

    /// Whether there is a topic of this name that is no queue.
    fn is_topic(&self, name: &str) -> bool;
}

/// Sends requests to queues from any thread.
#[derive(Clone, Debug)]
pub struct QueueClient {
    directory: Arc<dyn QueueDirectory>,
    commands: CommandQueues,
}

impl QueueClient {
    /// A client of the queues in `directory`, whose hosts take `commands`.
    pub fn new(directory: Arc<dyn QueueDirectory>, commands: CommandQueues) -> Self {
        Self { directory, commands }
    }

    /// Sends a request to a queue. `answer` is called once: on a shard's thread, or at once if the shard is overloaded.
    pub fn send(&self, queue: &str, request: Request, answer: ReplyFn) {
        let shard = self.directory.shard_of_queue(queue);
        self.submit(shard, Command { kind: CommandKind::Queue(queue.into(), request), answer });
    }

    /// Stores a declaration under a name, or removes it. `answer` gets [`Reply::Done`] when that is durable.
    pub fn declare(&self, name: &str, text: Option<&str>, answer: ReplyFn) {
        self.submit(0, Command { kind: CommandKind::Declare(name.into(), text.map(Into::into)), answer });
    }

    fn submit(&self, shard: usize, command: Command) {
        if let Err(command) = self.commands.put(shard, command) {
            (command.answer)(Reply::Refused(QueueError::Busy));
        }
    }

    /// The names of all queues, in order.
    pub fn queues(&self) -> Vec<Arc<str>> {
        self.directory.queues()
    }

    /// Whether there is a topic of this name that is no queue.
    pub fn is_topic(&self, name: &str) -> bool {
        self.directory.is_topic(name)
    }
}
