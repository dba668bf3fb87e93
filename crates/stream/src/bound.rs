//! What other doors write to and read, which may change while the broker runs: a picture that every shard has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::shared::Shared;
use crate::sink::BoundTopic;
use crate::tail::Source;

/// Topics that other doors write to, and those that they read, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// Grows with every change.
    pub(crate) version: u64,
    pub(crate) topics: Vec<BoundTopic>,
    /// Nothing is in the place of one that has been taken away.
    pub(crate) sources: Vec<Option<Source>>,
}

/// The newest picture.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    bound: Mutex<Arc<Bound>>,
    version: AtomicU64,
}

impl Newest {
    pub(crate) fn new(topics: Vec<BoundTopic>, sources: Vec<Source>) -> Self {
        let sources = sources.into_iter().map(Some).collect();
        let bound = Bound { version: 1, topics, sources };
        Self { bound: Mutex::new(Arc::new(bound)), version: AtomicU64::new(1) }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Bound) -> R) -> R {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Bound::clone(&bound);
        next.version += 1;
        let result = change(&mut next);
        *bound = Arc::new(next);
        self.version.store(bound.version, Ordering::Release);
        result
    }

    /// Brings a picture up to date.
    pub(crate) fn refresh(&self, known: &mut Arc<Bound>) {
        if self.version.load(Ordering::Acquire) != known.version {
            *known = Arc::clone(&self.bound.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Shared {
    /// Lets other doors write to a topic, which is made when the first record comes if it is not there. Returns what
    /// [`crate::Incoming::bound`] names it by.
    pub fn bind_topic(&self, topic: BoundTopic) -> usize {
        self.bound.change(|bound| {
            bound.topics.push(topic);
            bound.topics.len() - 1
        })
    }

    /// Lets other doors read a topic. Returns what [`crate::Outgoing::source`] names it by.
    pub fn add_source(&self, source: Source) -> usize {
        self.bound.change(|bound| {
            bound.sources.push(Some(source));
            bound.sources.len() - 1
        })
    }

    /// Lets nothing more go out from a source. A source of the same name goes on where it stood.
    pub fn remove_source(&self, source: usize) {
        self.bound.change(|bound| {
            if let Some(place) = bound.sources.get_mut(source) {
                *place = None;
            }
        });
    }
}
