//! The stores of one shard, and which of the shard's servers gets which completions.
//!
//! Several servers of a shard keep logs in the same stores, so that one `fsync` covers what all of them appended in a
//! turn. The shard owns its [`Stores`] and lends them to the server that runs; nothing is shared and nothing is locked.
//! A store reports completions of all its logs at once, so [`Stores`] sorts them: each log belongs to one
//! [`LogOwner`], and an owner receives the completions of its logs only.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::store::{Completion, LogId, Store};

/// Who uses a log: the receiver of its completions. A store has two users at most: one with a few logs, which it
/// assigns, and one with all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogOwner {
    /// Whoever has most of the logs, so that its logs need not be assigned.
    #[default]
    Default,
    /// The other user of the store; its logs are those of [`StoreAt::assign`].
    Assigned,
}

/// A store with its number.
pub struct StoreAt {
    /// Number of the store, which its directory is named by.
    pub store_id: u16,
    /// The logs.
    pub store: Box<dyn Store>,
    /// Logs of [`LogOwner::Assigned`]: a handful.
    assigned: Vec<LogId>,
    /// Completions that nobody has taken yet, by owner.
    completions: [Vec<Completion>; 2],
}

/// The stores of one shard. Whoever holds this value may use them.
#[derive(Debug, Default)]
pub struct Stores {
    stores: Vec<StoreAt>,
}

impl fmt::Debug for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreAt").field("store_id", &self.store_id).finish_non_exhaustive()
    }
}

impl StoreAt {
    /// The store with this number.
    pub fn new(store_id: u16, store: Box<dyn Store>) -> Self {
        Self { store_id, store, assigned: Vec::new(), completions: Default::default() }
    }

    /// Assigns a log to [`LogOwner::Assigned`]. Call it before the first append to the log completes.
    pub fn assign(&mut self, log: LogId) {
        if !self.assigned.contains(&log) {
            self.assigned.push(log);
        }
    }

    /// Moves the completions of an owner's logs that have arrived since the last call to `into`, in the order of the
    /// store. Never blocks.
    pub fn take_completions(&mut self, owner: LogOwner, into: &mut Vec<Completion>) {
        if self.assigned.is_empty() && owner == LogOwner::Default {
            return self.store.completions(into);
        }
        let [default, assigned] = &mut self.completions;
        let sorted_before = default.len();
        self.store.completions(default);
        let is_assigned = |completion: &mut Completion| self.assigned.contains(&completion.log);
        assigned.extend(default.extract_if(sorted_before.., is_assigned));
        into.append(match owner {
            LogOwner::Default => default,
            LogOwner::Assigned => assigned,
        });
    }
}

impl Stores {
    /// Adds a store.
    pub fn push(&mut self, at: StoreAt) {
        self.stores.push(at);
    }

    /// Submits everything that any server appended since the last commit.
    pub fn commit(&mut self) {
        for at in &mut self.stores {
            at.store.commit();
        }
    }
}

impl FromIterator<StoreAt> for Stores {
    fn from_iter<I: IntoIterator<Item = StoreAt>>(stores: I) -> Self {
        Self { stores: stores.into_iter().collect() }
    }
}

impl IntoIterator for Stores {
    type Item = StoreAt;
    type IntoIter = std::vec::IntoIter<StoreAt>;

    fn into_iter(self) -> Self::IntoIter {
        self.stores.into_iter()
    }
}

impl Deref for Stores {
    type Target = [StoreAt];

    fn deref(&self) -> &[StoreAt] {
        &self.stores
    }
}

impl DerefMut for Stores {
    fn deref_mut(&mut self) -> &mut [StoreAt] {
        &mut self.stores
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, Durability, LogAdmin, LogWriter, MemoryStore, Options};

    fn batch() -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(0, None, Some(b"value"));
        builder.finish().to_vec()
    }

    #[test]
    fn one_commit_covers_all_logs_and_completions_reach_their_owners() {
        let mut store = MemoryStore::new();
        let options = Options { durability: Durability::Fsync, ..Options::default() };
        let logs = ["one", "two", "three"].map(|name| store.open(name, &options).unwrap());
        let tickets = logs.map(|log| store.append(log, &batch()).unwrap().ticket);
        let mut stores: Stores = [StoreAt::new(0, Box::new(store))].into_iter().collect();
        stores[0].assign(logs[1]);
        stores.commit();
        let completed =
            |index: usize| Completion { log: logs[index], ticket: tickets[index], outcome: Ok(()) };
        let mut taken = Vec::new();
        stores[0].take_completions(LogOwner::Assigned, &mut taken);
        assert_eq!(taken, [completed(1)]);
        taken.clear();
        stores[0].take_completions(LogOwner::Assigned, &mut taken);
        assert!(taken.is_empty());
        stores[0].take_completions(LogOwner::Default, &mut taken);
        assert_eq!(taken, [completed(0), completed(2)]);
    }
}
