//! The journal of one shard: the state of its durable sessions, as entries of one log.
//!
//! The entries of a turn are committed together: [`Journal::commit`] hands them to the store, and [`Journal::poll`]
//! returns which commits are on disk. A message is one entry for any number of sessions, which refer to it by offset.
//! Small changes (acknowledgements, progress) are collected as marks, in one entry per turn. If the store fails, the
//! journal discards everything until a snapshot has made up for what was lost; references to lost entries get new
//! offsets with a tag bit.

pub(crate) mod entry;
mod held;
mod load;
pub(crate) mod replay;
mod schedule;
mod sets;
mod snapshot;
pub(crate) mod stored;
pub(crate) mod wire;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use mainstem_log::{BatchBuilder, Completion, Durability, Error, LogId, Options, State, Store, Ticket};
use mainstem_mqtt::QoS;
use mainstem_runtime::Clock;

use crate::groups::Group;
use crate::message::Message;
use entry::{Entry, Mark, MessageEntry, Origin, ReachedTargets, Receivers};
use held::{HeldMessages, LOST};
use load::Recent;
use replay::ORIGINS_MAX;
use schedule::Schedule;
use sets::Sets;
use stored::Arrival;

pub(crate) use load::{decode_message, encode_message};

/// Name of the journal's log in its store.
const LOG: &str = "mqtt";
/// Size at which a batch of entries is closed, so that a message can be read without many others.
const BATCH_BYTES: usize = 16 * 1024;
/// How long marks wait for other entries, ms, and how many at most, bytes.
const MARKS_WAIT_MS: u64 = 50;
const MARKS_BYTES_MAX: usize = 32 * 1024;
/// Pause before a journal that failed is tried again, ms.
const RETRY_MS: u64 = 1_000;
/// Bytes of uncommitted entries from which on publishers wait.
const UNCOMMITTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A part of a commit that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Number of the shard's commit.
    pub(crate) commit: u64,
    pub(crate) is_durable: bool,
}

/// The journal of one shard, or of a former shard.
pub(crate) struct Journal {
    /// Number of the journal, which its directory is named by.
    id: u16,
    store: Box<dyn Store>,
    log: LogId,
    builder: BatchBuilder,
    scratch: Vec<u8>,
    publish: Vec<u8>,
    /// Offset of the next entry.
    next: u64,
    /// Offset of the first entry of the turn.
    turn_start: u64,
    /// Offset behind the last entry that the store has.
    stored: u64,
    /// Offset behind the last entry that is on disk.
    committed: u64,
    /// Receivers of the current message.
    receivers: Vec<u8>,
    /// Whether any of them has it by a subscription of its own.
    is_for_sessions: bool,
    /// Shared subscriptions of the others.
    groups: Vec<Box<str>>,
    sets: Sets,
    marks: Vec<u8>,
    /// An ack waits for a mark.
    marks_are_urgent: bool,
    /// Time of the oldest mark, ms.
    marks_since_ms: u64,
    /// Number of the next session.
    next_session: u32,
    in_flight: VecDeque<InFlight>,
    uncommitted_bytes: u64,
    recent: Recent,
    held: HeldMessages,
    /// Recent QoS 2 publishes of sessions of other journals, oldest first, with the offsets of their entries; 0 for
    /// those that were read at the start.
    origins: VecDeque<(u64, Arrival)>,
    /// See [`Journal::take_dealt`].
    dealt: Vec<Box<str>>,
    /// Entries are lost since an append or a commit failed, until a snapshot has made up for them.
    is_failing: bool,
    /// What was lost since the last [`Journal::take_lost`].
    lost: Option<Lost>,
    /// Offset at which the lost entries begin.
    lost_from: u64,
    /// Distance from the old to the new offsets of lost entries: others may have been lost at the same offsets before.
    lost_shift: u64,
    /// The new offsets of what is lost next begin here.
    lost_next: u64,
    /// When the journal is tried again, ms.
    retry_at_ms: u64,
    completions: Vec<Completion>,
    clock: Clock,
    snapshots: Schedule,
    failures: u64,
    entries: u64,
    bytes: u64,
}

/// Entries that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Offset of the first.
    pub(crate) from: u64,
    /// Their first commit; `None` for that of the turn.
    pub(crate) commit: Option<u64>,
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    /// Offset of the first entry of its turn.
    from: u64,
    end: u64,
    bytes: u64,
    commit: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, next, committed, .. } = self;
        write!(f, "Journal {{ id: {id}, next: {next}, committed: {committed} }}")
    }
}

impl Journal {
    /// Opens the journal in `store`, or creates it.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn open(
        id: u16,
        mut store: Box<dyn Store>,
        durability: Durability,
        segment_bytes: u64,
        snapshot_bytes: u64,
        clock: Clock,
    ) -> Result<Self, Error> {
        let options = Options { durability, segment_bytes, ..Options::default() };
        let log = store.open(LOG, &options)?;
        let end = store.status(log).end;
        Ok(Self {
            id,
            store,
            log,
            builder: BatchBuilder::default(),
            scratch: Vec::new(),
            publish: Vec::new(),
            next: end,
            turn_start: end,
            stored: end,
            committed: end,
            receivers: Vec::new(),
            is_for_sessions: false,
            groups: Vec::new(),
            sets: Sets::default(),
            marks: Vec::new(),
            marks_are_urgent: false,
            marks_since_ms: 0,
            next_session: 1,
            in_flight: VecDeque::new(),
            uncommitted_bytes: 0,
            recent: Recent::default(),
            held: HeldMessages::default(),
            origins: VecDeque::new(),
            dealt: Vec::new(),
            is_failing: false,
            lost: None,
            lost_from: 0,
            lost_shift: 0,
            lost_next: 0,
            retry_at_ms: 0,
            completions: Vec::new(),
            clock,
            snapshots: Schedule::new(snapshot_bytes),
            failures: 0,
            entries: 0,
            bytes: 0,
        })
    }

    /// Number of the journal, which its directory is named by.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn snapshots(&mut self) -> &mut Schedule {
        &mut self.snapshots
    }

    /// Number of times that the journal began to fail.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Entries stored since the start.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of those entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The store, for other logs that live in it.
    pub(crate) fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// Sets the time of this turn's entries.
    pub(crate) fn begin_turn(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Offset of the next entry.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next
    }

    /// Whether the entry at `offset` is on disk.
    pub(crate) fn is_durable(&self, offset: u64) -> bool {
        offset < self.committed
    }

    /// Whether the journal fails: nothing durable may be promised.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Whether publishers have to wait for the disk.
    pub(crate) fn is_behind(&self) -> bool {
        self.uncommitted_bytes > UNCOMMITTED_BYTES_MAX
    }

    /// A number for a new session.
    pub(crate) fn number_session(&mut self) -> u32 {
        let number = self.next_session;
        self.next_session += 1;
        number
    }

    /// Adds an entry; it is durable with the turn's commit.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        debug_assert!(self.receivers.is_empty(), "the offset of a message has been assigned");
        self.scratch.clear();
        entry.put(&mut self.scratch);
        self.push_scratch();
    }

    /// Adds an entry that `put` writes.
    pub(crate) fn push_with(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(self.receivers.is_empty(), "the offset of a message has been assigned");
        self.scratch.clear();
        put(&mut self.scratch);
        self.push_scratch();
    }

    fn push_scratch(&mut self) {
        self.builder.push(self.clock.unix_ms.cast_signed(), None, Some(&self.scratch));
        self.next += 1;
        if self.builder.len() >= BATCH_BYTES {
            self.store_batch();
        }
    }

    /// Adds a mark. If a crash loses it, something is repeated that may be, so it waits a little for other entries.
    pub(crate) fn mark(&mut self, mark: Mark) {
        if self.marks.is_empty() {
            entry::begin_marks(&mut self.marks);
            self.marks_since_ms = self.clock.now_ms;
        }
        self.marks_are_urgent |= matches!(mark, Mark::Released { .. });
        mark.put(&mut self.marks);
    }

    /// Lets all marks leave with the next commit.
    pub(crate) fn hurry_marks(&mut self) {
        self.marks_are_urgent = true;
    }

    /// When marks are written without other entries.
    pub(crate) fn marks_due_ms(&self) -> Option<u64> {
        (!self.marks.is_empty()).then_some(self.marks_since_ms + MARKS_WAIT_MS)
    }

    /// Whether marks are written now.
    fn marks_leave(&self) -> bool {
        let is_due = self.marks_due_ms().is_some_and(|due_ms| due_ms <= self.clock.now_ms);
        let has_entries = !self.builder.is_empty();
        is_due
            || (!self.marks.is_empty() && (has_entries || self.marks_are_urgent))
            || self.marks.len() >= MARKS_BYTES_MAX
    }

    /// Adds a receiver of the current message, which will be at [`Journal::next_offset`].
    pub(crate) fn add_receiver(
        &mut self,
        session: u32,
        qos: QoS,
        retain: bool,
        ids: &[u32],
        group: Option<&Group>,
    ) {
        let group = group.map(Group::full_name);
        entry::put_receiver(&mut self.receivers, session, qos, retain, ids, group.as_deref());
        match group {
            Some(group) => self.groups.push(group.into_boxed_str()),
            None => self.is_for_sessions = true,
        }
    }

    /// Whether the current message has receivers.
    pub(crate) fn has_receivers(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// Appends a message for the receivers added since the last one.
    pub(crate) fn push_message(
        &mut self,
        message: &Arc<Message>,
        origin: Option<Origin>,
        replayed_for: Option<&str>,
    ) {
        match (origin, self.has_receivers()) {
            (Some(_), _) => self.held.note_once(self.next),
            (None, true) => self.held.hold(self.next, message),
            (None, false) => {}
        }
        self.publish.clear();
        encode_message(message, self.clock, &mut self.publish);
        let (groups, is_for_sessions) =
            (std::mem::take(&mut self.groups), std::mem::take(&mut self.is_for_sessions));
        match origin {
            Some(origin) if origin.journal_id != self.id => {
                let journals = is_for_sessions.then_some(self.id).into_iter().collect();
                let reached = ReachedTargets { journals, groups: groups.into_iter().collect() };
                self.remember_origin(Arrival { origin, reached });
            }
            Some(_) => self.dealt = groups,
            None => {}
        }
        let receivers =
            if self.receivers.is_empty() { Receivers::Nobody } else { self.sets.name(&self.receivers) };
        let entry = Entry::Message(MessageEntry { origin, receivers, replayed_for, publish: &self.publish });
        self.scratch.clear();
        entry.put(&mut self.scratch);
        self.receivers.clear();
        self.push_scratch();
    }

    fn remember_origin(&mut self, arrival: Arrival) {
        if self.origins.len() == ORIGINS_MAX {
            self.origins.pop_front();
        }
        self.origins.push_back((self.next, arrival));
    }

    /// Takes the shared subscriptions that dealt out the last QoS 2 publish of a session of this journal.
    pub(crate) fn take_dealt(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.dealt)
    }

    /// Appends the collected entries to the store.
    fn store_batch(&mut self) {
        if self.builder.is_empty() {
            return;
        }
        let (bytes, records) = (self.builder.len() as u64, self.builder.records());
        if self.is_failing && !self.snapshots.is_healing() {
            // Entries mean nothing without those that were lost; a snapshot will make up for all.
            self.builder.finish();
            if self.held.has_once_from(self.turn_start) {
                self.note_lost(Lost { from: self.turn_start, commit: None });
            }
            return;
        }
        match self.store.append_valid(self.log, self.builder.finish_valid()) {
            Ok(appended) => {
                debug_assert_eq!(appended.base_offset + u64::from(records), self.next);
                self.snapshots.add_written(bytes);
                self.entries += u64::from(records);
                self.bytes += bytes;
                self.stored = self.next;
                self.uncommitted_bytes += bytes;
                let known = self.in_flight.back_mut().filter(|last| last.ticket == appended.ticket);
                if let Some(last) = known {
                    (last.end, last.bytes) = (self.next, last.bytes + bytes);
                } else {
                    let ticket = appended.ticket;
                    let (from, end) = (self.turn_start, self.next);
                    self.in_flight.push_back(InFlight { ticket, from, end, bytes, commit: 0 });
                }
            }
            // The turn fails as a whole, whatever of it has been stored before.
            Err(error) => self.fail(&error, Lost { from: self.turn_start, commit: None }),
        }
    }

    fn fail(&mut self, error: &Error, lost: Lost) {
        if !self.is_failing {
            log::error!("journal {}: {error}; sessions that should last do not until it is mended", self.id);
            self.lost_from = self.committed;
        }
        self.failures += u64::from(!self.is_failing);
        self.note_lost(lost);
        self.is_failing = true;
        self.retry_at_ms = self.clock.now_ms + RETRY_MS;
        self.snapshots.abandon();
        self.builder = BatchBuilder::default();
        self.sets.forget();
    }

    fn note_lost(&mut self, lost: Lost) {
        let known = self.lost.get_or_insert(lost);
        known.from = known.from.min(lost.from);
        known.commit = match (known.commit, lost.commit) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// Ends the turn: commits its entries as part of the shard's commit `commit`. False if there are none, or the
    /// journal fails.
    pub(crate) fn commit(&mut self, commit: u64) -> bool {
        if self.marks_leave() {
            let marks = std::mem::take(&mut self.marks);
            self.push_with(|into| into.extend_from_slice(&marks));
            self.marks = marks;
            self.marks.clear();
            self.marks_are_urgent = false;
        }
        self.store_batch();
        let mut has_entries = false;
        for flight in self.in_flight.iter_mut().rev().take_while(|flight| flight.commit == 0) {
            flight.commit = commit;
            has_entries = true;
        }
        self.turn_start = self.next;
        // The store has other logs, too.
        self.store.commit();
        has_entries
    }

    /// Whether entries of this turn were lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.is_failing
    }

    /// Collects parts of commits that are over, in order, and completions of other logs of the store.
    pub(crate) fn poll(&mut self, arrived: &mut Vec<Arrived>, others: &mut Vec<Completion>) {
        let mut completions = std::mem::take(&mut self.completions);
        self.store.completions(&mut completions);
        for completion in completions.drain(..) {
            if completion.log != self.log {
                others.push(completion);
                continue;
            }
            while let Some(flight) = self.in_flight.pop_front_if(|flight| flight.ticket <= completion.ticket)
            {
                self.uncommitted_bytes -= flight.bytes;
                if completion.outcome.is_ok() {
                    self.committed = self.committed.max(flight.end);
                }
                arrived.push(Arrived { commit: flight.commit, is_durable: completion.outcome.is_ok() });
                if let Err(error) = &completion.outcome {
                    self.fail(error, Lost { from: flight.from, commit: Some(flight.commit) });
                }
            }
        }
        self.completions = completions;
        self.held.committed(self.committed);
    }

    /// The new offset of a message that was at `offset` when the journal failed: where an abandoned snapshot had moved
    /// it from, or, if its entry is lost, an offset with the tag bit. `None` if it is still there.
    pub(crate) fn place_after_loss(&self, offset: u64) -> Option<u64> {
        let is_lost = offset >= self.lost_from && !Self::is_lost(offset);
        self.snapshots.undone(offset).or_else(|| is_lost.then_some((offset + self.lost_shift) | LOST))
    }

    /// The old offset of a message that an abandoned snapshot has moved. It is still there.
    pub(crate) fn moved_from(&self, offset: u64) -> Option<u64> {
        self.snapshots.undone(offset)
    }

    /// Nothing refers any more to where an abandoned snapshot moved messages.
    pub(crate) fn forget_undone_moves(&mut self) {
        self.snapshots.forget_undone();
    }

    /// Whether the entry of this offset was lost.
    pub(crate) fn is_lost(offset: u64) -> bool {
        offset & LOST != 0
    }

    /// Recent QoS 2 publishes of sessions of other journals in this one.
    pub(crate) fn origins(&self) -> impl Iterator<Item = &Arrival> {
        self.origins.iter().map(|(_, arrival)| arrival)
    }

    /// Number of batches in flight, and of entries in memory until they are on disk.
    pub(crate) fn unfinished(&self) -> usize {
        self.in_flight.len() + self.held.len()
    }

    /// Takes what was lost since the last call.
    pub(crate) fn take_lost(&mut self) -> Option<Lost> {
        self.lost.take()
    }

    /// Takes the offsets from `offset` on of publishes to take back: their clients send them again.
    pub(crate) fn take_once_from(&mut self, offset: u64) -> BTreeSet<u64> {
        // Otherwise the next snapshot would contain them as arrived.
        while self.origins.pop_back_if(|(entered, _)| *entered >= offset).is_some() {}
        self.held.take_once_from(offset)
    }

    /// Discards what this turn has collected: the journal is about to restart.
    pub(crate) fn give_up_turn(&mut self) {
        self.store_batch();
    }

    /// Whether a journal that failed may be tried again.
    pub(crate) fn could_heal(&self) -> bool {
        let is_time = self.clock.now_ms >= self.retry_at_ms;
        self.is_failing
            && is_time
            && self.in_flight.is_empty()
            && self.store.status(self.log).state != State::Broken
    }

    /// Restarts at the end of the log, with a snapshot that is about to be written. Entries before it do not count any
    /// more.
    pub(crate) fn resume(&mut self) {
        let end = self.store.status(self.log).end;
        // What was in flight when it failed may be on disk.
        self.lost_from = end;
        self.lost_shift = self.lost_next.saturating_sub(end);
        self.lost_next = self.next.max(end) + self.lost_shift;
        self.turn_start = end;
        self.next = end;
        self.stored = end;
        self.committed = end;
        self.held.restart(end, self.lost_shift);
        // What this turn has collected is lost as well.
        self.builder = BatchBuilder::default();
        self.sets.forget();
        self.recent = Recent::default();
    }

    /// The snapshot that makes up for what was lost is complete.
    pub(crate) fn healed(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            self.held.healed();
            log::warn!("journal {}: mended, sessions last again", self.id);
        }
    }

    /// The message at `offset`, from memory or from disk. `None` if it cannot be read.
    pub(crate) fn message(&mut self, offset: u64) -> Option<Arc<Message>> {
        let undone = self.snapshots.undone(offset).filter(|_| self.is_failing);
        let offset = undone.unwrap_or(offset);
        if let Some(held) = self.held.message(offset) {
            return Some(held);
        }
        if offset >= self.stored {
            self.store_batch();
        }
        let found = self.recent.message(&mut *self.store, self.log, offset, self.clock);
        if let Err(error) = &found {
            log::error!("journal {}: the message at {offset} cannot be read: {error}", self.id);
        }
        found.ok()
    }
}
