//! Logs that cannot be written to, for the readiness check.
//!
//! [`HealthTrackingStore`] wraps the store of each shard and watches its results: a log counts as failing from an
//! append that failed for lack of space or because of an I/O error until an append succeeds or the log is removed. The
//! shards share one [`FailingLogs`], which is locked only when the state of a log changes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_log::{
    Appended, Completion, Error, FileSlice, LogAdmin, LogId, LogReader, LogWriter, Maintained, Options,
    Status, Store, StoreImage, TimestampOffset, ValidBatch,
};

/// Maximum number of failing logs to report.
const REPORTED_MAX: usize = 5;

/// The failing logs of all stores, each with an error message.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailingLogs(Arc<Mutex<BTreeMap<(u16, LogId), String>>>);

impl FailingLogs {
    /// Error messages of the first failing logs. Empty if no log fails.
    pub(crate) fn messages(&self) -> Vec<String> {
        let failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failing.values().take(REPORTED_MAX).cloned().collect()
    }

    fn set(&self, log: (u16, LogId), message: Option<String>) {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match message {
            Some(message) => drop(failing.insert(log, message)),
            None => drop(failing.remove(&log)),
        }
    }
}

/// Health of the logs of one store.
struct LogHealth {
    store_id: u16,
    names: BTreeMap<LogId, String>,
    errors: BTreeMap<LogId, Error>,
    failing_logs: FailingLogs,
}

impl LogHealth {
    /// Records the result of an append.
    fn record(&mut self, log: LogId, error: Option<&Error>) {
        match error {
            None => self.forget(log),
            Some(error @ (Error::Broken | Error::Full | Error::TooManyFiles | Error::System(_))) => {
                if self.errors.get(&log) == Some(error) {
                    return;
                }
                self.errors.insert(log, error.clone());
                let name = self.names.get(&log).map_or("", String::as_str);
                self.failing_logs
                    .set((self.store_id, log), Some(format!("log {}/{name}: {error}", self.store_id)));
            }
            // The batch or the read offset is at fault, not the log.
            Some(Error::Malformed(_) | Error::OutOfRange | Error::Corrupt { .. }) => {}
        }
    }

    fn forget(&mut self, log: LogId) {
        if self.errors.remove(&log).is_some() {
            self.failing_logs.set((self.store_id, log), None);
        }
    }
}

/// A store that records the health of its logs.
pub(crate) struct HealthTrackingStore<S> {
    store: S,
    health: LogHealth,
}

impl<S: Store> HealthTrackingStore<S> {
    /// Wraps the store with the id `store_id`.
    pub(crate) fn new(store: S, store_id: u16, failing_logs: &FailingLogs) -> Self {
        let failing_logs = failing_logs.clone();
        Self {
            store,
            health: LogHealth { store_id, names: BTreeMap::new(), errors: BTreeMap::new(), failing_logs },
        }
    }
}

impl<S: Store> LogReader for HealthTrackingStore<S> {
    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.store.read(log, offsets, max_bytes, into)
    }

    fn file_slices(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<FileSlice>>, Error> {
        self.store.file_slices(log, offsets, max_bytes)
    }

    fn status(&self, log: LogId) -> Status {
        self.store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        self.store.find_time(log, timestamp_ms)
    }
}

impl<S: Store> LogWriter for HealthTrackingStore<S> {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_valid(log, batch);
        if let Err(error) = &appended {
            self.health.record(log, Some(error));
        }
        appended
    }

    fn force_sync(&mut self, log: LogId) {
        self.store.force_sync(log);
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        self.store.note(log, note)
    }
}

impl<S: Store> LogAdmin for HealthTrackingStore<S> {
    fn names(&self) -> Vec<String> {
        self.store.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let log = self.store.open(name, options)?;
        self.health.names.insert(log, name.to_owned());
        Ok(log)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.health.names.remove(&log);
        self.health.forget(log);
        self.store.remove(log)
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        self.store.notes(log)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.store.truncate_suffix(log, offset)
    }

    fn maintain(&mut self, unix_ms: u64) -> Maintained {
        self.store.maintain(unix_ms)
    }
}

impl<S: Store> Store for HealthTrackingStore<S> {
    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let start = into.len();
        self.store.completions(into);
        for completion in &into[start..] {
            self.health.record(completion.log, completion.outcome.as_ref().err());
        }
    }

    fn hold_files(&mut self) {
        self.store.hold_files();
    }

    fn are_files_held(&mut self) -> bool {
        self.store.are_files_held()
    }

    fn release_files(&mut self) -> bool {
        self.store.release_files()
    }

    fn capture(&mut self) -> Result<(), Error> {
        self.store.capture()
    }

    fn take_image(&mut self) -> Result<Option<Box<dyn StoreImage>>, Error> {
        self.store.take_image()
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::MemoryStore;

    use super::*;

    #[test]
    fn a_log_fails_until_an_append_succeeds_or_it_is_removed() {
        let failing_logs = FailingLogs::default();
        let mut store = HealthTrackingStore::new(MemoryStore::default(), 3, &failing_logs);
        let one = store.open("one", &Options::default()).unwrap();
        let other = store.open("other", &Options::default()).unwrap();
        store.health.record(one, Some(&Error::Full));
        store.health.record(other, Some(&Error::OutOfRange));
        assert_eq!(failing_logs.messages(), ["log 3/one: no space left"]);
        store.health.record(one, Some(&Error::TooManyFiles));
        assert!(failing_logs.messages()[0].contains("LimitNOFILE"));
        store.health.record(one, None);
        assert!(failing_logs.messages().is_empty());
        store.health.record(other, Some(&Error::Broken));
        assert_eq!(failing_logs.messages(), ["log 3/other: the log is read only since a write failed"]);
        store.remove(other).unwrap();
        assert!(failing_logs.messages().is_empty());
    }

    #[test]
    fn a_completed_append_clears_the_error() {
        let failing_logs = FailingLogs::default();
        let mut store = HealthTrackingStore::new(MemoryStore::default(), 0, &failing_logs);
        let log = store.open("log", &Options::default()).unwrap();
        store.health.record(log, Some(&Error::Full));
        let mut builder = mainstem_log::BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        store.append(log, builder.finish()).unwrap();
        store.commit();
        let mut completions = Vec::new();
        while completions.is_empty() {
            store.completions(&mut completions);
        }
        assert!(failing_logs.messages().is_empty());
    }
}
