//! What outlives the process: the journals of sessions, the log of retained messages, and one commit per turn over all.
//!
//! Each append is part of the commit of its turn. Whoever promises something notes the [`AppendPosition`] before it
//! appends, and gets from it the [`AckCondition`] under which the promise holds: the turn's commit if something was
//! appended since, and nothing to wait for otherwise.

use std::collections::BTreeSet;

use mainstem_log::Stores;
use mainstem_runtime::Clock;

use crate::commits::{Commits, CompletedCommit};
use crate::counters::Counters;
use crate::journal::{Arrived, Journal, OpenJournal};
use crate::message::SessionKey;
use crate::pending_acks::AckCondition;
use crate::qos2_recovery::UndecidedPublishes;
use crate::retained::Retained;
use crate::retained_log::RetainedLog;

/// Number of entries that a shard has appended anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppendPosition(u64);

/// The journals and commits of one shard. A shard without journals persists nothing.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    /// The stores of the shard, while it runs; each journal is in the store with its index.
    stores: Stores,
    /// The first is for new sessions.
    journals: Vec<Journal>,
    /// The first shard has it.
    retained_log: Option<RetainedLog>,
    commits: Commits,
    /// The turn's commit begins even if nothing was appended: somebody waits for it.
    commit_is_due: bool,
    /// Position at the end of the last turn.
    position_before: u64,
    arrived: Vec<Arrived>,
    /// The latest time that a timer for marks is set for, ms.
    marks_timer_ms: u64,
    /// Number of the last ack that got one.
    last_ack: u64,
    /// Publishes of restored sessions, until all shards are restored.
    undecided: Vec<UndecidedPublishes>,
}

impl Persistence {
    /// Keeps publishes of a restored session until the journals of all shards are read.
    pub(crate) fn add_undecided(&mut self, publishes: UndecidedPublishes) {
        self.undecided.push(publishes);
    }

    pub(crate) fn take_undecided(&mut self) -> Vec<UndecidedPublishes> {
        std::mem::take(&mut self.undecided)
    }

    /// Whether sessions outlive the process.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.journals.is_empty()
    }

    /// Adds the journal of the next store.
    pub(crate) fn add_journal(&mut self, journal: Journal) {
        debug_assert_eq!(self.stores[self.journals.len()].store_id, journal.id());
        self.journals.push(journal);
    }

    /// The stores, to lend them and to take them back.
    pub(crate) fn stores_mut(&mut self) -> &mut Stores {
        &mut self.stores
    }

    pub(crate) fn set_retained_log(&mut self, log: RetainedLog) {
        self.retained_log = Some(log);
    }

    pub(crate) fn journals(&self) -> &[Journal] {
        &self.journals
    }

    pub(crate) fn journals_mut(&mut self) -> &mut [Journal] {
        &mut self.journals
    }

    /// The journals, for calls that append or read.
    pub(crate) fn open_journals(&mut self) -> impl Iterator<Item = OpenJournal<'_>> {
        self.journals.iter_mut().zip(&mut *self.stores).map(|(journal, at)| journal.at(at))
    }

    /// A journal, for calls that append or read.
    #[inline]
    pub(crate) fn journal(&mut self, index: u16) -> OpenJournal<'_> {
        let index = usize::from(index);
        self.journals[index].at(&mut self.stores[index])
    }

    // Commits.

    /// A number for a pending ack, by which other shards refer to it.
    pub(crate) fn next_ack(&mut self) -> u64 {
        self.last_ack += 1;
        self.last_ack
    }

    /// Number of this turn's commit.
    pub(crate) fn current_commit(&self) -> u64 {
        self.commits.current()
    }

    /// The last commit that is over.
    pub(crate) fn durable_commit(&self) -> u64 {
        self.commits.durable()
    }

    pub(crate) fn commits(&self) -> &Commits {
        &self.commits
    }

    pub(crate) fn commits_mut(&mut self) -> &mut Commits {
        &mut self.commits
    }

    /// Looks at a session when the turn's commit is over.
    pub(crate) fn wake_with_current(&mut self, session: SessionKey) {
        let commit = self.commits.current();
        self.commits.wake_with(commit, session);
    }

    /// Everything appended so far.
    pub(crate) fn position(&self) -> AppendPosition {
        let journals: u64 = self.journals.iter().map(Journal::next_offset).sum();
        AppendPosition(journals + self.retained_log.as_ref().map_or(0, RetainedLog::records))
    }

    /// The condition under which everything appended since `before` is durable.
    pub(crate) fn condition_since(&self, before: AppendPosition) -> AckCondition {
        let commit = if self.position() == before { 0 } else { self.commits.current() };
        AckCondition { commit, receipts: 0 }
    }

    /// Everything appended so far, except to one journal.
    pub(crate) fn position_elsewhere(&self, journal: u16) -> AppendPosition {
        let mine = self.journals.get(usize::from(journal)).map_or(0, Journal::next_offset);
        AppendPosition(self.position().0 - mine)
    }

    /// The condition under which everything appended since `before` to other journals is durable. Entries of the
    /// journal itself stay in their order and need not be waited for.
    pub(crate) fn condition_elsewhere_since(&self, journal: u16, before: AppendPosition) -> AckCondition {
        let commit = if self.position_elsewhere(journal) == before { 0 } else { self.commits.current() };
        AckCondition { commit, receipts: 0 }
    }

    /// The condition under which everything appended so far is durable; requests a commit.
    pub(crate) fn fence(&mut self) -> AckCondition {
        self.commit_is_due = true;
        AckCondition { commit: self.commits.latest(true), receipts: 0 }
    }

    /// The condition under which everything appended before this turn is durable.
    pub(crate) fn condition_of_earlier_turns(&self) -> AckCondition {
        AckCondition { commit: self.commits.latest(false), receipts: 0 }
    }

    /// Begins a commit at the end of the turn even if nothing is appended.
    pub(crate) fn request_commit(&mut self) {
        self.commit_is_due = true;
    }

    /// Appends what `topic` retains now: a newer value than the one that led here is just as good.
    pub(crate) fn push_retained(&mut self, clock: Clock, topic: &str, retained: &Retained) {
        let commit = self.commits.current();
        if let (Some(log), Some(at)) = (&mut self.retained_log, self.stores.first_mut()) {
            let message = retained.get(topic);
            log.push(&mut *at.store, clock, topic, message.as_deref(), commit);
        }
    }

    /// Hands everything appended in this turn to the disk. True if a commit has begun.
    pub(crate) fn commit_turn(&mut self, now_ms: u64, counters: &mut Counters) -> bool {
        let commit = self.commits.current();
        let mut parts = 0;
        if let (Some(log), Some(at)) = (&mut self.retained_log, self.stores.first_mut()) {
            log.store_batch(&mut *at.store, commit);
            parts += log.parts(commit);
        }
        let mut has_failed = self.retained_log.as_mut().is_some_and(RetainedLog::take_has_lost);
        for (journal, at) in self.journals.iter_mut().zip(&mut *self.stores) {
            parts += u32::from(journal.at(at).commit(commit));
            has_failed |= journal.has_lost();
        }
        // The Kafka server's logs are part of the same commit.
        self.stores.commit();
        let position = self.position().0;
        let has_appended = std::mem::replace(&mut self.position_before, position) != position;
        let begins = parts > 0 || has_appended || self.commit_is_due;
        if begins {
            self.commit_is_due = false;
            self.commits.begin(parts, has_failed, now_ms);
            counters.log_commits += u64::from(parts > 0);
            self.count(counters);
        }
        begins
    }

    fn count(&self, counters: &mut Counters) {
        let sum = |of: fn(&Journal) -> u64| self.journals.iter().map(of).sum::<u64>();
        let (records, failures, is_failing) = self
            .retained_log
            .as_ref()
            .map_or((0, 0, false), |log| (log.records(), log.failures(), log.is_failing()));
        counters.log_entries = sum(Journal::entries) + records;
        counters.log_bytes = sum(Journal::bytes);
        counters.log_failures = sum(Journal::failures) + failures;
        counters.log_failing = sum(|journal| u64::from(journal.is_failing())) + u64::from(is_failing);
    }

    /// Asks the stores which appends are over. The results count when [`Persistence::settle_completions`] is called.
    pub(crate) fn poll(&mut self, clock: Clock) {
        let mut others = Vec::new();
        for (journal, at) in self.journals.iter_mut().zip(&mut *self.stores) {
            let mut journal = journal.at(at);
            journal.begin_turn(clock);
            others.clear();
            journal.poll(&mut self.arrived, &mut others);
            for completion in &others {
                if let Some(log) = &mut self.retained_log {
                    log.complete(completion, &mut self.arrived);
                }
                journal.on_snapshot_noted(completion);
            }
        }
    }

    /// Applies the results of the last [`Persistence::poll`] to the commits.
    pub(crate) fn settle_completions(&mut self) {
        for Arrived { commit, is_durable } in self.arrived.drain(..) {
            self.commits.on_part_done(commit, is_durable);
        }
    }

    /// The next commit that is over, in order.
    pub(crate) fn next_completed(&mut self) -> Option<CompletedCommit> {
        self.commits.next_completed()
    }

    // Failures, and what stores do by themselves.

    /// The journals of this shard that cannot write now.
    pub(crate) fn failing(&self) -> BTreeSet<u16> {
        self.journals.iter().filter(|journal| journal.is_failing()).map(Journal::id).collect()
    }

    /// Whether the log of retained messages cannot write now. `None` on shards without it.
    pub(crate) fn is_retained_failing(&self) -> Option<bool> {
        self.retained_log.as_ref().map(RetainedLog::is_failing)
    }

    /// Whether publishers have to wait for the disk.
    pub(crate) fn is_behind(&self) -> bool {
        self.journals.iter().any(Journal::is_behind)
    }

    /// Lets each store do one piece of what is due by itself. Returns the work done, in units of the turn's budget.
    pub(crate) fn maintain(&mut self, unix_ms: u64) -> u32 {
        self.stores.iter_mut().map(|at| at.store.maintain(unix_ms).units).sum()
    }

    /// Tries again to write retained messages that could not be written.
    pub(crate) fn retry_retained(&mut self, clock: Clock, retained: &Retained) {
        let commit = self.commits.current();
        if let (Some(log), Some(at)) = (&mut self.retained_log, self.stores.first_mut()) {
            log.retry(&mut *at.store, clock, retained, commit);
        }
    }

    /// The time for which a timer is needed so that marks leave although nothing else happens.
    pub(crate) fn next_marks_timer(&mut self) -> Option<u64> {
        let due_ms = self.journals.iter().filter_map(Journal::marks_due_ms).min();
        let due_ms = due_ms.filter(|due_ms| *due_ms > self.marks_timer_ms)?;
        self.marks_timer_ms = due_ms;
        Some(due_ms)
    }

    /// Lets all marks leave with the next commit.
    pub(crate) fn hurry_marks(&mut self) {
        self.journals.iter_mut().for_each(Journal::hurry_marks);
    }

    /// Number of commits, appends and waiters that are not over.
    pub(crate) fn unfinished(&self) -> usize {
        let journals: usize = self.journals.iter().map(Journal::unfinished).sum();
        journals + self.commits.unfinished()
    }
}
