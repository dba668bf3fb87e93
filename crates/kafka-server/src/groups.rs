//! Consumer groups on shard 0: the state machine, its log, and the callers that wait for answers.
//!
//! [`Groups`] of `mainstem-coordinator` decides; it has no clock and no log. [`GroupCoordinator`] gives it time,
//! appends the records that it wants to be kept, and returns answers when they may leave. An answer that promises
//! something durable waits in the log's order behind the records, and becomes an error if the append fails.
//!
//! The clock of groups is monotonic: a jump of the system's clock must not end sessions. All groups are on one shard,
//! so they need no agreement between shards.

use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_coordinator::group::{Effect, GroupConfig, Groups, Response, Settings, WriteId};
use mainstem_coordinator::{Caller, Error as CoordinatorError, Record};
use mainstem_log::{Completion, Error, Store};
use mainstem_partition::{CompactedLog, KeyValue, Outcome};
use mainstem_runtime::Clock;

use crate::catalogue::Catalogue;
use crate::pending::AfterGroupReply;
use crate::shared::Shared;
use crate::visible_topics::VisibleTopics;

/// The log of groups and their offsets, in the first shard's store.
const LOG: &str = "kafka-groups";

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
    waiting: HashMap<Caller, AfterGroupReply, foldhash::fast::RandomState>,
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
            consumer_session_timeout_ms: shared.config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms: shared.config.group_consumer_heartbeat_interval_ms,
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

    /// The configuration of a group.
    pub(crate) fn configuration(&self, group_id: &str) -> GroupConfig {
        self.groups.configuration(group_id)
    }

    /// The groups that have a configuration.
    pub(crate) fn configured(&self) -> impl Iterator<Item = &Arc<str>> {
        self.groups.configured()
    }

    /// Looks up what the members of groups are subscribed to.
    pub(crate) fn resolve_topics(&mut self, catalogue: &Catalogue) {
        self.groups.resolve_topics(&VisibleTopics::all(catalogue));
    }

    /// Has the offsets of topics removed that are not in the catalogue: a restart has interrupted their removal.
    pub(crate) fn forget_unknown_topics(&mut self, catalogue: &Catalogue) {
        let unknown = self.groups.topics_with_offsets(|topic| catalogue.topic(topic).is_none());
        if !unknown.is_empty() {
            self.groups.forget_topics(unknown);
        }
    }

    /// The partitions with a committed offset, by topic, if a group has more than `count` of them.
    pub(crate) fn committed_beyond(&self, group_id: &str, count: usize) -> Option<Vec<(Arc<str>, Vec<i32>)>> {
        self.groups.committed_beyond(group_id, count)
    }

    /// Whether offsets of deleted topics are to be removed.
    pub(crate) fn is_forgetting(&self) -> bool {
        self.groups.is_forgetting()
    }

    /// Which removal of offsets includes those of all topics deleted so far; `None` if it is done.
    pub(crate) fn unfinished_removal(&self) -> Option<u64> {
        self.groups.unfinished_removal()
    }

    /// Whether a removal of offsets is done.
    pub(crate) fn has_forgotten(&self, removal: u64) -> bool {
        self.groups.has_forgotten(removal)
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

    /// Sends the groups a request; `then` continues with the answer, which [`Self::poll`] returns now or later.
    pub(crate) fn call(
        &mut self,
        clock: Clock,
        request: impl FnOnce(&mut Groups, u64, Caller),
        then: AfterGroupReply,
    ) {
        self.callers += 1;
        let caller = Caller(self.callers);
        self.waiting.insert(caller, then);
        let now_ms = self.catch_up(clock);
        request(&mut self.groups, now_ms, caller);
    }

    /// Runs a synchronous operation on the groups.
    pub(crate) fn with_groups<R>(
        &mut self,
        clock: Clock,
        operation: impl FnOnce(&mut Groups, u64) -> R,
    ) -> R {
        let now_ms = self.catch_up(clock);
        operation(&mut self.groups, now_ms)
    }

    /// Applies expired deadlines.
    pub(crate) fn on_timer(&mut self, clock: Clock) {
        self.timer_ms.take_if(|timer_ms| *timer_ms <= clock.now_ms);
        self.catch_up(clock);
    }

    /// Hands the log what the groups persist, and returns the next answer that need not wait for it.
    pub(crate) fn poll(
        &mut self,
        store: &mut dyn Store,
        unix_ms: u64,
    ) -> Option<(AfterGroupReply, Response)> {
        loop {
            match self.groups.poll()? {
                Effect::Persist { keep, records } => self.keep(store, unix_ms, keep, records),
                Effect::ReplyWhenDurable { caller, answer } if !self.log.is_idle() => {
                    self.log.append(store, unix_ms, &[], Waiter::Answer(caller, answer));
                }
                Effect::Reply { caller, answer } | Effect::ReplyWhenDurable { caller, answer } => {
                    if let Some(then) = self.waiting.remove(&caller) {
                        return Some((then, answer));
                    }
                }
            }
        }
    }

    /// The timer to set, by the monotonic clock, if an earlier one is needed than the one that is set.
    pub(crate) fn next_timer_ms(&mut self) -> Option<u64> {
        let at_ms = self.groups.next_deadline_ms()?.saturating_sub(self.zero_unix_ms);
        let is_needed = self.timer_ms.is_none_or(|timer_ms| at_ms < timer_ms);
        is_needed.then(|| *self.timer_ms.insert(at_ms))
    }

    /// Takes a completion: the answers that waited for it, and whether it is of this log.
    pub(crate) fn on_completion(
        &mut self,
        completion: &Completion,
    ) -> (bool, Vec<(AfterGroupReply, Response)>) {
        let mut outcomes = Vec::new();
        let is_mine = self.log.on_completion(completion, &mut outcomes);
        (is_mine, self.take_answers(outcomes))
    }

    /// Whether [`Self::take_failed`] has anything to take.
    pub(crate) fn has_outcomes(&self) -> bool {
        self.log.has_outcomes()
    }

    /// Takes the answers whose append the store refused.
    pub(crate) fn take_failed(&mut self) -> Vec<(AfterGroupReply, Response)> {
        let mut outcomes = Vec::new();
        self.log.take_failed(&mut outcomes);
        self.take_answers(outcomes)
    }

    fn take_answers(&mut self, outcomes: Vec<Outcome<Waiter>>) -> Vec<(AfterGroupReply, Response)> {
        self.note_outcomes(&outcomes);
        let answer = |(waiter, outcome): Outcome<Waiter>| {
            let Waiter::Answer(caller, answer) = waiter else { return None };
            let answer = match outcome {
                Ok(()) => answer,
                Err(_) => answer.with_error(CoordinatorError::NotCoordinator),
            };
            Some((self.waiting.remove(&caller)?, answer))
        };
        outcomes.into_iter().filter_map(answer).collect()
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
        // A write that has succeeded is compared with all before it, so the oldest comes first. One request may lead to
        // thousands of writes.
        for (waiter, outcome) in outcomes {
            if let (Waiter::Records(keep), Ok(())) = (waiter, outcome) {
                self.groups.write_succeeded(*keep);
            }
        }
        // Failed writes are rolled back newest first.
        for (waiter, outcome) in outcomes.iter().rev() {
            if let (Waiter::Records(keep), Err(_)) = (waiter, outcome) {
                self.groups.write_failed(*keep);
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
