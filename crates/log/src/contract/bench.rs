//! Drives a store, and watches that its tickets come to their end in order.

use std::collections::{BTreeMap, BTreeSet};

use super::Subject;
use crate::{LogId, Options, Store, Ticket};

/// Times that completions are waited for before they count as missing.
const WAITS_MAX: u32 = 100_000;

pub(super) struct Bench<'a> {
    subject: &'a mut dyn Subject,
    pub(super) store: Box<dyn Store>,
    /// The newest ticket of each log.
    given: BTreeMap<LogId, Ticket>,
    /// The newest completed one.
    completed: BTreeMap<LogId, Ticket>,
    /// Logs that were removed: what still completes of them is of no interest.
    removed: BTreeSet<LogId>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(subject: &'a mut dyn Subject) -> Self {
        let store = subject.fresh();
        Self::of(subject, store)
    }

    /// Segments so small that a few batches fill one.
    pub(super) fn open(&mut self, name: &str) -> LogId {
        let options = Options { segment_bytes: 1024, ..Options::default() };
        self.store.open(name, &options).unwrap()
    }

    /// The store after its process has begun anew; nothing if it does not last.
    pub(super) fn reopen(self) -> Option<Self> {
        let Self { subject, store, .. } = self;
        let store = subject.reopen(store)?;
        Some(Self::of(subject, store))
    }

    fn of(subject: &'a mut dyn Subject, store: Box<dyn Store>) -> Self {
        Self { subject, store, given: BTreeMap::new(), completed: BTreeMap::new(), removed: BTreeSet::new() }
    }

    /// Returns the base offset.
    pub(super) fn append(&mut self, log: LogId, batch: &[u8]) -> u64 {
        let appended = self.store.append(log, batch).unwrap();
        let last = self.given.insert(log, appended.ticket);
        assert!(last.is_none_or(|last| last <= appended.ticket), "tickets of one log grow");
        let completed = self.completed.get(&log);
        assert!(completed.is_none_or(|done| *done < appended.ticket), "a completed ticket is given again");
        appended.base_offset
    }

    /// Takes what has arrived, and checks that it may arrive.
    pub(super) fn take(&mut self) -> usize {
        let mut arrived = Vec::new();
        self.store.completions(&mut arrived);
        for completion in &arrived {
            let Some(given) = self.given.get(&completion.log) else {
                assert!(self.removed.contains(&completion.log), "only what was appended completes");
                continue;
            };
            assert_eq!(completion.outcome, Ok(()));
            assert!(completion.ticket <= *given, "a ticket completes that was never given");
            let last = self.completed.insert(completion.log, completion.ticket);
            assert!(last.is_none_or(|last| last < completion.ticket), "completions of one log come in order");
        }
        arrived.len()
    }

    /// Commits, and waits until everything is completed.
    pub(super) fn settle(&mut self) {
        self.store.commit();
        self.wait_for(|bench| bench.given == bench.completed);
        for log in self.given.keys() {
            let status = self.store.status(*log);
            assert_eq!(status.committed, status.end, "all is completed");
        }
    }

    /// Waits until everything that was appended to `log` is completed.
    pub(super) fn settle_one(&mut self, log: LogId) {
        self.wait_for(|bench| bench.given.get(&log) == bench.completed.get(&log));
    }

    fn wait_for(&mut self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..WAITS_MAX {
            self.take();
            if is_done(self) {
                return;
            }
            let goes_on = self.subject.wait();
            assert!(goes_on, "given {:?}, completed {:?}", self.given, self.completed);
        }
        panic!("given {:?}, completed {:?} for too long", self.given, self.completed);
    }

    /// Removes a log, and expects nothing of it any more.
    pub(super) fn remove(&mut self, log: LogId) {
        self.store.remove(log).unwrap();
        self.removed.insert(log);
        self.given.remove(&log);
        self.completed.remove(&log);
    }

    /// Reads everything there is.
    pub(super) fn read_all(&mut self, log: LogId) -> Vec<u8> {
        let status = self.store.status(log);
        let mut bytes = Vec::new();
        self.store.read(log, status.start..status.end, usize::MAX, &mut bytes).unwrap();
        bytes
    }
}
