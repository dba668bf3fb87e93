//! Snapshots: every session written out whole, a few per turn, so that what came before need not be read again.
//!
//! A snapshot begins with a marker. Reading may begin there: entries about a session mean nothing until its
//! piece of the snapshot comes, which holds all of them, or until it is made anew behind the marker. So the
//! sessions need not be written in one turn, and serving goes on meanwhile.

use std::collections::VecDeque;

use hashbrown::HashMap;
use mainstem_log::{Appended, BatchBuilder, Error, Options, Ticket};
use mainstem_mqtt::QoS;

use super::Journal;
use super::entry::{Entry, Origin, SessionEntry, WillEntry, begin_snapshot, options_byte, options_of};
use super::replay::{Arrival, StoredExtra, StoredReceived, StoredSession, StoredSubscription, StoredWill};
use super::wire::{Damaged, Reader, put, put_bytes};
use crate::queue::Run;

/// Name of the log that says where the last snapshot begins.
const HINT_LOG: &str = "mqtt-snapshot";
/// Messages that one snapshot moves at most. They are remembered, so that sessions that share one move it once, and
/// so that it can be taken back.
const MOVED_MAX: usize = 256 * 1024;

mod piece {
    pub(super) const SESSION: u8 = 0;
    pub(super) const ORIGINS: u8 = 1;
    pub(super) const LAST_SESSION: u8 = 2;
}

/// One entry of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Session(u32, Box<StoredSession>),
    Origins(Vec<Arrival>),
    LastSession(u32),
}

/// When snapshots are written, and how far the one under way has come.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Bytes of entries after which the next is due at the earliest.
    interval_bytes_min: u64,
    /// Bytes of entries so far.
    written: u64,
    written_at_begin: u64,
    written_at_end: u64,
    /// What the last snapshot took, bytes.
    cost: u64,
    /// Where the last complete one begins.
    last: Option<u64>,
    state: Stage,
    /// It makes up for entries that were lost.
    heals: bool,
    /// Where messages of deliveries have been moved to.
    moved: HashMap<u64, u64, foldhash::fast::RandomState>,
    /// From where, by where they stand, if the snapshot was given up: what they were moved to may be lost.
    taken_back: HashMap<u64, u64, foldhash::fast::RandomState>,
    /// The oldest message that a session written so far refers to.
    oldest: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Sessions from this slot on are to be written.
    Writing { begins: u64, slot: usize },
    /// All are written; the last entry is not on disk yet.
    Written { begins: u64, end: u64 },
    /// Its beginning is being noted.
    Noted { begins: u64, ticket: Ticket },
}

impl Schedule {
    pub(super) fn new(interval_bytes_min: u64) -> Self {
        Self { interval_bytes_min, ..Self::default() }
    }

    /// The log has been read: it has `bytes`, and this snapshot.
    pub(super) fn found(&mut self, snapshot: Option<u64>, bytes: u64) {
        self.last = snapshot;
        self.written = bytes;
    }

    pub(super) fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Whether the snapshot under way makes up for lost entries.
    pub(crate) fn is_healing(&self) -> bool {
        self.heals && self.state != Stage::Idle
    }

    /// Gives the snapshot under way up.
    pub(super) fn abandon(&mut self) {
        self.state = Stage::Idle;
        self.taken_back.extend(self.moved.drain().map(|(from, to)| (to, from)));
    }

    /// Where a message was moved from in a snapshot that was given up. It is still there.
    pub(super) fn taken_back(&self, offset: u64) -> Option<u64> {
        self.taken_back.get(&offset).copied()
    }

    /// Nobody refers any more to where messages were moved in a snapshot that was given up.
    pub(super) fn forget_taken_back(&mut self) {
        self.taken_back = HashMap::default();
    }

    /// The slot to go on with, while sessions are to be written.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self.state {
            Stage::Writing { slot, .. } => Some(slot),
            _ => None,
        }
    }

    /// Whether a snapshot is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == Stage::Idle
    }

    /// Sessions up to this slot have been written.
    pub(crate) fn reached(&mut self, next: usize) {
        if let Stage::Writing { slot, .. } = &mut self.state {
            *slot = next;
        }
    }

    /// A session that was written refers to this message.
    pub(crate) fn refers_to(&mut self, offset: u64) {
        self.oldest = self.oldest.min(offset);
    }
}

impl Journal {
    /// Begins a snapshot if one is due. True if so.
    pub(crate) fn begin_snapshot_if_due(&mut self) -> bool {
        if !self.snapshots.is_idle() {
            return false;
        }
        let heals = self.could_heal();
        let Schedule { interval_bytes_min, written, written_at_end, cost, .. } = self.snapshots;
        let is_due = written - written_at_end >= interval_bytes_min.max(2 * cost);
        if !heals && (self.is_failing() || !is_due) {
            return false;
        }
        if heals {
            self.resume();
        }
        let begins = self.next_offset();
        self.snapshots.state = Stage::Writing { begins, slot: 0 };
        self.snapshots.heals = heals;
        self.snapshots.moved = HashMap::default();
        if !heals {
            self.snapshots.forget_taken_back();
        }
        self.snapshots.oldest = begins;
        self.snapshots.written_at_begin = written;
        // What follows must make sense without what came before.
        self.sets.forget();
        self.push(&Entry::SnapshotBegins);
        true
    }

    /// Messages before this offset are to be moved, if they are few: they have outlived a whole snapshot.
    pub(crate) fn horizon(&self) -> u64 {
        self.snapshots.last.unwrap_or(0)
    }

    /// Where the message at `offset` stands now, if it was moved in this snapshot; or moves it.
    pub(crate) fn move_message(
        &mut self,
        offset: u64,
        known: Option<&std::sync::Arc<crate::message::Message>>,
    ) -> Option<u64> {
        if let Some(moved) = self.snapshots.moved.get(&offset) {
            return Some(*moved);
        }
        if self.snapshots.moved.len() == MOVED_MAX {
            return None;
        }
        let message = known.cloned().or_else(|| self.message(offset))?;
        let moved = self.next_offset();
        self.push_message(&message, None, None);
        self.snapshots.moved.insert(offset, moved);
        Some(moved)
    }

    /// Writes one session.
    pub(crate) fn push_snapshot(&mut self, number: u32, session: &StoredSession) {
        self.push_with(|into| put_session(into, number, session));
    }

    /// All sessions have been written.
    pub(crate) fn end_snapshot(&mut self) {
        let Stage::Writing { begins, .. } = self.snapshots.state else { return };
        let origins: Vec<Arrival> = self.origins().cloned().collect();
        self.push_with(|into| put_origins(into, &origins));
        let last = self.next_session - 1;
        self.push_with(|into| {
            begin_snapshot(into);
            into.push(piece::LAST_SESSION);
            put(into, u64::from(last));
        });
        self.push(&Entry::SnapshotEnds { begins });
        self.snapshots.state = Stage::Written { begins, end: self.next_offset() };
        self.sync_next();
    }

    /// What a snapshot stands for goes from the disk when it is there: loss of power must not take both.
    fn sync_next(&mut self) {
        self.store.sync_next(self.log);
    }

    /// Goes on with a snapshot whose sessions are all written, as far as the disk has come.
    pub(crate) fn finish_snapshot(&mut self) {
        let Stage::Written { begins, end } = self.snapshots.state else { return };
        if !self.is_durable(end - 1) {
            // The disk may have refused its end, which comes again then.
            return self.sync_next();
        }
        match self.note_snapshot(begins) {
            Ok(Appended { ticket, .. }) => self.snapshots.state = Stage::Noted { begins, ticket },
            Err(error) => {
                log::error!("journal {}: a snapshot cannot be noted: {error}", self.home);
                self.snapshots.abandon();
            }
        }
    }

    fn note_snapshot(&mut self, begins: u64) -> Result<Appended, Error> {
        let hints = self.store.open(HINT_LOG, &Options::default())?;
        let mut builder = BatchBuilder::default();
        builder.push(self.clock.unix_ms.cast_signed(), None, Some(&begins.to_be_bytes()));
        let appended = self.store.append(hints, builder.finish())?;
        // Only the last one matters.
        self.store.truncate_prefix(hints, appended.base_offset.saturating_sub(1))?;
        Ok(appended)
    }

    /// A commit of another log of the store has come to its end; it may be the note of a snapshot.
    pub(crate) fn noted(&mut self, completion: &mainstem_log::Completion) {
        let Stage::Noted { begins, ticket } = self.snapshots.state else { return };
        if completion.ticket < ticket || self.store.open(HINT_LOG, &Options::default()) != Ok(completion.log)
        {
            return;
        }
        self.snapshots.state = Stage::Idle;
        if completion.outcome.is_err() {
            return;
        }
        let schedule = &mut self.snapshots;
        schedule.moved = HashMap::default();
        schedule.last = Some(begins);
        schedule.cost = schedule.written - schedule.written_at_begin;
        schedule.written_at_end = schedule.written;
        let (oldest, heals) = (schedule.oldest, std::mem::take(&mut schedule.heals));
        if heals {
            self.healed();
        }
        if let Err(error) = self.store.truncate_prefix(self.log, oldest) {
            log::error!("journal {}: old entries cannot be removed: {error}", self.home);
        }
        log::debug!("journal {}: a snapshot from {begins} on is complete", self.home);
    }

    /// Where the last snapshot begins, if one has been noted.
    pub(super) fn snapshot_hint(&mut self) -> Result<Option<u64>, Error> {
        if !self.store.names().iter().any(|name| name == HINT_LOG) {
            return Ok(None);
        }
        let hints = self.store.open(HINT_LOG, &Options::default())?;
        let status = self.store.status(hints);
        if status.start == status.end {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.store.read(hints, status.end - 1..status.end, 0, &mut bytes)?;
        let last = mainstem_log::batches(&bytes).last();
        let value = last.and_then(|batch| batch.records().last()?.ok()?.value);
        let begins = value.and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
        begins.map(Some).ok_or(Error::Corrupt { offset: status.end - 1 })
    }
}

fn put_session(into: &mut Vec<u8>, number: u32, session: &StoredSession) {
    begin_snapshot(into);
    into.push(piece::SESSION);
    let will = session.will.as_ref().map(StoredWill::as_entry);
    let fields = SessionEntry {
        number,
        client_id: &session.client_id,
        version: session.version,
        expiry_s: session.expiry_s,
        gone_unix_ms: session.gone_unix_ms,
        will,
    };
    fields.put_fields(into);
    put(into, session.sequence);
    put(into, session.sent);
    put(into, session.received_sequence);
    put(into, session.subscriptions.len() as u64);
    for (filter, subscription) in &session.subscriptions {
        put_bytes(into, filter.as_bytes());
        into.push(options_byte(subscription.options));
        put(into, u64::from(subscription.id));
        into.push(u8::from(subscription.walk.is_some()));
        if let Some(walk) = &subscription.walk {
            put_bytes(into, walk.as_bytes());
        }
    }
    put(into, session.received.len() as u64);
    for (packet_id, received) in &session.received {
        put(into, u64::from(*packet_id));
        put(into, received.sequence);
        put(into, received.reach);
        put_groups(into, &received.groups);
    }
    put(into, session.unsettled.len() as u64);
    for run in &session.unsettled {
        put_run(into, run);
    }
    put(into, session.released.len() as u64);
    for sequence in &session.released {
        put(into, *sequence);
    }
}

fn put_run(into: &mut Vec<u8>, run: &Run<StoredExtra>) {
    put(into, run.sequence);
    put(into, run.offset);
    put(into, u64::from(run.count));
    put(into, run.bytes);
    into.push(run.qos as u8 | u8::from(run.retain) << 2 | u8::from(run.extra.is_some()) << 3);
    if let Some(extra) = &run.extra {
        put(into, extra.ids.len() as u64);
        for id in &extra.ids {
            put(into, u64::from(*id));
        }
        put_bytes(into, extra.group.as_deref().unwrap_or_default().as_bytes());
    }
}

fn put_origins(into: &mut Vec<u8>, origins: &[Arrival]) {
    begin_snapshot(into);
    into.push(piece::ORIGINS);
    put(into, origins.len() as u64);
    for Arrival { origin, groups } in origins {
        origin.put(into);
        put_groups(into, groups);
    }
}

fn put_groups(into: &mut Vec<u8>, groups: &[Box<str>]) {
    put(into, groups.len() as u64);
    for group in groups {
        put_bytes(into, group.as_bytes());
    }
}

fn take_groups(reader: &mut Reader<'_>) -> Result<Vec<Box<str>>, Damaged> {
    let count = reader.number()?;
    (0..count).map(|_| Ok(reader.text()?.into())).collect()
}

/// Reads one entry of a snapshot.
pub(super) fn take(reader: &mut Reader<'_>) -> Result<Piece, Damaged> {
    Ok(match reader.byte()? {
        piece::SESSION => {
            let (number, session) = take_session(reader)?;
            Piece::Session(number, Box::new(session))
        }
        piece::ORIGINS => {
            let count = reader.number()?;
            let mut arrival = || Ok(Arrival { origin: Origin::take(reader)?, groups: take_groups(reader)? });
            Piece::Origins((0..count).map(|_| arrival()).collect::<Result<_, _>>()?)
        }
        piece::LAST_SESSION => Piece::LastSession(reader.small()?),
        _ => return Err(Damaged),
    })
}

fn take_session(reader: &mut Reader<'_>) -> Result<(u32, StoredSession), Damaged> {
    let fields = SessionEntry::take_fields(reader)?;
    let mut session = StoredSession::default();
    session.describe(&fields);
    session.sequence = reader.number()?;
    session.sent = reader.number()?;
    session.received_sequence = reader.number()?;
    for _ in 0..reader.number()? {
        let filter = reader.text()?;
        let options = options_of(reader.byte()?)?;
        let id = reader.small()?;
        let walk = if reader.byte()? != 0 { Some(reader.text()?.into()) } else { None };
        session.subscriptions.insert(filter.into(), StoredSubscription { options, id, walk });
    }
    for _ in 0..reader.number()? {
        let packet_id = reader.small()?;
        let (sequence, reach) = (reader.number()?, reader.number()?);
        let received = StoredReceived { sequence, reach, groups: take_groups(reader)? };
        session.received.insert(packet_id, received);
    }
    let mut unsettled = VecDeque::new();
    for _ in 0..reader.number()? {
        unsettled.push_back(take_run(reader)?);
    }
    session.unsettled = unsettled;
    for _ in 0..reader.number()? {
        session.released.insert(reader.number()?);
    }
    Ok((fields.number, session))
}

fn take_run(reader: &mut Reader<'_>) -> Result<Run<StoredExtra>, Damaged> {
    let (sequence, offset) = (reader.number()?, reader.number()?);
    let count = reader.small::<u32>()?;
    if count == 0 {
        return Err(Damaged);
    }
    let bytes = reader.number()?;
    let flags = reader.byte()?;
    let extra = if flags & 8 != 0 {
        let mut ids = Vec::new();
        for _ in 0..reader.number()? {
            ids.push(reader.small()?);
        }
        let group = reader.text()?;
        Some(Box::new(StoredExtra { ids, group: (!group.is_empty()).then(|| group.into()) }))
    } else {
        None
    };
    let qos = QoS::try_from(flags & 3).map_err(|_| Damaged)?;
    Ok(Run { sequence, offset, count, bytes, qos, retain: flags & 4 != 0, extra })
}

impl StoredWill {
    pub(crate) fn as_entry(&self) -> WillEntry<'_> {
        WillEntry { delay_s: self.delay_s, expiry_s: self.expiry_s, publish: &self.publish }
    }
}
