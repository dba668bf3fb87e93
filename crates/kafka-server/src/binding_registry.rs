//! Topics that other protocols write to (sinks) and read (sources).
//!
//! Bindings may change while the broker runs. The registry is an immutable snapshot; each shard holds one and replaces
//! it when the version has changed, so that the common path takes no lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A topic that another protocol writes to. It is created on demand.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundTopic {
    /// Topic name.
    pub name: Arc<str>,
    /// Number of partitions when it is created.
    pub partitions: i32,
    /// Configuration when it is created; [`crate::check_topic`] validates it.
    pub config: BTreeMap<String, String>,
}

/// A topic that another protocol reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Key of the stored positions: a source with another name starts over.
    pub name: Arc<str>,
    /// Topic name.
    pub topic: Arc<str>,
    /// Without a stored position, start at the log start instead of the end.
    pub from_start: bool,
}

/// The sinks and sources, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct BindingRegistry {
    /// Grows with every change.
    pub(crate) version: u64,
    pub(crate) topics: Vec<BoundTopic>,
    /// `None` marks a removed source, so that numbers stay valid.
    pub(crate) sources: Vec<Option<Source>>,
}

/// The current snapshot, shared by all shards.
#[derive(Debug, Default)]
pub(crate) struct SharedBindings {
    bound: Mutex<Arc<BindingRegistry>>,
    version: AtomicU64,
}

impl SharedBindings {
    pub(crate) fn new(topics: Vec<BoundTopic>, sources: Vec<Source>) -> Self {
        let sources = sources.into_iter().map(Some).collect();
        let bound = BindingRegistry { version: 1, topics, sources };
        Self { bound: Mutex::new(Arc::new(bound)), version: AtomicU64::new(1) }
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut BindingRegistry) -> R) -> R {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = BindingRegistry::clone(&bound);
        next.version += 1;
        let result = change(&mut next);
        *bound = Arc::new(next);
        self.version.store(bound.version, Ordering::Release);
        result
    }

    /// Replaces `known` if it is outdated.
    pub(crate) fn refresh(&self, known: &mut Arc<BindingRegistry>) {
        if self.version.load(Ordering::Acquire) != known.version {
            *known = Arc::clone(&self.bound.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
