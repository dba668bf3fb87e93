//! Transactions on shard 0: the machine that coordinates them, its log, and who waits for its answers.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_coordinator::transaction::{Effect, Keep, Producer, Settings, Transactions};
use mainstem_coordinator::{Caller, Error as Refusal};
use mainstem_log::{Completion, Error, Store};
use mainstem_runtime::{Clock, Io};

use crate::kept::{Kept, KeyValue};
use crate::mail::Mail;
use crate::shard::{Shard, Timer};
use crate::shared::Shared;

/// The log of transactions and producer ids, in the first shard's store.
const LOG: &str = "kafka-transactions";

/// What goes on with an answer.
type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Result<Producer, Refusal>) + Send>;

/// All transactions, and what they wait for.
pub(crate) struct TransactionCoordinator {
    machine: Transactions,
    kept: Kept<Keep>,
    /// Callers without an answer; no more than there are connections and partitions.
    waiting: HashMap<Caller, Then>,
    callers: u64,
    /// When the clock of the process began, ms since 1970.
    zero_unix_ms: u64,
    /// When the next timer rings, by the clock of the process.
    timer_ms: Option<u64>,
    /// The log has failed, and that has been said.
    has_failed: bool,
}

impl TransactionCoordinator {
    /// Reads what was kept.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn restore(store: &mut dyn Store, shared: &Shared, clock: Clock) -> Result<Self, Error> {
        let mut machine = Transactions::new(Settings::default());
        let mut malformed = None;
        let kept = Kept::open(store, LOG, shared.config.durability, |key, value| {
            if let Err(error) = machine.restore(key, value) {
                malformed.get_or_insert(error);
            }
        })?;
        if let Some(error) = malformed {
            return Err(Error::System(format!("{LOG}: {error}")));
        }
        Ok(Self {
            machine,
            kept,
            waiting: HashMap::new(),
            callers: 0,
            zero_unix_ms: clock.unix_ms.saturating_sub(clock.now_ms),
            timer_ms: None,
            has_failed: false,
        })
    }

    /// Time as transactions see it: since 1970, but without the leaps of the system's clock, which would abort them.
    fn now_ms(&self, clock: Clock) -> u64 {
        self.zero_unix_ms + clock.now_ms
    }

    /// Hands the store what has been gathered for it in this turn.
    pub(crate) fn store_kept(&mut self, store: &mut dyn Store) {
        self.kept.store(store);
    }

    fn take_outcome(&mut self, keep: Keep, outcome: &Result<(), Error>, now_ms: u64) {
        match outcome {
            Ok(()) => {
                self.has_failed = false;
                self.machine.kept(keep, now_ms);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    log::error!("what becomes of transactions cannot be kept: {error}");
                }
                self.machine.not_kept(keep, now_ms);
            }
        }
    }
}

/// What clients are told. Older ones do not know that they can be fenced.
pub(crate) fn error_code(error: Refusal, knows_of_fences: bool) -> i16 {
    match error {
        Refusal::ProducerFenced if !knows_of_fences => Refusal::InvalidProducerEpoch.code(),
        other => other.code(),
    }
}

impl Shard {
    /// Asks about transactions, on shard 0; `then` hears the answer, now or later.
    pub(crate) fn ask_transactions(
        &mut self,
        io: &mut Io<'_, Mail>,
        ask: impl FnOnce(&mut Transactions, u64, Caller),
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<Producer, Refusal>) + Send + 'static,
    ) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        coordinator.callers += 1;
        let caller = Caller(coordinator.callers);
        coordinator.waiting.insert(caller, Box::new(then));
        let now_ms = coordinator.now_ms(io.clock);
        ask(&mut coordinator.machine, now_ms, caller);
        self.go_on_with_transactions(io);
    }

    /// Looks at transactions, on shard 0.
    pub(crate) fn look_at_transactions<R>(
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

    /// The first turn: what was under way goes on.
    pub(crate) fn begin_transactions(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let now_ms = coordinator.now_ms(io.clock);
        coordinator.machine.begin(now_ms);
        self.go_on_with_transactions(io);
    }

    /// What is due in transactions is done.
    pub(crate) fn transactions_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        if coordinator.timer_ms.is_some_and(|timer_ms| timer_ms <= io.clock.now_ms) {
            coordinator.timer_ms = None;
        }
        let now_ms = coordinator.now_ms(io.clock);
        coordinator.machine.tick(now_ms);
        self.go_on_with_transactions(io);
    }

    /// Does what the transactions want done.
    fn go_on_with_transactions(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            let coordinator = &mut controller.transactions;
            match coordinator.machine.poll() {
                None => break,
                Some(Effect::Keep { keep, records }) => {
                    let records: Vec<KeyValue> =
                        records.into_iter().map(|record| (record.key, record.value)).collect();
                    coordinator.kept.keep(&mut *first.store, io.clock.unix_ms, &records, keep);
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

    /// Tells the transactions something; what they want done then is done.
    pub(crate) fn tell_transactions(
        &mut self,
        io: &mut Io<'_, Mail>,
        tell: impl FnOnce(&mut Transactions, u64),
    ) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let now_ms = coordinator.now_ms(io.clock);
        tell(&mut coordinator.machine, now_ms);
        self.go_on_with_transactions(io);
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

    /// Takes note of a completion in the first store. False if it is of another log.
    pub(crate) fn transactions_arrived(&mut self, io: &mut Io<'_, Mail>, completion: &Completion) -> bool {
        let Some(coordinator) = self.transaction_coordinator() else { return false };
        let mut told = Vec::new();
        let is_mine = coordinator.kept.arrived(completion, &mut told);
        self.take_transaction_outcomes(io, told);
        is_mine
    }

    /// Takes note of what could not even be handed to the store.
    pub(crate) fn take_refused_by_transaction_log(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        let mut told = Vec::new();
        coordinator.kept.take_refused(&mut told);
        self.take_transaction_outcomes(io, told);
    }

    fn take_transaction_outcomes(&mut self, io: &mut Io<'_, Mail>, told: Vec<crate::kept::Outcome<Keep>>) {
        if told.is_empty() {
            return;
        }
        if let Some(coordinator) = self.transaction_coordinator() {
            let now_ms = coordinator.now_ms(io.clock);
            for (keep, outcome) in told {
                coordinator.take_outcome(keep, &outcome, now_ms);
            }
        }
        self.go_on_with_transactions(io);
    }
}
