//! Tests of the contract suite itself: each wrapper breaks one guarantee of a correct store, and the suite must fail.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainstem_log::contract::{self, StoreFactory};
use mainstem_log::{
    Appended, Batch, Completion, Error, LogAdmin, LogId, LogReader, LogWriter, Maintained, MemoryStore,
    Options, Status, Store, Ticket, TimestampOffset, ValidBatch, batches,
};

/// The defect of a store.
#[derive(Clone, Copy, Debug)]
enum Defect {
    CompletesBeforeCommit,
    NeverCompletes,
    CompletesOutOfOrder,
    KeepsBaseOffset,
    SkipsAnOffset,
    AcceptsMalformed,
    HidesUncommitted,
    TruncatesBatches,
    AppliesMaxBytesToFirstBatch,
    ReadsPastTheEnd,
    SkipsPartialFirstBatch,
    TruncatesInsideBatches,
    FindsBatchInsteadOfRecord,
    ListsOnlyTheFirst,
    AcceptsAnyName,
    RemovesNothing,
}

use Defect::*;

const DEFECTS: [Defect; 16] = [
    CompletesBeforeCommit,
    NeverCompletes,
    CompletesOutOfOrder,
    KeepsBaseOffset,
    SkipsAnOffset,
    AcceptsMalformed,
    HidesUncommitted,
    TruncatesBatches,
    AppliesMaxBytesToFirstBatch,
    ReadsPastTheEnd,
    SkipsPartialFirstBatch,
    TruncatesInsideBatches,
    FindsBatchInsteadOfRecord,
    ListsOnlyTheFirst,
    AcceptsAnyName,
    RemovesNothing,
];

struct DefectiveStore {
    store: MemoryStore,
    defect: Defect,
    premature: Vec<Completion>,
}

impl DefectiveStore {
    fn is(&self, defect: Defect) -> bool {
        self.defect as u8 == defect as u8
    }

    fn bounds(&mut self, log: LogId) -> Vec<u64> {
        let status = self.store.status(log);
        let mut bytes = Vec::new();
        self.store.read(log, status.start..status.end, usize::MAX, &mut bytes).unwrap();
        batches(&bytes).map(|batch| batch.header.base_offset).collect()
    }
}

impl LogReader for DefectiveStore {
    fn read(
        &mut self,
        log: LogId,
        mut offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let before = into.len();
        let status = self.store.status(log);
        if self.is(HidesUncommitted) {
            offsets.end = offsets.end.min(status.committed);
        }
        if self.is(ReadsPastTheEnd) {
            offsets.start = offsets.start.min(status.end);
        }
        self.store.read(log, offsets.clone(), max_bytes, into)?;
        let exceeds_max = into.len() - before > max_bytes;
        match self.defect {
            TruncatesBatches if exceeds_max => into.truncate(before + max_bytes),
            AppliesMaxBytesToFirstBatch if exceeds_max => into.truncate(before),
            SkipsPartialFirstBatch => {
                let base = batches(&into[before..]).next().map(|batch| batch.header.base_offset);
                if base.is_some_and(|base| base < offsets.start) {
                    into.truncate(before);
                }
            }
            KeepsBaseOffset if into.len() > before => into[before..before + 8].fill(0),
            _ => {}
        }
        Ok(())
    }

    fn status(&self, log: LogId) -> Status {
        self.store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        let found = self.store.find_time(log, timestamp_ms)?;
        let bounds = self.bounds(log);
        let of_batch = |found: TimestampOffset| {
            let bound = bounds.iter().rev().find(|bound| **bound <= found.offset);
            TimestampOffset { offset: bound.copied().unwrap_or(found.offset), ..found }
        };
        Ok(if self.is(FindsBatchInsteadOfRecord) { found.map(of_batch) } else { found })
    }
}

impl LogWriter for DefectiveStore {
    fn append(&mut self, log: LogId, batch: &[u8]) -> Result<Appended, Error> {
        if self.is(AcceptsMalformed) && Batch::parse_unchecked(batch).is_ok() && Batch::parse(batch).is_err()
        {
            return Ok(Appended { base_offset: self.store.status(log).end, ticket: Ticket(1) });
        }
        self.append_valid(log, ValidBatch::parse(batch).map_err(Error::Malformed)?)
    }

    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let mut appended = self.store.append_valid(log, batch)?;
        if self.is(SkipsAnOffset) && appended.base_offset > 0 {
            appended.base_offset += 1;
        }
        if self.is(CompletesBeforeCommit) {
            self.premature.push(Completion { log, ticket: appended.ticket, outcome: Ok(()) });
        }
        Ok(appended)
    }

    fn force_sync(&mut self, log: LogId) {
        self.store.force_sync(log);
    }
}

impl LogAdmin for DefectiveStore {
    fn names(&self) -> Vec<String> {
        let mut names = self.store.names();
        if self.is(ListsOnlyTheFirst) {
            names.truncate(1);
        }
        names
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let name = if self.is(AcceptsAnyName) { name.replace(' ', "_") } else { name.to_owned() };
        self.store.open(&name, options)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        if self.is(RemovesNothing) { Ok(()) } else { self.store.remove(log) }
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        let bounds = self.bounds(log);
        let rounded = bounds.iter().rev().find(|bound| **bound <= offset);
        let offset = if self.is(TruncatesInsideBatches) && offset < self.status(log).end {
            rounded.copied().unwrap_or(offset)
        } else {
            offset
        };
        self.store.truncate_suffix(log, offset)
    }

    fn maintain(&mut self, unix_ms: u64) -> Maintained {
        self.store.maintain(unix_ms)
    }
}

impl Store for DefectiveStore {
    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let before = into.len();
        into.append(&mut self.premature);
        self.store.completions(into);
        match self.defect {
            NeverCompletes => into.truncate(before),
            CompletesOutOfOrder => into[before..].reverse(),
            _ => {}
        }
    }
}

impl StoreFactory for Defect {
    fn fresh(&mut self) -> Box<dyn Store> {
        Box::new(DefectiveStore { store: MemoryStore::new(), defect: *self, premature: Vec::new() })
    }

    fn reopen(&mut self, _: Box<dyn Store>) -> Option<Box<dyn Store>> {
        None
    }
}

#[test]
fn detects_every_defect() {
    for mut defect in DEFECTS {
        let outcome = catch_unwind(AssertUnwindSafe(|| contract::run(&mut defect)));
        assert!(outcome.is_err(), "{defect:?} is not detected");
    }
}
