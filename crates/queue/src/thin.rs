//! Large collections that are of no use any more: freed some entries at a time, since that takes a while.

use std::collections::{BTreeMap, BTreeSet};

/// Takes entries out, as long as `most` is not 0.
pub(crate) fn thin<K: Ord, V>(map: &mut BTreeMap<K, V>, most: &mut usize) {
    while *most > 0 && map.pop_first().is_some() {
        *most -= 1;
    }
}

/// Takes entries out, as long as `most` is not 0.
pub(crate) fn thin_set<T: Ord>(set: &mut BTreeSet<T>, most: &mut usize) {
    while *most > 0 && set.pop_first().is_some() {
        *most -= 1;
    }
}
