//! The aborted transactions of a partition, which readers of committed records must skip.
//!
//! They are ordered by marker offset. Each also has the last stable offset at the time of its marker, so a lookup can
//! stop at the first one that left nothing unstable below the end of the range.

use std::collections::VecDeque;

/// An aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Producer id.
    pub producer_id: i64,
    /// First offset of the transaction in this partition.
    pub first_offset: u64,
    /// Offset of its marker.
    pub last_offset: u64,
    /// The last stable offset right after its marker was appended.
    pub last_stable_offset: u64,
}

/// Aborted transactions, ordered by marker offset.
#[derive(Clone, Debug, Default)]
pub(super) struct AbortedIndex {
    all: VecDeque<AbortedTransaction>,
}

impl AbortedIndex {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &AbortedTransaction> {
        self.all.iter()
    }

    /// Adds a transaction whose marker is after all others.
    pub(super) fn push(&mut self, aborted: AbortedTransaction) {
        debug_assert!(self.all.back().is_none_or(|last| last.last_offset < aborted.last_offset));
        self.all.push_back(aborted);
    }

    /// Removes transactions whose markers are at or above `offset`.
    pub(super) fn truncate_from(&mut self, offset: u64) {
        while self.all.pop_back_if(|last| last.last_offset >= offset).is_some() {}
    }

    /// Removes transactions whose markers are below `offset`.
    pub(super) fn truncate_before(&mut self, offset: u64) {
        while self.all.pop_front_if(|first| first.last_offset < offset).is_some() {}
    }

    /// Transactions that overlap `from..until`.
    pub(super) fn between(&self, from: u64, until: u64) -> impl Iterator<Item = AbortedTransaction> {
        let begin = self.all.partition_point(|aborted| aborted.last_offset < from);
        let mut is_over = false;
        self.all
            .range(begin..)
            .take_while(move |aborted| {
                // After a transaction that left everything below `until` stable, all others begin at or above `until`.
                !std::mem::replace(&mut is_over, aborted.last_stable_offset >= until)
            })
            .filter(move |aborted| aborted.first_offset < until)
            .copied()
    }
}
