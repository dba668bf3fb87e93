//! Transactions on shard 0: the state machine, its log, and the callers that wait for answers.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_coordinator::transaction::{Effect, Producer, Settings, Transactions, WriteId};
use mainstem_coordinator::{Caller, Error as CoordinatorError};
use mainstem_log::{Completion, Error, Store};
use mainstem_partition::{CompactedLog, KeyValue};
use mainstem_runtime::{Clock, Io};

use crate::shard::{Shard, Timer};
use crate::shard_message::Mail;
use crate::shared::Shared;

/// The log of transactions and producer ids, in the first shard's store.
const LOG: &str = "kafka-transactions";

/// Continues with an answer.
type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Result<Producer, CoordinatorError>) + Send>;

/// All transactions, their log and their callers.
pub(crate) struct TransactionCoordinator {
    machine: Transactions,
    log: CompactedLog<WriteId>,
    /// Callers without an answer: at most one per connection and partition.
    waiting: HashMap<Caller, Then>,
    callers: u64,
    /// When the monotonic clock began, ms since 1970.
    zero_unix_ms: u64,
    /// The next timer, by the monotonic clock.
    timer_ms: Option<u64>,
    /// A failure of the log has been logged.
    has_failed: bool,
}

impl TransactionCoordinator {
    /// Restores the state from the log.
    ///
    /// # Errors
    /// The store fails, or a record is malformed.
    pub(crate) fn restore(store: &mut dyn Store, shared: &Shared, clock: Clock) -> Result<Self, Error> {
        let mut machine = Transactions::new(Settings::default());
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
        })
    }

    /// The transactions' clock: ms since 1970, monotonic. A jump of the system clock would abort transactions.
    fn now_ms(&self, clock: Clock) -> u64 {
        self.zero_unix_ms + clock.now_ms
    }

    /// Appends the records of this turn.
    pub(crate) fn store_pending(&mut self, store: &mut dyn Store) {
        self.log.store_pending(store);
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

impl Shard {
    /// Sends the transactions a request, on shard 0; `then` gets the answer, now or later.
    pub(crate) fn call_transactions(
        &mut self,
        io: &mut Io<'_, Mail>,
        ask: impl FnOnce(&mut Transactions, u64, Caller),
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<Producer, CoordinatorError>) + Send + 'static,
    ) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        coordinator.callers += 1;
        let caller = Caller(coordinator.callers);
        coordinator.waiting.insert(caller, Box::new(then));
        let now_ms = coordinator.now_ms(io.clock);
        ask(&mut coordinator.machine, now_ms, caller);
        self.poll_transactions(io);
    }

    /// Reads the state of transactions, on shard 0.
    pub(crate) fn with_transactions<R>(
        &mut self,
        io: &Io<'_, Mail>,
        look: impl FnOnce(&Transactions, u64) -> R,
    ) -> Option<R> {
        let coordinator = self.transaction_coordinator()?;
        let now_ms = coordinator.now_ms(io.clock);
        Some(look(&coordinator.machine, now_ms))
    }

    fn transaction_coordinator(&mut self) -> Option<&mut TransactionCoordinator> {
        self.controller.as_mut().map(|controller| &mut controller.transactions)
    }

    /// Resumes the transactions in progress, in the first turn.
    pub(crate) fn begin_transactions(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let now_ms = coordinator.now_ms(io.clock);
        coordinator.machine.start(now_ms);
        self.poll_transactions(io);
    }

    /// Applies expired deadlines of transactions.
    pub(crate) fn transactions_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        if coordinator.timer_ms.is_some_and(|timer_ms| timer_ms <= io.clock.now_ms) {
            coordinator.timer_ms = None;
        }
        let now_ms = coordinator.now_ms(io.clock);
        coordinator.machine.tick(now_ms);
        self.poll_transactions(io);
    }

    /// Performs the effects of the transactions.
    fn poll_transactions(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            let coordinator = &mut controller.transactions;
            match coordinator.machine.poll() {
                None => break,
                Some(Effect::Persist { keep, records }) => {
                    let records: Vec<KeyValue> =
                        records.into_iter().map(|record| (record.key, record.value)).collect();
                    coordinator.log.append(&mut *first.store, io.clock.unix_ms, &records, keep);
                }
                Some(Effect::WriteMarkers(markers)) => self.issue_markers(io, &Arc::new(markers)),
                Some(Effect::Reply { caller, answer }) => {
                    if let Some(then) = coordinator.waiting.remove(&caller) {
                        then(self, io, answer);
                    }
                }
            }
        }
        self.set_transaction_timer(io);
    }

    /// Changes the transactions and performs their effects.
    pub(crate) fn apply_transaction_effects(
        &mut self,
        io: &mut Io<'_, Mail>,
        tell: impl FnOnce(&mut Transactions, u64),
    ) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let now_ms = coordinator.now_ms(io.clock);
        tell(&mut coordinator.machine, now_ms);
        self.poll_transactions(io);
    }

    fn set_transaction_timer(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let Some(deadline_ms) = coordinator.machine.next_deadline_ms() else { return };
        let at_ms = deadline_ms.saturating_sub(coordinator.zero_unix_ms);
        if coordinator.timer_ms.is_none_or(|timer_ms| at_ms < timer_ms) {
            coordinator.timer_ms = Some(at_ms);
            io.set_timer(at_ms, Timer::Coordinate.token());
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_transactions_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        completion: &Completion,
    ) -> bool {
        let Some(coordinator) = self.transaction_coordinator() else { return false };
        let mut outcomes = Vec::new();
        let is_mine = coordinator.log.on_completion(completion, &mut outcomes);
        self.take_transaction_outcomes(io, outcomes);
        is_mine
    }

    /// Handles appends that the store refused.
    pub(crate) fn take_refused_by_transaction_log(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let mut outcomes = Vec::new();
        coordinator.log.take_failed(&mut outcomes);
        self.take_transaction_outcomes(io, outcomes);
    }

    fn take_transaction_outcomes(
        &mut self,
        io: &mut Io<'_, Mail>,
        outcomes: Vec<mainstem_partition::Outcome<WriteId>>,
    ) {
        if outcomes.is_empty() {
            return;
        }
        if let Some(coordinator) = self.transaction_coordinator() {
            let now_ms = coordinator.now_ms(io.clock);
            for (keep, outcome) in outcomes {
                coordinator.take_outcome(keep, &outcome, now_ms);
            }
        }
        self.poll_transactions(io);
    }
}
