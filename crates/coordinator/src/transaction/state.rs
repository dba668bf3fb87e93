//! What is known of one transactional identifier, and what a request makes of it: a table of decisions.
//!
//! ```text
//!             Add                End, fence              all markers written
//!   Empty ─────────► Ongoing ───────────────► PrepareCommit ──────────────► CompleteCommit
//!     ▲                 ▲ │ └───────────────► PrepareAbort ───────────────► CompleteAbort
//!     │ InitProducerId  │ └─ Add                                                 │
//!     └─────────────────┴────────────── Add, InitProducerId ─────────────────────┘
//! ```
//! A client of transaction version 2 (KIP-890) may abort what it has not begun, so that `End` also leads from
//! Empty and the complete states to `PrepareAbort`. `InitProducerId` during `Ongoing` fences: the transaction is
//! aborted first.

use std::collections::BTreeSet;

use super::{Participant, Producer, Request, Speaks};
use crate::Error;
use crate::producer::Outcome;

/// Stands for no epoch.
pub(super) const NO_EPOCH: i16 = -1;
/// Stands for no producer.
pub(super) const NO_ID: i64 = -1;

/// How far a transaction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// There has been none since the producer was initialized.
    Empty,
    /// Partitions and groups are in it.
    Ongoing,
    /// It ends: markers are being written.
    Prepare(Outcome),
    /// It is over.
    Complete(Outcome),
}

impl State {
    /// Kafka's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::Prepare(Outcome::Commit) => "PrepareCommit",
            Self::Prepare(Outcome::Abort) => "PrepareAbort",
            Self::Complete(Outcome::Commit) => "CompleteCommit",
            Self::Complete(Outcome::Abort) => "CompleteAbort",
        }
    }

    /// Whether Kafka has a state of this name, be it one that is never seen here.
    pub fn is_name(name: &str) -> bool {
        const ALL: [State; 6] = [
            State::Empty,
            State::Ongoing,
            State::Prepare(Outcome::Commit),
            State::Prepare(Outcome::Abort),
            State::Complete(Outcome::Commit),
            State::Complete(Outcome::Abort),
        ];
        ALL.iter().any(|state| state.name() == name) || matches!(name, "Dead" | "PrepareEpochFence")
    }
}

/// What is known, and kept, of one transactional identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transaction {
    /// Epoch -1 until the first `InitProducerId` is through.
    pub(super) producer: Producer,
    /// Epoch before the last bump that the producer itself has asked for: a request with it is a repetition.
    pub(super) last_epoch: i16,
    /// Producer id before the last rotation.
    pub(super) previous_id: i64,
    /// Producer id that takes over when the transaction is complete, since epochs are used up.
    pub(super) next_id: i64,
    pub(super) timeout_ms: i32,
    pub(super) state: State,
    pub(super) participants: BTreeSet<Participant>,
    /// When the last transaction began, ms since 1970; 0 if there was none.
    pub(super) started_ms: u64,
    pub(super) updated_ms: u64,
}

/// What a request leads to.
#[derive(Debug)]
pub(super) enum Decision {
    /// It is so already.
    Answer(Producer),
    /// This must be kept first; then the answer is `reply`.
    Become { next: Box<Transaction>, reply: Producer },
    /// The open transaction must be aborted first, at this state; then the request is to be decided again.
    Fence(Box<Transaction>),
    /// A new producer id is needed.
    NeedsId,
}

impl Transaction {
    /// A transactional identifier of which nothing was known.
    pub(super) fn new(producer_id: i64) -> Self {
        Self {
            producer: Producer { id: producer_id, epoch: NO_EPOCH },
            last_epoch: NO_EPOCH,
            previous_id: NO_ID,
            next_id: NO_ID,
            timeout_ms: 0,
            state: State::Empty,
            participants: BTreeSet::new(),
            started_ms: 0,
            updated_ms: 0,
        }
    }

    /// What `request` leads to, with `spare` as a new producer id.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) fn decide(
        &self,
        request: &Request,
        spare: Option<i64>,
        now_ms: u64,
    ) -> Result<Decision, Error> {
        match request {
            Request::InitProducerId { timeout_ms, expected } => {
                self.init(*timeout_ms, *expected, spare, now_ms)
            }
            Request::Add { producer, participants } => self.add(*producer, participants, now_ms),
            Request::End { producer, outcome, speaks: Speaks::OneEpoch } => {
                self.end(*producer, *outcome, now_ms)
            }
            Request::End { producer, outcome, speaks: Speaks::OwnEpochs } => {
                self.end_and_bump(*producer, *outcome, spare, now_ms)
            }
        }
    }

    /// Epochs are used up: one more is needed to fence.
    pub(super) fn is_exhausted(epoch: i16) -> bool {
        epoch >= i16::MAX - 1
    }

    fn init(
        &self,
        timeout_ms: i32,
        expected: Option<Producer>,
        spare: Option<i64>,
        now_ms: u64,
    ) -> Result<Decision, Error> {
        if !expected.is_none_or(|expected| self.may_continue(expected)) {
            return Err(Error::ProducerFenced);
        }
        match self.state {
            State::Prepare(_) => return Err(Error::ConcurrentTransactions),
            // An epoch of the past fences nobody.
            State::Ongoing if expected.is_some_and(|expected| expected != self.producer) => {
                return Err(Error::ProducerFenced);
            }
            State::Ongoing => return Ok(Decision::Fence(Box::new(self.fenced(now_ms)))),
            State::Empty | State::Complete(_) => {}
        }
        let last_epoch = if expected.is_some() { self.producer.epoch } else { NO_EPOCH };
        let bumped = Producer { epoch: self.producer.epoch.saturating_add(1), ..self.producer };
        let is_current =
            |expected: Producer| self.producer.epoch == NO_EPOCH || expected.epoch == self.producer.epoch;
        let (producer, last_epoch) = match expected {
            Some(expected) if !is_current(expected) && expected.epoch == self.last_epoch => {
                (self.producer, self.last_epoch)
            }
            Some(expected) if !is_current(expected) => return Err(Error::ProducerFenced),
            _ if Self::is_exhausted(self.producer.epoch) => match spare {
                Some(id) => (Producer { id, epoch: 0 }, last_epoch),
                None => return Ok(Decision::NeedsId),
            },
            _ => (bumped, last_epoch),
        };
        let is_rotated = producer.id != self.producer.id;
        let next = Self {
            producer,
            last_epoch,
            previous_id: if is_rotated { self.producer.id } else { self.previous_id },
            next_id: NO_ID,
            timeout_ms,
            state: State::Empty,
            participants: BTreeSet::new(),
            started_ms: 0,
            updated_ms: now_ms,
        };
        Ok(Decision::Become { next: Box::new(next), reply: producer })
    }

    /// Whether a producer may ask for its next epoch (KIP-360): it is the current one, or it was when epochs were
    /// used up and has not heard of the new id. Which epoch it has is looked at later.
    fn may_continue(&self, expected: Producer) -> bool {
        self.producer.epoch == NO_EPOCH
            || expected.id == self.producer.id
            || (expected.id == self.previous_id && Self::is_exhausted(expected.epoch))
    }

    /// The open transaction aborted by the coordinator: its producer's epoch is passed over, and never given out.
    pub(super) fn fenced(&self, now_ms: u64) -> Self {
        Self {
            producer: Producer { epoch: self.producer.epoch.saturating_add(1), ..self.producer },
            last_epoch: NO_EPOCH,
            state: State::Prepare(Outcome::Abort),
            updated_ms: now_ms,
            ..self.clone()
        }
    }

    /// # Errors
    /// If `producer` is not the one that may write now.
    pub(super) fn expect(&self, producer: Producer) -> Result<(), Error> {
        if producer.id != self.producer.id {
            Err(Error::InvalidProducerIdMapping)
        } else if producer.epoch != self.producer.epoch {
            Err(Error::ProducerFenced)
        } else {
            Ok(())
        }
    }

    /// Whether `producer` is the one that the next transaction is for, while the last one still ends: clients hear of
    /// the end before the markers are written, and begin anew at once.
    fn is_early(&self, producer: Producer) -> bool {
        let given = match self.next_id {
            NO_ID => self.producer,
            id => Producer { id, epoch: 0 },
        };
        matches!(self.state, State::Prepare(_)) && producer == given
    }

    fn add(&self, producer: Producer, participants: &[Participant], now_ms: u64) -> Result<Decision, Error> {
        if self.is_early(producer) {
            return Err(Error::ConcurrentTransactions);
        }
        self.expect(producer)?;
        let mut next = Self { state: State::Ongoing, updated_ms: now_ms, ..self.clone() };
        match self.state {
            State::Prepare(_) => return Err(Error::ConcurrentTransactions),
            State::Ongoing if participants.iter().all(|one| self.participants.contains(one)) => {
                return Ok(Decision::Answer(producer));
            }
            State::Ongoing => {}
            State::Empty | State::Complete(_) => next.started_ms = now_ms,
        }
        next.participants.extend(participants.iter().cloned());
        Ok(Decision::Become { next: Box::new(next), reply: producer })
    }

    /// The end as clients of transaction versions 0 and 1 ask for it: the epoch stays.
    fn end(&self, producer: Producer, outcome: Outcome, now_ms: u64) -> Result<Decision, Error> {
        self.expect(producer)?;
        match self.state {
            State::Ongoing => {
                let state = State::Prepare(outcome);
                let next = Self { state, updated_ms: now_ms, ..self.clone() };
                Ok(Decision::Become { next: Box::new(next), reply: producer })
            }
            State::Complete(ended) if ended == outcome => Ok(Decision::Answer(producer)),
            State::Prepare(ended) if ended == outcome => Err(Error::ConcurrentTransactions),
            _ => Err(Error::InvalidTxnState),
        }
    }

    /// The end as clients of transaction version 2 ask for it: the next transaction has the next epoch. So the
    /// epoch tells a repetition from the end of another transaction.
    fn end_and_bump(
        &self,
        producer: Producer,
        outcome: Outcome,
        spare: Option<i64>,
        now_ms: u64,
    ) -> Result<Decision, Error> {
        if self.is_early(producer) {
            return Err(Error::ConcurrentTransactions);
        }
        let is_bumped = self.last_epoch == producer.epoch
            && producer.epoch.checked_add(1) == Some(self.producer.epoch)
            && producer.id == self.producer.id;
        let is_rotated = self.last_epoch == producer.epoch
            && Self::is_exhausted(producer.epoch)
            && self.producer.epoch == 0
            && producer.id == self.previous_id;
        if producer.id != self.producer.id && !is_rotated {
            return Err(Error::InvalidProducerIdMapping);
        }
        let is_current = producer == self.producer;
        let is_valid = match self.state {
            State::Empty | State::Ongoing => is_current,
            State::Prepare(_) => is_bumped,
            State::Complete(_) => is_bumped || is_rotated || is_current,
        };
        if !is_valid {
            return Err(Error::ProducerFenced);
        }
        match (self.state, outcome) {
            (State::Ongoing, _) => self.prepared_and_bumped(outcome, spare, now_ms),
            (State::Prepare(ended), _) if ended == outcome => Err(Error::ConcurrentTransactions),
            (State::Complete(ended), _) if !is_current && ended == outcome => {
                Ok(Decision::Answer(self.producer))
            }
            (State::Empty | State::Complete(_), Outcome::Abort) if is_current => {
                let nothing = Self { started_ms: now_ms, participants: BTreeSet::new(), ..self.clone() };
                nothing.prepared_and_bumped(outcome, spare, now_ms)
            }
            _ => Err(Error::InvalidTxnState),
        }
    }

    fn prepared_and_bumped(
        &self,
        outcome: Outcome,
        spare: Option<i64>,
        now_ms: u64,
    ) -> Result<Decision, Error> {
        let epoch = self.producer.epoch.checked_add(1).ok_or(Error::ProducerFenced)?;
        let next_id = match spare {
            _ if !Self::is_exhausted(self.producer.epoch) => NO_ID,
            Some(id) => id,
            None => return Ok(Decision::NeedsId),
        };
        let next = Self {
            producer: Producer { epoch, ..self.producer },
            last_epoch: self.producer.epoch,
            next_id,
            state: State::Prepare(outcome),
            updated_ms: now_ms,
            ..self.clone()
        };
        let reply = next.completed(outcome, now_ms).producer;
        Ok(Decision::Become { next: Box::new(next), reply })
    }

    /// What becomes of it once all markers are written.
    pub(super) fn completed(&self, outcome: Outcome, now_ms: u64) -> Self {
        let is_rotated = self.next_id != NO_ID;
        Self {
            producer: if is_rotated { Producer { id: self.next_id, epoch: 0 } } else { self.producer },
            previous_id: if is_rotated { self.producer.id } else { self.previous_id },
            next_id: NO_ID,
            state: State::Complete(outcome),
            participants: BTreeSet::new(),
            updated_ms: now_ms,
            ..self.clone()
        }
    }
}
