//! Seeded random choices.

use std::ops::Range;
use std::time::Duration;

/// Random number generator (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator for each `index`.
    pub(super) fn child(seed: u64, index: u64) -> Self {
        Self(Self(seed ^ index.wrapping_mul(0xA076_1D64_78BD_642F)).number())
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// True with probability `1 / times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A duration within `range`, with millisecond resolution.
    pub(super) fn time(&mut self, range: &Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_millis().max(1);
        range.start + Duration::from_millis(self.below(u64::try_from(span).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_sequence() {
        let draw = |mut random: Random| [random.below(1000), random.below(1000), random.below(1000)];
        assert_eq!(draw(Random::child(7, 1)), draw(Random::child(7, 1)));
        assert_ne!(draw(Random::child(7, 1)), draw(Random::child(7, 2)));
        assert_ne!(draw(Random::child(7, 1)), draw(Random::child(8, 1)));
    }

    #[test]
    fn times_are_within_their_range() {
        let mut random = Random::new(1);
        let range = Duration::from_millis(5)..Duration::from_millis(9);
        assert!((0..200).all(|_| range.contains(&random.time(&range))));
    }
}
