//! Drops large collections in steps: freeing a million entries at once would stall the shard's thread.

use std::collections::{BTreeMap, BTreeSet};

/// Removes entries while `budget` lasts.
pub(crate) fn drop_some<K: Ord, V>(map: &mut BTreeMap<K, V>, budget: &mut usize) {
    while *budget > 0 && map.pop_first().is_some() {
        *budget -= 1;
    }
}

/// Removes entries while `budget` lasts.
pub(crate) fn drop_some_of_set<T: Ord>(set: &mut BTreeSet<T>, budget: &mut usize) {
    while *budget > 0 && set.pop_first().is_some() {
        *budget -= 1;
    }
}
