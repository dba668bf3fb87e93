//! A store whose commits take time.
//!
//! A commit is synced when [`Gate::sync`] is called, and its completion is reported after [`Gate::report`]. The
//! simulation decides when, so that crashes, messages of other shards and more turns come in between, as they do
//! when a thread syncs a real disk.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstem_log::{
    Appended, Completion, Error, LogAdmin, LogId, LogReader, LogWriter, Maintained, Options, Status, Store,
    Ticket, TimestampOffset, ValidBatch,
};

struct Gated {
    store: Box<dyn Store>,
    /// Commits wait for [`Gate::sync`].
    is_slow: bool,
    /// Something committed is not synced.
    is_due: bool,
    /// Completions that wait for [`Gate::report`].
    held: Vec<Completion>,
    ready: Vec<Completion>,
    /// Tickets under way. The wrapped store has one ticket for several commits that are synced together.
    issued: Vec<Issued>,
    last: u64,
    /// Commits so far.
    turn: u64,
}

#[derive(Clone, Copy)]
struct Issued {
    log: LogId,
    /// The ticket of the wrapped store.
    inner: Ticket,
    /// The ticket that the broker has.
    outer: Ticket,
    turn: u64,
}

impl Gated {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_valid(log, batch)?;
        let (inner, turn) = (appended.ticket, self.turn);
        let is_known = |issued: &&Issued| issued.log == log && issued.inner == inner && issued.turn == turn;
        let known = self.issued.iter().rev().find(is_known).map(|issued| issued.outer);
        let ticket = known.unwrap_or_else(|| {
            self.last += 1;
            Ticket(self.last)
        });
        if known.is_none() {
            self.issued.push(Issued { log, inner, outer: ticket, turn });
        }
        Ok(Appended { ticket, ..appended })
    }

    fn sync(&mut self) {
        if std::mem::take(&mut self.is_due) {
            self.store.commit();
        }
        let mut completed = Vec::new();
        self.store.completions(&mut completed);
        for mut completion in completed {
            let Completion { log, ticket, .. } = completion;
            let is_over = |issued: &mut Issued| issued.log == log && issued.inner <= ticket;
            if let Some(last) = self.issued.extract_if(.., is_over).last() {
                completion.ticket = last.outer;
                self.held.push(completion);
            }
        }
        if self.held.iter().any(|completion| completion.outcome.is_err()) {
            // Only syncs take time: a failed write is reported at once.
            self.ready.append(&mut self.held);
        }
    }
}

/// Control over a [`SlowStore`].
#[derive(Clone)]
pub(super) struct Gate(Arc<Mutex<Gated>>);

/// The store that a broker has.
pub(super) struct SlowStore(Gate);

impl SlowStore {
    pub(super) fn new(store: Box<dyn Store>, is_slow: bool) -> (Self, Gate) {
        let gated = Gated {
            store,
            is_slow,
            is_due: false,
            held: Vec::new(),
            ready: Vec::new(),
            issued: Vec::new(),
            last: 0,
            turn: 0,
        };
        let gate = Gate(Arc::new(Mutex::new(gated)));
        (Self(gate.clone()), gate)
    }
}

impl Gate {
    fn open(&self) -> MutexGuard<'_, Gated> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs everything committed. Called between turns: what a turn appends is committed at its end.
    pub(super) fn sync(&self) {
        self.open().sync();
    }

    /// Lets the broker take the completions of everything synced.
    pub(super) fn report(&self) {
        let mut gated = self.open();
        let Gated { held, ready, .. } = &mut *gated;
        ready.append(held);
    }

    /// Whether commits or completions are pending.
    pub(super) fn has_work(&self) -> bool {
        let gated = self.open();
        gated.is_due || !gated.held.is_empty() || !gated.ready.is_empty()
    }
}

impl LogReader for SlowStore {
    fn read(&mut self, log: LogId, offsets: Range<u64>, max: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        self.0.open().store.read(log, offsets, max, into)
    }

    fn status(&self, log: LogId) -> Status {
        self.0.open().store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        self.0.open().store.find_time(log, timestamp_ms)
    }
}

impl LogWriter for SlowStore {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        self.0.open().append_valid(log, batch)
    }

    fn force_sync(&mut self, log: LogId) {
        self.0.open().store.force_sync(log);
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        self.0.open().store.note(log, note)
    }
}

impl LogAdmin for SlowStore {
    fn names(&self) -> Vec<String> {
        self.0.open().store.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.0.open().store.open(name, options)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.0.open().store.remove(log)
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        self.0.open().store.notes(log)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.0.open().store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.0.open().store.truncate_suffix(log, offset)
    }

    fn maintain(&mut self, unix_ms: u64) -> Maintained {
        self.0.open().store.maintain(unix_ms)
    }
}

impl Store for SlowStore {
    fn commit(&mut self) {
        let mut gated = self.0.open();
        gated.is_due = true;
        gated.turn += 1;
        if !gated.is_slow {
            gated.sync();
        }
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.0.open().ready);
    }
}
