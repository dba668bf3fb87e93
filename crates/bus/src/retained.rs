//! The retained message of each topic, and the lookup for a new subscription.
//!
//! Topics are kept in a sorted map. A filter can match only topics that begin with its levels before the first
//! wildcard, so a lookup scans that range of the map instead of all topics.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use mainstem_topic::{has_wildcard, matches};

use crate::event::SharedMessage;

/// Retained messages ordered by topic, at most `max` of them.
pub(crate) struct Retained<T> {
    by_topic: BTreeMap<Arc<str>, Arc<SharedMessage<T>>>,
    max: usize,
}

impl<T> Retained<T> {
    pub(crate) const fn new(max: usize) -> Self {
        Self { by_topic: BTreeMap::new(), max }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_topic.len()
    }

    /// Whether a message for `topic` can be retained.
    pub(crate) fn has_room(&self, topic: &str) -> bool {
        self.by_topic.len() < self.max || self.by_topic.contains_key(topic)
    }

    /// Stores a message and returns the one it replaces.
    pub(crate) fn set(&mut self, message: Arc<SharedMessage<T>>) -> Option<Arc<SharedMessage<T>>> {
        self.by_topic.insert(Arc::clone(&message.topic), message)
    }

    pub(crate) fn get(&self, topic: &str) -> Option<Arc<SharedMessage<T>>> {
        self.by_topic.get(topic).cloned()
    }

    pub(crate) fn clear(&mut self, topic: &str) -> Option<Arc<SharedMessage<T>>> {
        self.by_topic.remove(topic)
    }

    /// Returns the messages of all topics that match a valid filter, ordered by topic.
    pub(crate) fn matching(&self, filter: &str) -> VecDeque<Arc<SharedMessage<T>>> {
        if !has_wildcard(filter) {
            return self.get(filter).into_iter().collect();
        }
        // `a/#` also matches `a`, so the prefix must not include the `/`.
        let wildcard = filter.find(['+', '#']).unwrap_or(filter.len());
        let prefix = filter[..wildcard].trim_end_matches('/');
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let candidates =
            self.by_topic.range::<str, _>(from).take_while(|(topic, _)| topic.starts_with(prefix));
        candidates
            .filter(|(topic, _)| matches(filter, topic))
            .map(|(_, message)| Arc::clone(message))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topic() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "$a", "", "ab"]), 1..4)
            .prop_map(|levels| levels.join("/"))
            .prop_filter("topics are not empty", |topic| !topic.is_empty())
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop::sample::select(vec!["a", "b", "$a", "", "ab", "+"]);
        (prop::collection::vec(level, 0..4), any::<bool>())
            .prop_map(|(mut levels, is_multi)| {
                levels.extend(is_multi.then_some("#"));
                levels.join("/")
            })
            .prop_filter("filters are not empty", |filter| !filter.is_empty())
    }

    proptest! {
        #[test]
        fn range_lookup_agrees_with_full_scan(
            topics in prop::collection::btree_set(topic(), 0..20),
            filter in filter(),
        ) {
            let mut retained = Retained::new(100);
            for topic in &topics {
                retained.set(Arc::new(SharedMessage { topic: topic.as_str().into(), payload: (), metadata: None }));
            }
            let found: Vec<String> =
                retained.matching(&filter).iter().map(|message| message.topic.to_string()).collect();
            let expected: Vec<String> =
                topics.into_iter().filter(|topic| matches(&filter, topic)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
