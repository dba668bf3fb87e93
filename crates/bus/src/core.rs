//! What all handles of one bus share: the index, the caches, the retained messages, the counters.
//!
//! Locks are taken in this order: retained messages, index, then one of a group, a queue, a ring or a shard. No user
//! code runs under any of them: no callback, no waker, no destructor of a payload.

use std::cell::Cell;
use std::sync::Arc;
use std::time::SystemTime;

use mainstem_topic::{Index, check_name};

use crate::callback::OnFault;
use crate::error::PublishError;
use crate::event::{Metadata, Shared};
use crate::receivers::{Matched, Receivers};
use crate::retained::Retained;
use crate::shards::Shards;
use crate::stats::{BusStats, Delivered, Totals};
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, Patience, RwLock, lock, read, write};

/// How deep callbacks may publish from callbacks.
pub const MAX_NESTED: usize = 64;

/// The epoch of a bus that is closed.
const CLOSED: u64 = u64::MAX;

pub(crate) struct Core<T> {
    pub(crate) index: RwLock<Index<Arc<Receivers<T>>>>,
    /// That of the index, or [`CLOSED`]. Changed while the index is locked for writing; a result of matching is good
    /// while this is what it was before the match.
    pub(crate) epoch: AtomicU64,
    pub(crate) shards: Shards<T>,
    pub(crate) retained: Mutex<Retained<T>>,
    pub(crate) next_id: AtomicU64,
    pub(crate) totals: Totals,
    pub(crate) on_fault: Box<OnFault>,
    /// Mailboxes and cursors that have not seen the end.
    pub(crate) listening: Mutex<usize>,
    pub(crate) all_ended: Condvar,
}

/// What a bus is made with.
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
            listening: Mutex::new(0),
            all_ended: Condvar::new(),
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
        let _nesting = Nesting::enter()?;
        let matched = self.matched(topic, 1)?;
        let metadata = stamped(metadata, matched.wants_metadata);
        Ok(if matched.is_shared {
            let message = Arc::new(Shared { topic: Arc::clone(&matched.topic), payload, metadata });
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
        let _nesting = Nesting::enter()?;
        // Made before the match: an iterator may subscribe, publish, or take its time.
        let payloads: Vec<T> = payloads.into_iter().collect();
        let matched = self.matched(topic, payloads.len() as u64)?;
        let metadata = stamped(None, matched.wants_metadata);
        if !matched.is_shared {
            let mut tally = Delivered::default();
            for payload in &payloads {
                tally += matched.call(payload, metadata.as_deref(), &*self.on_fault);
            }
            return Ok(tally);
        }
        let share = |payload| {
            Arc::new(Shared { topic: Arc::clone(&matched.topic), payload, metadata: metadata.clone() })
        };
        let messages: Vec<_> = payloads.into_iter().map(share).collect();
        Ok(matched.deliver(&messages, &*self.on_fault))
    }

    /// Publishes one message, and keeps it for those who will subscribe with replay.
    ///
    /// Under the lock it is kept and matched, so that a subscription either has it replayed or gets it as published:
    /// never both, never neither.
    pub(crate) fn publish_retained(
        &self,
        topic: &str,
        payload: T,
        metadata: Option<Box<Metadata>>,
    ) -> Result<Delivered, PublishError> {
        check_name(topic)?;
        let _nesting = Nesting::enter()?;
        let mut retained = lock(&self.retained);
        if !retained.has_room(topic) {
            return Err(PublishError::RetainedFull);
        }
        let matched = self.matched(topic, 1)?;
        // Who subscribes later may want the time.
        let metadata = stamped(metadata, true);
        let message = Arc::new(Shared { topic: Arc::clone(&matched.topic), payload, metadata });
        let before = retained.set(Arc::clone(&message));
        drop(retained);
        drop(before);
        Ok(matched.deliver(std::slice::from_ref(&message), &*self.on_fault))
    }

    pub(crate) fn retained(&self, topic: &str) -> Option<Arc<Shared<T>>> {
        lock(&self.retained).get(topic)
    }

    pub(crate) fn clear_retained(&self, topic: &str) -> bool {
        let cleared = lock(&self.retained).clear(topic);
        cleared.is_some()
    }

    /// Who receives what is published to a valid topic; counts `messages` as published.
    #[inline]
    fn matched(&self, topic: &str, messages: u64) -> Result<Arc<Matched<T>>, PublishError> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        match self.shards.find(topic, epoch, messages) {
            Some(matched) => Ok(matched),
            None => self.match_anew(topic, messages),
        }
    }

    fn match_anew(&self, topic: &str, messages: u64) -> Result<Arc<Matched<T>>, PublishError> {
        let index = read(&self.index);
        let epoch = self.epoch.load(Ordering::SeqCst);
        if epoch == CLOSED {
            return Err(PublishError::Closed);
        }
        let mut filters = Vec::new();
        index.for_each_match(topic, |_, receivers| filters.push(Arc::clone(receivers)));
        drop(index);
        let matched = Arc::new(Matched::new(topic, filters));
        self.shards.keep(&matched, epoch, messages, || self.epoch.load(Ordering::SeqCst) == epoch);
        Ok(matched)
    }

    pub(crate) fn close(&self) {
        let index = write(&self.index);
        self.epoch.store(CLOSED, Ordering::SeqCst);
        let all: Vec<_> = index.iter().map(|(_, _, receivers)| Arc::clone(receivers)).collect();
        drop(index);
        // Nobody joins them any more, and what closing wakes is not ours.
        for receivers in all {
            receivers.close();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.epoch.load(Ordering::SeqCst) == CLOSED
    }

    /// Waits until no mailbox and no cursor is left that has not seen the end; `false` where `patience` ends first.
    pub(crate) fn wait_for_ends(&self, patience: Patience) -> bool {
        let mut listening = lock(&self.listening);
        while *listening > 0 {
            listening = match patience.wait(&self.all_ended, listening) {
                Ok(listening) => listening,
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

/// The metadata of a message, with the time if somebody may ask for it and its publisher has not given one.
#[inline]
fn stamped(metadata: Option<Box<Metadata>>, is_wanted: bool) -> Option<Box<Metadata>> {
    if !is_wanted {
        return metadata;
    }
    let mut metadata = metadata.unwrap_or_default();
    metadata.timestamp.get_or_insert_with(SystemTime::now);
    Some(metadata)
}

#[cfg(not(mainstem_shuttle))]
thread_local! {
    /// How many publishes this thread is in, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

#[cfg(mainstem_shuttle)]
shuttle::thread_local! {
    static DEPTH: Cell<usize> = Cell::new(0);
}

/// One publish of this thread, until it is dropped.
struct Nesting;

impl Nesting {
    #[inline]
    fn enter() -> Result<Self, PublishError> {
        DEPTH.with(|depth| {
            if depth.get() == MAX_NESTED {
                return Err(PublishError::Nested);
            }
            depth.set(depth.get() + 1);
            Ok(Self)
        })
    }
}

impl Drop for Nesting {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}
