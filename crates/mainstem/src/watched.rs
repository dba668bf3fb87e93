//! Which logs cannot keep anything now: heard from the stores, for whoever asks whether the broker is ready.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_log::{Appended, Completion, Error, Found, LogId, Options, Piece, Sound, Status, Store};

/// Logs that are named of those that cannot keep anything.
const NAMED_MAX: usize = 5;

/// Logs of all stores that cannot keep anything now, each with the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failing(Arc<Mutex<BTreeMap<(u16, LogId), String>>>);

impl Failing {
    /// The first of them in words; empty if all is well.
    pub(crate) fn words(&self) -> Vec<String> {
        let failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failing.values().take(NAMED_MAX).cloned().collect()
    }

    fn set(&self, log: (u16, LogId), why: Option<String>) {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => drop(failing.insert(log, why)),
            None => drop(failing.remove(&log)),
        }
    }
}

/// What is known of the logs of one store.
struct Watch {
    home: u16,
    names: BTreeMap<LogId, String>,
    /// Those that cannot keep anything.
    mine: BTreeMap<LogId, Error>,
    failing: Failing,
}

impl Watch {
    /// An append is done, or has failed.
    fn heard(&mut self, log: LogId, failed: Option<&Error>) {
        match failed {
            None => self.forget(log),
            Some(error @ (Error::Broken | Error::Full | Error::System(_))) => {
                if self.mine.get(&log) == Some(error) {
                    return;
                }
                self.mine.insert(log, error.clone());
                let name = self.names.get(&log).map_or("", String::as_str);
                self.failing.set((self.home, log), Some(format!("log {}/{name}: {error}", self.home)));
            }
            // It says something of the batch, or of what is read.
            Some(Error::Malformed(_) | Error::OutOfRange | Error::Corrupt { .. }) => {}
        }
    }

    fn forget(&mut self, log: LogId) {
        if self.mine.remove(&log).is_some() {
            self.failing.set((self.home, log), None);
        }
    }
}

/// A store that is watched.
pub(crate) struct Watched {
    store: Box<dyn Store>,
    watch: Watch,
}

impl Watched {
    /// Watches the store of this number.
    pub(crate) fn new(store: Box<dyn Store>, home: u16, failing: &Failing) -> Self {
        let failing = failing.clone();
        Self { store, watch: Watch { home, names: BTreeMap::new(), mine: BTreeMap::new(), failing } }
    }
}

impl Store for Watched {
    fn names(&self) -> Vec<String> {
        self.store.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let log = self.store.open(name, options)?;
        self.watch.names.insert(log, name.to_owned());
        Ok(log)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.watch.names.remove(&log);
        self.watch.forget(log);
        self.store.remove(log)
    }

    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_sound(log, batch);
        if let Err(error) = &appended {
            self.watch.heard(log, Some(error));
        }
        appended
    }

    fn sync_next(&mut self, log: LogId) {
        self.store.sync_next(log);
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        self.store.note(log, note)
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        self.store.notes(log)
    }

    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let known = into.len();
        self.store.completions(into);
        for completion in &into[known..] {
            self.watch.heard(completion.log, completion.outcome.as_ref().err());
        }
    }

    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.store.read(log, offsets, max_bytes, into)
    }

    fn pieces(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<Piece>>, Error> {
        self.store.pieces(log, offsets, max_bytes)
    }

    fn status(&self, log: LogId) -> Status {
        self.store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        self.store.find_time(log, timestamp_ms)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.store.truncate_suffix(log, offset)
    }

    fn tend(&mut self, unix_ms: u64) -> Option<u64> {
        self.store.tend(unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::Memory;

    use super::*;

    #[test]
    fn a_log_fails_until_it_keeps_something_again_or_is_gone() {
        let failing = Failing::default();
        let mut store = Watched::new(Box::new(Memory::default()), 3, &failing);
        let one = store.open("one", &Options::default()).unwrap();
        let other = store.open("other", &Options::default()).unwrap();
        store.watch.heard(one, Some(&Error::Full));
        store.watch.heard(other, Some(&Error::OutOfRange));
        assert_eq!(failing.words(), ["log 3/one: no space left"]);
        store.watch.heard(one, None);
        assert!(failing.words().is_empty());
        store.watch.heard(other, Some(&Error::Broken));
        assert_eq!(failing.words(), ["log 3/other: the log is read only since a write failed"]);
        store.remove(other).unwrap();
        assert!(failing.words().is_empty());
    }

    #[test]
    fn appends_and_completions_are_heard() {
        let failing = Failing::default();
        let mut store = Watched::new(Box::new(Memory::default()), 0, &failing);
        let log = store.open("log", &Options::default()).unwrap();
        store.watch.heard(log, Some(&Error::Full));
        let mut builder = mainstem_log::BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        store.append(log, builder.finish()).unwrap();
        store.commit();
        let mut completions = Vec::new();
        while completions.is_empty() {
            store.completions(&mut completions);
        }
        assert!(failing.words().is_empty());
    }
}
