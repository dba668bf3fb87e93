//! Seeded hashing, with one seed per index or cache.
//!
//! Clients choose topic names and filters. If they could predict hashes, they could fill a table with collisions, so
//! the seed is random unless the caller fixes it for a reproducible run.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

/// Hashes level strings, filters and trie edges.
#[derive(Clone)]
pub(crate) struct Seed(SeedableRandomState);

impl Seed {
    /// Seeds from the randomness of the operating system, through the hash keys of the standard library.
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
