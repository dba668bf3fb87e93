//! The match caches, sharded so that publishing threads rarely write to the same memory.
//!
//! Each thread has a preferred shard. A shard is locked with `try_lock`: if another thread holds it, the thread moves
//! on to the next free shard and prefers that one from then on, so threads spread over the shards by themselves. If all
//! shards are busy, the publish matches without a cache. No publisher ever waits for a cache.

use std::cell::Cell;
use std::sync::Arc;

use mainstem_topic::MatchCache;

use crate::receivers::Matched;
use crate::sync::{AtomicU64, Mutex, Ordering, Padded, lock, try_lock};

struct Shard<T> {
    cache: MatchCache<Arc<Matched<T>>>,
    published: u64,
}

/// The shards; their number is a power of two.
pub(crate) struct Shards<T> {
    all: Box<[Padded<Mutex<Shard<T>>>]>,
    cached_topics: usize,
    /// Messages published while all shards were busy.
    published_unsharded: AtomicU64,
}

#[cfg(not(mainstem_shuttle))]
thread_local! {
    /// Index of the shard that this thread tries first, on any bus.
    static PREFERRED_SHARD: Cell<usize> = Cell::new(next_preferred_shard());
}

#[cfg(mainstem_shuttle)]
shuttle::thread_local! {
    static PREFERRED_SHARD: Cell<usize> = Cell::new(0);
}

#[cfg(not(mainstem_shuttle))]
fn next_preferred_shard() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

impl<T> Shards<T> {
    /// Creates at least `min_shards` shards that cache `cached_topics` topics each.
    pub(crate) fn new(min_shards: usize, cached_topics: usize) -> Self {
        let shard = |_| Padded(Mutex::new(Shard { cache: MatchCache::new(cached_topics), published: 0 }));
        Self {
            all: (0..min_shards.next_power_of_two()).map(shard).collect(),
            cached_topics,
            published_unsharded: AtomicU64::new(0),
        }
    }

    /// Returns the cached match of `topic` in `epoch`. On a hit, counts `messages` as published.
    #[inline]
    pub(crate) fn find(&self, topic: &str, epoch: u64, messages: u64) -> Option<Arc<Matched<T>>> {
        self.with(|shard| {
            let matched = shard.cache.get(topic, epoch).cloned()?;
            shard.published += messages;
            Some(matched)
        })?
    }

    /// Caches a match computed in `epoch` if `is_current` still returns true, and counts `messages` as published.
    pub(crate) fn insert(
        &self,
        matched: &Arc<Matched<T>>,
        epoch: u64,
        messages: u64,
        is_current: impl FnOnce() -> bool,
    ) {
        let counted_in_shard = self.with(|shard| {
            shard.published += messages;
            if is_current() {
                shard.cache.insert(&matched.topic, epoch, Arc::clone(matched));
            }
        });
        if counted_in_shard.is_none() {
            self.published_unsharded.fetch_add(messages, Ordering::Relaxed);
        }
    }

    /// Runs `work` with a free shard, which becomes the preferred one of this thread. Returns `None` if all are busy.
    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut Shard<T>) -> R) -> Option<R> {
        let preferred = PREFERRED_SHARD.with(Cell::get);
        for step in 0..self.all.len() {
            let at = preferred.wrapping_add(step);
            if let Some(mut shard) = try_lock(&self.all[at & (self.all.len() - 1)].0) {
                if step > 0 {
                    PREFERRED_SHARD.with(|preferred| preferred.set(at));
                }
                return Some(work(&mut shard));
            }
        }
        None
    }

    /// Empties all caches, so that no cached match keeps an unsubscribed receiver alive.
    pub(crate) fn purge(&self) {
        for shard in &self.all {
            let mut shard = lock(&shard.0);
            if !shard.cache.is_empty() {
                let emptied = MatchCache::new(self.cached_topics);
                let stale = std::mem::replace(&mut shard.cache, emptied);
                drop(shard);
                // Dropped after the lock is released: dropping a callback drops its captures, which is user code.
                drop(stale);
            }
        }
    }

    pub(crate) fn published(&self) -> u64 {
        let counted: u64 = self.all.iter().map(|shard| lock(&shard.0).published).sum();
        counted + self.published_unsharded.load(Ordering::Relaxed)
    }
}
