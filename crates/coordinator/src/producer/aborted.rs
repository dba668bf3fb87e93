//! The aborted transactions of a partition: what readers of committed records are told to leave out.

use std::collections::VecDeque;

/// A transaction that was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// Whose it was.
    pub producer_id: i64,
    /// Offset of its first record in this partition.
    pub first_offset: u64,
    /// Offset of its marker.
    pub last_offset: u64,
    /// The last stable offset once its marker stood there.
    pub last_stable_offset: u64,
}

/// Aborted transactions in the order of their markers.
#[derive(Clone, Debug, Default)]
pub(super) struct AbortedIndex {
    all: VecDeque<Aborted>,
}

impl AbortedIndex {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Aborted> {
        self.all.iter()
    }

    /// Adds one whose marker is behind all others.
    pub(super) fn push(&mut self, aborted: Aborted) {
        debug_assert!(self.all.back().is_none_or(|last| last.last_offset < aborted.last_offset));
        self.all.push_back(aborted);
    }

    /// Forgets those whose markers stand at `offset` or behind.
    pub(super) fn cut_off(&mut self, offset: u64) {
        while self.all.pop_back_if(|last| last.last_offset >= offset).is_some() {}
    }

    /// Forgets those whose markers stand before `offset`.
    pub(super) fn forget_before(&mut self, offset: u64) {
        while self.all.pop_front_if(|first| first.last_offset < offset).is_some() {}
    }

    /// Those that reach from below `until` to `from` or beyond.
    pub(super) fn between(&self, from: u64, until: u64) -> impl Iterator<Item = Aborted> {
        let begin = self.all.partition_point(|aborted| aborted.last_offset < from);
        let mut is_over = false;
        self.all
            .range(begin..)
            .take_while(move |aborted| {
                // Those that follow one that left everything below `until` stable began behind that.
                !std::mem::replace(&mut is_over, aborted.last_stable_offset >= until)
            })
            .filter(move |aborted| aborted.first_offset < until)
            .copied()
    }
}
