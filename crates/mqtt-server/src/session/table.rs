//! The sessions of one shard, by slot and by key.

use std::sync::Arc;

use mainstem_runtime::{ConnId, MemoryMeter};

use super::Session;
use super::account::Account;
use crate::message::SessionKey;

/// The sessions of one shard.
#[derive(Debug)]
pub(crate) struct Sessions {
    /// Number of the shard.
    shard: u16,
    slab: slab::Slab<Session>,
    generations: u32,
    /// Counts what the sessions hold.
    meter: MemoryMeter,
}

impl Sessions {
    /// Sessions that charge what they hold to `meter`.
    pub(crate) fn new(shard: u16, meter: MemoryMeter) -> Self {
        Self { shard, slab: slab::Slab::new(), generations: 0, meter }
    }

    /// A new, unconnected session.
    pub(crate) fn insert(&mut self, client_id: Arc<str>, conn: ConnId) -> SessionKey {
        // Ended sessions have generation 0.
        self.generations = self.generations.checked_add(1).unwrap_or(1);
        let generation = self.generations;
        let entry = self.slab.vacant_entry();
        let key = SessionKey { shard: self.shard, slot: entry.key() as u32, generation };
        let mut session = Session::new(client_id, key, conn, Account::new(&self.meter));
        session.update_charge();
        entry.insert(session);
        key
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Session {
        self.slab.remove(slot as usize)
    }

    /// Removes a session whose subscriptions are not all removed. They stay in its slot, with a session that no key
    /// refers to, until that is [removed](Self::remove).
    pub(crate) fn retire(&mut self, slot: u32) -> Session {
        let key = SessionKey { shard: self.shard, slot, generation: 0 };
        let session = self.at(slot);
        let account = session.account.split_subscriptions();
        let mut rest = Session::new(Arc::default(), key, session.conn, account);
        rest.end();
        rest.subscriptions = std::mem::take(&mut session.subscriptions);
        let groups = session.take_groups(usize::MAX);
        if !groups.is_empty() {
            rest.ext().groups = groups;
        }
        std::mem::replace(self.at(slot), rest)
    }

    /// The session in a slot that is known to be taken.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> &mut Session {
        &mut self.slab[slot as usize]
    }

    pub(crate) fn key(&self, slot: u32) -> SessionKey {
        self.slab[slot as usize].key
    }

    /// The slots of all sessions, in order.
    pub(crate) fn slots(&self) -> Vec<u32> {
        self.slots_from(0).collect()
    }

    /// The slots of all sessions from `from` on, in order.
    pub(crate) fn slots_from(&self, from: usize) -> impl Iterator<Item = u32> {
        let exists = |slot: &usize| self.slab.get(*slot).is_some_and(|session| session.key.generation != 0);
        (from..self.slab.capacity()).filter(exists).map(|slot| slot as u32)
    }

    /// The session of a key, if it has not ended.
    pub(crate) fn get(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.slab.get_mut(key.slot as usize).filter(|session| session.key.generation == key.generation)
    }
}
