//! Sets of offsets in which many lie next to each other: kept as runs, so that a million of them in a row cost as one.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of offsets below `u64::MAX`. An operation on one offset costs O(log of the runs), on one in the last run O(1):
/// offsets mostly come in order, and go so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    /// End of each run but the last, exclusive, by its start. No two touch.
    ends: BTreeMap<u64, u64>,
    /// The last run; 0 to 0 if there is none.
    last: Range<u64>,
    len: u64,
}

impl Runs {
    /// How many offsets are in it.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The run that `offset` is in.
    fn run_of(&self, offset: u64) -> Option<Range<u64>> {
        let (start, end) = if offset >= self.last.start {
            (self.last.start, self.last.end)
        } else {
            self.ends.range(..=offset).next_back().map(|(&start, &end)| (start, end))?
        };
        (offset < end).then_some(start..end)
    }

    /// The first run that begins at or behind `from`.
    fn run_from(&self, from: u64) -> Option<Range<u64>> {
        let next = self.ends.range(from..).next().map(|(&start, &end)| start..end);
        next.or_else(|| Some(self.last.clone()).filter(|last| from <= last.start && !last.is_empty()))
    }

    pub(crate) fn contains(&self, offset: u64) -> bool {
        self.run_of(offset).is_some()
    }

    /// The lowest one.
    pub(crate) fn first(&self) -> Option<u64> {
        let first = self.ends.first_key_value().map(|(&start, _)| start);
        first.or_else(|| (!self.is_empty()).then_some(self.last.start))
    }

    /// The run that it is in.
    pub(crate) fn first_run(&self) -> Option<Range<u64>> {
        self.runs().next()
    }

    /// The lowest one that is not below `from`.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        if self.contains(from) { Some(from) } else { self.run_from(from).map(|run| run.start) }
    }

    /// All runs in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let last = Some(self.last.clone()).filter(|last| !last.is_empty());
        self.ends.iter().map(|(&start, &end)| start..end).chain(last)
    }

    /// How many runs there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len() + usize::from(!self.last.is_empty())
    }

    /// The runs in a range, cut off where it begins and ends.
    pub(crate) fn runs_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let begun = self.run_of(range.start).map_or(range.start, |run| run.start);
        let last = Some(self.last.clone()).filter(|last| begun <= last.start && !last.is_empty());
        let runs = self.ends.range(begun..).map(|(&start, &end)| start..end).chain(last);
        runs.map_while(move |run| {
            let within = run.start.max(range.start)..run.end.min(range.end);
            (!within.is_empty()).then_some(within)
        })
    }

    /// Where so many runs of those in a range end.
    pub(crate) fn end_of(&self, range: Range<u64>, most: usize) -> u64 {
        self.runs_within(range.clone()).nth(most).map_or(range.end, |run| run.start)
    }

    /// All offsets from `from` on, in order.
    pub(crate) fn from(&self, from: u64) -> impl Iterator<Item = u64> {
        let begun = self.run_of(from).map(|run| from..run.end);
        let next = from.saturating_add(u64::from(begun.is_some()));
        let behind = self.ends.range(next..).map(|(&start, &end)| start..end);
        let last = Some(self.last.clone()).filter(|last| next <= last.start && !last.is_empty());
        begun.into_iter().chain(behind).chain(last).flatten()
    }

    /// Puts one in; says whether it was not there.
    pub(crate) fn insert(&mut self, offset: u64) -> bool {
        let fresh = !self.contains(offset);
        if fresh {
            self.put(offset..offset + 1);
        }
        fresh
    }

    /// Puts a whole range in, of which some may be there.
    pub(crate) fn insert_range(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove_range(range.clone());
        self.put(range);
    }

    /// Puts in all of another set.
    pub(crate) fn add(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
        } else {
            other.runs().for_each(|run| self.insert_range(run));
        }
    }

    /// Puts in a range of which nothing is there.
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

    /// Takes one out; says whether it was there.
    pub(crate) fn remove(&mut self, offset: u64) -> bool {
        let Some(run) = self.run_of(offset) else { return false };
        self.take(run, offset..offset + 1);
        true
    }

    /// Takes a whole range out.
    pub(crate) fn remove_range(&mut self, range: Range<u64>) {
        let mut from = range.start;
        while from < range.end {
            let run = self.run_of(from).or_else(|| self.run_from(from));
            let Some(run) = run.filter(|run| run.start < range.end) else { break };
            let gone = run.start.max(from)..run.end.min(range.end);
            from = gone.end;
            self.take(run, gone);
        }
    }

    /// Forgets runs, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        while *most > 0
            && let Some((start, end)) = self.ends.pop_first()
        {
            (self.len, *most) = (self.len - (end - start), *most - 1);
        }
    }

    /// Takes `gone` out of the run that it is in.
    fn take(&mut self, run: Range<u64>, gone: Range<u64>) {
        self.len -= gone.end - gone.start;
        let is_last = run.start == self.last.start;
        if run.start < gone.start {
            // What is left before it is a run of its own, unless nothing is left behind it.
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
        fn it_is_a_set(ops in prop::collection::vec(op(), 1..60)) {
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
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
                let ends: Vec<_> = runs.runs().collect();
                assert_eq!(runs.count(), ends.len());
                for range in [0..90, 7..31, 12..13, 20..20] {
                    let within: Vec<_> = runs.runs_within(range.clone()).collect();
                    assert!(within.is_sorted_by(|one, next| one.end < next.start), "{within:?}");
                    assert!(within.into_iter().flatten().eq(set.range(range).copied()));
                }
                assert!(ends.iter().all(|run| !run.is_empty()));
                assert!(ends.is_sorted_by(|one, next| one.end < next.start), "{ends:?}");
            }
        }
    }
}
