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

    /// A hash that tables keep with their entries, see [`spread`].
    #[inline]
    pub(crate) fn short_hash(&self, text: &str) -> u32 {
        (self.hash_text(text) >> 32) as u32
    }

    #[inline]
    pub(crate) fn hash_pair(&self, first: u32, second: u32) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write_u64(u64::from(first) << 32 | u64::from(second));
        hasher.finish()
    }
}

/// The hash of a table entry that keeps a [`Seed::short_hash`]. Filters may be long: a table that hashed its texts
/// again whenever it grows would stall everyone who waits for it.
#[inline]
pub(crate) const fn spread(hash: u32) -> u64 {
    // Odd, so that different hashes stay different, also in their low bits (2^64 divided by the golden ratio).
    (hash as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
