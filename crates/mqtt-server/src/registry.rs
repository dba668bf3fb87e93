//! The session of each client identifier, over all shards.
//!
//! A connection follows its session: a CONNECT with an identifier of another shard is handed to that shard, so that
//! take-over and resumption happen in one place. The registry is used when a client connects and when a session ends.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use crate::message::SessionKey;

const STRIPES: usize = 64;

type Stripe = HashMap<Arc<str>, SessionKey, RandomState>;

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
            stripes: (0..STRIPES).map(|_| Mutex::new(HashMap::with_hasher(RandomState::default()))).collect(),
        }
    }

    fn stripe(&self, client_id: &str) -> MutexGuard<'_, Stripe> {
        let index = self.hasher.hash_one(client_id) as usize % STRIPES;
        self.stripes[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, client_id: &str) -> Option<SessionKey> {
        self.stripe(client_id).get(client_id).copied()
    }

    /// Adds a new session.
    ///
    /// # Errors
    /// The session that another shard has added in the meantime.
    pub(crate) fn claim(&self, client_id: &Arc<str>, key: SessionKey) -> Result<(), SessionKey> {
        match self.stripe(client_id).entry_ref(&**client_id) {
            hashbrown::hash_map::EntryRef::Occupied(entry) => Err(*entry.get()),
            hashbrown::hash_map::EntryRef::Vacant(entry) => {
                entry.insert_with_key(Arc::clone(client_id), key);
                Ok(())
            }
        }
    }

    /// Removes a session that has ended.
    pub(crate) fn release(&self, client_id: &str, key: SessionKey) {
        let mut stripe = self.stripe(client_id);
        if stripe.get(client_id) == Some(&key) {
            stripe.remove(client_id);
        }
    }
}
