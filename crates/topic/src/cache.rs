//! Results of matching, kept per topic name until the index changes.

use hashbrown::HashTable;

use crate::seed::Seed;

/// Longest topic name, in bytes, that a [`MatchCache`] keeps a result for.
pub const MAX_CACHED_NAME_BYTES: usize = 256;

/// How many entries an eviction spares because they were used, before it takes the next one as it comes.
const SPARED_MAX: usize = 8;

/// Topic names to what they matched, for as many names as its capacity says.
///
/// Each result is tagged with the epoch that was read *before* matching, and is returned to those who ask with that
/// same epoch: a result computed before a subscribe is never served after it, even where it is stored later. A new
/// epoch makes all results stale at no cost: they go as their places are needed. So a result may be held long after
/// it is stale, and had better be numbers than what keeps other things alive.
///
/// At most `capacity` names of at most [`MAX_CACHED_NAME_BYTES`] are held, however many go by. What makes room is
/// the second-chance clock: names that were asked for since the hand last passed stay, within limits, so topics that
/// are seen once do not displace those in use.
pub struct MatchCache<R> {
    seed: Seed,
    entries: Vec<Entry<R>>,
    by_name: HashTable<u32>,
    capacity: usize,
    /// The entry that the next eviction looks at first.
    hand: usize,
}

struct Entry<R> {
    name: Box<str>,
    epoch: u64,
    was_used: bool,
    result: R,
}

impl<R> MatchCache<R> {
    /// An empty cache for `capacity` names, which hashes with a random seed; with 0 it keeps nothing.
    ///
    /// # Panics
    /// With a capacity of four thousand million or more.
    pub fn new(capacity: usize) -> Self {
        Self::with(capacity, Seed::random())
    }

    /// The same, but for the seed; see [`Index::with_seed`](crate::Index::with_seed).
    ///
    /// # Panics
    /// With a capacity of four thousand million or more.
    pub fn with_seed(capacity: usize, seed: u64) -> Self {
        Self::with(capacity, Seed::fixed(seed))
    }

    fn with(capacity: usize, seed: Seed) -> Self {
        assert!(u32::try_from(capacity).is_ok(), "{capacity} entries have 32-bit numbers");
        Self { seed, entries: Vec::new(), by_name: HashTable::new(), capacity, hand: 0 }
    }

    /// The number of names held, those with stale results among them; never more than the capacity.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no names are held.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most names that are held.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The result for `name`, if it was stored with this `epoch`.
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

    /// Stores the result for `name`, matched after `epoch` was read.
    ///
    /// Nothing is stored for a name longer than [`MAX_CACHED_NAME_BYTES`], nor where a result of a later epoch is.
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

    /// Forgets everything: for an owner that starts over with another index, whose epochs are others.
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

    /// Picks the entry to overwrite in a full cache, and takes it out of the table.
    fn evict(&mut self, epoch: u64) -> usize {
        for _ in 0..SPARED_MAX {
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

    fn held<R: Clone>(cache: &mut MatchCache<R>, name: &str, epoch: u64) -> Option<R> {
        cache.get(name, epoch).cloned()
    }

    #[test]
    fn a_result_is_served_in_its_epoch_only() {
        let mut cache = MatchCache::new(8);
        assert_eq!(held(&mut cache, "a", 0), None);
        cache.insert("a", 3, "three");
        assert_eq!((held(&mut cache, "a", 3), held(&mut cache, "b", 3)), (Some("three"), None));
        assert_eq!((held(&mut cache, "a", 2), held(&mut cache, "a", 4)), (None, None));
        cache.insert("a", 4, "four");
        assert_eq!((held(&mut cache, "a", 3), held(&mut cache, "a", 4)), (None, Some("four")));
        // A slower match of an older epoch does not displace it.
        cache.insert("a", 3, "three");
        assert_eq!((held(&mut cache, "a", 4), cache.len()), (Some("four"), 1));
        cache.clear();
        assert_eq!((held(&mut cache, "a", 4), cache.is_empty()), (None, true));
    }

    /// The order of events that a cache without epochs gets wrong.
    #[test]
    fn a_result_computed_before_a_subscribe_is_not_served_after_it() {
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
        assert_eq!(held(&mut cache, "a/b", index.epoch()), None);

        let epoch = index.epoch();
        cache.insert("a/b", epoch, matching(&index));
        assert_eq!(held(&mut cache, "a/b", index.epoch()), Some(vec![first, second]));
        index.remove(first);
        assert_eq!(held(&mut cache, "a/b", index.epoch()), None);
        cache.insert("a/b", index.epoch(), matching(&index));
        assert_eq!(held(&mut cache, "a/b", index.epoch()), Some(vec![second]));
        index.touch();
        assert_eq!(held(&mut cache, "a/b", index.epoch()), None);
    }

    #[test]
    fn it_holds_no_more_than_its_capacity() {
        let mut cache = MatchCache::new(100);
        for round in 0..10_000_u32 {
            let name = format!("device/{round}");
            cache.insert(&name, u64::from(round / 1_000), round);
            assert_eq!(held(&mut cache, &name, u64::from(round / 1_000)), Some(round));
        }
        assert_eq!((cache.len(), cache.capacity(), cache.by_name.len()), (100, 100, 100));
        assert!(cache.by_name.capacity() <= 256, "{}", cache.by_name.capacity());
        let kept = (0..10_000_u32).filter(|round| held(&mut cache, &format!("device/{round}"), 9).is_some());
        assert_eq!(kept.count(), 100);

        let mut none = MatchCache::new(0);
        none.insert("a", 0, 1);
        assert_eq!((held(&mut none, "a", 0), none.len()), (None, 0));
    }

    #[test]
    fn long_names_are_not_kept() {
        let mut cache = MatchCache::new(8);
        let (longest, too_long) = ("x".repeat(MAX_CACHED_NAME_BYTES), "x".repeat(MAX_CACHED_NAME_BYTES + 1));
        cache.insert(&longest, 0, 1);
        cache.insert(&too_long, 0, 2);
        assert_eq!(
            (held(&mut cache, &longest, 0), held(&mut cache, &too_long, 0), cache.len()),
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
                assert_eq!(held(&mut cache, hot, 0).as_deref(), Some(hot), "round {round}");
            }
            cache.insert(&format!("once/{round}"), 0, String::new());
        }
    }

    #[test]
    fn stale_names_go_first() {
        let mut cache = MatchCache::new(4);
        for name in ["a", "b", "c", "d"] {
            cache.insert(name, 0, ());
            assert!(held(&mut cache, name, 0).is_some());
        }
        // The hand stands before "a": fresh and in use, it is spared, and "b" goes, in use though it was.
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
