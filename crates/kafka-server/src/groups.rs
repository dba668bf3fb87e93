//! Consumer groups on shard 0: the state machine, its log, and the callers that wait for answers.

use hashbrown::HashMap;
use mainstem_coordinator::group::{Effect, Groups, Response, Settings, WriteId};
use mainstem_coordinator::{Caller, Error as CoordinatorError, Record};
use mainstem_log::{Completion, Error, Store};
use mainstem_partition::{CompactedLog, KeyValue, Outcome};
use mainstem_runtime::{Clock, Io};

use crate::shard::{Shard, Timer};
use crate::shard_message::Mail;
use crate::shared::Shared;

/// The log of groups and their offsets, in the first shard's store.
const LOG: &str = "kafka-groups";

/// Continues with an answer.
type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Response) + Send>;

/// What waits for an append.
enum Waiter {
    /// Records of the state machine.
    Records(WriteId),
    Answer(Caller, Response),
}

/// All groups, their log and their callers.
pub(crate) struct GroupCoordinator {
    groups: Groups,
    log: CompactedLog<Waiter>,
    /// Callers without an answer: at most one per connection, plus recently closed ones.
    waiting: HashMap<Caller, Then, foldhash::fast::RandomState>,
    callers: u64,
    /// When the monotonic clock began, ms since 1970.
    zero_unix_ms: u64,
    /// The next timer, by the monotonic clock.
    timer_ms: Option<u64>,
    /// A failure of the log has been logged.
    has_failed: bool,
}

impl GroupCoordinator {
    /// Restores the state from the log.
    ///
    /// # Errors
    /// The store fails, or a record is malformed.
    pub(crate) fn restore(store: &mut dyn Store, shared: &Shared, clock: Clock) -> Result<Self, Error> {
        let settings = Settings {
            session_timeout_min_ms: shared.config.group_session_timeout_min_ms,
            session_timeout_max_ms: shared.config.group_session_timeout_max_ms,
            initial_rebalance_delay_ms: shared.config.group_initial_rebalance_delay_ms,
            offsets_retention_ms: shared.config.offsets_retention_ms,
            ..Settings::default()
        };
        let mut groups = Groups::new(settings);
        let mut malformed = None;
        let log = CompactedLog::open(store, LOG, shared.config.durability, |key, value| {
            let record = Record { key: key.to_vec(), value: value.map(<[u8]>::to_vec) };
            if let Err(error) = groups.restore(&record) {
                malformed.get_or_insert(error);
            }
        })?;
        if let Some(error) = malformed {
            return Err(Error::System(format!("{LOG}: {error}")));
        }
        let zero_unix_ms = clock.unix_ms.saturating_sub(clock.now_ms);
        let mut made = Self {
            groups,
            log,
            waiting: HashMap::default(),
            callers: 0,
            zero_unix_ms,
            timer_ms: None,
            has_failed: false,
        };
        made.groups.finish_restore(made.now_ms(clock));
        Ok(made)
    }

    /// The groups' clock: ms since 1970, monotonic. A jump of the system clock would end sessions.
    fn now_ms(&self, clock: Clock) -> u64 {
        self.zero_unix_ms + clock.now_ms
    }

    /// Applies expired deadlines and returns the time. Timers fire some milliseconds late, and a request must not see a
    /// member whose session has ended.
    fn catch_up(&mut self, clock: Clock) -> u64 {
        let now_ms = self.now_ms(clock);
        self.groups.tick(now_ms);
        now_ms
    }

    fn keep(&mut self, store: &mut dyn Store, unix_ms: u64, keep: WriteId, records: Vec<Record>) {
        let records: Vec<KeyValue> = records.into_iter().map(|record| (record.key, record.value)).collect();
        self.log.append(store, unix_ms, &records, Waiter::Records(keep));
    }

    /// Appends the records of this turn.
    pub(crate) fn store_pending(&mut self, store: &mut dyn Store) {
        self.log.store_pending(store);
    }

    /// Tells the state machine which records are durable, before any caller gets an answer.
    fn note_outcomes(&mut self, outcomes: &[Outcome<Waiter>]) {
        for (_, outcome) in outcomes {
            self.note_outcome(outcome);
        }
        // Failed writes are rolled back newest first.
        for (waiter, outcome) in outcomes.iter().rev() {
            match (waiter, outcome) {
                (Waiter::Records(keep), Ok(())) => self.groups.write_succeeded(*keep),
                (Waiter::Records(keep), Err(_)) => self.groups.write_failed(*keep),
                (Waiter::Answer(..), _) => {}
            }
        }
    }

    fn note_outcome(&mut self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.has_failed = false,
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                log::error!("log {LOG}: commits of consumer groups cannot be stored: {error}");
            }
            Err(_) => {}
        }
    }
}

impl Shard {
    /// Sends the groups a request, on shard 0; `then` gets the answer, now or later.
    pub(crate) fn call_groups(
        &mut self,
        io: &mut Io<'_, Mail>,
        ask: impl FnOnce(&mut Groups, u64, Caller),
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Response) + Send + 'static,
    ) {
        let Some(coordinator) = self.group_coordinator() else { return };
        coordinator.callers += 1;
        let caller = Caller(coordinator.callers);
        coordinator.waiting.insert(caller, Box::new(then));
        let now_ms = coordinator.catch_up(io.clock);
        ask(&mut coordinator.groups, now_ms, caller);
        self.poll_groups(io);
    }

    /// Runs a synchronous operation on the groups, on shard 0.
    pub(crate) fn with_groups<R>(
        &mut self,
        io: &mut Io<'_, Mail>,
        look: impl FnOnce(&mut Groups, u64) -> R,
    ) -> Option<R> {
        let coordinator = self.group_coordinator()?;
        let now_ms = coordinator.catch_up(io.clock);
        let seen = look(&mut coordinator.groups, now_ms);
        self.poll_groups(io);
        Some(seen)
    }

    fn group_coordinator(&mut self) -> Option<&mut GroupCoordinator> {
        self.controller.as_mut().map(|controller| &mut controller.groups)
    }

    /// Applies expired deadlines of groups.
    pub(crate) fn groups_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        if coordinator.timer_ms.is_some_and(|timer_ms| timer_ms <= io.clock.now_ms) {
            coordinator.timer_ms = None;
        }
        coordinator.catch_up(io.clock);
        self.poll_groups(io);
    }

    /// Performs the effects of the groups.
    pub(crate) fn poll_groups(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            let coordinator = &mut controller.groups;
            match coordinator.groups.poll() {
                None => break,
                Some(Effect::Persist { keep, records }) => {
                    coordinator.keep(&mut *first.store, io.clock.unix_ms, keep, records);
                }
                Some(Effect::ReplyWhenDurable { caller, answer }) if !coordinator.log.is_idle() => {
                    let waiter = Waiter::Answer(caller, answer);
                    coordinator.log.append(&mut *first.store, io.clock.unix_ms, &[], waiter);
                }
                Some(Effect::Reply { caller, answer } | Effect::ReplyWhenDurable { caller, answer }) => {
                    self.tell(io, caller, answer);
                }
            }
        }
        self.set_group_timer(io);
    }

    fn tell(&mut self, io: &mut Io<'_, Mail>, caller: Caller, answer: Response) {
        let then = self.group_coordinator().and_then(|coordinator| coordinator.waiting.remove(&caller));
        if let Some(then) = then {
            then(self, io, answer);
        }
    }

    fn set_group_timer(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        let Some(deadline_ms) = coordinator.groups.next_deadline_ms() else { return };
        let at_ms = deadline_ms.saturating_sub(coordinator.zero_unix_ms);
        if coordinator.timer_ms.is_none_or(|timer_ms| at_ms < timer_ms) {
            coordinator.timer_ms = Some(at_ms);
            io.set_timer(at_ms, Timer::Coordinate.token());
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_groups_completion(&mut self, io: &mut Io<'_, Mail>, completion: &Completion) -> bool {
        let Some(coordinator) = self.group_coordinator() else { return false };
        let mut outcomes = Vec::new();
        let is_mine = coordinator.log.on_completion(completion, &mut outcomes);
        self.send_durable_group_replies(io, outcomes);
        is_mine
    }

    /// Answers callers whose append the store refused.
    pub(crate) fn answer_refused_by_groups_log(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        let mut outcomes = Vec::new();
        coordinator.log.take_failed(&mut outcomes);
        self.send_durable_group_replies(io, outcomes);
    }

    fn send_durable_group_replies(&mut self, io: &mut Io<'_, Mail>, outcomes: Vec<Outcome<Waiter>>) {
        if let Some(coordinator) = self.group_coordinator() {
            coordinator.note_outcomes(&outcomes);
        }
        for (waiter, outcome) in outcomes {
            let Waiter::Answer(caller, answer) = waiter else { continue };
            let answer = match outcome {
                Ok(()) => answer,
                Err(_) => answer.with_error(CoordinatorError::NotCoordinator),
            };
            self.tell(io, caller, answer);
        }
    }
}
