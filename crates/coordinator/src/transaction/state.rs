//! State of one transactional id, and the decision table for requests.
//!
//! ```text
//!              Add                End, fence              all markers written
//!   Empty ─────────► Ongoing ───────────────► PrepareCommit ──────────────► CompleteCommit
//!     ▲                 ▲ │ └───────────────► PrepareAbort ───────────────► CompleteAbort
//!     │ InitProducerId  │ └─ Add                                                 │
//!     └─────────────────┴────────────── Add, InitProducerId ─────────────────────┘
//! ```
//! A client of transaction version 2 (KIP-890) may abort a transaction that it has not begun, so `End` also leads from
//! Empty and the complete states to `PrepareAbort`. `InitProducerId` during `Ongoing` fences: the open transaction is
//! aborted first.

use std::collections::BTreeSet;

use super::{Participant, Producer, Request, TransactionVersion};
use crate::Error;
use crate::producer::Outcome;

/// No epoch.
pub(super) const NO_EPOCH: i16 = -1;
/// No producer id.
pub(super) const NO_ID: i64 = -1;

/// State of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// No transaction since the producer was initialized.
    Empty,
    /// Open, with at least one participant.
    Ongoing,
    /// The outcome is decided; markers are being written.
    Prepare(Outcome),
    /// All markers are written.
    Complete(Outcome),
}

impl State {
    /// Kafka's name.
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

    /// Whether Kafka has a state of this name, even if this broker never uses it.
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

/// The persisted state of one transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transaction {
    /// The epoch is -1 until the first `InitProducerId` is durable.
    pub(super) producer: Producer,
    /// Epoch before the last bump that the producer itself requested: a request with it is a retry.
    pub(super) last_epoch: i16,
    /// Producer id before the last rotation.
    pub(super) previous_id: i64,
    /// Producer id that takes over when the transaction completes, because epochs are exhausted.
    pub(super) next_id: i64,
    pub(super) timeout_ms: i32,
    pub(super) state: State,
    pub(super) participants: BTreeSet<Participant>,
    /// When the last transaction began, ms since 1970; 0 for never.
    pub(super) started_ms: u64,
    pub(super) updated_ms: u64,
}

/// Outcome of a request.
#[derive(Debug)]
pub(super) enum Decision {
    /// Reply; nothing changes.
    Answer(Producer),
    /// Persist `next` first, then reply with `reply`.
    Transition { next: Box<Transaction>, reply: Producer },
    /// Persist this state first, which aborts the open transaction; then decide the request again.
    Fence(Box<Transaction>),
    /// A new producer id is needed.
    NeedsId,
}

impl Transaction {
    /// A new transactional id.
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

    /// Decides a request. `spare` is an unused producer id, if there is one.
    ///
    /// # Errors
    /// The error to reply with.
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
            Request::End { producer, outcome, speaks: TransactionVersion::V1 } => {
                self.end(*producer, *outcome, now_ms)
            }
            Request::End { producer, outcome, speaks: TransactionVersion::V2 } => {
                self.end_and_bump(*producer, *outcome, spare, now_ms)
            }
        }
    }

    /// Whether epochs are exhausted: the last one is reserved for fencing.
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
            // An old epoch must not fence the current producer.
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
        Ok(Decision::Transition { next: Box::new(next), reply: producer })
    }

    /// Whether a producer may request its next epoch (KIP-360): it has the current id, or the previous one if epochs
    /// were exhausted and it has not received the new id. The epoch is checked later.
    fn may_continue(&self, expected: Producer) -> bool {
        self.producer.epoch == NO_EPOCH
            || expected.id == self.producer.id
            || (expected.id == self.previous_id && Self::is_exhausted(expected.epoch))
    }

    /// The state that aborts the open transaction. It skips an epoch, which no producer ever gets.
    pub(super) fn fenced(&self, now_ms: u64) -> Self {
        Self {
            producer: Producer { epoch: self.producer.epoch.saturating_add(1), ..self.producer },
            last_epoch: NO_EPOCH,
            state: State::Prepare(Outcome::Abort),
            updated_ms: now_ms,
            ..self.clone()
        }
    }

    /// Checks that `producer` is the current one.
    ///
    /// # Errors
    /// [`Error::InvalidProducerIdMapping`], [`Error::ProducerFenced`].
    pub(super) fn check_producer(&self, producer: Producer) -> Result<(), Error> {
        if producer.id != self.producer.id {
            Err(Error::InvalidProducerIdMapping)
        } else if producer.epoch != self.producer.epoch {
            Err(Error::ProducerFenced)
        } else {
            Ok(())
        }
    }

    /// Whether `producer` is the producer of the next transaction while the previous one is still ending. Clients get
    /// the response to `EndTxn` before the markers are written, and may start the next transaction at once.
    fn is_next_producer(&self, producer: Producer) -> bool {
        let next_producer = match self.next_id {
            NO_ID => self.producer,
            id => Producer { id, epoch: 0 },
        };
        matches!(self.state, State::Prepare(_)) && producer == next_producer
    }

    fn add(&self, producer: Producer, participants: &[Participant], now_ms: u64) -> Result<Decision, Error> {
        if self.is_next_producer(producer) {
            return Err(Error::ConcurrentTransactions);
        }
        self.check_producer(producer)?;
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
        Ok(Decision::Transition { next: Box::new(next), reply: producer })
    }

    /// `EndTxn` of transaction versions 0 and 1: the epoch stays the same.
    fn end(&self, producer: Producer, outcome: Outcome, now_ms: u64) -> Result<Decision, Error> {
        self.check_producer(producer)?;
        match self.state {
            State::Ongoing => {
                let state = State::Prepare(outcome);
                let next = Self { state, updated_ms: now_ms, ..self.clone() };
                Ok(Decision::Transition { next: Box::new(next), reply: producer })
            }
            State::Complete(ended) if ended == outcome => Ok(Decision::Answer(producer)),
            State::Prepare(ended) if ended == outcome => Err(Error::ConcurrentTransactions),
            _ => Err(Error::InvalidTxnState),
        }
    }

    /// `EndTxn` of transaction version 2: the next transaction gets the next epoch, so the epoch distinguishes a retry
    /// from the end of another transaction.
    fn end_and_bump(
        &self,
        producer: Producer,
        outcome: Outcome,
        spare: Option<i64>,
        now_ms: u64,
    ) -> Result<Decision, Error> {
        if self.is_next_producer(producer) {
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
        Ok(Decision::Transition { next: Box::new(next), reply })
    }

    /// The state after all markers are written.
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
