//! The items of a request that is handled in parts, see `division.rs`: topics, groups, resources.
//!
//! Handlers refuse items that occur twice, so those of the same name must be in one part. Sorting a million of them
//! takes longer than a turn may. They are therefore sorted in runs, some in each turn, and merged as the parts are
//! taken. Items without names keep their order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt::Debug;
use std::vec;

/// Items of a run, and those that are sorted at once: about half a millisecond.
const RUN_ITEMS: usize = 2_000;

/// An item of a request.
pub(crate) trait RequestedItem: Debug {
    /// Compares the names of two items; `None` if items are independent of each other.
    fn cmp_names(&self, other: &Self) -> Option<Ordering>;
}

/// The items that are left.
#[derive(Debug)]
pub(crate) enum ItemsLeft<T: RequestedItem> {
    /// Their order does not matter.
    Unnamed(vec::IntoIter<T>),
    /// Some are sorted.
    Sorting { unsorted: vec::IntoIter<T>, runs: Vec<vec::IntoIter<T>> },
    /// All runs are sorted. `heads` has the first item of each, and the number of the run.
    Merging { heads: BinaryHeap<Reverse<Head<T>>>, runs: Vec<vec::IntoIter<T>> },
}

/// The first item of a run.
#[derive(Debug)]
pub(crate) struct Head<T> {
    item: T,
    run: usize,
}

impl<T: RequestedItem> Ord for Head<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        let names = self.item.cmp_names(&other.item).unwrap_or(Ordering::Equal);
        names.then(self.run.cmp(&other.run))
    }
}

impl<T: RequestedItem> PartialOrd for Head<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: RequestedItem> PartialEq for Head<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: RequestedItem> Eq for Head<T> {}

/// The next part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextItems<T> {
    Part(Vec<T>),
    /// There will be one in a later turn.
    Sorting,
    /// Nothing is left.
    End,
}

impl<T: RequestedItem> ItemsLeft<T> {
    pub(crate) fn new(items: Vec<T>) -> Self {
        let is_named = items.first().is_some_and(|item| item.cmp_names(item).is_some());
        let items = items.into_iter();
        if is_named { Self::Sorting { unsorted: items, runs: Vec::new() } } else { Self::Unnamed(items) }
    }

    /// Takes the next part: about `items_max` items, and more only if they have the name of the last one. Or sorts some
    /// of the items.
    pub(crate) fn take(&mut self, items_max: usize) -> NextItems<T> {
        match self {
            Self::Unnamed(items) => part(items.by_ref().take(items_max).collect()),
            Self::Sorting { unsorted, runs } => {
                let mut run: Vec<T> = unsorted.by_ref().take(RUN_ITEMS).collect();
                run.sort_by(|one, other| one.cmp_names(other).unwrap_or(Ordering::Equal));
                runs.push(run.into_iter());
                if unsorted.len() == 0 {
                    *self = Self::merge(std::mem::take(runs));
                }
                NextItems::Sorting
            }
            Self::Merging { heads, runs } => {
                let mut items: Vec<T> = Vec::with_capacity(items_max.min(heads.len().max(1) * RUN_ITEMS));
                while let Some(Reverse(next)) = heads.peek() {
                    let is_same = |last: &T| last.cmp_names(&next.item) == Some(Ordering::Equal);
                    if items.len() >= items_max && !items.last().is_some_and(is_same) {
                        break;
                    }
                    let Some(Reverse(Head { item, run })) = heads.pop() else { break };
                    items.push(item);
                    heads.extend(runs[run].next().map(|item| Reverse(Head { item, run })));
                }
                part(items)
            }
        }
    }

    fn merge(mut runs: Vec<vec::IntoIter<T>>) -> Self {
        let heads =
            runs.iter_mut().enumerate().filter_map(|(run, items)| Some(Head { item: items.next()?, run }));
        Self::Merging { heads: heads.map(Reverse).collect(), runs }
    }
}

fn part<T>(items: Vec<T>) -> NextItems<T> {
    if items.is_empty() { NextItems::End } else { NextItems::Part(items) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A name and the place in the request.
    impl RequestedItem for (u32, usize) {
        fn cmp_names(&self, other: &Self) -> Option<Ordering> {
            Some(self.0.cmp(&other.0))
        }
    }

    impl RequestedItem for usize {
        fn cmp_names(&self, _: &Self) -> Option<Ordering> {
            None
        }
    }

    fn parts<T: RequestedItem>(items: Vec<T>, items_max: usize) -> Vec<Vec<T>> {
        let mut left = ItemsLeft::new(items);
        let mut parts = Vec::new();
        loop {
            match left.take(items_max) {
                NextItems::Part(part) => parts.push(part),
                NextItems::Sorting => {}
                NextItems::End => return parts,
            }
        }
    }

    #[test]
    fn items_without_names_keep_their_order() {
        assert_eq!(parts((0..7).collect(), 3), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    }

    #[test]
    fn a_call_sorts_a_bounded_number_of_items() {
        let mut left = ItemsLeft::new((0..3 * RUN_ITEMS).map(|index| (0, index)).collect());
        for _ in 0..3 {
            assert_eq!(left.take(10), NextItems::Sorting);
        }
        assert!(matches!(left.take(10), NextItems::Part(all) if all.len() == 3 * RUN_ITEMS));
        assert_eq!(left.take(10), NextItems::End);
    }

    proptest! {
        #[test]
        fn parts_are_those_of_a_stable_sort(
            names in prop::collection::vec(0..500_u32, 0..5_000),
            items_max in 1..100_usize,
        ) {
            let items: Vec<_> = names.into_iter().zip(0..).collect();
            let mut sorted = items.clone();
            sorted.sort_by_key(|(name, _)| *name);
            let parts = parts(items, items_max);
            for pair in parts.windows(2) {
                prop_assert!(pair[0].len() >= items_max);
                prop_assert!(pair[0].last().unwrap().0 < pair[1][0].0, "equal names are in one part");
            }
            prop_assert_eq!(parts.concat(), sorted);
        }
    }
}
