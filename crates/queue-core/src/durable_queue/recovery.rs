//! Reads the state log.
//!
//! An incremental snapshot counts only when its end is in the log. Until the end is found, two states are built: one
//! from the previous snapshot and one from the incomplete one.

use std::collections::BTreeMap;

use mainstem_log::{Error, LogId, Record, Store, batches};

use super::{BEGIN, END, PART, READ_BYTES, RELOCATED, SNAPSHOT, relocate};
use crate::config::Config;
use crate::machine::Queue;
use crate::request::Payload;

pub(super) struct Recovery {
    config: Config,
    state: State,
    /// State from the beginning of an incremental snapshot whose end has not been found yet.
    next: Option<State>,
}

/// The state after some record.
pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) relocated: BTreeMap<u64, Payload>,
    /// Bytes of events since the last snapshot.
    pub(super) bytes: usize,
}

impl State {
    fn new(config: &Config) -> Self {
        Self { queue: Queue::new(config.clone()), relocated: BTreeMap::new(), bytes: 0 }
    }
}

impl Recovery {
    pub(super) fn new(config: Config) -> Self {
        Self { state: State::new(&config), config, next: None }
    }

    pub(super) fn into_state(self) -> State {
        self.state
    }

    /// Replays a batch of events that was read at this offset.
    pub(super) fn replay(&mut self, events: &[u8], offset: u64) -> Result<(), Error> {
        for state in std::iter::once(&mut self.state).chain(&mut self.next) {
            state.bytes += events.len();
            state.queue.replay(events).map_err(|_| Error::Corrupt { offset })?;
        }
        Ok(())
    }

    pub(super) fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let corrupt = Error::Corrupt { offset: record.offset };
        let value = record.value.unwrap_or_default();
        let replay = |state: &mut State| state.queue.replay(value).map_err(|_| corrupt.clone());
        match record.key {
            None | Some(PART) => self.replay(value, record.offset)?,
            Some(SNAPSHOT) => {
                // It replaces everything before it.
                (self.state, self.next) = (State::new(&self.config), None);
                replay(&mut self.state)?;
            }
            Some(BEGIN) => replay(self.next.insert(State::new(&self.config)))?,
            Some(END) => self.state = self.next.take().ok_or(corrupt)?,
            Some(RELOCATED) => {
                let payload = relocate::read(value).ok_or(corrupt)?;
                for state in std::iter::once(&mut self.state).chain(&mut self.next) {
                    state.relocated.insert(payload.record().offset, payload.clone());
                }
            }
            Some(_) => return Err(corrupt),
        }
        Ok(())
    }
}

pub(super) fn read_all(
    store: &mut dyn Store,
    log: LogId,
    mut each: impl FnMut(&Record<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let status = store.status(log);
    let mut next = status.start;
    let mut bytes = Vec::new();
    while next < status.end {
        bytes.clear();
        store.read(log, next..status.end, READ_BYTES, &mut bytes)?;
        let before = next;
        for batch in batches(&bytes) {
            for record in batch.records() {
                each(&record.map_err(Error::Malformed)?)?;
            }
            next = batch.header.end_offset();
        }
        if next == before {
            return Err(Error::Corrupt { offset: next });
        }
    }
    Ok(())
}
