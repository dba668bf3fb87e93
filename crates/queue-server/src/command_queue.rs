//! Commands from threads that are no shards: a bounded queue per shard.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_queue_core::{Reply, Request};

/// Limit of the requests that wait for a shard.
const WAITING_MAX: usize = 16 * 1024;

/// Wakes a shard for a turn. Callable from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Receives the reply on a shard's thread. It must not block.
pub type ReplyFn = Box<dyn FnOnce(Reply) + Send>;

/// A request from another thread.
pub(crate) struct Command {
    pub(crate) kind: CommandKind,
    pub(crate) answer: ReplyFn,
}

/// The kinds of commands.
pub(crate) enum CommandKind {
    /// A request to a queue.
    Queue(Arc<str>, Request),
    /// Stores a declaration under a name, or removes it.
    Declare(Arc<str>, Option<Arc<str>>),
}

/// The commands that wait for each shard of a broker. Clones share them.
#[derive(Clone, Debug)]
pub struct CommandQueues(Arc<[CommandQueue]>);

/// Commands that wait for one shard.
#[derive(Default)]
struct CommandQueue {
    waiting: Mutex<VecDeque<Command>>,
    wake: Mutex<Option<Wake>>,
}

impl fmt::Debug for CommandQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandQueue")
    }
}

impl CommandQueues {
    /// Queues for this number of shards.
    pub fn new(shards: usize) -> Self {
        Self((0..shards).map(|_| CommandQueue::default()).collect())
    }

    /// Sets the waker of a shard.
    pub fn bind_wake(&self, shard: usize, wake: Wake) {
        self.0[shard].bind(wake);
    }

    /// Takes all commands that wait for a shard.
    pub(crate) fn take(&self, shard: usize) -> VecDeque<Command> {
        self.0[shard].take()
    }

    /// Adds a command, or returns it if too many wait.
    pub(crate) fn put(&self, shard: usize, command: Command) -> Result<(), Command> {
        self.0[shard].put(command)
    }
}

impl CommandQueue {
    fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn bind(&self, wake: Wake) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    fn put(&self, command: Command) -> Result<(), Command> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= WAITING_MAX {
                return Err(command);
            }
            waiting.push_back(command);
        }
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
        Ok(())
    }
}
