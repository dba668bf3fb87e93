//! One store shared by several services on one thread.
//!
//! Each handle opens its own logs and receives only the completions of those logs. All handles share one commit, so
//! that a single `fsync` covers what every service of the shard appended in a turn, whichever of them calls
//! [`Store::commit`].

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::ValidBatch;
use crate::store::{Appended, Completion, Error, FileSlice, LogId, Options, Status, Store, TimestampOffset};

/// Owner of a shared store. A commit through any handle covers the appends of all handles.
///
/// All handles live on one thread. The lock is never contended; it exists so that a shard can be built on one thread
/// and run on another.
pub struct SharedStore {
    common: Arc<Mutex<Common>>,
}

/// Handle of one user of a [`SharedStore`].
pub struct StoreHandle {
    common: Arc<Mutex<Common>>,
    user: usize,
}

struct Common {
    store: Box<dyn Store>,
    /// User that last opened each log.
    users: BTreeMap<LogId, usize>,
    /// Pending completions per user.
    arrived: Vec<Vec<Completion>>,
    scratch: Vec<Completion>,
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle").field("user", &self.user).finish_non_exhaustive()
    }
}

fn lock(common: &Mutex<Common>) -> MutexGuard<'_, Common> {
    common.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedStore {
    /// Shares `store`.
    pub fn new(store: Box<dyn Store>) -> Self {
        let common = Common { store, users: BTreeMap::new(), arrived: Vec::new(), scratch: Vec::new() };
        Self { common: Arc::new(Mutex::new(common)) }
    }

    /// Returns a handle for one more user.
    pub fn handle(&self) -> StoreHandle {
        let mut common = lock(&self.common);
        common.arrived.push(Vec::new());
        StoreHandle { common: Arc::clone(&self.common), user: common.arrived.len() - 1 }
    }

    /// Submits everything that any user appended since the last commit.
    pub fn commit(&self) {
        lock(&self.common).store.commit();
    }
}

impl Common {
    /// Routes arrived completions to the users that opened their logs.
    fn route_completions(&mut self) {
        self.store.completions(&mut self.scratch);
        for completion in self.scratch.drain(..) {
            if let Some(user) = self.users.get(&completion.log) {
                self.arrived[*user].push(completion);
            }
        }
    }
}

impl Store for StoreHandle {
    fn names(&self) -> Vec<String> {
        lock(&self.common).store.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let mut common = lock(&self.common);
        let log = common.store.open(name, options)?;
        common.users.insert(log, self.user);
        Ok(log)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        let mut common = lock(&self.common);
        // Completions that arrived before the removal are still delivered.
        common.route_completions();
        common.users.remove(&log);
        common.store.remove(log)
    }

    #[inline]
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        lock(&self.common).store.append_valid(log, batch)
    }

    fn force_sync(&mut self, log: LogId) {
        lock(&self.common).store.force_sync(log);
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        lock(&self.common).store.note(log, note)
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        lock(&self.common).store.notes(log)
    }

    fn commit(&mut self) {
        lock(&self.common).store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let mut common = lock(&self.common);
        common.route_completions();
        into.append(&mut common.arrived[self.user]);
    }

    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        lock(&self.common).store.read(log, offsets, max_bytes, into)
    }

    fn file_slices(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<FileSlice>>, Error> {
        lock(&self.common).store.file_slices(log, offsets, max_bytes)
    }

    fn status(&self, log: LogId) -> Status {
        lock(&self.common).store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        lock(&self.common).store.find_time(log, timestamp_ms)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        lock(&self.common).store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        lock(&self.common).store.truncate_suffix(log, offset)
    }

    fn maintain(&mut self, unix_ms: u64) -> Option<u64> {
        lock(&self.common).store.maintain(unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, MemoryStore, Ticket};

    fn batch() -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(0, None, Some(b"value"));
        builder.finish().to_vec()
    }

    #[test]
    fn commit_covers_all_users_and_completions_reach_their_owner() {
        let shared = SharedStore::new(Box::new(MemoryStore::new()));
        let (mut one, mut other) = (shared.handle(), shared.handle());
        let first = one.open("first", &Options::default()).unwrap();
        let second = other.open("second", &Options::default()).unwrap();
        let one_ticket: Ticket = one.append(first, &batch()).unwrap().ticket;
        let other_ticket = other.append(second, &batch()).unwrap().ticket;
        one.commit();
        let (mut completed, mut other_completed) = (Vec::new(), Vec::new());
        one.completions(&mut completed);
        other.completions(&mut other_completed);
        assert_eq!(completed, [Completion { log: first, ticket: one_ticket, outcome: Ok(()) }]);
        assert_eq!(other_completed, [Completion { log: second, ticket: other_ticket, outcome: Ok(()) }]);
        assert_eq!(other.status(second).committed, 1);
    }
}
