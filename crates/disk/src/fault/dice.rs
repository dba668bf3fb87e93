//! Choices that a seed decides.

/// Numbers that look random, always the same from the same seed (`SplitMix64`).
#[must_use]
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Those of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }

    /// Whether something happens that happens so often in 100 times.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Another one, which what is rolled here does not change any more.
    pub fn fork(&mut self) -> Self {
        Self(self.roll())
    }
}
