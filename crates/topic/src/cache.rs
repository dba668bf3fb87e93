//! A cache of match results by topic name, valid until the index changes.
//!
//! Validity is by epoch: an entry stores the epoch that was read before matching and is returned only for that epoch. A
//! match that races with a subscribe can therefore never be served after it. Invalidation costs nothing; stale entries
//! are overwritten as space is needed.

use hashbrown::HashTable;

use crate::seed::Seed;

/// Maximum length of a cached topic name, in bytes.
pub const MAX_CACHED_NAME_BYTES: usize = 256;

/// Number of recently used entries that an eviction skips before it takes the next one regardless.
const MAX_SKIPPED: usize = 8;

/// A bounded cache from topic names to match results.
///
/// Each result is tagged with the epoch that was read *before* matching and is returned only for the same epoch. A
/// result computed before a subscribe is never returned after it, even if it is stored later. A new epoch makes all
/// results stale at no cost. Stale results are kept until their entries are overwritten, so a result should be plain
/// data rather than references that keep other objects alive.
///
/// The cache holds at most `capacity` names of at most [`MAX_CACHED_NAME_BYTES`] bytes each. Eviction uses the
/// second-chance clock algorithm: entries used since the hand last passed are skipped, up to a limit, so topics that
/// are seen once do not displace those in use.
pub struct MatchCache<R> {
    seed: Seed,
    entries: Vec<Entry<R>>,
    by_name: HashTable<u32>,
    capacity: usize,
    /// Index of the entry that the next eviction checks first.
    hand: usize,
}

struct Entry<R> {
    name: Box<str>,
    epoch: u64,
    was_used: bool,
    result: R,
}

impl<R> MatchCache<R> {
    /// Creates an empty cache for `capacity` names with a random hash seed. With capacity 0 it stores nothing.
    ///
    /// # Panics
    /// If `capacity` is 2^32 or more.
    pub fn new(capacity: usize) -> Self {
        Self::with(capacity, Seed::random())
    }

    /// Like [`new`](Self::new), with a fixed hash seed; see [`Index::with_seed`](crate::Index::with_seed).
    ///
    /// # Panics
    /// If `capacity` is 2^32 or more.
    pub fn with_seed(capacity: usize, seed: u64) -> Self {
        Self::with(capacity, Seed::fixed(seed))
    }

    fn with(capacity: usize, seed: Seed) -> Self {
        assert!(u32::try_from(capacity).is_ok(), "the capacity {capacity} exceeds 32 bits");
        Self { seed, entries: Vec::new(), by_name: HashTable::new(), capacity, hand: 0 }
    }

    /// Returns the number of names, including those with stale results. Never exceeds the capacity.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the cache is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of names.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the result for `name`, if it was stored with this `epoch`.
    #[inline]
    pub fn get(&mut self, name: &str, epoch: u64) -> Option<&R> {
        let number = self.find(self.seed.hash_text(name), name)?;
        let entry = &mut self.entries[number];
        if entry.epoch != epoch {
            return None;
        }
        entry.was_used = true;
        Some(&entry.result)
    }

    /// Stores the result for `name`, which was matched after `epoch` was read.
    ///
    /// Does nothing if the name is longer than [`MAX_CACHED_NAME_BYTES`] or has a result of a later epoch.
    pub fn insert(&mut self, name: &str, epoch: u64, result: R) {
        if self.capacity == 0 || name.len() > MAX_CACHED_NAME_BYTES {
            return;
        }
        let hash = self.seed.hash_text(name);
        if let Some(number) = self.find(hash, name) {
            let entry = &mut self.entries[number];
            if entry.epoch <= epoch {
                entry.epoch = epoch;
                entry.result = result;
            }
            return;
        }
        let entry = Entry { name: name.into(), epoch, was_used: false, result };
        let number = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let number = self.evict(epoch);
            self.entries[number] = entry;
            number
        };
        let Self { seed, entries, by_name, .. } = self;
        by_name.insert_unique(hash, number as u32, |&other| seed.hash_text(&entries[other as usize].name));
    }

    /// Removes all entries. Required before the cache is used with another index, whose epochs are unrelated.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.by_name.clear();
        self.hand = 0;
    }

    #[inline]
    fn find(&self, hash: u64, name: &str) -> Option<usize> {
        self.by_name
            .find(hash, |&number| &*self.entries[number as usize].name == name)
            .map(|&number| number as usize)
    }

    /// Chooses the entry to overwrite in a full cache and removes it from the table.
    fn evict(&mut self, epoch: u64) -> usize {
        for _ in 0..MAX_SKIPPED {
            let entry = &mut self.entries[self.hand];
            if !entry.was_used || entry.epoch < epoch {
                break;
            }
            entry.was_used = false;
            self.hand = (self.hand + 1) % self.capacity;
        }
        let victim = self.hand;
        self.hand = (self.hand + 1) % self.capacity;
        let hash = self.seed.hash_text(&self.entries[victim].name);
        if let Ok(entry) = self.by_name.find_entry(hash, |&number| number as usize == victim) {
            entry.remove();
        } else {
            debug_assert!(false, "an entry that is not in the table");
        }
        victim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Index;

    fn lookup<R: Clone>(cache: &mut MatchCache<R>, name: &str, epoch: u64) -> Option<R> {
        cache.get(name, epoch).cloned()
    }

    #[test]
    fn returns_a_result_only_in_its_epoch() {
        let mut cache = MatchCache::new(8);
        assert_eq!(lookup(&mut cache, "a", 0), None);
        cache.insert("a", 3, "three");
        assert_eq!((lookup(&mut cache, "a", 3), lookup(&mut cache, "b", 3)), (Some("three"), None));
        assert_eq!((lookup(&mut cache, "a", 2), lookup(&mut cache, "a", 4)), (None, None));
        cache.insert("a", 4, "four");
        assert_eq!((lookup(&mut cache, "a", 3), lookup(&mut cache, "a", 4)), (None, Some("four")));
        // A slower match of an older epoch does not displace it.
        cache.insert("a", 3, "three");
        assert_eq!((lookup(&mut cache, "a", 4), cache.len()), (Some("four"), 1));
        cache.clear();
        assert_eq!((lookup(&mut cache, "a", 4), cache.is_empty()), (None, true));
    }

    /// The interleaving that breaks a cache without epochs.
    #[test]
    fn result_computed_before_a_subscribe_is_not_returned_after_it() {
        let matching = |index: &Index<()>| {
            let mut found = Vec::new();
            index.for_each_match("a/b", |id, ()| found.push(id));
            found
        };
        let mut index = Index::new();
        let mut cache = MatchCache::new(8);
        let (first, _) = index.insert_with("a/b", || ());
        let epoch = index.epoch();
        let found = matching(&index);
        let (second, _) = index.insert_with("a/+", || ());
        cache.insert("a/b", epoch, found);
        assert_eq!(lookup(&mut cache, "a/b", index.epoch()), None);

        let epoch = index.epoch();
        cache.insert("a/b", epoch, matching(&index));
        assert_eq!(lookup(&mut cache, "a/b", index.epoch()), Some(vec![first, second]));
        index.remove(first);
        assert_eq!(lookup(&mut cache, "a/b", index.epoch()), None);
        cache.insert("a/b", index.epoch(), matching(&index));
        assert_eq!(lookup(&mut cache, "a/b", index.epoch()), Some(vec![second]));
        index.touch();
        assert_eq!(lookup(&mut cache, "a/b", index.epoch()), None);
    }

    #[test]
    fn size_is_bounded_by_capacity() {
        let mut cache = MatchCache::new(100);
        for round in 0..10_000_u32 {
            let name = format!("device/{round}");
            cache.insert(&name, u64::from(round / 1_000), round);
            assert_eq!(lookup(&mut cache, &name, u64::from(round / 1_000)), Some(round));
        }
        assert_eq!((cache.len(), cache.capacity(), cache.by_name.len()), (100, 100, 100));
        assert!(cache.by_name.capacity() <= 256, "{}", cache.by_name.capacity());
        let cached =
            (0..10_000_u32).filter(|round| lookup(&mut cache, &format!("device/{round}"), 9).is_some());
        assert_eq!(cached.count(), 100);

        let mut none = MatchCache::new(0);
        none.insert("a", 0, 1);
        assert_eq!((lookup(&mut none, "a", 0), none.len()), (None, 0));
    }

    #[test]
    fn long_names_are_not_cached() {
        let mut cache = MatchCache::new(8);
        let (longest, too_long) = ("x".repeat(MAX_CACHED_NAME_BYTES), "x".repeat(MAX_CACHED_NAME_BYTES + 1));
        cache.insert(&longest, 0, 1);
        cache.insert(&too_long, 0, 2);
        assert_eq!(
            (lookup(&mut cache, &longest, 0), lookup(&mut cache, &too_long, 0), cache.len()),
            (Some(1), None, 1)
        );
    }

    #[test]
    fn names_in_use_outlast_names_seen_once() {
        let mut cache = MatchCache::new(64);
        for round in 0..5_000 {
            for hot in ["hot/1", "hot/2", "hot/3"] {
                if round == 0 {
                    cache.insert(hot, 0, hot.to_owned());
                }
                assert_eq!(lookup(&mut cache, hot, 0).as_deref(), Some(hot), "round {round}");
            }
            cache.insert(&format!("once/{round}"), 0, String::new());
        }
    }

    #[test]
    fn evicts_stale_names_first() {
        let mut cache = MatchCache::new(4);
        for name in ["a", "b", "c", "d"] {
            cache.insert(name, 0, ());
            assert!(lookup(&mut cache, name, 0).is_some());
        }
        // The hand points to "a", which is current and in use and so is skipped. "b" was in use but is stale, so it
        // goes.
        cache.insert("a", 1, ());
        assert!(cache.get("a", 1).is_some());
        for name in ["e", "f", "g"] {
            cache.insert(name, 1, ());
        }
        for name in ["a", "e", "f", "g"] {
            assert!(cache.get(name, 1).is_some(), "{name}");
        }
    }
}
