//! The journal of one shard: the state of its durable sessions, as entries of one log.
//!
//! The entries of a turn are committed together: [`OpenJournal::commit`] hands them to the store, and
//! [`OpenJournal::poll`] returns which commits are on disk. A message is one entry for any number of sessions, which
//! refer to it by offset.
//! Small changes (acknowledgements, progress) are collected as marks, in one entry per turn. If the store fails, the
//! journal discards everything until a snapshot has made up for what was lost; references to lost entries get new
//! offsets with a tag bit.

pub(crate) mod client_origin;
pub(crate) mod entry;
mod held;
mod load;
mod open;
pub(crate) mod replay;
mod schedule;
mod sets;
mod snapshot;
pub(crate) mod stored;
pub(crate) mod wire;

use std::collections::{BTreeSet, VecDeque};

use mainstem_log::{BatchBuilder, Completion, Durability, Error, LogId, Options, StoreAt, Ticket};
use mainstem_mqtt::QoS;
use mainstem_runtime::{Clock, MemoryMeter};

use crate::groups::Group;
use entry::Mark;
use held::{HeldMessages, LOST};
use load::Recent;
use replay::ORIGINS_MAX;
use schedule::Schedule;
use sets::Sets;
use stored::Arrival;

pub(crate) use load::{decode_message, encode_message};
pub(crate) use open::OpenJournal;

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
    /// Opens the journal in `store`, or creates it. Messages that are read charge their memory to `meter`.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn open(
        at: &mut StoreAt,
        durability: Durability,
        segment_bytes: u64,
        snapshot_bytes: u64,
        clock: Clock,
        meter: MemoryMeter,
    ) -> Result<Self, Error> {
        let options = Options { durability, segment_bytes, ..Options::default() };
        let log = at.store.open(LOG, &options)?;
        at.assign(log);
        let end = at.store.status(log).end;
        Ok(Self {
            id: at.store_id,
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
            recent: Recent::new(meter),
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

    /// The journal for calls that append or read; `at` is where it was opened.
    pub(crate) fn at<'a>(&'a mut self, at: &'a mut StoreAt) -> OpenJournal<'a> {
        debug_assert_eq!(self.id, at.store_id);
        OpenJournal::new(self, at)
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

    /// Whether entries of this turn were lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.is_failing
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

    /// The snapshot that makes up for what was lost is complete.
    pub(crate) fn healed(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            self.held.healed();
            log::warn!("journal {}: mended, sessions last again", self.id);
        }
    }
}
