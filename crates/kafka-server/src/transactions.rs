//! Transactions on shard 0: the state machine, its log, and the callers that wait for answers.
//!
//! [`Transactions`] of `mainstem-coordinator` decides; [`TransactionCoordinator`] gives it a monotonic clock, appends
//! its records, and hands the shard its effects. The outcome of a transaction is durable in this log before a marker is
//! written to any partition: after a crash, the restored state writes the markers again that were not confirmed, so a
//! transaction is never half committed.

use std::collections::HashMap;

use mainstem_coordinator::transaction::{Effect, Markers, Producer, Settings, Transactions, WriteId};
use mainstem_coordinator::{Caller, Error as CoordinatorError};
use mainstem_log::{Completion, Error, Store};
use mainstem_partition::{CompactedLog, KeyValue, Outcome};
use mainstem_runtime::Clock;

use crate::pending::AfterTxnReply;
use crate::shared::Shared;

/// The log of transactions and producer ids, in the first shard's store.
const LOG: &str = "kafka-transactions";

/// What the shard carries out for the transactions.
#[derive(Debug)]
pub(crate) enum TransactionEffect {
    WriteMarkers(Markers),
    Reply(AfterTxnReply, Result<Producer, CoordinatorError>),
}

/// All transactions, their log and their callers.
pub(crate) struct TransactionCoordinator {
    machine: Transactions,
    log: CompactedLog<WriteId>,
    /// Callers without an answer: at most one per connection and partition.
    waiting: HashMap<Caller, AfterTxnReply>,
    callers: u64,
    /// When the monotonic clock began, ms since 1970.
    zero_unix_ms: u64,
    /// The next timer, by the monotonic clock.
    timer_ms: Option<u64>,
    /// A failure of the log has been logged.
    has_failed: bool,
    /// Evictions that have been logged.
    evictions: u64,
}

impl TransactionCoordinator {
    /// Restores the state from the log.
    ///
    /// # Errors
    /// The store fails, or a record is malformed.
    pub(crate) fn restore(store: &mut dyn Store, shared: &Shared, clock: Clock) -> Result<Self, Error> {
        let config = &shared.config;
        let mut machine = Transactions::new(Settings {
            expiration_ms: config.transactional_id_expiration_ms,
            bytes: config.transactional_id_bytes_max,
            ..Settings::default()
        });
        let mut malformed = None;
        let log = CompactedLog::open(store, LOG, shared.config.durability, |key, value| {
            if let Err(error) = machine.restore(key, value) {
                malformed.get_or_insert(error);
            }
        })?;
        if let Some(error) = malformed {
            return Err(Error::System(format!("{LOG}: {error}")));
        }
        Ok(Self {
            machine,
            log,
            waiting: HashMap::new(),
            callers: 0,
            zero_unix_ms: clock.unix_ms.saturating_sub(clock.now_ms),
            timer_ms: None,
            has_failed: false,
            evictions: 0,
        })
    }

    /// Number of transactional ids that were removed for lack of memory since the last call.
    pub(crate) fn take_evictions(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.evictions, self.machine.evictions());
        self.evictions - before
    }

    /// The transactions' clock: ms since 1970, monotonic. A jump of the system clock would abort transactions.
    fn now_ms(&self, clock: Clock) -> u64 {
        self.zero_unix_ms + clock.now_ms
    }

    /// Appends the records of this turn.
    pub(crate) fn store_pending(&mut self, store: &mut dyn Store) {
        self.log.store_pending(store);
    }

    /// Resumes the transactions in progress, in the first turn.
    pub(crate) fn start(&mut self, clock: Clock) {
        let now_ms = self.now_ms(clock);
        self.machine.start(now_ms);
    }

    /// Sends the transactions a request; `then` continues with the answer, which [`Self::poll`] returns now or later.
    pub(crate) fn call(
        &mut self,
        clock: Clock,
        request: impl FnOnce(&mut Transactions, u64, Caller),
        then: AfterTxnReply,
    ) {
        self.callers += 1;
        let caller = Caller(self.callers);
        self.waiting.insert(caller, then);
        let now_ms = self.now_ms(clock);
        request(&mut self.machine, now_ms, caller);
    }

    /// Reads the state of the transactions.
    pub(crate) fn read<R>(&self, clock: Clock, look: impl FnOnce(&Transactions, u64) -> R) -> R {
        look(&self.machine, self.now_ms(clock))
    }

    /// Changes the transactions.
    pub(crate) fn update(&mut self, clock: Clock, change: impl FnOnce(&mut Transactions, u64)) {
        let now_ms = self.now_ms(clock);
        change(&mut self.machine, now_ms);
    }

    /// Applies expired deadlines.
    pub(crate) fn on_timer(&mut self, clock: Clock) {
        self.timer_ms.take_if(|timer_ms| *timer_ms <= clock.now_ms);
        let now_ms = self.now_ms(clock);
        self.machine.tick(now_ms);
    }

    /// Hands the log what the transactions persist, and returns the next effect for the shard.
    pub(crate) fn poll(&mut self, store: &mut dyn Store, unix_ms: u64) -> Option<TransactionEffect> {
        loop {
            match self.machine.poll()? {
                Effect::Persist { keep, records } => {
                    let records: Vec<KeyValue> =
                        records.into_iter().map(|record| (record.key, record.value)).collect();
                    self.log.append(store, unix_ms, &records, keep);
                }
                Effect::WriteMarkers(markers) => return Some(TransactionEffect::WriteMarkers(markers)),
                Effect::Reply { caller, answer } => {
                    if let Some(then) = self.waiting.remove(&caller) {
                        return Some(TransactionEffect::Reply(then, answer));
                    }
                }
            }
        }
    }

    /// The timer to set, by the monotonic clock, if an earlier one is needed than the one that is set.
    pub(crate) fn next_timer_ms(&mut self) -> Option<u64> {
        let at_ms = self.machine.next_deadline_ms()?.saturating_sub(self.zero_unix_ms);
        let is_needed = self.timer_ms.is_none_or(|timer_ms| at_ms < timer_ms);
        is_needed.then(|| *self.timer_ms.insert(at_ms))
    }

    /// Takes a completion. Returns whether it is of this log, and whether the transactions have to be polled.
    pub(crate) fn on_completion(&mut self, completion: &Completion, clock: Clock) -> (bool, bool) {
        let mut outcomes = Vec::new();
        let is_mine = self.log.on_completion(completion, &mut outcomes);
        (is_mine, self.take_outcomes(&outcomes, clock))
    }

    /// Whether [`Self::take_failed`] has anything to take.
    pub(crate) fn has_outcomes(&self) -> bool {
        self.log.has_outcomes()
    }

    /// Takes the appends that the store refused. Returns whether the transactions have to be polled.
    pub(crate) fn take_failed(&mut self, clock: Clock) -> bool {
        let mut outcomes = Vec::new();
        self.log.take_failed(&mut outcomes);
        self.take_outcomes(&outcomes, clock)
    }

    fn take_outcomes(&mut self, outcomes: &[Outcome<WriteId>], clock: Clock) -> bool {
        let now_ms = self.now_ms(clock);
        for (keep, outcome) in outcomes {
            self.take_outcome(*keep, outcome, now_ms);
        }
        !outcomes.is_empty()
    }

    fn take_outcome(&mut self, keep: WriteId, outcome: &Result<(), Error>, now_ms: u64) {
        match outcome {
            Ok(()) => {
                self.has_failed = false;
                self.machine.write_succeeded(keep, now_ms);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    log::error!("log {LOG}: transactions cannot be stored: {error}");
                }
                self.machine.write_failed(keep, now_ms);
            }
        }
    }
}

/// The error code for a client. Older clients do not know `PRODUCER_FENCED`.
pub(crate) fn error_code(error: CoordinatorError, knows_of_fences: bool) -> i16 {
    match error {
        CoordinatorError::ProducerFenced if !knows_of_fences => CoordinatorError::InvalidProducerEpoch.code(),
        other => other.code(),
    }
}
