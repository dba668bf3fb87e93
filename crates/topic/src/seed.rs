//! Hashing: one seed per index or cache.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

/// Turns strings and edges into hashes.
///
/// Clients choose topic names and filters, so a table whose hashes they could predict would be theirs to fill with
/// collisions: the seed is random unless a caller fixes it to repeat a run.
#[derive(Clone)]
pub(crate) struct Seed(SeedableRandomState);

impl Seed {
    /// From the operating system's randomness, by way of the standard library's hash keys.
    pub(crate) fn random() -> Self {
        let seed = RandomState::new().hash_one(0_u64);
        Self(SeedableRandomState::with_seed(seed, SharedSeed::global_random()))
    }

    pub(crate) fn fixed(seed: u64) -> Self {
        Self(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()))
    }

    #[inline]
    pub(crate) fn hash_text(&self, text: &str) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    #[inline]
    pub(crate) fn hash_pair(&self, first: u32, second: u32) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write_u64(u64::from(first) << 32 | u64::from(second));
        hasher.finish()
    }
}
