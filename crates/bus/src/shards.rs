//! The match caches: one for each thread that publishes, as far as that can be had, so that publishers of different
//! topics write to no memory in common.

use std::cell::Cell;
use std::sync::Arc;

use mainstem_topic::MatchCache;

use crate::receivers::Matched;
use crate::sync::{AtomicU64, Mutex, Ordering, Padded, lock, try_lock};

/// What the publishers at home in one shard share.
struct Shard<T> {
    cache: MatchCache<Arc<Matched<T>>>,
    published: u64,
}

/// A power of two of shards, each behind a lock that is free nearly always.
pub(crate) struct Shards<T> {
    all: Box<[Padded<Mutex<Shard<T>>>]>,
    cached_topics: usize,
    /// Messages published while all shards were in use.
    published_elsewhere: AtomicU64,
}

#[cfg(not(mainstem_shuttle))]
thread_local! {
    /// The shard that this thread tries first, whatever the bus.
    static HOME: Cell<usize> = Cell::new(next_home());
}

#[cfg(mainstem_shuttle)]
shuttle::thread_local! {
    static HOME: Cell<usize> = Cell::new(0);
}

#[cfg(not(mainstem_shuttle))]
fn next_home() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

impl<T> Shards<T> {
    /// At least `wanted` shards, whose caches hold `cached_topics` topics each.
    pub(crate) fn new(wanted: usize, cached_topics: usize) -> Self {
        let shard = |_| Padded(Mutex::new(Shard { cache: MatchCache::new(cached_topics), published: 0 }));
        Self {
            all: (0..wanted.next_power_of_two()).map(shard).collect(),
            cached_topics,
            published_elsewhere: AtomicU64::new(0),
        }
    }

    /// What `topic` matched in this `epoch`, where a cache knows; counts `messages` as published then.
    #[inline]
    pub(crate) fn find(&self, topic: &str, epoch: u64, messages: u64) -> Option<Arc<Matched<T>>> {
        self.with(|shard| {
            let matched = shard.cache.get(topic, epoch).cloned()?;
            shard.published += messages;
            Some(matched)
        })?
    }

    /// Keeps what `topic` matched in this `epoch`, if `is_current` says that it is still good, and counts `messages`
    /// as published.
    pub(crate) fn keep(
        &self,
        matched: &Arc<Matched<T>>,
        epoch: u64,
        messages: u64,
        is_current: impl FnOnce() -> bool,
    ) {
        let kept = self.with(|shard| {
            shard.published += messages;
            if is_current() {
                shard.cache.insert(&matched.topic, epoch, Arc::clone(matched));
            }
        });
        if kept.is_none() {
            self.published_elsewhere.fetch_add(messages, Ordering::Relaxed);
        }
    }

    /// Runs `work` with a shard that no other thread uses now; the home of this thread moves there.
    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut Shard<T>) -> R) -> Option<R> {
        let home = HOME.with(Cell::get);
        for step in 0..self.all.len() {
            let at = home.wrapping_add(step);
            if let Some(mut shard) = try_lock(&self.all[at & (self.all.len() - 1)].0) {
                if step > 0 {
                    HOME.with(|home| home.set(at));
                }
                return Some(work(&mut shard));
            }
        }
        None
    }

    /// Forgets all results, so that nothing here keeps alive what has been unsubscribed.
    pub(crate) fn purge(&self) {
        for shard in &self.all {
            let mut shard = lock(&shard.0);
            if !shard.cache.is_empty() {
                let emptied = MatchCache::new(self.cached_topics);
                let stale = std::mem::replace(&mut shard.cache, emptied);
                drop(shard);
                // Behind the lock: with a callback goes what it has captured, which is not ours.
                drop(stale);
            }
        }
    }

    pub(crate) fn published(&self) -> u64 {
        let counted: u64 = self.all.iter().map(|shard| lock(&shard.0).published).sum();
        counted + self.published_elsewhere.load(Ordering::Relaxed)
    }
}
