//! The state shared by all handles of a bus, and the publish path.
//!
//! Lock order: retained messages, then the index, then one of a group, a queue, a ring or a cache shard. No user code
//! runs under any of these locks: no callback, no waker, and no destructor of a payload. Values that must be dropped
//! are moved out first and dropped after the lock is released.

use std::cell::Cell;
use std::sync::Arc;
use std::time::SystemTime;

use mainstem_topic::{Index, check_name};

use crate::callback::OnFault;
use crate::error::PublishError;
use crate::event::{Metadata, SharedMessage};
use crate::receivers::{Matched, Receivers};
use crate::retained::Retained;
use crate::shards::Shards;
use crate::stats::{BusStats, Delivered, Totals};
use crate::sync::{AtomicU64, Condvar, Deadline, Mutex, Ordering, RwLock, lock, read, write};

/// Maximum depth of publish calls made from within callbacks, per thread.
pub const MAX_NESTED: usize = 64;

/// The epoch of a closed bus.
const CLOSED: u64 = u64::MAX;

pub(crate) struct Core<T> {
    pub(crate) index: RwLock<Index<Arc<Receivers<T>>>>,
    /// The epoch of the index, or [`CLOSED`]. Changes only under the write lock of the index. A match is valid while
    /// this equals the value read before matching.
    pub(crate) epoch: AtomicU64,
    pub(crate) shards: Shards<T>,
    pub(crate) retained: Mutex<Retained<T>>,
    pub(crate) next_id: AtomicU64,
    pub(crate) totals: Totals,
    pub(crate) on_fault: Box<OnFault>,
    /// Number of mailboxes and cursors that have neither returned an end-of-stream error nor been dropped.
    pub(crate) open_readers: Mutex<usize>,
    pub(crate) readers_ended: Condvar,
}

pub(crate) struct Settings {
    pub(crate) shards: usize,
    pub(crate) cached_topics: usize,
    pub(crate) retained_max: usize,
    pub(crate) on_fault: Box<OnFault>,
}

impl<T: Send + Sync + 'static> Core<T> {
    pub(crate) fn new(settings: Settings) -> Self {
        let index = Index::new();
        Self {
            epoch: AtomicU64::new(index.epoch()),
            index: RwLock::new(index),
            shards: Shards::new(settings.shards, settings.cached_topics),
            retained: Mutex::new(Retained::new(settings.retained_max)),
            next_id: AtomicU64::new(0),
            totals: Totals::new(),
            on_fault: settings.on_fault,
            open_readers: Mutex::new(0),
            readers_ended: Condvar::new(),
        }
    }

    /// Publishes one message that is not retained.
    #[inline]
    pub(crate) fn publish(
        &self,
        topic: &str,
        payload: T,
        metadata: Option<Box<Metadata>>,
    ) -> Result<Delivered, PublishError> {
        check_name(topic)?;
        let _nesting = NestingGuard::acquire()?;
        let matched = self.matched(topic, 1)?;
        let metadata = with_timestamp(metadata, matched.needs_metadata);
        Ok(if matched.is_shared {
            let message = Arc::new(SharedMessage { topic: Arc::clone(&matched.topic), payload, metadata });
            matched.deliver(std::slice::from_ref(&message), &*self.on_fault)
        } else {
            matched.call(&payload, metadata.as_deref(), &*self.on_fault)
        })
    }

    /// Publishes several messages to one topic.
    pub(crate) fn publish_batch(
        &self,
        topic: &str,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Delivered, PublishError> {
        check_name(topic)?;
        let _nesting = NestingGuard::acquire()?;
        // Collected before the match, because the iterator is user code that may subscribe, publish, or block.
        let payloads: Vec<T> = payloads.into_iter().collect();
        let matched = self.matched(topic, payloads.len() as u64)?;
        let metadata = with_timestamp(None, matched.needs_metadata);
        if !matched.is_shared {
            let mut tally = Delivered::default();
            for payload in &payloads {
                tally += matched.call(payload, metadata.as_deref(), &*self.on_fault);
            }
            return Ok(tally);
        }
        let share = |payload| {
            Arc::new(SharedMessage { topic: Arc::clone(&matched.topic), payload, metadata: metadata.clone() })
        };
        let messages: Vec<_> = payloads.into_iter().map(share).collect();
        Ok(matched.deliver(&messages, &*self.on_fault))
    }

    /// Publishes one message and retains it.
    ///
    /// The message is stored and matched under the lock of the retained messages. A concurrent subscription therefore
    /// gets it exactly once, either replayed or as published.
    pub(crate) fn publish_retained(
        &self,
        topic: &str,
        payload: T,
        metadata: Option<Box<Metadata>>,
    ) -> Result<Delivered, PublishError> {
        check_name(topic)?;
        let _nesting = NestingGuard::acquire()?;
        let mut retained = lock(&self.retained);
        if !retained.has_room(topic) {
            return Err(PublishError::RetainedFull);
        }
        let matched = self.matched(topic, 1)?;
        // Later subscriptions may ask for the timestamp.
        let metadata = with_timestamp(metadata, true);
        let message = Arc::new(SharedMessage { topic: Arc::clone(&matched.topic), payload, metadata });
        let before = retained.set(Arc::clone(&message));
        drop(retained);
        drop(before);
        Ok(matched.deliver(std::slice::from_ref(&message), &*self.on_fault))
    }

    pub(crate) fn retained(&self, topic: &str) -> Option<Arc<SharedMessage<T>>> {
        lock(&self.retained).get(topic)
    }

    pub(crate) fn clear_retained(&self, topic: &str) -> bool {
        let cleared = lock(&self.retained).clear(topic);
        cleared.is_some()
    }

    /// Returns the receivers of a valid topic, and counts `messages` as published.
    #[inline]
    fn matched(&self, topic: &str, messages: u64) -> Result<Arc<Matched<T>>, PublishError> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        match self.shards.find(topic, epoch, messages) {
            Some(matched) => Ok(matched),
            None => self.match_uncached(topic, messages),
        }
    }

    fn match_uncached(&self, topic: &str, messages: u64) -> Result<Arc<Matched<T>>, PublishError> {
        let index = read(&self.index);
        let epoch = self.epoch.load(Ordering::SeqCst);
        if epoch == CLOSED {
            return Err(PublishError::Closed);
        }
        let mut filters = Vec::new();
        index.for_each_match(topic, |_, receivers| filters.push(Arc::clone(receivers)));
        drop(index);
        let matched = Arc::new(Matched::new(topic, filters));
        self.shards.insert(&matched, epoch, messages, || self.epoch.load(Ordering::SeqCst) == epoch);
        Ok(matched)
    }

    pub(crate) fn close(&self) {
        let index = write(&self.index);
        self.epoch.store(CLOSED, Ordering::SeqCst);
        let all: Vec<_> = index.iter().map(|(_, _, receivers)| Arc::clone(receivers)).collect();
        drop(index);
        // The epoch stops new subscriptions. Closing wakes readers, which is user code, so the lock is released first.
        for receivers in all {
            receivers.close();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.epoch.load(Ordering::SeqCst) == CLOSED
    }

    /// Waits until there are no open readers. Returns `false` if `deadline` passes first.
    pub(crate) fn wait_for_readers(&self, deadline: Deadline) -> bool {
        let mut open_readers = lock(&self.open_readers);
        while *open_readers > 0 {
            open_readers = match deadline.wait(&self.readers_ended, open_readers) {
                Ok(open_readers) => open_readers,
                Err(_) => return false,
            };
        }
        true
    }

    pub(crate) fn stats(&self) -> BusStats {
        let mut stats = BusStats {
            published: self.shards.published(),
            retained: lock(&self.retained).len(),
            ..self.totals.read()
        };
        let index = read(&self.index);
        stats.filters = index.len();
        for (_, _, receivers) in index.iter() {
            receivers.collect_stats(&mut stats.subscriptions);
        }
        drop(index);
        stats.subscriptions.sort_by_key(|subscription| subscription.id);
        for subscription in &stats.subscriptions {
            stats.in_flight += subscription.lag;
            stats.dropped += subscription.dropped;
            stats.failed += subscription.failed;
        }
        stats
    }
}

/// Adds the current time as timestamp, if a subscription needs metadata and the publisher set none.
#[inline]
fn with_timestamp(metadata: Option<Box<Metadata>>, is_needed: bool) -> Option<Box<Metadata>> {
    if !is_needed {
        return metadata;
    }
    let mut metadata = metadata.unwrap_or_default();
    metadata.timestamp.get_or_insert_with(SystemTime::now);
    Some(metadata)
}

#[cfg(not(mainstem_shuttle))]
thread_local! {
    /// Number of nested publish calls on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

#[cfg(mainstem_shuttle)]
shuttle::thread_local! {
    static DEPTH: Cell<usize> = Cell::new(0);
}

/// Counts one publish call on this thread until dropped.
struct NestingGuard;

impl NestingGuard {
    #[inline]
    fn acquire() -> Result<Self, PublishError> {
        DEPTH.with(|depth| {
            if depth.get() == MAX_NESTED {
                return Err(PublishError::Nested);
            }
            depth.set(depth.get() + 1);
            Ok(Self)
        })
    }
}

impl Drop for NestingGuard {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}
