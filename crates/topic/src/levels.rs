//! Interned level strings of the wildcard trie.
//!
//! Each distinct level is stored once and gets a number, so trie nodes hold a number instead of a string and comparing
//! levels compares integers. A reference count per level frees the string with its last node.

use hashbrown::HashTable;

use crate::arena::Arena;
use crate::free_list::shrink_if_sparse;
use crate::seed::{Seed, spread};

/// Reference-counted level strings and their numbers.
pub(crate) struct Levels {
    seed: Seed,
    stored: Arena<Level>,
    by_text: HashTable<u32>,
}

#[derive(Default)]
struct Level {
    text: Box<str>,
    /// Hash of the text.
    hash: u32,
    /// Number of trie nodes with this level.
    references: u32,
}

impl Levels {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { seed, stored: Arena::new(), by_text: HashTable::new() }
    }

    /// Returns the number of a level, if a node has it.
    #[inline]
    pub(crate) fn find(&self, text: &str) -> Option<u32> {
        self.find_hashed(self.seed.short_hash(text), text)
    }

    #[inline]
    fn find_hashed(&self, hash: u32, text: &str) -> Option<u32> {
        self.by_text.find(spread(hash), |&number| &*self.stored[number].text == text).copied()
    }

    /// Returns the number of a level, storing it if it is new. Pair each call with one [`release`](Self::release).
    pub(crate) fn acquire(&mut self, text: &str) -> u32 {
        let hash = self.seed.short_hash(text);
        if let Some(number) = self.find_hashed(hash, text) {
            self.stored[number].references += 1;
            return number;
        }
        let number = self.stored.insert(Level { text: text.into(), hash, references: 1 });
        let Self { stored, by_text, .. } = self;
        by_text.insert_unique(spread(hash), number, |&other| spread(stored[other].hash));
        number
    }

    /// Drops one reference. The last one frees the string.
    pub(crate) fn release(&mut self, number: u32) {
        let level = &mut self.stored[number];
        level.references -= 1;
        if level.references > 0 {
            return;
        }
        let level = self.stored.remove(number);
        if let Ok(entry) = self.by_text.find_entry(spread(level.hash), |&other| other == number) {
            entry.remove();
        } else {
            debug_assert!(false, "a level that is not in its table: {:?}", level.text);
        }
        let Self { stored, by_text, .. } = self;
        shrink_if_sparse(by_text, |&other| spread(stored[other].hash));
    }

    pub(crate) fn text(&self, number: u32) -> &str {
        &self.stored[number].text
    }

    /// Returns the number of level strings and the number of table entries.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.stored.len(), self.by_text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_freed_with_its_last_reference() {
        let mut levels = Levels::new(Seed::fixed(1));
        let a = levels.acquire("a");
        let empty = levels.acquire("");
        assert_eq!(levels.acquire("a"), a);
        assert_ne!(a, empty);
        assert_eq!((levels.find("a"), levels.find(""), levels.find("b")), (Some(a), Some(empty), None));
        assert_eq!((levels.text(a), levels.text(empty)), ("a", ""));
        levels.release(a);
        assert_eq!(levels.find("a"), Some(a));
        levels.release(a);
        assert_eq!((levels.find("a"), levels.find("")), (None, Some(empty)));
        assert_eq!(levels.counts(), (1, 1));
    }
}
