//! Test harness: drives a store and checks that its tickets complete in order.

use std::collections::{BTreeMap, BTreeSet};

use super::StoreFactory;
use crate::{LogId, Options, Store, Ticket};

/// Number of waits before completions count as lost.
const WAITS_MAX: u32 = 100_000;

pub(super) struct Harness<'a> {
    factory: &'a mut dyn StoreFactory,
    pub(super) store: Box<dyn Store>,
    /// Newest ticket issued per log.
    issued: BTreeMap<LogId, Ticket>,
    /// Newest completed ticket per log.
    completed: BTreeMap<LogId, Ticket>,
    /// Removed logs, whose late completions are ignored.
    removed: BTreeSet<LogId>,
}

impl<'a> Harness<'a> {
    pub(super) fn new(factory: &'a mut dyn StoreFactory) -> Self {
        let store = factory.fresh();
        Self::of(factory, store)
    }

    /// Opens a log with small segments: a few batches fill one.
    pub(super) fn open(&mut self, name: &str) -> LogId {
        let options = Options { segment_bytes: 1024, ..Options::default() };
        self.store.open(name, &options).unwrap()
    }

    /// Restarts the store; `None` if it is not persistent.
    pub(super) fn reopen(self) -> Option<Self> {
        let Self { factory, store, .. } = self;
        let store = factory.reopen(store)?;
        Some(Self::of(factory, store))
    }

    fn of(factory: &'a mut dyn StoreFactory, store: Box<dyn Store>) -> Self {
        Self { factory, store, issued: BTreeMap::new(), completed: BTreeMap::new(), removed: BTreeSet::new() }
    }

    /// Appends `batch` and returns its base offset.
    pub(super) fn append(&mut self, log: LogId, batch: &[u8]) -> u64 {
        let appended = self.store.append(log, batch).unwrap();
        let last = self.issued.insert(log, appended.ticket);
        assert!(last.is_none_or(|last| last <= appended.ticket), "tickets of one log must increase");
        let completed = self.completed.get(&log);
        assert!(completed.is_none_or(|done| *done < appended.ticket), "a completed ticket is issued again");
        appended.base_offset
    }

    /// Drains the completions, checks each, and returns their number.
    pub(super) fn take(&mut self) -> usize {
        let mut arrived = Vec::new();
        self.store.completions(&mut arrived);
        for completion in &arrived {
            let Some(issued) = self.issued.get(&completion.log) else {
                assert!(
                    self.removed.contains(&completion.log),
                    "a completion arrived for a log without appends"
                );
                continue;
            };
            assert_eq!(completion.outcome, Ok(()));
            assert!(completion.ticket <= *issued, "a ticket completes that was never issued");
            let last = self.completed.insert(completion.log, completion.ticket);
            assert!(
                last.is_none_or(|last| last < completion.ticket),
                "completions of one log must arrive in order"
            );
        }
        arrived.len()
    }

    /// Commits and waits until every append is completed.
    pub(super) fn settle(&mut self) {
        self.store.commit();
        self.wait_for(|harness| harness.issued == harness.completed);
        for log in self.issued.keys() {
            let status = self.store.status(*log);
            assert_eq!(status.committed, status.end, "an append is not completed");
        }
    }

    /// Waits until every append to `log` is completed.
    pub(super) fn settle_one(&mut self, log: LogId) {
        self.wait_for(|harness| harness.issued.get(&log) == harness.completed.get(&log));
    }

    fn wait_for(&mut self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..WAITS_MAX {
            self.take();
            if is_done(self) {
                return;
            }
            let may_progress = self.factory.wait();
            assert!(may_progress, "issued {:?}, completed {:?}", self.issued, self.completed);
        }
        panic!("issued {:?}, completed {:?} for too long", self.issued, self.completed);
    }

    /// Removes a log and ignores its later completions.
    pub(super) fn remove(&mut self, log: LogId) {
        self.store.remove(log).unwrap();
        self.removed.insert(log);
        self.issued.remove(&log);
        self.completed.remove(&log);
    }

    /// Reads the whole log.
    pub(super) fn read_all(&mut self, log: LogId) -> Vec<u8> {
        let status = self.store.status(log);
        let mut bytes = Vec::new();
        self.store.read(log, status.start..status.end, usize::MAX, &mut bytes).unwrap();
        bytes
    }
}
