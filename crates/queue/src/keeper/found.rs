//! A queue's state as it is found in its log.

use std::collections::BTreeMap;

use mainstem_log::{Error, LogId, Record, Store, batches};

use super::{ASIDE, BEGIN, END, PART, READ_BYTES, SNAPSHOT, aside};
use crate::ask::Payload;
use crate::config::Config;
use crate::machine::Queue;

/// What is found in the state's log.
pub(super) struct Found {
    config: Config,
    state: State,
    /// The same from where a snapshot begins of which not all parts have been found yet.
    next: Option<State>,
}

/// What is known up to some record.
pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) asides: BTreeMap<u64, Payload>,
    /// Bytes of events behind the last snapshot.
    pub(super) bytes: usize,
}

impl State {
    fn new(config: &Config) -> Self {
        Self { queue: Queue::new(config.clone()), asides: BTreeMap::new(), bytes: 0 }
    }
}

impl Found {
    pub(super) fn new(config: Config) -> Self {
        Self { state: State::new(&config), config, next: None }
    }

    pub(super) fn into_state(self) -> State {
        self.state
    }

    /// Takes in a batch of events, which stands at this offset.
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
                // All that came before it is in it.
                (self.state, self.next) = (State::new(&self.config), None);
                replay(&mut self.state)?;
            }
            Some(BEGIN) => replay(self.next.insert(State::new(&self.config)))?,
            Some(END) => self.state = self.next.take().ok_or(corrupt)?,
            Some(ASIDE) => {
                let payload = aside::read(value).ok_or(corrupt)?;
                for state in std::iter::once(&mut self.state).chain(&mut self.next) {
                    state.asides.insert(payload.record().offset, payload.clone());
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
