//! The subscription index: a map from topic filters to values, searched by topic name.
//!
//! Filters without wildcards are in a hash table, so a name finds its exact filter with one lookup. Filters with
//! wildcards are in a trie. Both store slot numbers, and the slots hold the values. Every change of the set of filters
//! advances the epoch, which callers use to validate cached matches.

use std::borrow::Cow;

use hashbrown::HashTable;

use crate::free_list::shrink_if_sparse;
use crate::name::{check_filter, check_name, has_wildcard};
use crate::seed::{Seed, spread};
use crate::slots::{Entry, FilterId, Key, Slots};
use crate::trie::Trie;

/// A map from topic filters to values, updated in place.
///
/// Filters must be valid according to [`check_filter`] and names according to [`check_name`]. Invalid ones panic in
/// debug builds; in release builds their meaning is unspecified.
pub struct Index<V> {
    seed: Seed,
    /// The filters without wildcards, hashed by text.
    exact: HashTable<Exact>,
    wild: Trie,
    slots: Slots<V>,
    epoch: u64,
}

/// A filter without wildcards.
#[derive(Clone, Copy)]
struct Exact {
    slot: u32,
    /// Hash of its text.
    hash: u32,
}

impl<V> Index<V> {
    /// Creates an empty index with a random hash seed.
    pub fn new() -> Self {
        Self::with(Seed::random())
    }

    /// Creates an empty index with a fixed hash seed, for runs that must be reproducible.
    ///
    /// The seed affects time and memory use, but never a result. If clients can guess it, they can choose filters that
    /// collide.
    pub fn with_seed(seed: u64) -> Self {
        Self::with(Seed::fixed(seed))
    }

    fn with(seed: Seed) -> Self {
        Self { exact: HashTable::new(), wild: Trie::new(seed.clone()), seed, slots: Slots::new(), epoch: 0 }
    }

    /// Returns the number of filters.
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there are no filters.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the epoch: a number that increases with every inserted or removed filter, and with
    /// [`touch`](Self::touch).
    ///
    /// A match result is valid while the epoch equals the one that was read *before* matching.
    #[inline]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Advances the epoch. Call after changing a value in a way that must invalidate cached matches.
    pub const fn touch(&mut self) {
        self.epoch += 1;
    }

    /// Returns the id of `filter` and whether it is new. A new filter gets the value returned by `make`.
    ///
    /// # Panics
    /// If the index holds almost 2^32 filters.
    pub fn insert_with(&mut self, filter: &str, make: impl FnOnce() -> V) -> (FilterId, bool) {
        if let Some(id) = self.find(filter) {
            return (id, false);
        }
        // Called before any change, so that a panic in `make` leaves the index consistent.
        let value = make();
        let id = if has_wildcard(filter) {
            self.insert_wild(filter, value)
        } else {
            self.insert_exact(filter, value)
        };
        self.touch();
        (id, true)
    }

    fn insert_exact(&mut self, filter: &str, value: V) -> FilterId {
        let Self { seed, exact, slots, .. } = self;
        let id = slots.insert(|_| Key::Exact(filter.into()), value);
        let new = Exact { slot: id.slot(), hash: seed.short_hash(filter) };
        exact.insert_unique(spread(new.hash), new, |other| spread(other.hash));
        id
    }

    fn insert_wild(&mut self, filter: &str, value: V) -> FilterId {
        let Self { wild, slots, .. } = self;
        slots.insert(|slot| Key::Wild(wild.insert(filter, slot)), value)
    }

    /// Returns the id of `filter`, if it is in the index.
    pub fn find(&self, filter: &str) -> Option<FilterId> {
        debug_assert_eq!(check_filter(filter), Ok(()), "{filter:?} is a topic filter");
        let slot = if has_wildcard(filter) { self.wild.find(filter)? } else { self.find_exact(filter)? };
        self.slots.at(slot).map(|(id, _)| id)
    }

    #[inline]
    fn find_exact(&self, text: &str) -> Option<u32> {
        let hash = self.seed.short_hash(text);
        let is_match = |known: &Exact| known.hash == hash && self.slots.exact_text(known.slot) == Some(text);
        self.exact.find(spread(hash), is_match).map(|known| known.slot)
    }

    /// Returns the value of a filter; `None` if the filter was removed.
    #[inline]
    pub fn get(&self, id: FilterId) -> Option<&V> {
        self.slots.get(id).map(|entry| &entry.value)
    }

    /// Returns the value of a filter for modification. Does not advance the epoch; see [`touch`](Self::touch).
    #[inline]
    pub fn get_mut(&mut self, id: FilterId) -> Option<&mut V> {
        self.slots.get_mut(id).map(|entry| &mut entry.value)
    }

    /// Returns the text of a filter. The text of a wildcard filter is rebuilt from the trie, which allocates.
    pub fn filter(&self, id: FilterId) -> Option<Cow<'_, str>> {
        self.slots.get(id).map(|entry| self.text(entry))
    }

    /// Returns the length of a filter's text, bytes.
    pub fn filter_len(&self, id: FilterId) -> Option<usize> {
        self.slots.get(id).map(|entry| match &entry.key {
            Key::Exact(text) => text.len(),
            Key::Wild(position) => self.wild.text_len(*position),
        })
    }

    fn text<'a>(&'a self, entry: &'a Entry<V>) -> Cow<'a, str> {
        match &entry.key {
            Key::Exact(text) => Cow::Borrowed(text),
            Key::Wild(position) => Cow::Owned(self.wild.text(*position)),
        }
    }

    /// Removes a filter and returns its value; `None` if it was already removed.
    pub fn remove(&mut self, id: FilterId) -> Option<V> {
        let Entry { key, value } = self.slots.remove(id)?;
        match key {
            Key::Wild(position) => self.wild.remove(position),
            Key::Exact(text) => {
                let hash = spread(self.seed.short_hash(&text));
                if let Ok(entry) = self.exact.find_entry(hash, |known| known.slot == id.slot()) {
                    entry.remove();
                } else {
                    debug_assert!(false, "a filter that is not in its table: {text:?}");
                }
                shrink_if_sparse(&mut self.exact, |other| spread(other.hash));
            }
        }
        self.touch();
        Some(value)
    }

    /// Calls `f` once with each filter that matches `name`: first the exact filter, then the wildcard filters in an
    /// order that depends only on their levels. Returns the cost: the number of trie nodes visited, and one for the
    /// exact filter.
    ///
    /// Allocates nothing for names of up to 32 levels, nor for longer names if no filter is that deep.
    #[inline]
    pub fn for_each_match(&self, name: &str, mut f: impl FnMut(FilterId, &V)) -> usize {
        debug_assert_eq!(check_name(name), Ok(()), "{name:?} is a topic name");
        let mut call_with_slot = |slot| {
            if let Some((id, entry)) = self.slots.at(slot) {
                f(id, &entry.value);
            }
        };
        if let Some(slot) = self.find_exact(name) {
            call_with_slot(slot);
        }
        1 + self.wild.for_each_match(name, call_with_slot)
    }

    /// Returns all filters with their ids and values, ordered by slot.
    pub fn iter(&self) -> impl Iterator<Item = (FilterId, Cow<'_, str>, &V)> {
        self.slots.iter().map(|(id, entry)| (id, self.text(entry), &entry.value))
    }
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::tests::MATCH_TABLE;
    use crate::name::{MAX_TOPIC_BYTES, matches};

    fn index_of<'a>(filters: impl IntoIterator<Item = &'a str>) -> Index<String> {
        let mut index = Index::with_seed(7);
        for filter in filters {
            index.insert_with(filter, || filter.to_owned());
        }
        index
    }

    fn matching(index: &Index<String>, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        index.for_each_match(name, |id, value| {
            assert_eq!(index.filter(id).as_deref(), Some(value.as_str()));
            assert_eq!(index.get(id), Some(value));
            found.push(value.clone());
        });
        found
    }

    /// Asserts that nothing but capacity is left.
    fn assert_empty<V>(index: &Index<V>) {
        assert_eq!((index.len(), index.is_empty()), (0, true));
        assert_eq!(index.exact.len(), 0);
        assert_eq!(index.wild.counts(), [0; 4]);
    }

    // [MQTT5-4.7.2-1] [MQTT3-4.7.2-1] [MQTT5-4.7.3-4] [MQTT3-4.7.3-4]
    #[test]
    fn the_examples_of_the_specification_match() {
        for &(filter, name, expected) in MATCH_TABLE {
            let found = matching(&index_of([filter]), name);
            assert_eq!(found == [filter], expected, "{filter:?} against {name:?}");
        }
        // All filters at once, against each name.
        let all = index_of(MATCH_TABLE.iter().map(|&(filter, ..)| filter));
        for &(_, name, _) in MATCH_TABLE {
            let mut found = matching(&all, name);
            found.sort_unstable();
            let mut expected: Vec<_> = all.iter().map(|(_, filter, _)| filter.into_owned()).collect();
            expected.retain(|filter| matches(filter, name));
            expected.sort_unstable();
            assert_eq!(found, expected, "{name:?}");
        }
    }

    #[test]
    fn filter_is_inserted_once_and_found_until_removed() {
        for filter in ["a/b", "a/+", "#", "+", "a/+/#", "/", "$SYS/#"] {
            let mut index = Index::new();
            assert_eq!(index.find(filter), None);
            let (id, is_new) = index.insert_with(filter, || 1);
            assert!(is_new);
            assert_eq!(index.insert_with(filter, || unreachable!("{filter} is there")), (id, false));
            assert_eq!((index.find(filter), index.filter(id).as_deref()), (Some(id), Some(filter)));
            assert_eq!(index.filter_len(id), Some(filter.len()));
            *index.get_mut(id).expect("it is there") += 1;
            assert_eq!((index.get(id), index.len()), (Some(&2), 1));
            assert_eq!(index.remove(id), Some(2));
            assert_eq!((index.find(filter), index.filter(id), index.get(id)), (None, None, None));
            assert_eq!(index.get_mut(id), None);
            assert_eq!(index.remove(id), None);
            assert_empty(&index);
        }
    }

    #[test]
    fn exact_filters_are_found_after_their_table_has_grown() {
        let mut index = Index::with_seed(7);
        let filters: Vec<String> = (0..5_000).map(|number| format!("filter/{number}")).collect();
        let ids: Vec<FilterId> = filters.iter().map(|filter| index.insert_with(filter, || ()).0).collect();
        for (filter, id) in filters.iter().zip(&ids) {
            assert_eq!(index.find(filter), Some(*id));
        }
        for (filter, id) in filters.iter().zip(&ids).step_by(2) {
            assert_eq!((index.remove(*id), index.find(filter)), (Some(()), None));
        }
        assert!(
            filters.iter().zip(&ids).skip(1).step_by(2).all(|(known, id)| index.find(known) == Some(*id))
        );
    }

    #[test]
    fn stale_id_does_not_match_a_reused_slot() {
        let mut index = Index::new();
        let (old, _) = index.insert_with("a/+", || 1);
        index.remove(old);
        let (new, _) = index.insert_with("b", || 2);
        assert_eq!(old.slot(), new.slot());
        assert_ne!(old, new);
        assert_eq!(index.remove(old), None);
        assert_eq!((index.get(old), index.get(new)), (None, Some(&2)));
    }

    #[test]
    fn memory_is_given_back_and_removed_ids_stay_invalid() {
        let mut index = Index::with_seed(7);
        let kept = index.insert_with("kept/+/#", || 0).0;
        let filters = (0..20_000).map(|number| match number % 2 {
            0 => format!("exact/{number}"),
            _ => format!("+/{number}/#"),
        });
        let filters: Vec<String> = filters.collect();
        let ids: Vec<FilterId> = filters.iter().map(|filter| index.insert_with(filter, || 1).0).collect();
        for id in &ids {
            assert_eq!(index.remove(*id), Some(1));
        }
        assert!(index.slots.high_water() < 2_048, "{}", index.slots.high_water());
        assert!(index.wild.high_water() < 2_048, "{}", index.wild.high_water());
        assert!(index.exact.allocation_size() < 65_536, "{}", index.exact.allocation_size());
        assert_eq!((index.len(), index.get(kept)), (1, Some(&0)));
        for filter in &filters {
            index.insert_with(filter, || 2);
        }
        assert!(ids.iter().all(|id| index.get(*id).is_none()));
        assert!(filters.iter().all(|filter| index.find(filter).is_some_and(|id| index.get(id) == Some(&2))));
    }

    #[test]
    fn epoch_advances_on_insert_remove_and_touch_only() {
        let mut index = Index::new();
        let start = index.epoch();
        let (id, _) = index.insert_with("a/+", || 1);
        assert_eq!(index.epoch(), start + 1);
        index.insert_with("a/+", || 2);
        index.get_mut(id);
        index.for_each_match("a/b", |_, _| {});
        assert_eq!(index.epoch(), start + 1);
        index.touch();
        assert_eq!(index.epoch(), start + 2);
        index.remove(id);
        assert_eq!(index.epoch(), start + 3);
        index.remove(id);
        assert_eq!(index.epoch(), start + 3);
    }

    #[test]
    fn removing_a_filter_keeps_nodes_shared_with_others() {
        let mut index = index_of(["a/+", "a/+/c", "a/+/#", "a/#", "a/b/#"]);
        for gone in ["a/+/c", "a/+/#", "a/+", "a/#"] {
            index.remove(index.find(gone).expect("it is there"));
            let left = matching(&index, "a/b/c");
            assert!(!left.iter().any(|filter| filter == gone));
            assert!(left.iter().any(|filter| filter == "a/b/#"));
        }
        assert_eq!(matching(&index, "a/b/c"), ["a/b/#"]);
        index.remove(index.find("a/b/#").expect("it is there"));
        assert_empty(&index);
    }

    #[test]
    fn match_order_follows_the_levels() {
        let filters = ["#", "+/b", "a/b", "a/+", "a/#", "+/#", "+/+", "a/b/#"];
        let expected = ["a/b", "#", "a/#", "a/b/#", "a/+", "+/#", "+/b", "+/+"];
        for seed in 0..20 {
            let mut index = Index::with_seed(seed);
            for filter in filters {
                index.insert_with(filter, || filter.to_owned());
            }
            assert_eq!(matching(&index, "a/b"), expected);
            assert!(index.iter().map(|(_, filter, _)| filter.into_owned()).eq(filters));
        }
    }

    #[test]
    fn panicking_make_leaves_index_unchanged() {
        let mut index: Index<u32> = Index::new();
        for filter in ["a/b", "a/+/c"] {
            let make = || index.insert_with(filter, || panic!("no value"));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make));
            assert!(outcome.is_err());
            assert_empty(&index);
        }
    }

    #[test]
    fn insert_remove_churn_leaks_nothing() {
        let mut index = Index::new();
        let (keep, _) = index.insert_with("keep/+/#", || 0);
        let (slots, nodes) = (64 + 1, 64 * 4 + 4);
        for round in 0..2_000_u32 {
            let filters = (0..64).map(|n| match n % 4 {
                0 => format!("r{round}/n{n}"),
                1 => format!("r{round}/+/n{n}"),
                2 => format!("keep/{round}/n{n}/#"),
                _ => format!("+/r{round}/+/n{n}"),
            });
            let ids: Vec<_> = filters.map(|filter| index.insert_with(&filter, || round).0).collect();
            assert_eq!(index.len(), 65);
            for id in ids {
                assert_eq!(index.remove(id), Some(round));
            }
        }
        assert_eq!(index.wild.counts(), [2, 1, 1, 1]);
        assert_eq!((index.exact.len(), index.len()), (0, 1));
        assert!(index.slots.high_water() <= slots, "{}", index.slots.high_water());
        assert!(index.wild.high_water() <= nodes, "{}", index.wild.high_water());
        assert!(index.exact.capacity() <= 256, "{}", index.exact.capacity());
        index.remove(keep);
        assert_empty(&index);
    }

    /// Filters and names with the maximum number of levels, on a stack too small for recursion.
    #[test]
    fn deepest_filters_take_constant_stack_and_linear_time() {
        let deep = || {
            let slashes = "/".repeat(MAX_TOPIC_BYTES);
            let pluses = format!("{}+", "+/".repeat(MAX_TOPIC_BYTES / 2));
            let multi = format!("{}#", "/".repeat(MAX_TOPIC_BYTES - 1));
            let plus_first = format!("+{}", "/".repeat(MAX_TOPIC_BYTES - 1));
            let half = "/".repeat(MAX_TOPIC_BYTES / 2);
            let mut index = index_of([&*slashes, &*pluses, &*multi, &*plus_first, "#"]);
            assert_eq!(matching(&index, &slashes), [&*slashes, "#", &*multi]);
            assert_eq!(matching(&index, &half), ["#", &*pluses]);
            let [nodes, ..] = index.wild.counts();
            assert!(index.wild.for_each_match(&slashes, |_| {}) <= nodes + 1);
            assert!(matches(&multi, &slashes));
            assert!(!matches(&pluses, &slashes));
            let ids: Vec<_> = index.iter().map(|(id, ..)| id).collect();
            for id in ids {
                assert!(index.remove(id).is_some());
            }
            assert_empty(&index);
        };
        let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(deep);
        thread.expect("a thread").join().expect("no overflow");
    }

    /// All combinations of `a` and `+` on 12 levels: 2^12 filters that match one name, each by its own path.
    #[test]
    fn match_visits_each_node_at_most_once() {
        let mix = |bits: u32| {
            let levels: Vec<_> = (0..12).map(|at| if bits >> at & 1 == 0 { "a" } else { "+" }).collect();
            levels.join("/")
        };
        let filters: Vec<_> = (1..1 << 12).map(mix).collect();
        let index = index_of(filters.iter().map(String::as_str));
        let [nodes, ..] = index.wild.counts();
        let name = ["a"; 12].join("/");
        assert_eq!(matching(&index, &name).len(), filters.len());
        assert_eq!(index.wild.for_each_match(&name, |_| {}), nodes + 1);
        // A longer name visits as many nodes, and one that differs in the first level fewer.
        assert_eq!(index.wild.for_each_match(&format!("{name}/a/a/a"), |_| {}), nodes + 1);
        assert_eq!(index.wild.for_each_match(&name.replacen('a', "b", 1), |_| {}), 1 << 12);
    }

    /// Names with more levels than the inline capacity, with branches below and above that limit.
    #[test]
    fn matches_names_beyond_inline_capacity() {
        let levels: Vec<_> = (0..100).map(|at| format!("level{at}")).collect();
        let with = |wild: &[usize]| {
            let level = |at| if wild.contains(&at) { "+" } else { &*levels[at] };
            (0..levels.len()).map(level).collect::<Vec<_>>().join("/")
        };
        let filters = [with(&[3]), with(&[3, 30, 31, 32, 33]), with(&[32]), with(&[99]), with(&[0, 50, 98])];
        let index = index_of(filters.iter().map(String::as_str));
        let found =
            |name: &str| filters.iter().filter(|filter| matching(&index, name).contains(filter)).count();
        for at in 0..levels.len() {
            let mut other = levels.clone();
            "other".clone_into(&mut other[at]);
            let name = other.join("/");
            let expected = filters.iter().filter(|filter| matches(filter, &name)).count();
            assert_eq!(found(&name), expected, "level {at}");
        }
        assert_eq!(found(&levels.join("/")), filters.len());
    }

    /// The filters `+/+/…/+` of 1 to 200 levels share one chain of 200 nodes.
    #[test]
    fn filters_of_plus_levels_share_one_chain() {
        let filters: Vec<_> = (1..=200).map(|levels| vec!["+"; levels].join("/")).collect();
        let index = index_of(filters.iter().map(String::as_str));
        assert_eq!(index.wild.counts()[0], 200);
        for levels in [1, 31, 32, 33, 64, 200, 201, 5_000] {
            let name = vec!["x"; levels].join("/");
            assert_eq!(matching(&index, &name).len(), usize::from(levels <= 200), "{levels} levels");
            assert_eq!(index.wild.for_each_match(&name, |_| {}), levels.min(200) + 1);
        }
    }
}
