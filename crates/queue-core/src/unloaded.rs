//! Messages that some groups have to settle and no group has loaded. They are not in memory; only their offsets and
//! total size are.

use std::ops::Range;

use crate::offset_ranges::OffsetRanges;

/// Offsets and total size.
#[derive(Debug, Default)]
pub(crate) struct UnloadedMessages {
    offsets: OffsetRanges,
    bytes: u64,
}

impl UnloadedMessages {
    pub(crate) fn len(&self) -> u64 {
        self.offsets.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn ranges_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.offsets.ranges_within(range)
    }

    /// The end of the first `most` ranges within `range`.
    pub(crate) fn end_of(&self, range: Range<u64>, most: usize) -> u64 {
        self.offsets.end_of(range, most)
    }

    /// Adds a message unless it is there.
    pub(crate) fn insert(&mut self, offset: u64, bytes: u32) {
        if self.offsets.insert(offset) {
            self.bytes += u64::from(bytes);
        }
    }

    /// Removes a message. Returns whether it was there.
    pub(crate) fn take(&mut self, offset: u64, bytes: u32) -> bool {
        let was_there = self.offsets.remove(offset);
        if was_there {
            // Estimates in `remove_range` may have made the total too small. It is exact again at the latest when
            // nothing is left.
            let left = self.bytes.saturating_sub(bytes.into());
            self.bytes = if self.offsets.is_empty() { 0 } else { left };
        }
        was_there
    }

    /// Removes messages whose sizes are not known. They are assumed to have the average size.
    pub(crate) fn remove_range(&mut self, range: Range<u64>) {
        let before = self.offsets.len();
        self.offsets.remove_range(range);
        let left = self.offsets.len();
        if left < before {
            self.bytes = (u128::from(self.bytes) * u128::from(left) / u128::from(before)) as u64;
        }
    }

    /// Drops entries, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        self.offsets.drop_some(budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_messages_are_assumed_to_have_the_average_size() {
        let mut unloaded = UnloadedMessages::default();
        (0..10).for_each(|offset| unloaded.insert(offset, 10));
        unloaded.insert(3, 10);
        assert_eq!((unloaded.len(), unloaded.bytes()), (10, 100));
        unloaded.remove_range(0..4);
        unloaded.remove_range(0..4);
        assert_eq!((unloaded.len(), unloaded.bytes()), (6, 60));
        // It was larger than assumed.
        assert!(unloaded.take(4, 50) && !unloaded.take(4, 50));
        assert_eq!((unloaded.len(), unloaded.bytes()), (5, 10));
        assert!((5..10).all(|offset| unloaded.take(offset, 1)));
        assert_eq!(
            (unloaded.len(), unloaded.bytes()),
            (0, 0),
            "the estimate is corrected when nothing is left"
        );
    }
}
