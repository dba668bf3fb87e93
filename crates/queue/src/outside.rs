//! Messages that only groups have to settle which do not know them: not in memory, but counted.

use std::ops::Range;

use crate::runs::Runs;

/// Their offsets, and how large they are together.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    offsets: Runs,
    bytes: u64,
}

impl Outside {
    pub(crate) fn len(&self) -> u64 {
        self.offsets.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its runs in a range.
    pub(crate) fn runs_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.offsets.runs_within(range)
    }

    /// Where so many runs of those in a range end.
    pub(crate) fn end_of(&self, range: Range<u64>, most: usize) -> u64 {
        self.offsets.end_of(range, most)
    }

    /// Puts a message in, which may be there.
    pub(crate) fn insert(&mut self, offset: u64, bytes: u32) {
        if self.offsets.insert(offset) {
            self.bytes += u64::from(bytes);
        }
    }

    /// Takes a message out that is known again; says whether it was there.
    pub(crate) fn take(&mut self, offset: u64, bytes: u32) -> bool {
        let was_there = self.offsets.remove(offset);
        if was_there {
            // Guesses may have made it too little, and make it right at the latest when nothing is left.
            let left = self.bytes.saturating_sub(bytes.into());
            self.bytes = if self.offsets.is_empty() { 0 } else { left };
        }
        was_there
    }

    /// Takes out messages of a range that come to nothing unknown. How large these were is guessed: as large as the others.
    pub(crate) fn remove_range(&mut self, range: Range<u64>) {
        let before = self.offsets.len();
        self.offsets.remove_range(range);
        let left = self.offsets.len();
        if left < before {
            self.bytes = (u128::from(self.bytes) * u128::from(left) / u128::from(before)) as u64;
        }
    }

    /// Forgets what it knows, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        self.offsets.thin(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_nothing_is_taken_for_as_large_as_the_rest() {
        let mut outside = Outside::default();
        (0..10).for_each(|offset| outside.insert(offset, 10));
        outside.insert(3, 10);
        assert_eq!((outside.len(), outside.bytes()), (10, 100));
        outside.remove_range(0..4);
        outside.remove_range(0..4);
        assert_eq!((outside.len(), outside.bytes()), (6, 60));
        // It was larger than was guessed.
        assert!(outside.take(4, 50) && !outside.take(4, 50));
        assert_eq!((outside.len(), outside.bytes()), (5, 10));
        assert!((5..10).all(|offset| outside.take(offset, 1)));
        assert_eq!((outside.len(), outside.bytes()), (0, 0), "nothing is left of a wrong guess");
    }
}
