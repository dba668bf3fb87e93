//! Property tests of the index and the cache against the reference matcher, with random filters, names and changes.
//!
//! The alphabet is small, so that filters share levels, names match filters, and removals affect shared nodes.

use std::collections::{BTreeMap, HashSet};

use mainstem_topic::{
    FilterId, Index, MatchCache, check_filter, check_name, has_wildcard, level_count, matches,
};
use proptest::prelude::*;
use proptest::sample::{Index as Pick, select};

fn name() -> impl Strategy<Value = String> {
    let level = select(vec!["a", "b", "c", "", "$SYS", "$", "long-enough-to-hash-in-another-way"]);
    proptest::collection::vec(level, 1..6)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("names are not empty", |name| !name.is_empty())
}

fn filter() -> impl Strategy<Value = String> {
    let level = select(vec!["a", "b", "c", "", "+", "+", "$SYS", "$", "long-enough-to-hash-in-another-way"]);
    (proptest::collection::vec(level, 0..5), any::<bool>())
        .prop_map(|(mut levels, ends_in_multi)| {
            if ends_in_multi {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("filters are not empty", |filter| !filter.is_empty())
}

/// One operation on an index and its cache.
#[derive(Clone, Debug)]
enum Step {
    Insert(String),
    /// Removes one of the existing filters.
    Remove(Pick),
    /// Uses the id of a removed filter.
    UseStale(Pick),
    Touch,
    Match(String),
    /// Matches now, and stores the result in the cache after the next step.
    MatchAndStoreLater(String),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => filter().prop_map(Step::Insert),
        5 => any::<Pick>().prop_map(Step::Remove),
        2 => any::<Pick>().prop_map(Step::UseStale),
        1 => Just(Step::Touch),
        8 => name().prop_map(Step::Match),
        3 => name().prop_map(Step::MatchAndStoreLater),
    ]
}

/// Matching filters and their ids, sorted by text.
type Found = Vec<(String, FilterId)>;

/// An index and a cache, and a map as their model.
struct Harness {
    index: Index<String>,
    cache: MatchCache<Found>,
    model: BTreeMap<String, FilterId>,
    removed: Vec<FilterId>,
    /// A result not yet stored: name, epoch before the match, result.
    pending: Option<(String, u64, Found)>,
}

impl Harness {
    fn new(seed: u64) -> Self {
        Self {
            index: Index::with_seed(seed),
            cache: MatchCache::with_seed(4, seed),
            model: BTreeMap::new(),
            removed: Vec::new(),
            pending: None,
        }
    }

    fn apply(&mut self, step: Step) {
        let pending = self.pending.take();
        let (epoch, len) = (self.index.epoch(), self.index.len());
        match step {
            Step::Insert(filter) => self.insert(filter),
            Step::Remove(pick) => self.remove(pick),
            Step::UseStale(pick) if !self.removed.is_empty() => {
                let id = self.removed[pick.index(self.removed.len())];
                assert_eq!(self.index.get(id), None);
                assert_eq!(self.index.filter(id), None);
                assert_eq!(self.index.remove(id), None);
            }
            Step::UseStale(_) => {}
            Step::Touch => {
                self.index.touch();
                assert!(self.index.epoch() > epoch);
            }
            Step::Match(name) => self.check_match(&name),
            Step::MatchAndStoreLater(name) => {
                let found = self.matching(&name);
                self.pending = Some((name, epoch, found));
            }
        }
        assert_eq!(self.index.len(), self.model.len());
        assert!(self.index.len() == len || self.index.epoch() > epoch);
        if let Some((name, epoch, found)) = pending {
            self.cache.insert(&name, epoch, found);
            self.check_match(&name);
        }
    }

    fn insert(&mut self, filter: String) {
        let (id, is_new) = self.index.insert_with(&filter, || filter.clone());
        assert_eq!(self.index.find(&filter), Some(id));
        assert_eq!(self.index.filter(id).as_deref(), Some(filter.as_str()));
        assert!(!self.removed.contains(&id), "the id of a removed filter was reused");
        let previous = self.model.insert(filter, id);
        assert_eq!(is_new, previous.is_none());
        assert!(previous.is_none_or(|previous| previous == id));
    }

    fn remove(&mut self, pick: Pick) {
        if self.model.is_empty() {
            return;
        }
        let at = pick.index(self.model.len());
        let filter = self.model.keys().nth(at).cloned().expect("the pick is within the map");
        let id = self.model.remove(&filter).expect("the key is in the map");
        assert_eq!(self.index.remove(id), Some(filter.clone()));
        assert_eq!(self.index.find(&filter), None);
        self.removed.push(id);
    }

    fn matching(&self, name: &str) -> Found {
        let mut found = Vec::new();
        self.index.for_each_match(name, |id, filter| found.push((filter.clone(), id)));
        found.sort();
        found
    }

    fn expected(&self, name: &str) -> Found {
        let all = self.model.iter().map(|(filter, &id)| (filter.clone(), id));
        all.filter(|(filter, _)| matches(filter, name)).collect()
    }

    /// Asserts that the index and the cache agree with the model, on a cache hit and on a miss.
    fn check_match(&mut self, name: &str) {
        let expected = self.expected(name);
        let epoch = self.index.epoch();
        if let Some(found) = self.cache.get(name, epoch) {
            assert_eq!(found, &expected, "cached: {name:?}");
        }
        let found = self.matching(name);
        assert_eq!(found, expected, "{name:?}");
        self.cache.insert(name, epoch, found);
        assert_eq!(self.cache.get(name, epoch), Some(&expected));
        assert!(self.cache.len() <= self.cache.capacity());
    }
}

/// An independent definition of matching, by recursion over 4.7.1, to test [`matches`] itself.
fn matches_by_definition(filter: &[&str], name: &[&str]) -> bool {
    match (filter, name) {
        (["#"], _) | ([], []) => true,
        ([first, filter @ ..], [level, name @ ..]) => {
            (*first == "+" || first == level) && matches_by_definition(filter, name)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn index_agrees_with_the_reference_matcher(
        seed in any::<u64>(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut harness = Harness::new(seed);
        for step in steps {
            harness.apply(step);
        }
        let listed: Vec<_> = harness.index.iter().map(|(id, filter, _)| (filter.into_owned(), id)).collect();
        prop_assert_eq!(listed.len(), harness.model.len());
        prop_assert_eq!(BTreeMap::from_iter(listed), harness.model.clone());
        let slots: HashSet<_> = harness.model.values().map(|id| id.slot()).collect();
        prop_assert_eq!(slots.len(), harness.model.len());
    }

    /// Two indexes with the same history return the same matches in the same order, regardless of their seeds.
    #[test]
    fn match_order_does_not_depend_on_the_seed(
        filters in proptest::collection::vec(filter(), 1..60),
        removed in proptest::collection::vec(any::<Pick>(), 0..20),
        name in name(),
    ) {
        let matches_of = |mut index: Index<()>| {
            for filter in &filters {
                index.insert_with(filter, || ());
            }
            for pick in &removed {
                if let Some(id) = index.find(&filters[pick.index(filters.len())]) {
                    index.remove(id);
                }
            }
            let mut found = Vec::new();
            index.for_each_match(&name, |id, ()| found.push(id));
            found
        };
        let first = matches_of(Index::with_seed(1));
        prop_assert_eq!(&first, &matches_of(Index::with_seed(2)));
        prop_assert_eq!(&first, &matches_of(Index::new()));
    }

    // [MQTT5-4.7.2-1] [MQTT3-4.7.2-1]
    #[test]
    fn the_plain_matcher_follows_the_definition(filter in filter(), name in name()) {
        prop_assert_eq!(check_filter(&filter), Ok(()));
        prop_assert_eq!(check_name(&name), Ok(()));
        let hidden = name.starts_with('$') && filter.starts_with(['+', '#']);
        let (levels, name_levels): (Vec<_>, Vec<_>) = (filter.split('/').collect(), name.split('/').collect());
        let expected = !hidden && matches_by_definition(&levels, &name_levels);
        prop_assert_eq!(matches(&filter, &name), expected);
        prop_assert_eq!(level_count(&filter), levels.len());
        prop_assert_eq!(has_wildcard(&filter), levels.iter().any(|level| ["+", "#"].contains(level)));
    }

    /// The checks accept any string, and every valid name is also a valid filter.
    #[test]
    fn checks_accept_any_string(text in "[ab/+#$\u{0}é]{0,12}", name in name()) {
        let as_name = check_name(&text).is_ok();
        let as_filter = check_filter(&text).is_ok();
        prop_assert!(!as_name || as_filter);
        prop_assert_eq!(as_name, as_filter && !has_wildcard(&text));
        let by_level = |level: &str, is_last: bool| match level {
            "+" => true,
            "#" => is_last,
            other => !other.contains(['+', '#', '\0']),
        };
        let last = level_count(&text) - 1;
        let valid = text.split('/').enumerate().all(|(at, level)| by_level(level, at == last));
        prop_assert_eq!(as_filter, valid && !text.is_empty());
        // The result for an invalid string is unspecified, but a valid name matches itself.
        prop_assert!(matches(&text, &text) || !as_name);
        matches(&text, &name);
        matches(&name, &text);
    }
}
