//! Sets of offsets that are mostly consecutive, stored as ranges: a million consecutive offsets cost as much as one.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of offsets below `u64::MAX`. An operation costs O(log n) of the number of ranges, and O(1) in the last
/// range: offsets are mostly added and removed in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffsetRanges {
    /// Exclusive end of each range but the last, by its start. Ranges do not touch.
    ends: BTreeMap<u64, u64>,
    /// The last range; `0..0` if the set is empty.
    last: Range<u64>,
    len: u64,
}

impl OffsetRanges {
    /// Number of offsets.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The range that contains `offset`.
    fn range_of(&self, offset: u64) -> Option<Range<u64>> {
        let (start, end) = if offset >= self.last.start {
            (self.last.start, self.last.end)
        } else {
            self.ends.range(..=offset).next_back().map(|(&start, &end)| (start, end))?
        };
        (offset < end).then_some(start..end)
    }

    /// The first range that begins at or after `from`.
    fn range_from(&self, from: u64) -> Option<Range<u64>> {
        let next = self.ends.range(from..).next().map(|(&start, &end)| start..end);
        next.or_else(|| Some(self.last.clone()).filter(|last| from <= last.start && !last.is_empty()))
    }

    pub(crate) fn contains(&self, offset: u64) -> bool {
        self.range_of(offset).is_some()
    }

    /// The lowest offset.
    pub(crate) fn first(&self) -> Option<u64> {
        let first = self.ends.first_key_value().map(|(&start, _)| start);
        first.or_else(|| (!self.is_empty()).then_some(self.last.start))
    }

    /// The range of the lowest offset.
    pub(crate) fn first_range(&self) -> Option<Range<u64>> {
        self.ranges().next()
    }

    /// The lowest offset at or after `from`.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        if self.contains(from) { Some(from) } else { self.range_from(from).map(|run| run.start) }
    }

    /// All ranges in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let last = Some(self.last.clone()).filter(|last| !last.is_empty());
        self.ends.iter().map(|(&start, &end)| start..end).chain(last)
    }

    /// Number of ranges.
    pub(crate) fn count(&self) -> usize {
        self.ends.len() + usize::from(!self.last.is_empty())
    }

    /// The parts of the ranges that lie in `range`.
    pub(crate) fn ranges_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let begun = self.range_of(range.start).map_or(range.start, |run| run.start);
        let last = Some(self.last.clone()).filter(|last| begun <= last.start && !last.is_empty());
        let runs = self.ends.range(begun..).map(|(&start, &end)| start..end).chain(last);
        runs.map_while(move |run| {
            let within = run.start.max(range.start)..run.end.min(range.end);
            (!within.is_empty()).then_some(within)
        })
    }

    /// The end of the first `most` ranges within `range`.
    pub(crate) fn end_of(&self, range: Range<u64>, most: usize) -> u64 {
        self.ranges_within(range.clone()).nth(most).map_or(range.end, |run| run.start)
    }

    /// All offsets at or after `from`, in order.
    pub(crate) fn from(&self, from: u64) -> impl Iterator<Item = u64> {
        let begun = self.range_of(from).map(|run| from..run.end);
        let next = from.saturating_add(u64::from(begun.is_some()));
        let behind = self.ends.range(next..).map(|(&start, &end)| start..end);
        let last = Some(self.last.clone()).filter(|last| next <= last.start && !last.is_empty());
        begun.into_iter().chain(behind).chain(last).flatten()
    }

    /// Adds an offset. Returns whether it is new.
    pub(crate) fn insert(&mut self, offset: u64) -> bool {
        let fresh = !self.contains(offset);
        if fresh {
            self.put(offset..offset + 1);
        }
        fresh
    }

    /// Adds a range; some of it may be in the set.
    pub(crate) fn insert_range(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove_range(range.clone());
        self.put(range);
    }

    /// Adds all of another set.
    pub(crate) fn add(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
        } else {
            other.ranges().for_each(|run| self.insert_range(run));
        }
    }

    /// Adds a range that is disjoint from the set.
    fn put(&mut self, range: Range<u64>) {
        let was_empty = self.is_empty();
        self.len += range.end - range.start;
        if was_empty {
            self.last = range;
        } else if range.start == self.last.end {
            self.last.end = range.end;
        } else if range.start > self.last.end {
            let before = std::mem::replace(&mut self.last, range);
            self.ends.insert(before.start, before.end);
        } else if range.end == self.last.start {
            self.last.start = range.start;
            if let Some(before) = self.ends.last_entry().filter(|before| *before.get() == range.start) {
                self.last.start = before.remove_entry().0;
            }
        } else {
            let end = self.ends.remove(&range.end).unwrap_or(range.end);
            match self.ends.range_mut(..range.start).next_back() {
                Some((_, before)) if *before == range.start => *before = end,
                _ => drop(self.ends.insert(range.start, end)),
            }
        }
    }

    /// Removes an offset. Returns whether it was in the set.
    pub(crate) fn remove(&mut self, offset: u64) -> bool {
        let Some(run) = self.range_of(offset) else { return false };
        self.take(run, offset..offset + 1);
        true
    }

    /// Removes a range.
    pub(crate) fn remove_range(&mut self, range: Range<u64>) {
        let mut from = range.start;
        while from < range.end {
            let run = self.range_of(from).or_else(|| self.range_from(from));
            let Some(run) = run.filter(|run| run.start < range.end) else { break };
            let gone = run.start.max(from)..run.end.min(range.end);
            from = gone.end;
            self.take(run, gone);
        }
    }

    /// Drops ranges while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        while *budget > 0
            && let Some((start, end)) = self.ends.pop_first()
        {
            (self.len, *budget) = (self.len - (end - start), *budget - 1);
        }
    }

    /// Removes `gone` from the range that contains it.
    fn take(&mut self, run: Range<u64>, gone: Range<u64>) {
        self.len -= gone.end - gone.start;
        let is_last = run.start == self.last.start;
        if run.start < gone.start {
            // The part before it is a range of its own, unless nothing follows.
            if is_last && gone.end == run.end {
                self.last.end = gone.start;
                return;
            }
            self.ends.insert(run.start, gone.start);
        } else if !is_last {
            self.ends.remove(&run.start);
        }
        if is_last {
            self.last.start = gone.end;
            if self.last.is_empty() {
                self.last = self.ends.pop_last().map_or(0..0, |(start, end)| start..end);
            }
        } else if gone.end < run.end {
            self.ends.insert(gone.end, run.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64),
        Remove(u64),
        InsertRange(u64, u64),
        RemoveRange(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = || (0..60_u64, 0..20_u64);
        prop_oneof![
            (0..60_u64).prop_map(Op::Insert),
            (0..60_u64).prop_map(Op::Remove),
            range().prop_map(|(start, len)| Op::InsertRange(start, start + len)),
            range().prop_map(|(start, len)| Op::RemoveRange(start, start + len)),
        ]
    }

    proptest! {
        #[test]
        fn offset_ranges_match_a_set(ops in prop::collection::vec(op(), 1..60)) {
            let (mut runs, mut set) = (OffsetRanges::default(), BTreeSet::new());
            for op in ops {
                match op {
                    Op::Insert(offset) => assert_eq!(runs.insert(offset), set.insert(offset)),
                    Op::Remove(offset) => assert_eq!(runs.remove(offset), set.remove(&offset)),
                    Op::InsertRange(start, end) => {
                        runs.insert_range(start..end);
                        set.extend(start..end);
                    }
                    Op::RemoveRange(start, end) => {
                        runs.remove_range(start..end);
                        set.retain(|offset| !(start..end).contains(offset));
                    }
                }
                assert_eq!((runs.len(), runs.is_empty()), (set.len() as u64, set.is_empty()));
                assert_eq!(runs.first(), set.first().copied());
                for from in 0..90 {
                    assert_eq!(runs.contains(from), set.contains(&from));
                    assert_eq!(runs.first_from(from), set.range(from..).next().copied());
                    assert!(runs.from(from).eq(set.range(from..).copied()));
                }
                let ends: Vec<_> = runs.ranges().collect();
                assert_eq!(runs.count(), ends.len());
                for range in [0..90, 7..31, 12..13, 20..20] {
                    let within: Vec<_> = runs.ranges_within(range.clone()).collect();
                    assert!(within.is_sorted_by(|one, next| one.end < next.start), "{within:?}");
                    assert!(within.into_iter().flatten().eq(set.range(range).copied()));
                }
                assert!(ends.iter().all(|run| !run.is_empty()));
                assert!(ends.is_sorted_by(|one, next| one.end < next.start), "{ends:?}");
            }
        }
    }
}
