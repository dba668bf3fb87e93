//! A store whose commits take time: between what a turn entered and its being on disk, and between that and the
//! broker's hearing of it, the simulator lets happen what it likes.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstem_log::{Appended, Completion, Error, Found, LogId, Options, Sound, Status, Store, Ticket};

struct Gated {
    store: Box<dyn Store>,
    /// Commits wait for [`Gate::sync`].
    is_slow: bool,
    /// Something was committed that has not been synced.
    is_due: bool,
    /// What [`Gate::report`] will let the broker hear.
    held: Vec<Completion>,
    ready: Vec<Completion>,
    /// Tickets that were given out: of one commit that waits and the next, the store knows only one.
    issued: Vec<Issued>,
    last: u64,
    /// Commits so far.
    turn: u64,
}

#[derive(Clone, Copy)]
struct Issued {
    log: LogId,
    /// The store's.
    inner: Ticket,
    /// The broker's.
    outer: Ticket,
    turn: u64,
}

impl Gated {
    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_sound(log, batch)?;
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
            // What cannot be written is heard of at once: only syncs take time.
            self.ready.append(&mut self.held);
        }
    }
}

/// What decides when a [`SlowStore`] goes on.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Mutex<Gated>>);

/// The store that a broker is given.
pub(crate) struct SlowStore(Gate);

impl SlowStore {
    pub(crate) fn new(store: Box<dyn Store>, is_slow: bool) -> (Self, Gate) {
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

    /// Lets everything committed reach the disk. To be called between turns: what is appended in a turn is not
    /// committed before it has ended.
    pub(crate) fn sync(&self) {
        self.open().sync();
    }

    /// Lets the broker hear in its next turn of what has reached the disk.
    pub(crate) fn report(&self) {
        let mut gated = self.open();
        let Gated { held, ready, .. } = &mut *gated;
        ready.append(held);
    }

    /// Whether commits wait, or news of them.
    pub(crate) fn has_work(&self) -> bool {
        let gated = self.open();
        gated.is_due || !gated.held.is_empty() || !gated.ready.is_empty()
    }
}

impl Store for SlowStore {
    fn names(&self) -> Vec<String> {
        self.0.open().store.names()
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.0.open().store.open(name, options)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.0.open().store.remove(log)
    }

    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        self.0.open().append_sound(log, batch)
    }

    fn sync_next(&mut self, log: LogId) {
        self.0.open().store.sync_next(log);
    }

    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        self.0.open().store.note(log, note)
    }

    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        self.0.open().store.notes(log)
    }

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

    fn read(&mut self, log: LogId, offsets: Range<u64>, max: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        self.0.open().store.read(log, offsets, max, into)
    }

    fn status(&self, log: LogId) -> Status {
        self.0.open().store.status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        self.0.open().store.find_time(log, timestamp_ms)
    }

    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.0.open().store.truncate_prefix(log, offset)
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.0.open().store.truncate_suffix(log, offset)
    }

    fn tend(&mut self, unix_ms: u64) -> Option<u64> {
        self.0.open().store.tend(unix_ms)
    }
}
