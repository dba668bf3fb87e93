//! The contract finds stores that break it: each wrapper breaks one promise of a store that keeps them all.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainstem_log::contract::{self, Subject};
use mainstem_log::{
    Appended, Batch, Completion, Error, Found, LogId, Memory, Options, Sound, Status, Store, Ticket, batches,
};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    CompletesAtOnce,
    CompletesNever,
    CompletesOutOfOrder,
    KeepsBaseOffset,
    SkipsAnOffset,
    TakesMalformed,
    ForgetsWhatIsNotCommitted,
    CutsBatches,
    HeedsMaxBytesAtFirst,
    ReadsBehindTheEnd,
    StartsAtBatches,
    TruncatesInsideBatches,
    FindsBatchesNotRecords,
    ListsOnlyTheFirst,
    TakesAnyName,
    RemovesNothing,
}

use Flaw::*;

const FLAWS: [Flaw; 16] = [
    CompletesAtOnce,
    CompletesNever,
    CompletesOutOfOrder,
    KeepsBaseOffset,
    SkipsAnOffset,
    TakesMalformed,
    ForgetsWhatIsNotCommitted,
    CutsBatches,
    HeedsMaxBytesAtFirst,
    ReadsBehindTheEnd,
    StartsAtBatches,
    TruncatesInsideBatches,
    FindsBatchesNotRecords,
    ListsOnlyTheFirst,
    TakesAnyName,
    RemovesNothing,
];

struct Flawed {
    store: Memory,
    flaw: Flaw,
    early: Vec<Completion>,
}

impl Flawed {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw as u8 == flaw as u8
    }

    fn bounds(&mut self, log: LogId) -> Vec<u64> {
        let status = self.store.status(log);
        let mut bytes = Vec::new();
        self.store.read(log, status.start..status.end, usize::MAX, &mut bytes).unwrap();
        batches(&bytes).map(|batch| batch.header.base_offset).collect()
    }
}

impl Store for Flawed {
    fn names(&self) -> Vec<String> {
        let mut names = self.store.names();
        if self.is(ListsOnlyTheFirst) {
            names.truncate(1);
        }
        names
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let name = if self.is(TakesAnyName) { name.replace(' ', "_") } else { name.to_owned() };
        self.store.open(&name, options)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        if self.is(RemovesNothing) { Ok(()) } else { self.store.remove(log) }
    }

    fn append(&mut self, log: LogId, batch: &[u8]) -> Result<Appended, Error> {
        if self.is(TakesMalformed) && Batch::parse_unchecked(batch).is_ok() && Batch::parse(batch).is_err() {
            return Ok(Appended { base_offset: self.store.status(log).end, ticket: Ticket(1) });
        }
        self.append_sound(log, Sound::parse(batch).map_err(Error::Malformed)?)
    }

    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        let mut appended = self.store.append_sound(log, batch)?;
        if self.is(SkipsAnOffset) && appended.base_offset > 0 {
            appended.base_offset += 1;
        }
        if self.is(CompletesAtOnce) {
            self.early.push(Completion { log, ticket: appended.ticket, outcome: Ok(()) });
        }
        Ok(appended)
    }

    fn sync_next(&mut self, log: LogId) {
        self.store.sync_next(log);
    }

    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let before = into.len();
        into.append(&mut self.early);
        self.store.completions(into);
        match self.flaw {
            CompletesNever => into.truncate(before),
            CompletesOutOfOrder => into[before..].reverse(),
            _ => {}
        }
    }

    fn read(
        &mut self,
        log: LogId,
        mut offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let before = into.len();
        let status = self.store.status(log);
        if self.is(ForgetsWhatIsNotCommitted) {
            offsets.end = offsets.end.min(status.committed);
        }
        if self.is(ReadsBehindTheEnd) {
            offsets.start = offsets.start.min(status.end);
        }
        self.store.read(log, offsets.clone(), max_bytes, into)?;
        let is_too_much = into.len() - before > max_bytes;
        match self.flaw {
            CutsBatches if is_too_much => into.truncate(before + max_bytes),
            HeedsMaxBytesAtFirst if is_too_much => into.truncate(before),
            StartsAtBatches => {
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

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        let found = self.store.find_time(log, timestamp_ms)?;
        let bounds = self.bounds(log);
        let of_batch = |found: Found| {
            let bound = bounds.iter().rev().find(|bound| **bound <= found.offset);
            Found { offset: bound.copied().unwrap_or(found.offset), ..found }
        };
        Ok(if self.is(FindsBatchesNotRecords) { found.map(of_batch) } else { found })
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

    fn tend(&mut self, unix_ms: u64) -> Option<u64> {
        self.store.tend(unix_ms)
    }
}

impl Subject for Flaw {
    fn fresh(&mut self) -> Box<dyn Store> {
        Box::new(Flawed { store: Memory::new(), flaw: *self, early: Vec::new() })
    }

    fn reopen(&mut self, _: Box<dyn Store>) -> Option<Box<dyn Store>> {
        None
    }
}

#[test]
fn every_flaw_is_found() {
    for mut flaw in FLAWS {
        let outcome = catch_unwind(AssertUnwindSafe(|| contract::run(&mut flaw)));
        assert!(outcome.is_err(), "{flaw:?} is not found");
    }
}
