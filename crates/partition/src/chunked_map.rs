//! A sorted map whose copy is cheap.
//!
//! The catalogue is copied with each change, and thousands of changes may follow each other. The map is an array of
//! sorted chunks, which copies share: a copy costs a reference per chunk, and a change afterwards the copy of one
//! chunk.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Entries of a chunk beyond which it is divided. Two neighbors that have fewer together than half of it become one.
const CHUNK_MAX: usize = 128;

/// A sorted map in chunks. No chunk is empty.
pub struct ChunkedMap<K, V> {
    chunks: Vec<Chunk<K, V>>,
    len: usize,
}

type Chunk<K, V> = Arc<Vec<(K, V)>>;

impl<K, V> Default for ChunkedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<K, V> Clone for ChunkedMap<K, V> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks.clone(), len: self.len }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for ChunkedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        f.debug_map().entries(entries.map(|(key, value)| (key, value))).finish()
    }
}

impl<K: Ord, V> ChunkedMap<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        Some(&chunk[find(chunk, key).ok()?].1)
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values, by key.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entries from this key on.
    pub fn from<Q: Ord + ?Sized>(&self, key: &Q) -> impl Iterator<Item = (&K, &V)>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let first = self.chunks.get(at).map_or(&[][..], |chunk| {
            let (Ok(from) | Err(from)) = find(chunk, key);
            &chunk[from..]
        });
        let others = self.chunks.get(at + 1..).unwrap_or_default();
        let entries = first.iter().chain(others.iter().flat_map(|chunk| chunk.iter()));
        entries.map(|(key, value)| (key, value))
    }

    /// The chunk that has the key, if the map has it.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let begins_before =
            |chunk: &Chunk<K, V>| chunk.first().is_some_and(|(first, _)| first.borrow() <= key);
        self.chunks.partition_point(begins_before).saturating_sub(1)
    }
}

impl<K: Ord + Clone, V: Clone> ChunkedMap<K, V> {
    /// Sets the value of a key. Returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return None;
        };
        let chunk = Arc::make_mut(chunk);
        let place = match find(chunk, &key) {
            Ok(found) => return Some(std::mem::replace(&mut chunk[found].1, value)),
            Err(place) => place,
        };
        chunk.insert(place, (key, value));
        self.len += 1;
        if chunk.len() > CHUNK_MAX {
            let rest = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(at + 1, Arc::new(rest));
        }
        None
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let chunk = self.chunks.get_mut(at)?;
        let found = find(chunk, key).ok()?;
        let (_, value) = Arc::make_mut(chunk).remove(found);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(at);
        } else {
            self.join_if_small(at);
            if at > 0 {
                self.join_if_small(at - 1);
            }
        }
        Some(value)
    }

    /// Makes one chunk of this one and the next, if both are small.
    fn join_if_small(&mut self, at: usize) {
        if let [chunk, next, ..] = &self.chunks[at..]
            && chunk.len() + next.len() < CHUNK_MAX / 2
        {
            let next = self.chunks.remove(at + 1);
            Arc::make_mut(&mut self.chunks[at]).extend(next.iter().cloned());
        }
    }
}

fn find<K: Borrow<Q>, V, Q: Ord + ?Sized>(chunk: &[(K, V)], key: &Q) -> Result<usize, usize> {
    chunk.binary_search_by(|(known, _)| known.borrow().cmp(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_sorted_map(steps in prop::collection::vec((any::<bool>(), 0..2_000_u32), 1..4_000)) {
            let (mut map, mut model) = (ChunkedMap::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for (number, (is_insert, key)) in steps.into_iter().enumerate() {
                if is_insert {
                    prop_assert_eq!(map.insert(key, number), model.insert(key, number));
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                if number % 500 == 0 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            copies.push((map, model));
            for (map, model) in copies {
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(map.iter().eq(&model), "a copy does not change with the original");
                for key in [0, 1, 999, 1_000, 2_000] {
                    prop_assert!(map.from(&key).eq(model.range(key..)), "from {}", key);
                }
            }
        }
    }

    #[test]
    fn chunks_are_bounded_and_few() {
        let mut map = ChunkedMap::default();
        for key in 0..10_000 {
            map.insert(key, ());
        }
        assert!(map.chunks.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
        assert!(map.chunks.len() <= 10_000 / (CHUNK_MAX / 2) + 1, "{} chunks", map.chunks.len());
        for key in (0..10_000).filter(|key| key % 100 != 0) {
            map.remove(&key);
        }
        assert!(map.chunks.len() <= 8, "{} chunks of 100 entries", map.chunks.len());
    }
}
