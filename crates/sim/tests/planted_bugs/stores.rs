//! Stores with a bug each.

use std::ops::Range;

use mainstem_log::{
    Appended, BatchBuilder, Completion, Durability, Error, LogAdmin, LogId, LogReader, LogWriter, Maintained,
    Options, Status, Store, Ticket, ValidBatch, batches,
};

/// Forwards `status` and `find_time` to the store that is wrapped.
macro_rules! forward_lookups {
    () => {
        fn status(&self, log: LogId) -> Status {
            self.store.status(log)
        }

        fn find_time(
            &mut self,
            log: LogId,
            at_ms: i64,
        ) -> Result<Option<mainstem_log::TimestampOffset>, Error> {
            self.store.find_time(log, at_ms)
        }
    };
}

/// Forwards `force_sync` to the store that is wrapped.
macro_rules! forward_force_sync {
    () => {
        fn force_sync(&mut self, log: LogId) {
            self.store.force_sync(log);
        }
    };
}

/// Forwards [`LogAdmin`] without `open` to the store that is wrapped.
macro_rules! forward_admin {
    () => {
        fn names(&self) -> Vec<String> {
            self.store.names()
        }

        fn remove(&mut self, log: LogId) -> Result<(), Error> {
            self.store.remove(log)
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
    };
}

/// Reports what is appended as durable one commit too early.
pub(crate) struct EarlyAcks {
    store: Box<dyn Store>,
    appended: Vec<(LogId, Ticket)>,
    completed: Vec<Completion>,
    is_odd: bool,
}

impl EarlyAcks {
    pub(crate) fn new(store: Box<dyn Store>) -> Self {
        Self { store, appended: Vec::new(), completed: Vec::new(), is_odd: false }
    }
}

impl LogReader for EarlyAcks {
    forward_lookups!();

    fn read(&mut self, log: LogId, offsets: Range<u64>, max: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        self.store.read(log, offsets, max, into)
    }
}

impl LogWriter for EarlyAcks {
    forward_force_sync!();

    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_valid(log, batch)?;
        self.appended.push((log, appended.ticket));
        Ok(appended)
    }
}

impl LogAdmin for EarlyAcks {
    forward_admin!();

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.store.open(name, options)
    }
}

impl Store for EarlyAcks {
    fn commit(&mut self) {
        self.is_odd = !self.is_odd;
        if self.is_odd {
            let completed = |(log, ticket)| Completion { log, ticket, outcome: Ok(()) };
            self.completed.extend(self.appended.drain(..).map(completed));
        } else {
            self.store.commit();
        }
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.completed);
        self.store.completions(into);
    }
}

/// Syncs nothing.
pub(crate) struct Lax(pub(crate) Box<dyn Store>);

impl LogReader for Lax {
    fn read(&mut self, log: LogId, offsets: Range<u64>, max: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        self.0.read(log, offsets, max, into)
    }

    fn status(&self, log: LogId) -> Status {
        self.0.status(log)
    }

    fn find_time(&mut self, log: LogId, at_ms: i64) -> Result<Option<mainstem_log::TimestampOffset>, Error> {
        self.0.find_time(log, at_ms)
    }
}

impl LogWriter for Lax {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        self.0.append_valid(log, batch)
    }

    fn force_sync(&mut self, _log: LogId) {}
}

impl LogAdmin for Lax {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.0.open(name, &Options { durability: Durability::Os, ..options.clone() })
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.0.remove(log)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.0.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.0.truncate_suffix(log, offset)
    }

    fn maintain(&mut self, unix_ms: u64) -> Maintained {
        self.0.maintain(unix_ms)
    }
}

impl Store for Lax {
    fn commit(&mut self) {
        self.0.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.0.completions(into);
    }
}

/// Skips a batch in the middle of what a log had when it was opened.
pub(crate) struct LostBatch {
    store: Box<dyn Store>,
    /// Prefix of the names of affected logs.
    prefix: &'static str,
    /// Only logs with this durability.
    durability: Option<Durability>,
    /// The log, and the offset that is lost.
    lost: Option<(LogId, u64)>,
}

impl LostBatch {
    pub(crate) fn new(store: Box<dyn Store>, prefix: &'static str) -> Self {
        Self { store, prefix, durability: None, lost: None }
    }

    pub(crate) fn of(durability: Durability, store: Box<dyn Store>, prefix: &'static str) -> Self {
        Self { durability: Some(durability), ..Self::new(store, prefix) }
    }
}

impl LogReader for LostBatch {
    forward_lookups!();

    fn read(&mut self, log: LogId, offsets: Range<u64>, max: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        let before = into.len();
        self.store.read(log, offsets, max, into)?;
        let Some((lost_log, offset)) = self.lost.filter(|_| max > 0) else { return Ok(()) };
        let bytes = into.split_off(before);
        let mut left = &bytes[..];
        for batch in batches(&bytes) {
            let (one, rest) = left.split_at(batch.header.total_bytes);
            left = rest;
            let is_lost = log == lost_log
                && (batch.header.base_offset..batch.header.end_offset()).contains(&offset)
                && !rest.is_empty();
            if !is_lost {
                into.extend_from_slice(one);
            }
        }
        Ok(())
    }
}

impl LogWriter for LostBatch {
    forward_force_sync!();

    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        self.store.append_valid(log, batch)
    }
}

impl LogAdmin for LostBatch {
    forward_admin!();

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let log = self.store.open(name, options)?;
        let is_such = self.durability.is_none_or(|durability| durability == options.durability);
        if name.starts_with(self.prefix) && is_such && self.lost.is_none() {
            let Status { start, end, .. } = self.store.status(log);
            self.lost = Some((log, start + (end - start) * 2 / 3));
        }
        Ok(log)
    }
}

impl Store for LostBatch {
    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.store.completions(into);
    }
}

/// Changes the key and value of a record of queue state before it is appended.
pub(crate) type Change = fn(&[u8], &mut Vec<u8>, &mut Option<&'static [u8]>);

/// Changes the state of queues, or removes more of their messages than it should.
pub(crate) struct Changed {
    store: Box<dyn Store>,
    change: Option<Change>,
    /// Logs of messages, and of queue state.
    messages: Vec<LogId>,
    states: Vec<LogId>,
}

impl Changed {
    pub(crate) fn new(store: Box<dyn Store>, change: Option<Change>) -> Self {
        Self { store, change, messages: Vec::new(), states: Vec::new() }
    }
}

impl LogReader for Changed {
    fn read(&mut self, log: LogId, offsets: Range<u64>, max: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        self.store.read(log, offsets, max, into)
    }

    fn status(&self, log: LogId) -> Status {
        self.store.status(log)
    }

    fn find_time(&mut self, log: LogId, at_ms: i64) -> Result<Option<mainstem_log::TimestampOffset>, Error> {
        self.store.find_time(log, at_ms)
    }
}

impl LogWriter for Changed {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let Some(change) = self.change.filter(|_| self.states.contains(&log)) else {
            return self.store.append_valid(log, batch);
        };
        let mut builder = BatchBuilder::default();
        for record in batches(batch.bytes()).flat_map(|batch| batch.records().flatten().collect::<Vec<_>>()) {
            let (mut key, mut value) = (None, record.value.unwrap_or_default().to_vec());
            if let Some(own) = record.key {
                let keys = [b"snapshot".as_slice(), b"begin", b"part", b"end", b"aside"];
                key = keys.into_iter().find(|known| *known == own);
                change(own, &mut value, &mut key);
            }
            builder.push(record.timestamp_ms, key, Some(&value));
        }
        self.store.append(log, builder.finish())
    }

    fn force_sync(&mut self, log: LogId) {
        self.store.force_sync(log);
    }
}

impl LogAdmin for Changed {
    fn names(&self) -> Vec<String> {
        self.store.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let log = self.store.open(name, options)?;
        if name.starts_with("q-") {
            self.states.push(log);
        } else if name.starts_with("p-") {
            self.messages.push(log);
        }
        Ok(log)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.store.remove(log)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        let is_early = self.change.is_none() && self.messages.contains(&log);
        let offset = if is_early { self.store.status(log).committed } else { offset };
        self.store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.store.truncate_suffix(log, offset)
    }

    fn maintain(&mut self, unix_ms: u64) -> Maintained {
        self.store.maintain(unix_ms)
    }
}

impl Store for Changed {
    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.store.completions(into);
    }
}
