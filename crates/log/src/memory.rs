//! A store in memory: for tests, and for brokers that run without persistence.
//!
//! It is deliberately simple, one ordered map of batches per log, and passes the same contract suite as the disk
//! store. Nothing survives a restart.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{Batch, BatchHeader, ValidBatch};
use crate::store::{
    Appended, Completion, Error, LogAdmin, LogId, LogReader, LogWriter, Maintained, Options, State, Status,
    Store, Ticket, TimestampOffset,
};

/// A store in memory. Every commit completes immediately. It implements neither retention nor compaction.
#[derive(Debug, Default)]
pub struct MemoryStore {
    logs: Vec<Log>,
    by_name: BTreeMap<String, LogId>,
    tickets: u64,
    /// Logs appended to since the last commit.
    dirty: Vec<LogId>,
    completed: Vec<Completion>,
    /// Number of appends to reject before the next one is accepted.
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
    /// Ticket of the uncommitted appends.
    ticket: Option<Ticket>,
    notes: Vec<u8>,
}

impl Log {
    /// The batch that contains `offset` and all later ones.
    fn from(&self, offset: u64) -> impl Iterator<Item = (&u64, &Vec<u8>)> {
        let contains = |(base, bytes): (&u64, &Vec<u8>)| (end_of(bytes) > offset).then_some(*base);
        let first = self.batches.range(..=offset).next_back().and_then(contains);
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

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rejects the next `count` appends with [`Error::Full`].
    pub fn refuse_appends(&mut self, count: u32) {
        self.refusals = count;
    }

    fn log(&self, log: LogId) -> &Log {
        &self.logs[log.0 as usize]
    }
}

impl LogReader for MemoryStore {
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

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        let log = self.log(log);
        for (_, bytes) in log.from(log.start) {
            let batch = Batch::parse_unchecked(bytes).map_err(Error::Malformed)?;
            if batch.header.max_timestamp_ms < timestamp_ms {
                continue;
            }
            for record in batch.records() {
                let record = record.map_err(Error::Malformed)?;
                if record.offset >= log.start && record.timestamp_ms >= timestamp_ms {
                    return Ok(Some(TimestampOffset {
                        offset: record.offset,
                        timestamp_ms: record.timestamp_ms,
                    }));
                }
            }
        }
        Ok(None)
    }
}

impl LogWriter for MemoryStore {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(Error::Full);
        }
        let (header, mut bytes) = (batch.header(), batch.bytes().to_vec());
        let entry = &mut self.logs[log.0 as usize];
        let base_offset = entry.end;
        Batch::place(&mut bytes, base_offset, 0);
        entry.end = base_offset + u64::from(header.last_offset_delta) + 1;
        entry.bytes += bytes.len() as u64;
        entry.batches.insert(base_offset, bytes);
        entry.notes.clear();
        let ticket = *entry.ticket.get_or_insert_with(|| {
            self.tickets += 1;
            self.dirty.push(log);
            Ticket(self.tickets)
        });
        Ok(Appended { base_offset, ticket })
    }

    /// No effect: nothing in memory survives a power failure.
    fn force_sync(&mut self, _log: LogId) {}

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        let entry = &mut self.logs[log.0 as usize];
        let is_committed = entry.ticket.is_none();
        if is_committed {
            entry.notes.extend_from_slice(note);
        }
        is_committed
    }
}

impl LogAdmin for MemoryStore {
    fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    fn open(&mut self, name: &str, _options: &Options) -> Result<LogId, Error> {
        if let Some(entry) = self.by_name.get(name) {
            return Ok(*entry);
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
        self.by_name.retain(|_, entry| *entry != log);
        self.logs[log.0 as usize] = Log::default();
        Ok(())
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        Ok(self.log(log).notes.clone())
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

    fn maintain(&mut self, _unix_ms: u64) -> Maintained {
        Maintained::default()
    }
}

impl Store for MemoryStore {
    fn commit(&mut self) {
        for log in self.dirty.drain(..) {
            let entry = &mut self.logs[log.0 as usize];
            entry.committed = entry.end;
            if let Some(ticket) = entry.ticket.take() {
                self.completed.push(Completion { log, ticket, outcome: Ok(()) });
            }
        }
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.completed);
    }
}
