//! A store that keeps everything in memory and nothing beyond: for tests, and for brokers that need no disk.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{Batch, BatchHeader, Sound};
use crate::store::{Appended, Completion, Error, Found, LogId, Options, State, Status, Store, Ticket};

/// A store without disk. Every commit completes at once. Retention and compaction are left to stores that
/// last.
#[derive(Debug, Default)]
pub struct Memory {
    logs: Vec<Log>,
    by_name: BTreeMap<String, LogId>,
    tickets: u64,
    /// Logs appended to since the last commit.
    dirty: Vec<LogId>,
    completed: Vec<Completion>,
    /// Appends that are refused before the next is taken.
    refusals: u32,
}

#[derive(Debug, Default)]
struct Log {
    /// Batches by their base offset.
    batches: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
    start: u64,
    committed: u64,
    end: u64,
    /// Of appends that are not committed.
    ticket: Option<Ticket>,
    notes: Vec<u8>,
}

impl Log {
    /// The batches that hold `offset` or follow it.
    fn from(&self, offset: u64) -> impl Iterator<Item = (&u64, &Vec<u8>)> {
        let holds = |(base, bytes): (&u64, &Vec<u8>)| (end_of(bytes) > offset).then_some(*base);
        let first = self.batches.range(..=offset).next_back().and_then(holds);
        self.batches.range(first.unwrap_or(offset)..)
    }

    fn forget(&mut self, base: u64) {
        if let Some(gone) = self.batches.remove(&base) {
            self.bytes -= gone.len() as u64;
        }
    }
}

fn end_of(batch: &[u8]) -> u64 {
    BatchHeader::parse(batch).map_or(0, |header| header.end_offset())
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses the next `count` appends with [`Error::Full`].
    pub fn refuse_appends(&mut self, count: u32) {
        self.refusals = count;
    }

    fn log(&self, log: LogId) -> &Log {
        &self.logs[log.0 as usize]
    }
}

impl Store for Memory {
    fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    fn open(&mut self, name: &str, _options: &Options) -> Result<LogId, Error> {
        if let Some(known) = self.by_name.get(name) {
            return Ok(*known);
        }
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_name = (1..=249).contains(&name.len()) && !matches!(name, "." | "..");
        if !is_name || !name.bytes().all(is_safe) {
            return Err(Error::System(format!("{name:?} cannot name a log")));
        }
        let log = LogId(self.logs.len() as u32);
        self.logs.push(Log::default());
        self.by_name.insert(name.to_owned(), log);
        Ok(log)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.by_name.retain(|_, known| *known != log);
        self.logs[log.0 as usize] = Log::default();
        Ok(())
    }

    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(Error::Full);
        }
        let (header, mut bytes) = (batch.header(), batch.bytes().to_vec());
        let known = &mut self.logs[log.0 as usize];
        let base_offset = known.end;
        Batch::place(&mut bytes, base_offset, 0);
        known.end = base_offset + u64::from(header.last_offset_delta) + 1;
        known.bytes += bytes.len() as u64;
        known.batches.insert(base_offset, bytes);
        known.notes.clear();
        let ticket = *known.ticket.get_or_insert_with(|| {
            self.tickets += 1;
            self.dirty.push(log);
            Ticket(self.tickets)
        });
        Ok(Appended { base_offset, ticket })
    }

    /// Nothing here survives loss of power.
    fn sync_next(&mut self, _log: LogId) {}

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        let known = &mut self.logs[log.0 as usize];
        let is_sure = known.ticket.is_none();
        if is_sure {
            known.notes.extend_from_slice(note);
        }
        is_sure
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        Ok(self.log(log).notes.clone())
    }

    fn commit(&mut self) {
        for log in self.dirty.drain(..) {
            let known = &mut self.logs[log.0 as usize];
            known.committed = known.end;
            if let Some(ticket) = known.ticket.take() {
                self.completed.push(Completion { log, ticket, outcome: Ok(()) });
            }
        }
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.completed);
    }

    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let log = self.log(log);
        if !(log.start..=log.end).contains(&offsets.start) {
            return Err(Error::OutOfRange);
        }
        let before = into.len();
        for (base, batch) in log.from(offsets.start) {
            let is_first = into.len() == before;
            if *base >= offsets.end || (!is_first && into.len() - before + batch.len() > max_bytes) {
                break;
            }
            into.extend_from_slice(batch);
        }
        Ok(())
    }

    fn status(&self, log: LogId) -> Status {
        let Log { bytes, start, committed, end, .. } = *self.log(log);
        Status { start, start_after_crash: start, committed, end, bytes, state: State::Ready }
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        let log = self.log(log);
        for (_, bytes) in log.from(log.start) {
            let batch = Batch::parse_unchecked(bytes).map_err(Error::Malformed)?;
            if batch.header.max_timestamp_ms < timestamp_ms {
                continue;
            }
            for record in batch.records() {
                let record = record.map_err(Error::Malformed)?;
                if record.offset >= log.start && record.timestamp_ms >= timestamp_ms {
                    return Ok(Some(Found { offset: record.offset, timestamp_ms: record.timestamp_ms }));
                }
            }
        }
        Ok(None)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        let log = &mut self.logs[log.0 as usize];
        log.start = log.start.max(offset.min(log.end));
        log.committed = log.committed.max(log.start);
        while let Some((base, batch)) = log.batches.first_key_value()
            && end_of(batch) <= log.start
        {
            let base = *base;
            log.forget(base);
        }
        Ok(())
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        let log = &mut self.logs[log.0 as usize];
        if offset < log.start || offset > log.end {
            return Err(Error::OutOfRange);
        }
        if offset < log.end && !log.batches.contains_key(&offset) {
            return Err(Error::OutOfRange);
        }
        let gone: Vec<u64> = log.batches.range(offset..).map(|(base, _)| *base).collect();
        for base in gone {
            log.forget(base);
        }
        log.end = offset;
        log.committed = log.committed.min(offset);
        log.notes.clear();
        Ok(())
    }

    fn tend(&mut self, _unix_ms: u64) -> Option<u64> {
        None
    }
}
