//! Filter → shards: the one structure that all shards share.
//!
//! A publish is matched once, on the shard where it arrives, to the filters it meets and the shards that have
//! subscribers for each; those shards look up their own subscribers by filter identifier. The lock is taken
//! for writing by a subscription that is new to its shard, for reading by a publish whose topic is not in the
//! shard's cache. A cached result is as good as the epoch it was made in.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mainstem_topic::{FilterId, Index, MatchCache, matches};

use crate::groups::{Group, Member};
use crate::message::SessionKey;
use crate::pressure::{Level, Pressure};

/// One bit per shard.
pub(crate) type ShardSet = u64;

/// Topics whose matches one shard remembers.
const CACHED_TOPICS: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Route {
    shards: ShardSet,
    groups: Vec<Arc<Group>>,
    /// Numbers of the sinks that have this filter.
    sinks: Vec<u32>,
}

impl Route {
    fn is_vacant(&self) -> bool {
        self.shards == 0 && self.groups.is_empty() && self.sinks.is_empty()
    }
}

/// Everything a topic name meets.
#[derive(Debug, Default)]
pub(crate) struct Matched {
    /// Each filter with the shards that have subscribers for it.
    pub(crate) filters: Vec<(FilterId, ShardSet)>,
    pub(crate) groups: Vec<Arc<Group>>,
    /// Sinks of other doors.
    pub(crate) sinks: Vec<u32>,
    /// All shards with subscribers.
    pub(crate) shards: ShardSet,
    /// How fan-outs found the receivers.
    pub(crate) pressure: Pressure,
}

impl Matched {
    pub(crate) fn is_empty(&self) -> bool {
        self.shards == 0 && self.groups.is_empty() && self.sinks.is_empty()
    }

    /// How receivers on any shard, and the chosen members of groups, were found a moment ago.
    pub(crate) fn level(&self, now_ms: u64) -> Level {
        let groups = self.groups.iter().map(|group| group.pressure.level(now_ms)).max();
        self.pressure.level(now_ms).max(groups.unwrap_or(Level::None))
    }

    /// Shards on which receivers may be; a group may have members anywhere.
    pub(crate) fn reach(&self) -> ShardSet {
        if self.groups.is_empty() { self.shards } else { ShardSet::MAX }
    }
}

pub(crate) type Cache = MatchCache<Arc<Matched>>;

/// A cache for one shard.
pub(crate) fn new_cache() -> Cache {
    MatchCache::new(CACHED_TOPICS)
}

/// The routing index of the process.
pub(crate) struct Routes {
    index: RwLock<Index<Route>>,
    /// The index's epoch, readable without the lock.
    epoch: AtomicU64,
    /// Filters of topics that meet nobody.
    write_only: Vec<String>,
    /// Number of sinks.
    sinks: AtomicU32,
}

impl Routes {
    pub(crate) fn new(seed: u64, write_only: Vec<String>) -> Self {
        let index = Index::with_seed(seed);
        let epoch = AtomicU64::new(index.epoch());
        Self { index: RwLock::new(index), epoch, write_only, sinks: AtomicU32::new(0) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Index<Route>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the index and lets every cache know before anybody can act on the change.
    fn change<R>(&self, act: impl FnOnce(&mut Index<Route>) -> R) -> R {
        let mut index: RwLockWriteGuard<'_, _> = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut index);
        index.touch();
        self.epoch.store(index.epoch(), Ordering::Release);
        result
    }

    /// The identifier of `filter`, with `shard` among those that have subscribers for it.
    pub(crate) fn add_shard(&self, filter: &str, shard: u16) -> FilterId {
        self.change(|index| {
            let (id, _) = index.insert_with(filter, Route::default);
            if let Some(route) = index.get_mut(id) {
                route.shards |= 1 << shard;
            }
            id
        })
    }

    /// `shard` has no subscribers for the filter any more.
    pub(crate) fn remove_shard(&self, id: FilterId, shard: u16) {
        self.change(|index| {
            if let Some(route) = index.get_mut(id) {
                route.shards &= !(1 << shard);
                if route.is_vacant() {
                    index.remove(id);
                }
            }
        });
    }

    /// Adds a sink to a filter; returns its number.
    pub(crate) fn add_sink(&self, filter: &str) -> u32 {
        let number = self.sinks.fetch_add(1, Ordering::Relaxed);
        self.change(|index| {
            let (id, _) = index.insert_with(filter, Route::default);
            index.get_mut(id).expect("just inserted").sinks.push(number);
        });
        number
    }

    /// Takes a sink away; its number is not given again.
    pub(crate) fn remove_sink(&self, filter: &str, number: u32) {
        self.change(|index| {
            let Some(id) = index.find(filter) else { return };
            if let Some(route) = index.get_mut(id) {
                route.sinks.retain(|known| *known != number);
                if route.is_vacant() {
                    index.remove(id);
                }
            }
        });
    }

    /// Whether there are sinks.
    pub(crate) fn has_sinks(&self) -> bool {
        self.sinks.load(Ordering::Relaxed) > 0
    }

    /// The identifier of `filter`, if anybody subscribes to it.
    pub(crate) fn find(&self, filter: &str) -> Option<FilterId> {
        self.read().find(filter)
    }

    /// The filter of an identifier.
    pub(crate) fn name(&self, id: FilterId) -> Option<Box<str>> {
        Some(self.read().filter(id)?.into())
    }

    /// Adds a member to the group `name` of `filter`; replaces it if it is there.
    pub(crate) fn join(&self, filter: &str, name: &str, member: Member) -> Arc<Group> {
        self.change(|index| {
            let (id, _) = index.insert_with(filter, Route::default);
            let groups = &mut index.get_mut(id).expect("just inserted").groups;
            let group = if let Some(known) = groups.iter().find(|group| *group.name == *name) {
                Arc::clone(known)
            } else {
                let made = Arc::new(Group::new(name, filter));
                groups.push(Arc::clone(&made));
                made
            };
            group.join(member);
            group
        })
    }

    /// Takes a member out of a group.
    pub(crate) fn leave(&self, group: &Arc<Group>, key: SessionKey) {
        self.change(|index| {
            if !group.leave(key) {
                return;
            }
            let Some(id) = index.find(&group.filter) else { return };
            if let Some(route) = index.get_mut(id) {
                route.groups.retain(|known| !Arc::ptr_eq(known, group));
                if route.is_vacant() {
                    index.remove(id);
                }
            }
        });
    }

    /// Whether clients may only publish to `topic`. A filter is asked about as if it were a topic.
    pub(crate) fn is_write_only(&self, topic: &str) -> bool {
        self.write_only.iter().any(|filter| filter == topic || matches(filter, topic))
    }

    /// What `topic` meets.
    pub(crate) fn matched(&self, cache: &mut Cache, topic: &str) -> Arc<Matched> {
        if let Some(known) = cache.get(topic, self.epoch.load(Ordering::Acquire)) {
            return Arc::clone(known);
        }
        let index = self.read();
        let epoch = index.epoch();
        let mut matched = Matched::default();
        let write_only = self.is_write_only(topic);
        index.for_each_match(topic, |id, route| {
            if write_only {
                return;
            }
            if route.shards != 0 {
                matched.filters.push((id, route.shards));
                matched.shards |= route.shards;
            }
            matched.groups.extend(route.groups.iter().cloned());
            matched.sinks.extend_from_slice(&route.sinks);
        });
        drop(index);
        let matched = Arc::new(matched);
        cache.insert(topic, epoch, Arc::clone(&matched));
        matched
    }
}
