//! Keyed records in a compacted log, and the waiters of their appends.
//!
//! State such as the catalogue is a map: each change is a record with the key that it changes. Reading the log in order
//! restores the map, and compaction bounds the log by the size of the map.
//!
//! One turn may change many keys. The log collects the records of a turn in one batch, so that a turn costs one append.
//! Each waiter gets exactly one outcome. A waiter without records waits for all records before it, and gets an error if
//! an append has failed in the meantime.

use std::collections::VecDeque;

use mainstem_log::{
    BatchBuilder, Cleanup, Completion, Durability, Error, LogId, Options, Store, Ticket, batches,
};

/// Bytes per read when the log is opened.
const READ_BYTES: usize = 1024 * 1024;
/// A batch is closed at about this size.
const BATCH_BYTES: usize = 256 * 1024;
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;

/// A key and its value; `None` is a tombstone.
pub type KeyValue = (Vec<u8>, Option<Vec<u8>>);

/// A waiter and the outcome of its append.
pub type Outcome<T> = (T, Result<(), Error>);

/// A compacted log of keyed records. `T` identifies the waiter of an append.
#[derive(Debug)]
pub struct CompactedLog<T> {
    log: LogId,
    builder: BatchBuilder,
    /// Waiters of the records in `builder`.
    pending: Vec<Waiter<T>>,
    in_flight: VecDeque<(Ticket, Vec<Waiter<T>>)>,
    /// Waiters whose append failed at once, and those that had nothing to wait for.
    finished: Vec<(Waiter<T>, Result<(), Error>)>,
    /// Number of failed appends so far, and the last error.
    failures: u64,
    failure: Option<Error>,
}

#[derive(Debug)]
struct Waiter<T> {
    id: T,
    /// For a waiter without records: the number of failed appends when it was added.
    failures: Option<u64>,
}

impl<T> CompactedLog<T> {
    /// Opens the log `name` and reads all of it, in order.
    ///
    /// # Errors
    /// The store fails.
    pub fn open(
        store: &mut dyn Store,
        name: &str,
        durability: Durability,
        mut each: impl FnMut(&[u8], Option<&[u8]>),
    ) -> Result<Self, Error> {
        let options = Options {
            durability,
            segment_bytes: SEGMENT_BYTES,
            cleanup: Cleanup::Compact,
            ..Options::default()
        };
        let log = store.open(name, &options)?;
        let status = store.status(log);
        let (mut next, mut bytes) = (status.start, Vec::new());
        while next < status.end {
            bytes.clear();
            store.read(log, next..status.end, READ_BYTES, &mut bytes)?;
            let before = next;
            for batch in batches(&bytes) {
                for record in batch.records() {
                    let record = record.map_err(Error::Malformed)?;
                    if let Some(key) = record.key {
                        each(key, record.value);
                    }
                }
                next = batch.header.end_offset();
            }
            if next == before {
                break;
            }
        }
        Ok(Self {
            log,
            builder: BatchBuilder::default(),
            pending: Vec::new(),
            in_flight: VecDeque::new(),
            finished: Vec::new(),
            failures: 0,
            failure: None,
        })
    }

    /// Adds records; [`Self::on_completion`] returns `waiter` when they are durable. Without records, `waiter` waits
    /// for all records added before.
    pub fn append(&mut self, store: &mut dyn Store, unix_ms: u64, records: &[KeyValue], waiter: T) {
        for (key, value) in records {
            self.builder.push(unix_ms.cast_signed(), Some(key), value.as_deref());
        }
        let failures = records.is_empty().then_some(self.failures);
        self.pending.push(Waiter { id: waiter, failures });
        if self.builder.len() >= BATCH_BYTES {
            self.store_pending(store);
        }
    }

    /// Syncs the records of this turn to disk, whatever the durability of the log.
    pub fn force_sync(&mut self, store: &mut dyn Store) {
        store.force_sync(self.log);
    }

    /// Appends the pending records. Call it before the commit of the turn.
    pub fn store_pending(&mut self, store: &mut dyn Store) {
        if self.pending.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut self.pending);
        if self.builder.is_empty() {
            // Without records there is no append of its own: the last append in flight decides.
            match self.in_flight.back_mut() {
                Some((_, earlier)) => earlier.extend(waiters),
                None => self.finished.extend(waiters.into_iter().map(|waiter| (waiter, Ok(())))),
            }
            return;
        }
        match store.append(self.log, self.builder.finish()) {
            Ok(appended) => {
                match self.in_flight.back_mut().filter(|(ticket, _)| *ticket == appended.ticket) {
                    Some((_, earlier)) => earlier.extend(waiters),
                    None => self.in_flight.push_back((appended.ticket, waiters)),
                }
            }
            Err(error) => {
                self.finished.extend(waiters.into_iter().map(|waiter| (waiter, Err(error.clone()))));
            }
        }
    }

    /// Whether no append is pending and no waiter is left.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.in_flight.is_empty() && self.finished.is_empty()
    }

    /// Handles a completion. Returns false if it is of another log.
    pub fn on_completion(&mut self, completion: &Completion, into: &mut Vec<Outcome<T>>) -> bool {
        if completion.log != self.log {
            return false;
        }
        while let Some((_, waiters)) = self.in_flight.pop_front_if(|(ticket, _)| *ticket <= completion.ticket)
        {
            self.count_failure(&completion.outcome);
            into.extend(
                waiters.into_iter().map(|waiter| self.outcome_of(waiter, completion.outcome.clone())),
            );
        }
        true
    }

    fn count_failure(&mut self, outcome: &Result<(), Error>) {
        if let Err(error) = outcome {
            self.failures += 1;
            self.failure = Some(error.clone());
        }
    }

    /// The outcome for a waiter whose append ended with `outcome`.
    fn outcome_of(&self, waiter: Waiter<T>, outcome: Result<(), Error>) -> Outcome<T> {
        let has_failed = waiter.failures.is_some_and(|failures| failures != self.failures);
        let failure = self.failure.clone().filter(|_| has_failed);
        (waiter.id, outcome.and(failure.map_or(Ok(()), Err)))
    }

    /// Whether [`Self::take_failed`] would return any.
    #[inline]
    pub fn has_outcomes(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Takes the waiters whose append failed at once, and those that had nothing to wait for.
    pub fn take_failed(&mut self, into: &mut Vec<Outcome<T>>) {
        for (waiter, outcome) in std::mem::take(&mut self.finished) {
            self.count_failure(&outcome);
            into.push(self.outcome_of(waiter, outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_log::MemoryStore;

    #[test]
    fn reopening_reads_all_records_and_waiters_finish_in_order() {
        let mut store = MemoryStore::new();
        let mut log = CompactedLog::open(&mut store, "log", Durability::Fsync, |_, _| {}).unwrap();
        log.append(&mut store, 1, &[(b"a".to_vec(), Some(b"1".to_vec()))], 1);
        log.append(&mut store, 2, &[(b"b".to_vec(), Some(b"2".to_vec())), (b"a".to_vec(), None)], 2);
        log.store_pending(&mut store);
        store.commit();
        let (mut completions, mut outcomes) = (Vec::new(), Vec::new());
        store.completions(&mut completions);
        assert!(completions.iter().all(|completion| log.on_completion(completion, &mut outcomes)));
        assert_eq!(outcomes, [(1, Ok(())), (2, Ok(()))]);
        let mut read = Vec::new();
        let _: CompactedLog<u8> = CompactedLog::open(&mut store, "log", Durability::Fsync, |key, value| {
            read.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        })
        .unwrap();
        let record = |key: &[u8], value: Option<&[u8]>| (key.to_vec(), value.map(<[u8]>::to_vec));
        assert_eq!(read, [record(b"a", Some(b"1")), record(b"b", Some(b"2")), record(b"a", None)]);
    }

    /// The outcome of the last append must not hide an earlier failure.
    #[test]
    fn waiter_without_records_fails_if_any_earlier_append_failed() {
        let mut store = MemoryStore::new();
        let mut log = CompactedLog::open(&mut store, "log", Durability::Fsync, |_, _| {}).unwrap();
        let (mut completions, mut outcomes) = (Vec::new(), Vec::new());
        let value = vec![0; BATCH_BYTES];
        store.refuse_appends(1);
        log.append(&mut store, 1, &[(b"a".to_vec(), Some(value))], 1);
        assert!(!log.is_idle(), "the waiter has no outcome yet");
        log.append(&mut store, 1, &[(b"b".to_vec(), Some(b"small".to_vec()))], 2);
        log.append(&mut store, 1, &[], 3);
        log.store_pending(&mut store);
        log.take_failed(&mut outcomes);
        store.commit();
        store.completions(&mut completions);
        assert!(completions.iter().all(|completion| log.on_completion(completion, &mut outcomes)));
        assert_eq!(outcomes, [(1, Err(Error::Full)), (2, Ok(())), (3, Err(Error::Full))]);
        log.append(&mut store, 1, &[], 4);
        log.store_pending(&mut store);
        outcomes.clear();
        log.take_failed(&mut outcomes);
        assert_eq!(outcomes, [(4, Ok(()))], "the earlier failure was reported and does not count again");
    }
}
