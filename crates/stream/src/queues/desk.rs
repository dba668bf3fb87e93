//! Where threads that are no shards ask for what queues do.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_queue::{Refusal, Reply, Request};
use mainstem_runtime::Wake;

use crate::shared::Shared;

/// Requests that may wait for a shard to take them.
const WAITING_MAX: usize = 16 * 1024;

/// Hears the answer, on a shard's thread: it must return at once.
pub type Answer = Box<dyn FnOnce(Reply) + Send>;

/// A request from a thread that is no shard.
pub(crate) struct Visit {
    pub(crate) wish: Wish,
    pub(crate) answer: Answer,
}

/// What such a thread wants.
pub(crate) enum Wish {
    /// Something of a queue.
    Queue(Arc<str>, Request),
    /// To declare something under a name, or to take that back.
    Declare(Arc<str>, Option<Arc<str>>),
}

/// What waits for one shard.
#[derive(Default)]
pub(crate) struct Counter {
    waiting: Mutex<VecDeque<Visit>>,
    wake: Mutex<Option<Wake>>,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counter")
    }
}

impl Counter {
    /// Takes what waits.
    pub(crate) fn take(&self) -> VecDeque<Visit> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn bind(&self, wake: Wake) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    fn put(&self, visit: Visit) -> Result<(), Visit> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= WAITING_MAX {
                return Err(visit);
            }
            waiting.push_back(visit);
        }
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
        Ok(())
    }
}

/// Asks queues from any thread.
#[derive(Clone, Debug)]
pub struct Desk {
    shared: Arc<Shared>,
}

impl Desk {
    /// At the queues of these shards.
    pub fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// Asks a queue. `answer` is called once, on a shard's thread, or at once if too much waits already.
    pub fn ask(&self, queue: &str, request: Request, answer: Answer) {
        let shard = self.shared.shard_of_queue(queue);
        self.visit(shard, Visit { wish: Wish::Queue(queue.into(), request), answer });
    }

    /// Keeps a text under a name for other doors, or takes it back. `answer` gets [`Reply::Done`] when that is on disk.
    pub fn declare(&self, name: &str, text: Option<&str>, answer: Answer) {
        self.visit(0, Visit { wish: Wish::Declare(name.into(), text.map(Into::into)), answer });
    }

    fn visit(&self, shard: usize, visit: Visit) {
        if let Err(visit) = self.shared.counters[shard].put(visit) {
            (visit.answer)(Reply::Refused(Refusal::Busy));
        }
    }

    /// The names of all queues, in order.
    pub fn queues(&self) -> Vec<Arc<str>> {
        self.shared.queues()
    }
}
