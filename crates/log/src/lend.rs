//! One store for several users on one thread: each has its own logs, and hears of no others.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::Sound;
use crate::store::{Appended, Completion, Error, Found, LogId, Options, Piece, Status, Store};

/// A store that is lent out. All that its users append leaves with the same commit, whoever asks for it.
///
/// Users are on one thread; the lock inside is never contended, and is there so that a shard can be made on
/// one thread and run on another.
pub struct Lender {
    common: Arc<Mutex<Common>>,
}

/// A user's half of a [`Lender`].
pub struct Lent {
    common: Arc<Mutex<Common>>,
    user: usize,
}

struct Common {
    store: Box<dyn Store>,
    /// Who opened which log last.
    users: BTreeMap<LogId, usize>,
    /// Completions that have arrived, for each user.
    arrived: Vec<Vec<Completion>>,
    scratch: Vec<Completion>,
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").finish_non_exhaustive()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("user", &self.user).finish_non_exhaustive()
    }
}

fn lock(common: &Mutex<Common>) -> MutexGuard<'_, Common> {
    common.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lender {
    /// Lends out `store`.
    pub fn new(store: Box<dyn Store>) -> Self {
        let common = Common { store, users: BTreeMap::new(), arrived: Vec::new(), scratch: Vec::new() };
        Self { common: Arc::new(Mutex::new(common)) }
    }

    /// The store for one more user.
    pub fn lend(&self) -> Lent {
        let mut common = lock(&self.common);
        common.arrived.push(Vec::new());
        Lent { common: Arc::clone(&self.common), user: common.arrived.len() - 1 }
    }

    /// Sets everything that anybody has appended since the last commit on its way.
    pub fn commit(&self) {
        lock(&self.common).store.commit();
    }
}

impl Common {
    /// Deals out the completions that have arrived.
    fn deal(&mut self) {
        self.store.completions(&mut self.scratch);
        for completion in self.scratch.drain(..) {
            if let Some(user) = self.users.get(&completion.log) {
                self.arrived[*user].push(completion);
            }
        }
    }
}

impl Store for Lent {
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
        // What has completed by now is still told.
        common.deal();
        common.users.remove(&log);
        common.store.remove(log)
    }

    #[inline]
    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        lock(&self.common).store.append_sound(log, batch)
    }

    fn sync_next(&mut self, log: LogId) {
        lock(&self.common).store.sync_next(log);
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
        common.deal();
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

    fn pieces(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<Piece>>, Error> {
        lock(&self.common).store.pieces(log, offsets, max_bytes)
    }

    fn status(&self, log: LogId) -> Status {
        lock(&self.common).store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        lock(&self.common).store.find_time(log, timestamp_ms)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        lock(&self.common).store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        lock(&self.common).store.truncate_suffix(log, offset)
    }

    fn tend(&mut self, unix_ms: u64) -> Option<u64> {
        lock(&self.common).store.tend(unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, Memory, Ticket};

    fn batch() -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(0, None, Some(b"value"));
        builder.finish().to_vec()
    }

    #[test]
    fn a_commit_carries_what_all_have_appended_and_each_hears_of_its_own() {
        let lender = Lender::new(Box::new(Memory::new()));
        let (mut one, mut other) = (lender.lend(), lender.lend());
        let first = one.open("first", &Options::default()).unwrap();
        let second = other.open("second", &Options::default()).unwrap();
        let one_ticket: Ticket = one.append(first, &batch()).unwrap().ticket;
        let other_ticket = other.append(second, &batch()).unwrap().ticket;
        one.commit();
        let (mut heard, mut heard_too) = (Vec::new(), Vec::new());
        one.completions(&mut heard);
        other.completions(&mut heard_too);
        assert_eq!(heard, [Completion { log: first, ticket: one_ticket, outcome: Ok(()) }]);
        assert_eq!(heard_too, [Completion { log: second, ticket: other_ticket, outcome: Ok(()) }]);
        assert_eq!(other.status(second).committed, 1);
    }
}
