//! The subscribers of one kind to one filter, in the order of subscribing.
//!
//! Removing one of `n` entries of a vector moves up to `n` others, so that dropping all subscriptions to a filter would
//! take quadratic time. [`SubscriberList::remove`] therefore leaves a vacant entry, which receives messages in vain,
//! and all vacant entries are removed together once they are more than one in [`VACANT_SHARE`].

/// The list is compacted when more than one of this number of entries is vacant.
const VACANT_SHARE: usize = 8;

/// An entry of a [`SubscriberList`].
pub(crate) trait Subscriber {
    /// Id of the subscription.
    fn id(&self) -> u64;

    /// Takes the subscriber out of its entry, and leaves one with the same id that does nothing.
    fn vacate(&mut self) -> Self;
}

/// See the documentation of this module.
#[derive(Clone)]
pub(crate) struct SubscriberList<S> {
    /// In ascending order of ids.
    entries: Vec<S>,
    /// Ids of vacant entries.
    vacant: Vec<u64>,
}

impl<S> SubscriberList<S> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), vacant: Vec::new() }
    }

    /// Number of subscribers.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries to offer messages to, vacant ones included.
    #[inline]
    pub(crate) fn entries(&self) -> &[S] {
        &self.entries
    }
}

impl<S: Subscriber> SubscriberList<S> {
    /// Adds a subscriber with a higher id than all others.
    pub(crate) fn push(&mut self, subscriber: S) {
        debug_assert!(
            self.entries.last().is_none_or(|last| last.id() < subscriber.id()),
            "ids are ascending"
        );
        self.entries.push(subscriber);
    }

    /// The subscribers, without vacant entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        let mut vacant = self.vacant.clone();
        vacant.sort_unstable();
        self.entries.iter().filter(move |entry| vacant.binary_search(&entry.id()).is_err())
    }

    /// Removes a subscriber. Call once for each.
    pub(crate) fn remove(&mut self, id: u64) -> Option<S> {
        let at = self.entries.binary_search_by_key(&id, Subscriber::id).ok()?;
        let removed = self.entries[at].vacate();
        self.vacant.push(id);
        if self.vacant.len() * VACANT_SHARE > self.entries.len() {
            self.vacant.sort_unstable();
            let vacant = std::mem::take(&mut self.vacant);
            self.entries.retain(|entry| vacant.binary_search(&entry.id()).is_err());
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Entry(u64, bool);

    impl Subscriber for Entry {
        fn id(&self) -> u64 {
            self.0
        }

        fn vacate(&mut self) -> Self {
            Self(self.0, std::mem::replace(&mut self.1, false))
        }
    }

    proptest! {
        /// Compared with a vector. A vacant entry is never returned, and few entries are vacant.
        #[test]
        fn behaves_as_a_vector(steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..200)) {
            let (mut list, mut naive) = (SubscriberList::new(), Vec::new());
            for (id, (is_removal, which)) in (0..).zip(steps) {
                if is_removal && !naive.is_empty() {
                    let id = naive.remove(which.index(naive.len()));
                    prop_assert_eq!(list.remove(id), Some(Entry(id, true)));
                } else {
                    list.push(Entry(id, true));
                    naive.push(id);
                }
                prop_assert!(list.iter().all(|entry| entry.1));
                prop_assert!(list.iter().map(Subscriber::id).eq(naive.iter().copied()));
                prop_assert_eq!((list.len(), list.is_empty()), (naive.len(), naive.is_empty()));
                prop_assert!((list.entries().len() - list.len()) * VACANT_SHARE <= list.entries().len());
            }
            prop_assert_eq!(list.remove(u64::MAX), None);
        }
    }
}
