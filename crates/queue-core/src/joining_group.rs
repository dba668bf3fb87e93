//! What a new group has still to take over from the others.

use std::ops::Range;

use crate::offset_ranges::OffsetRanges;

/// What a group has still to take over.
#[derive(Debug, Default)]
pub(crate) struct JoiningGroup {
    /// Offsets that it has listed, that other groups have settled since, or that came later.
    pub(crate) listed: OffsetRanges,
    /// Range that it has still to list: what is pending and does not leave in groups that are older than this one.
    pub(crate) rest: Range<u64>,
}

impl JoiningGroup {
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.rest.is_empty()
    }

    /// The first offset at or after `from` that the group can take over now. All offsets before it are listed.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        let first = self.listed.first_from(from);
        first.filter(|first| self.rest.is_empty() || *first < self.rest.start)
    }
}
