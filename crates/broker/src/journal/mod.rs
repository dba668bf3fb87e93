//! The journal: what must outlive the process about the sessions of one shard, as entries of one log.
//!
//! A turn's entries leave together: [`Journal::commit`] appends them and sets them on their way, and
//! [`Journal::poll`] tells which turns have arrived on disk. A message for any number of sessions is one entry,
//! which sessions refer to by its offset. Small things (acknowledgements, what has been sent) gather as marks
//! and take one entry per turn.

pub(crate) mod entry;
mod held;
mod load;
pub(crate) mod replay;
mod sets;
pub(crate) mod snapshot;
pub(crate) mod wire;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use mainstem_log::{BatchBuilder, Completion, Durability, Error, LogId, Options, State, Store, Ticket};
use mainstem_mqtt::QoS;
use mainstem_runtime::Clock;

use crate::groups::Group;
use crate::message::Message;
use entry::{Entry, Mark, MessageEntry, Origin, Receivers};
use held::Held;
use load::Recent;
use replay::Arrival;
use sets::Sets;

pub(crate) use load::{decode_message, encode_message};

/// Name of the journal's log in its store.
const LOG: &str = "mqtt";
/// Size from which on a batch of entries is closed, so that one message can be read without many others.
const BATCH_BYTES: usize = 16 * 1024;
/// How long marks wait for company, ms, and how many at most, bytes.
const MARKS_WAIT_MS: u64 = 50;
const MARKS_BYTES_MAX: usize = 32 * 1024;
/// Time until a journal that failed is tried again, ms.
const RETRY_MS: u64 = 1_000;
/// Marks names of entries that are no more.
const LOST: u64 = 1 << 62;
/// Foreign origins that are remembered, see [`Journal::origins`].
const ORIGINS_MAX: usize = 4096;
/// Entries that wait for the disk, from which on publishers wait, bytes.
const UNCOMMITTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How far a commit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Number of the shard's commit.
    pub(crate) commit: u64,
    pub(crate) is_durable: bool,
}

/// The journal of one shard, or of one that is no more.
pub(crate) struct Journal {
    /// Number of the journal, which its directory is named by.
    pub(crate) home: u16,
    store: Box<dyn Store>,
    log: LogId,
    builder: BatchBuilder,
    scratch: Vec<u8>,
    publish: Vec<u8>,
    /// Offset of the next entry.
    next: u64,
    /// Offset of the turn's first entry.
    turn_start: u64,
    /// Offset behind the last entry that the store has.
    stored: u64,
    /// Offset behind the last entry that is on disk.
    committed: u64,
    /// Receivers of the message that is being given out.
    receivers: Vec<u8>,
    /// Shared subscriptions that deal it out to some of them.
    groups: Vec<Box<str>>,
    sets: Sets,
    marks: Vec<u8>,
    /// Somebody waits for a mark to be on disk.
    marks_are_urgent: bool,
    /// When the oldest mark was made, ms.
    marks_since_ms: u64,
    /// Number of the next session.
    next_session: u32,
    in_flight: VecDeque<InFlight>,
    uncommitted_bytes: u64,
    recent: Recent,
    held: Held,
    /// QoS 2 publishes of sessions of other journals that were entered here last, oldest first, with the offsets of
    /// their entries: 0 for those that were there before.
    origins: VecDeque<(u64, Arrival)>,
    /// See [`Journal::take_dealt`].
    dealt: Vec<Box<str>>,
    /// Entries are lost since an append or a commit failed, until a snapshot has made up for them.
    is_failing: bool,
    /// What was lost since somebody last looked.
    lost: Option<Lost>,
    /// Where what was lost begins.
    lost_from: u64,
    /// How far the names of what was lost are behind its offsets: others at the same offsets may have been lost before.
    lost_shift: u64,
    /// What is lost next has names from here on.
    lost_next: u64,
    /// When it may be tried to make up for them, ms.
    retry_at_ms: u64,
    completions: Vec<Completion>,
    clock: Clock,
    pub(crate) snapshots: snapshot::Schedule,
    /// Times that something was lost.
    pub(crate) failures: u64,
    /// Entries that the store has taken since the start, and their bytes.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// Entries that are not kept after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Offset of the first.
    pub(crate) from: u64,
    /// The first commit that they are part of; nothing for the turn's own.
    pub(crate) commit: Option<u64>,
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    /// Where the entries of its turn begin.
    from: u64,
    end: u64,
    bytes: u64,
    commit: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { home, next, committed, .. } = self;
        write!(f, "Journal {{ home: {home}, next: {next}, committed: {committed} }}")
    }
}

impl Journal {
    /// The journal in `store`; made if there is none.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn open(
        home: u16,
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
            home,
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
            groups: Vec::new(),
            sets: Sets::default(),
            marks: Vec::new(),
            marks_are_urgent: false,
            marks_since_ms: 0,
            next_session: 1,
            in_flight: VecDeque::new(),
            uncommitted_bytes: 0,
            recent: Recent::default(),
            held: Held::default(),
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
            snapshots: snapshot::Schedule::new(snapshot_bytes),
            failures: 0,
            entries: 0,
            bytes: 0,
        })
    }

    /// The store, for other logs that live in it.
    pub(crate) fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// The time that entries of this turn carry.
    pub(crate) fn begin_turn(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Offset that the next entry will have.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next
    }

    /// Whether the entry at `offset` is on disk.
    pub(crate) fn is_durable(&self, offset: u64) -> bool {
        offset < self.committed
    }

    /// Whether entries cannot be kept now. Nothing that must last may be promised.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Whether more waits for the disk than publishers may add to.
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
        debug_assert!(self.receivers.is_empty(), "a message's offset has been given out");
        self.scratch.clear();
        entry.put(&mut self.scratch);
        self.push_scratch();
    }

    /// Adds an entry that `put` writes.
    pub(crate) fn push_with(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(self.receivers.is_empty(), "a message's offset has been given out");
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

    /// Adds a small thing. If it is lost in a crash, something is done twice that may be; so it waits a little
    /// for company.
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

    /// When marks that wait for company are to leave without.
    pub(crate) fn marks_due_ms(&self) -> Option<u64> {
        (!self.marks.is_empty()).then_some(self.marks_since_ms + MARKS_WAIT_MS)
    }

    /// Whether marks are to leave now.
    fn marks_leave(&self) -> bool {
        let is_due = self.marks_due_ms().is_some_and(|due_ms| due_ms <= self.clock.now_ms);
        let has_company = !self.builder.is_empty();
        is_due
            || (!self.marks.is_empty() && (has_company || self.marks_are_urgent))
            || self.marks.len() >= MARKS_BYTES_MAX
    }

    /// Notes somebody who gets the message that is being given out; it will stand at
    /// [`Journal::next_offset`].
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
        self.groups.extend(group.map(String::into_boxed_str));
    }

    /// Whether somebody gets the message that is being given out.
    pub(crate) fn has_receivers(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// Enters a message for everybody noted since the last one.
    pub(crate) fn push_message(
        &mut self,
        message: &Arc<Message>,
        origin: Option<Origin>,
        walked: Option<&str>,
    ) {
        match (origin, self.has_receivers()) {
            (Some(_), _) => self.held.note_once(self.next),
            (None, true) => self.held.hold(self.next, message),
            (None, false) => {}
        }
        self.publish.clear();
        encode_message(message, self.clock, &mut self.publish);
        let groups = std::mem::take(&mut self.groups);
        match origin {
            Some(origin) if origin.home != self.home => self.remember_origin(Arrival { origin, groups }),
            Some(_) => self.dealt = groups,
            None => {}
        }
        let receivers =
            if self.receivers.is_empty() { Receivers::Nobody } else { self.sets.name(&self.receivers) };
        let entry = Entry::Message(MessageEntry { origin, receivers, walked, publish: &self.publish });
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

    /// Shared subscriptions that dealt out the last message from a session of this journal.
    pub(crate) fn take_dealt(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.dealt)
    }

    /// Hands the store what has been gathered.
    fn store_batch(&mut self) {
        if self.builder.is_empty() {
            return;
        }
        let (bytes, records) = (self.builder.len() as u64, self.builder.records());
        if self.is_failing && !self.snapshots.is_healing() {
            // Without what was lost before it means nothing; a snapshot will make up for all.
            self.builder.finish();
            if self.held.has_once_from(self.turn_start) {
                self.note_lost(Lost { from: self.turn_start, commit: None });
            }
            return;
        }
        match self.store.append_sound(self.log, self.builder.finish_sound()) {
            Ok(appended) => {
                debug_assert_eq!(appended.base_offset + u64::from(records), self.next);
                self.snapshots.wrote(bytes);
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
            log::error!(
                "journal {}: {error}; sessions that should last do not until it is mended",
                self.home
            );
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

    /// Ends the turn: sets everything added in it on its way, as part of the shard's commit `commit`. False if
    /// there is nothing, or it cannot be kept.
    pub(crate) fn commit(&mut self, commit: u64) -> bool {
        if self.marks_leave() {
            let marks = std::mem::take(&mut self.marks);
            self.push_with(|into| into.extend_from_slice(&marks));
            self.marks = marks;
            self.marks.clear();
            self.marks_are_urgent = false;
        }
        self.store_batch();
        let mut has_news = false;
        for flight in self.in_flight.iter_mut().rev().take_while(|flight| flight.commit == 0) {
            flight.commit = commit;
            has_news = true;
        }
        self.turn_start = self.next;
        // The store has other logs, too.
        self.store.commit();
        has_news
    }

    /// Whether entries of this turn were lost already.
    pub(crate) fn has_lost(&self) -> bool {
        self.is_failing
    }

    /// Which commits have come to their end, in order. Also completions of other logs in the store.
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

    /// Where a message stands that was at `offset` before the journal failed, if not there: where it was moved from
    /// of late, or, if it is lost and its place will be taken by another, nowhere.
    pub(crate) fn place_after_loss(&self, offset: u64) -> Option<u64> {
        let is_lost = offset >= self.lost_from && !Self::is_lost(offset);
        self.snapshots.taken_back(offset).or_else(|| is_lost.then_some((offset + self.lost_shift) | LOST))
    }

    /// Where a message was moved from by a snapshot that has been given up; it is still there.
    pub(crate) fn moved_from(&self, offset: u64) -> Option<u64> {
        self.snapshots.taken_back(offset)
    }

    /// Everybody has been told of the places after a loss.
    pub(crate) fn has_told_places(&mut self) {
        self.snapshots.forget_taken_back();
    }

    /// Whether an offset is such a name.
    pub(crate) fn is_lost(offset: u64) -> bool {
        offset & LOST != 0
    }

    /// QoS 2 publishes of sessions of other journals that are entered here.
    pub(crate) fn origins(&self) -> impl Iterator<Item = &Arrival> {
        self.origins.iter().map(|(_, arrival)| arrival)
    }

    /// Batches on their way to the disk, and entries that are remembered until they are there.
    pub(crate) fn unfinished(&self) -> usize {
        self.in_flight.len() + self.held.len()
    }

    /// What was lost since this was last asked.
    pub(crate) fn take_lost(&mut self) -> Option<Lost> {
        self.lost.take()
    }

    /// The entries from `offset` on of publishes that are to be taken back, since their clients send them again.
    pub(crate) fn take_once_from(&mut self, offset: u64) -> BTreeSet<u64> {
        // Or the next snapshot would tell that they have arrived here.
        while self.origins.pop_back_if(|(entered, _)| *entered >= offset).is_some() {}
        self.held.take_once_from(offset)
    }

    /// Gives up what this turn has gathered, for a journal that is about to begin anew.
    pub(crate) fn give_up_turn(&mut self) {
        self.store_batch();
    }

    /// Whether the store may take entries again after it did not.
    pub(crate) fn could_heal(&self) -> bool {
        let is_time = self.clock.now_ms >= self.retry_at_ms;
        self.is_failing
            && is_time
            && self.in_flight.is_empty()
            && self.store.status(self.log).state != State::Broken
    }

    /// Begins anew at the end of the log, with a snapshot that is about to be written: nothing before it
    /// counts any more.
    pub(crate) fn resume(&mut self) {
        let end = self.store.status(self.log).end;
        // What was under way when it failed may have arrived since.
        self.lost_from = end;
        self.lost_shift = self.lost_next.saturating_sub(end);
        self.lost_next = self.next.max(end) + self.lost_shift;
        self.turn_start = end;
        self.next = end;
        self.stored = end;
        self.committed = end;
        self.held.begin_anew(end, self.lost_shift);
        // What this turn has gathered counts from where the lost entries would have ended.
        self.builder = BatchBuilder::default();
        self.sets.forget();
        self.recent = Recent::default();
    }

    /// The snapshot that makes up for what was lost is complete.
    pub(crate) fn healed(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            self.held.healed();
            log::warn!("journal {}: mended, sessions last again", self.home);
        }
    }

    /// The message at `offset`, from memory or from disk; nothing if it cannot be read.
    pub(crate) fn message(&mut self, offset: u64) -> Option<Arc<Message>> {
        let taken_back = self.snapshots.taken_back(offset).filter(|_| self.is_failing);
        let offset = taken_back.unwrap_or(offset);
        if let Some(held) = self.held.message(offset) {
            return Some(held);
        }
        if offset >= self.stored {
            self.store_batch();
        }
        let found = self.recent.message(&mut *self.store, self.log, offset, self.clock);
        if let Err(error) = &found {
            log::error!("journal {}: the message at {offset} cannot be read: {error}", self.home);
        }
        found.ok()
    }
}
