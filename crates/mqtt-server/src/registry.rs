//! The session of each client identifier, over all shards.
//!
//! A connection follows its session: a CONNECT with an identifier of another shard is handed to that shard, so that
//! take-over and resumption happen in one place. The registry is used when a client connects and when a session ends.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::message::SessionKey;

const STRIPES: usize = 64;

/// A client identifier and its session.
#[derive(Debug)]
struct Registered {
    client_id: Arc<str>,
    session: SessionKey,
    /// Hash of the identifier, which may be long: a table that grows must not hash all of them again.
    hash: u32,
}

impl Registered {
    fn is(&self, hash: ShortHash, client_id: &str) -> bool {
        self.hash == hash.0 && *self.client_id == *client_id
    }
}

/// The part of a hash that is kept.
#[derive(Clone, Copy, Debug)]
struct ShortHash(u32);

impl ShortHash {
    /// The hash in a table.
    fn spread(self) -> u64 {
        // Odd, so that different hashes stay different, also in their low bits (2^64 divided by the golden ratio).
        u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

type Stripe = HashTable<Registered>;

/// The session of each client identifier, behind striped locks.
#[derive(Debug)]
pub(crate) struct Registry {
    hasher: RandomState,
    stripes: Vec<Mutex<Stripe>>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::default(),
            stripes: (0..STRIPES).map(|_| Mutex::new(Stripe::new())).collect(),
        }
    }

    /// The stripe of an identifier, and its hash.
    fn stripe(&self, client_id: &str) -> (MutexGuard<'_, Stripe>, ShortHash) {
        let hash = self.hasher.hash_one(client_id);
        let stripe = &self.stripes[hash as usize % STRIPES];
        (stripe.lock().unwrap_or_else(PoisonError::into_inner), ShortHash((hash >> 32) as u32))
    }

    pub(crate) fn find(&self, client_id: &str) -> Option<SessionKey> {
        let (stripe, hash) = self.stripe(client_id);
        stripe.find(hash.spread(), |known| known.is(hash, client_id)).map(|known| known.session)
    }

    /// Adds a new session.
    ///
    /// # Errors
    /// The session that another shard has added in the meantime.
    pub(crate) fn claim(&self, client_id: &Arc<str>, key: SessionKey) -> Result<(), SessionKey> {
        let (mut stripe, hash) = self.stripe(client_id);
        let rehash = |known: &Registered| ShortHash(known.hash).spread();
        match stripe.entry(hash.spread(), |known| known.is(hash, client_id), rehash) {
            Entry::Occupied(entry) => Err(entry.get().session),
            Entry::Vacant(entry) => {
                let client_id = Arc::clone(client_id);
                entry.insert(Registered { client_id, session: key, hash: hash.0 });
                Ok(())
            }
        }
    }

    /// Removes a session that has ended.
    pub(crate) fn release(&self, client_id: &str, key: SessionKey) {
        let (mut stripe, hash) = self.stripe(client_id);
        let is_it = |known: &Registered| known.is(hash, client_id) && known.session == key;
        if let Ok(entry) = stripe.find_entry(hash.spread(), is_it) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_belongs_to_one_session_until_that_releases_it() {
        let registry = Registry::new();
        let key = |slot, generation| SessionKey { shard: 1, slot, generation };
        let ids: Vec<Arc<str>> = (0..5_000).map(|number| format!("client-{number}").into()).collect();
        for (slot, id) in (0..).zip(&ids) {
            assert_eq!(registry.find(id), None);
            assert_eq!(registry.claim(id, key(slot, 1)), Ok(()));
            assert_eq!(registry.claim(id, key(slot, 2)), Err(key(slot, 1)));
        }
        for (slot, id) in (0..).zip(&ids) {
            registry.release(id, key(slot, 2));
            assert_eq!(registry.find(id), Some(key(slot, 1)), "another session has released it");
            registry.release(id, key(slot, 1));
            assert_eq!(registry.find(id), None);
        }
    }
}
