//! Commands from threads that are no shards: a bounded queue per shard.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_queue_core::{Reply, Request};
use mainstem_runtime::Wake;

/// Limit of the requests that wait for a shard.
const WAITING_MAX: usize = 16 * 1024;

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

/// Commands that wait for one shard.
#[derive(Default)]
pub(crate) struct CommandQueue {
    waiting: Mutex<VecDeque<Command>>,
    wake: Mutex<Option<Wake>>,
}

impl fmt::Debug for CommandQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandQueue")
    }
}

impl CommandQueue {
    /// Takes all waiting commands.
    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn bind(&self, wake: Wake) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    pub(super) fn put(&self, command: Command) -> Result<(), Command> {
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
