//! The index from topic filters to shards, groups and sinks, shared by all shards.
//!
//! A publish is matched once, on the shard where it arrives; other shards find their subscribers by filter identifier.
//! The lock is taken for writing by a subscription that is new to its shard, and for reading by a publish whose topic
//! is not in the shard's cache. A cached result is valid for the epoch that was read before matching.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mainstem_topic::{FilterId, Index, MatchCache, matches};

use crate::groups::{Group, Member};
use crate::message::SessionKey;
use crate::pressure::{Level, Pressure};

/// One bit per shard.
pub(crate) type ShardSet = u64;

/// Cost of a match that is not in the cache, without the trie nodes that it visits at one each, units.
const MATCH_UNITS: u32 = 5;
/// Topics in the match cache of one shard.
const CACHED_TOPICS: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Route {
    shards: ShardSet,
    groups: Vec<Arc<Group>>,
    /// Numbers of the sinks with this filter.
    sinks: Vec<u32>,
}

impl Route {
    fn is_vacant(&self) -> bool {
        self.shards == 0 && self.groups.is_empty() && self.sinks.is_empty()
    }
}

/// Everything that a topic name matches.
#[derive(Debug, Default)]
pub(crate) struct Matched {
    /// Each filter with the shards that have subscribers for it.
    pub(crate) filters: Vec<(FilterId, ShardSet)>,
    pub(crate) groups: Vec<Arc<Group>>,
    /// Numbers of sinks.
    pub(crate) sinks: Vec<u32>,
    /// All shards with subscribers.
    pub(crate) shards: ShardSet,
    /// How far receivers are behind.
    pub(crate) pressure: Pressure,
}

impl Matched {
    pub(crate) fn is_empty(&self) -> bool {
        self.shards == 0 && self.groups.is_empty() && self.sinks.is_empty()
    }

    /// How far the receivers were behind a moment ago, on any shard and in any group.
    pub(crate) fn level(&self, now_ms: u64) -> Level {
        let groups = self.groups.iter().map(|group| group.pressure.level(now_ms)).max();
        self.pressure.level(now_ms).max(groups.unwrap_or(Level::None))
    }

    /// Shards that may have receivers; members of a group may be on any.
    pub(crate) fn reach(&self) -> ShardSet {
        if self.groups.is_empty() { self.shards } else { ShardSet::MAX }
    }
}

pub(crate) type Cache = MatchCache<Arc<Matched>>;

pub(crate) fn new_cache() -> Cache {
    MatchCache::new(CACHED_TOPICS)
}

/// The index of the process.
pub(crate) struct Routes {
    index: RwLock<Index<Route>>,
    /// Epoch of the index, readable without the lock.
    epoch: AtomicU64,
    /// Filters of topics that nobody may subscribe to.
    write_only: Vec<String>,
    /// Number of sinks that were ever added.
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

    /// Changes the index, and invalidates all caches before the change can have an effect.
    fn change<R>(&self, act: impl FnOnce(&mut Index<Route>) -> R) -> R {
        let mut index: RwLockWriteGuard<'_, _> = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut index);
        index.touch();
        self.epoch.store(index.epoch(), Ordering::Release);
        result
    }

    /// Adds `shard` to the shards with subscribers for `filter`. Returns the identifier of the filter.
    pub(crate) fn add_shard(&self, filter: &str, shard: u16) -> FilterId {
        self.change(|index| {
            let (id, _) = index.insert_with(filter, Route::default);
            if let Some(route) = index.get_mut(id) {
                route.shards |= 1 << shard;
            }
            id
        })
    }

    /// Removes `shard` from the shards with subscribers for some filters. Returns the length of the filters that are
    /// gone, bytes.
    pub(crate) fn remove_shard(&self, ids: &[FilterId], shard: u16) -> usize {
        if ids.is_empty() {
            return 0;
        }
        self.change(|index| {
            let mut bytes = 0;
            for id in ids {
                let Some(route) = index.get_mut(*id) else { continue };
                route.shards &= !(1 << shard);
                if route.is_vacant() {
                    bytes += index.filter_len(*id).unwrap_or(0);
                    index.remove(*id);
                }
            }
            bytes
        })
    }

    /// Adds a sink with a filter. Returns its number.
    pub(crate) fn add_sink(&self, filter: &str) -> u32 {
        let number = self.sinks.fetch_add(1, Ordering::Relaxed);
        self.change(|index| {
            let (id, _) = index.insert_with(filter, Route::default);
            index.get_mut(id).expect("just inserted").sinks.push(number);
        });
        number
    }

    /// Removes a sink. Its number is not used again.
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

    /// Whether there have ever been sinks.
    pub(crate) fn has_sinks(&self) -> bool {
        self.sinks.load(Ordering::Relaxed) > 0
    }

    /// Identifier of `filter`, if it is in the index.
    pub(crate) fn find(&self, filter: &str) -> Option<FilterId> {
        self.read().find(filter)
    }

    pub(crate) fn name(&self, id: FilterId) -> Option<Box<str>> {
        Some(self.read().filter(id)?.into())
    }

    /// The text of a filter, if it has wildcards. Others may be long, and are not copied.
    pub(crate) fn wildcard_name(&self, id: FilterId) -> Option<Box<str>> {
        match self.read().filter(id)? {
            Cow::Borrowed(_) => None,
            Cow::Owned(name) => Some(name.into()),
        }
    }

    /// Adds a member to group `name` of `filter`, or replaces it.
    pub(crate) fn join(&self, filter: &str, name: &str, member: Member) -> Arc<Group> {
        self.change(|index| {
            let (id, _) = index.insert_with(filter, Route::default);
            let groups = &mut index.get_mut(id).expect("just inserted").groups;
            let group = if let Some(known) = groups.iter().find(|group| *group.name == *name) {
                Arc::clone(known)
            } else {
                let new = Arc::new(Group::new(name, filter));
                groups.push(Arc::clone(&new));
                new
            };
            group.join(member);
            group
        })
    }

    /// Removes a member from a group, and the group if it is empty.
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

    /// Whether clients may publish to `topic` but not subscribe. A filter is checked as if it were a topic.
    pub(crate) fn is_write_only(&self, topic: &str) -> bool {
        self.write_only.iter().any(|filter| filter == topic || matches(filter, topic))
    }

    /// Everything that `topic` matches, from the cache if it is there. Also returns the cost, units.
    pub(crate) fn matched(&self, cache: &mut Cache, topic: &str) -> (Arc<Matched>, u32) {
        if let Some(known) = cache.get(topic, self.epoch.load(Ordering::Acquire)) {
            return (Arc::clone(known), 1);
        }
        let index = self.read();
        let epoch = index.epoch();
        let mut matched = Matched::default();
        let write_only = self.is_write_only(topic);
        let visited = index.for_each_match(topic, |id, route| {
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
        (matched, MATCH_UNITS + visited as u32)
    }
}
