//! Consumer groups on shard 0: the machine that coordinates them, its log, and who waits for its answers.

use hashbrown::HashMap;
use mainstem_coordinator::group::{Answer, Effect, Groups, Keep, Settings};
use mainstem_coordinator::{Caller, Error as Refusal, Record};
use mainstem_log::{Completion, Error, Store};
use mainstem_runtime::{Clock, Io};

use crate::kept::{Kept, KeyValue, Outcome};
use crate::mail::Mail;
use crate::shard::{Shard, Timer};
use crate::shared::Shared;

/// The log of groups and their offsets, in the first shard's store.
const LOG: &str = "kafka-groups";

/// What goes on with an answer.
type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Answer) + Send>;

/// What waits for the log.
enum Waiter {
    /// Records, of which the groups hear what has become.
    Records(Keep),
    Answer(Caller, Answer),
}

/// All groups, and what they wait for.
pub(crate) struct GroupCoordinator {
    groups: Groups,
    kept: Kept<Waiter>,
    /// Callers without an answer; no more than there are connections, and those that have gone not long ago.
    waiting: HashMap<Caller, Then, foldhash::fast::RandomState>,
    callers: u64,
    /// When the clock of the process began, ms since 1970.
    zero_unix_ms: u64,
    /// When the next timer rings, by the clock of the process.
    timer_ms: Option<u64>,
    /// The log has failed, and that has been said.
    has_failed: bool,
}

impl GroupCoordinator {
    /// Reads what was kept.
    ///
    /// # Errors
    /// What the store says.
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
        let kept = Kept::open(store, LOG, shared.config.durability, |key, value| {
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
            kept,
            waiting: HashMap::default(),
            callers: 0,
            zero_unix_ms,
            timer_ms: None,
            has_failed: false,
        };
        made.groups.restored(made.now_ms(clock));
        Ok(made)
    }

    /// Time as the groups see it: since 1970, but without the leaps of the system's clock, which would end sessions.
    fn now_ms(&self, clock: Clock) -> u64 {
        self.zero_unix_ms + clock.now_ms
    }

    /// What is due is done before anything else: timers ring some milliseconds late, and a request must not meet a
    /// member whose session has ended. What time it is.
    fn catch_up(&mut self, clock: Clock) -> u64 {
        let now_ms = self.now_ms(clock);
        self.groups.tick(now_ms);
        now_ms
    }

    fn keep(&mut self, store: &mut dyn Store, unix_ms: u64, keep: Keep, records: Vec<Record>) {
        let records: Vec<KeyValue> = records.into_iter().map(|record| (record.key, record.value)).collect();
        self.kept.keep(store, unix_ms, &records, Waiter::Records(keep));
    }

    /// Hands the store what has been gathered for it in this turn.
    pub(crate) fn store_kept(&mut self, store: &mut dyn Store) {
        self.kept.store(store);
    }

    /// The groups hear what has become of records, before anybody is answered.
    fn note_outcomes(&mut self, told: &[Outcome<Waiter>]) {
        for (_, outcome) in told {
            self.note_outcome(outcome);
        }
        // What has failed is taken back the newest first.
        for (waiter, outcome) in told.iter().rev() {
            match (waiter, outcome) {
                (Waiter::Records(keep), Ok(())) => self.groups.kept(*keep),
                (Waiter::Records(keep), Err(_)) => self.groups.not_kept(*keep),
                (Waiter::Answer(..), _) => {}
            }
        }
    }

    fn note_outcome(&mut self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.has_failed = false,
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                log::error!("what consumer groups commit cannot be kept: {error}");
            }
            Err(_) => {}
        }
    }
}

impl Shard {
    /// Asks the groups, on shard 0; `then` hears their answer, now or later.
    pub(crate) fn ask_groups(
        &mut self,
        io: &mut Io<'_, Mail>,
        ask: impl FnOnce(&mut Groups, u64, Caller),
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Answer) + Send + 'static,
    ) {
        let Some(coordinator) = self.group_coordinator() else { return };
        coordinator.callers += 1;
        let caller = Caller(coordinator.callers);
        coordinator.waiting.insert(caller, Box::new(then));
        let now_ms = coordinator.catch_up(io.clock);
        ask(&mut coordinator.groups, now_ms, caller);
        self.go_on_with_groups(io);
    }

    /// Looks at the groups, or has them do something that is done at once, on shard 0.
    pub(crate) fn with_groups<R>(
        &mut self,
        io: &mut Io<'_, Mail>,
        look: impl FnOnce(&mut Groups, u64) -> R,
    ) -> Option<R> {
        let coordinator = self.group_coordinator()?;
        let now_ms = coordinator.catch_up(io.clock);
        let seen = look(&mut coordinator.groups, now_ms);
        self.go_on_with_groups(io);
        Some(seen)
    }

    fn group_coordinator(&mut self) -> Option<&mut GroupCoordinator> {
        self.controller.as_mut().map(|controller| &mut controller.groups)
    }

    /// What is due in groups is done.
    pub(crate) fn groups_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        if coordinator.timer_ms.is_some_and(|timer_ms| timer_ms <= io.clock.now_ms) {
            coordinator.timer_ms = None;
        }
        coordinator.catch_up(io.clock);
        self.go_on_with_groups(io);
    }

    /// Does what the groups want done.
    pub(crate) fn go_on_with_groups(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            let coordinator = &mut controller.groups;
            match coordinator.groups.poll() {
                None => break,
                Some(Effect::Keep { keep, records }) => {
                    coordinator.keep(&mut *first.store, io.clock.unix_ms, keep, records);
                }
                Some(Effect::ReplyWhenKept { caller, answer }) if !coordinator.kept.is_idle() => {
                    let waiter = Waiter::Answer(caller, answer);
                    coordinator.kept.keep(&mut *first.store, io.clock.unix_ms, &[], waiter);
                }
                Some(Effect::Reply { caller, answer } | Effect::ReplyWhenKept { caller, answer }) => {
                    self.tell(io, caller, answer);
                }
            }
        }
        self.set_group_timer(io);
    }

    fn tell(&mut self, io: &mut Io<'_, Mail>, caller: Caller, answer: Answer) {
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

    /// Takes note of a completion in the first store. False if it is of another log.
    pub(crate) fn groups_arrived(&mut self, io: &mut Io<'_, Mail>, completion: &Completion) -> bool {
        let Some(coordinator) = self.group_coordinator() else { return false };
        let mut told = Vec::new();
        let is_mine = coordinator.kept.arrived(completion, &mut told);
        self.answer_kept(io, told);
        is_mine
    }

    /// Answers those whose records could not even be handed to the store.
    pub(crate) fn answer_refused_by_groups_log(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        let mut told = Vec::new();
        coordinator.kept.take_refused(&mut told);
        self.answer_kept(io, told);
    }

    fn answer_kept(&mut self, io: &mut Io<'_, Mail>, told: Vec<Outcome<Waiter>>) {
        if let Some(coordinator) = self.group_coordinator() {
            coordinator.note_outcomes(&told);
        }
        for (waiter, outcome) in told {
            let Waiter::Answer(caller, answer) = waiter else { continue };
            let answer = match outcome {
                Ok(()) => answer,
                Err(_) => answer.refused(Refusal::NotCoordinator),
            };
            self.tell(io, caller, answer);
        }
    }
}
