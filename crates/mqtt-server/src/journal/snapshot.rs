//! Incremental snapshots: all sessions are written whole, a few per turn, so that earlier entries need not be read
//! again.
//!
//! A snapshot begins with a marker, and reading may begin there: entries about a session have no effect until its part
//! of the snapshot comes, which includes them, or until the session is created behind the marker. So the shard keeps
//! serving while the snapshot is written. A hint in a log of its own names the last complete snapshot.

use std::sync::Arc;

use mainstem_log::{Appended, BatchBuilder, Completion, Error, Options, batches};

use super::entry::Entry;
use super::replay::Replayed;
use super::schedule::Stage;
use super::stored::{Arrival, StoredSession, put_last_session, put_origins, put_session};
use super::{Journal, OpenJournal};
use crate::message::Message;

/// Name of the log with the hint.
const HINT_LOG: &str = "mqtt-snapshot";
/// Bytes read from the store at a time when a journal is opened.
const READ_BYTES: usize = 1024 * 1024;

impl OpenJournal<'_> {
    /// Begins a snapshot if one is due. True if it did.
    pub(crate) fn begin_snapshot_if_due(&mut self) -> bool {
        if self.snapshots.stage() != Stage::Idle {
            return false;
        }
        let heals = self.could_heal();
        if !heals && (self.is_failing() || !self.snapshots.is_due()) {
            return false;
        }
        if heals {
            self.resume();
        }
        let begins = self.next_offset();
        self.snapshots.begin(begins, heals);
        // What follows must not refer to what came before.
        self.sets.forget();
        self.push(&Entry::SnapshotBegins);
        true
    }

    /// Messages before this offset are moved, if they are few: they have outlived a whole snapshot.
    pub(crate) fn horizon(&self) -> u64 {
        self.snapshots.last().unwrap_or(0)
    }

    /// Moves the message at `offset` to the end of the journal, unless this snapshot has done so. Returns its new
    /// offset; `None` if it stays, as after a failure of the disk within the turn.
    pub(crate) fn move_message(&mut self, offset: u64, known: Option<&Arc<Message>>) -> Option<u64> {
        if let Some(moved) = self.snapshots.moved(offset) {
            return Some(moved);
        }
        if !self.snapshots.can_move(Journal::is_lost(offset)) {
            return None;
        }
        let message = known.cloned().or_else(|| self.message(offset))?;
        let moved = self.next_offset();
        self.push_message(&message, None, None);
        self.snapshots.set_moved(offset, moved).then_some(moved)
    }

    /// Writes one session.
    pub(crate) fn push_snapshot(&mut self, number: u32, session: &StoredSession) {
        self.push_with(|into| put_session(into, number, session));
    }

    /// All sessions have been written.
    pub(crate) fn end_snapshot(&mut self) {
        let Stage::Writing { begins, .. } = self.journal.snapshots.stage() else { return };
        let origins: Vec<Arrival> = self.origins().cloned().collect();
        self.push_with(|into| put_origins(into, &origins));
        let last = self.journal.next_session - 1;
        self.push_with(|into| put_last_session(into, last));
        self.push(&Entry::SnapshotEnds { begins });
        if !self.snapshots.is_writing() {
            // The disk has failed, and the snapshot was abandoned. What follows must not be stored as a part of it.
            return;
        }
        self.journal.snapshots.set_stage(Stage::Written { begins, end: self.next_offset() });
        self.force_sync();
    }

    /// Entries that a snapshot replaces are deleted when it is on disk: a loss of power must not take both.
    fn force_sync(&mut self) {
        self.at.store.force_sync(self.journal.log);
    }

    /// Continues a snapshot whose sessions are all written when it is on disk.
    pub(crate) fn finish_snapshot(&mut self) {
        let Stage::Written { begins, end } = self.journal.snapshots.stage() else { return };
        if !self.is_durable(end - 1) {
            // The disk may have refused the sync.
            return self.force_sync();
        }
        match self.note_snapshot(begins) {
            Ok(Appended { ticket, .. }) => self.journal.snapshots.set_stage(Stage::Noted { begins, ticket }),
            Err(error) => {
                log::error!("journal {}: a snapshot cannot be noted: {error}", self.journal.id);
                self.journal.snapshots.abandon();
            }
        }
    }

    fn note_snapshot(&mut self, begins: u64) -> Result<Appended, Error> {
        let hints = self.at.store.open(HINT_LOG, &Options::default())?;
        let mut builder = BatchBuilder::default();
        builder.push(self.journal.clock.unix_ms.cast_signed(), None, Some(&begins.to_be_bytes()));
        self.at.assign(hints);
        let appended = self.at.store.append(hints, builder.finish())?;
        // Only the last one matters.
        self.at.store.truncate_prefix(hints, appended.base_offset.saturating_sub(1))?;
        Ok(appended)
    }

    /// An append to another log of the store is over; it may be the hint of a snapshot.
    pub(crate) fn on_snapshot_noted(&mut self, completion: &Completion) {
        let Stage::Noted { begins, ticket } = self.journal.snapshots.stage() else { return };
        if completion.ticket < ticket
            || self.at.store.open(HINT_LOG, &Options::default()) != Ok(completion.log)
        {
            return;
        }
        self.journal.snapshots.set_stage(Stage::Idle);
        if completion.outcome.is_err() {
            return;
        }
        let (oldest, heals) = self.journal.snapshots.complete(begins);
        if heals {
            self.healed();
        }
        if let Err(error) = self.at.store.truncate_prefix(self.journal.log, oldest) {
            log::error!("journal {}: old entries cannot be removed: {error}", self.journal.id);
        }
        log::debug!("journal {}: a snapshot from {begins} on is complete", self.journal.id);
    }

    /// Where the last complete snapshot begins, according to the hint.
    pub(super) fn snapshot_hint(&mut self) -> Result<Option<u64>, Error> {
        if !self.at.store.names().iter().any(|name| name == HINT_LOG) {
            return Ok(None);
        }
        let hints = self.at.store.open(HINT_LOG, &Options::default())?;
        let status = self.at.store.status(hints);
        if status.start == status.end {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.at.store.read(hints, status.end - 1..status.end, 0, &mut bytes)?;
        let last = batches(&bytes).last();
        let value = last.and_then(|batch| batch.records().last()?.ok()?.value);
        let begins = value.and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
        begins.map(Some).ok_or(Error::Corrupt { offset: status.end - 1 })
    }

    /// Reads the journal from its last complete snapshot, or from the start.
    ///
    /// # Errors
    /// Errors of the store, and [`Error::Corrupt`] for an invalid entry.
    pub(crate) fn replay(&mut self) -> Result<Replayed, Error> {
        let mut replayed = Replayed::default();
        let status = self.at.store.status(self.journal.log);
        let mut at = self.snapshot_hint()?.unwrap_or(status.start).max(status.start);
        let mut bytes = Vec::new();
        while at < status.end {
            bytes.clear();
            self.at.store.read(self.journal.log, at..status.end, READ_BYTES, &mut bytes)?;
            let mut next = at;
            for batch in batches(&bytes) {
                next = batch.header.end_offset();
                for record in batch.records() {
                    let record = record.map_err(Error::Malformed)?;
                    let value = record.value.filter(|_| record.offset >= at).unwrap_or_default();
                    if !value.is_empty() && replayed.apply(record.offset, value, self.journal.id).is_err() {
                        return Err(Error::Corrupt { offset: record.offset });
                    }
                }
            }
            if next == at {
                return Err(Error::Corrupt { offset: at });
            }
            at = next;
        }
        self.journal.next_session = replayed.last_session + 1;
        self.journal.origins = replayed.origins.iter().map(|arrival| (0, arrival.clone())).collect();
        self.journal.snapshots.restore(replayed.snapshot, status.bytes);
        Ok(replayed)
    }
}
