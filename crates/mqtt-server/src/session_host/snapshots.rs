//! Writing snapshots: the sessions of a shard as their journal is to know them, a few per turn.
//!
//! Sessions go on while the snapshot is written. Each is written as it is at that moment, and its later changes are
//! entries behind it, so the parts need not be of one time. A message that only old sessions refer to is moved to the
//! end of the journal first, or its beginning could never be deleted.
//!
//! After a failure of the disk, a snapshot also heals: references to entries that were lost get the places where the
//! snapshot has written the messages again. Sessions that are ending are written as well, until their end is recorded.

use mainstem_runtime::{Clock, Io};

use super::SessionHost;
use crate::broker_state::Mail;
use crate::journal::entry::Entry;
use crate::journal::stored::{StoredSession, StoredSubscription};
use crate::journal::{Journal, OpenJournal};

/// Sessions written in one turn at most.
const SESSIONS_PER_TURN: usize = 256;
/// Cost of writing a session, one of its subscriptions, or a run of its deliveries, units.
const SESSION_UNITS: u32 = 5;
const SUBSCRIPTION_UNITS: u32 = 5;
const RUN_UNITS: u32 = 1;

impl SessionHost {
    /// Continues the snapshots that are due.
    pub(super) fn continue_snapshots(&mut self, io: &mut Io<'_, Mail>) {
        let healing = self.persistence.open_journals().filter(OpenJournal::could_heal);
        if healing.map(|mut journal| journal.give_up_turn()).count() > 0 {
            self.take_back_lost();
        }
        for index in 0..self.persistence.journals().len() {
            let mut journal = self.persistence.journal(index as u16);
            let begins = journal.begin_snapshot_if_due();
            journal.finish_snapshot();
            let (is_healing, from) = (journal.snapshots().is_healing(), journal.snapshots().slot());
            if begins && is_healing {
                self.rename_lost(index);
            }
            if let Some(from) = from {
                self.write_sessions(io, index, from);
                io.request_turn();
            }
        }
    }

    /// Gives the references of sessions to entries that were lost since the journal failed their new names.
    fn rename_lost(&mut self, index: usize) {
        for slot in self.sessions.slots() {
            let session = self.sessions.at(slot);
            if session.is_durable() && usize::from(session.journal()) == index {
                let journal = &self.persistence.journals()[index];
                session.rename_lost(|offset| journal.place_after_loss(offset));
            }
        }
        let journal = &mut self.persistence.journals_mut()[index];
        for (_, stored) in self.endings.stored(index) {
            stored.place_each(|offset| Some(journal.place_after_loss(offset).unwrap_or(offset)));
        }
        journal.forget_undone_moves();
    }

    fn write_sessions(&mut self, io: &mut Io<'_, Mail>, journal: usize, from: usize) {
        let slots: Vec<u32> = self.sessions.slots_from(from).take(SESSIONS_PER_TURN).collect();
        for slot in &slots {
            let session = self.sessions.at(*slot);
            if session.is_durable() && usize::from(session.journal()) == journal {
                self.move_messages(journal, *slot);
                let units = self.write_session(io.clock, journal, *slot);
                io.charge(units);
            }
            self.persistence.journals_mut()[journal].snapshots().set_slot(*slot as usize + 1);
            if io.is_exhausted() && slots.last() != Some(slot) {
                return;
            }
        }
        if slots.len() < SESSIONS_PER_TURN {
            self.write_ending(journal);
            self.persistence.journal(journal as u16).end_snapshot();
        }
    }

    /// Moves the old messages of a session to the end of the journal, so that its beginning can be deleted, and those
    /// that never reached the disk.
    fn move_messages(&mut self, journal: usize, slot: u32) {
        let session = self.sessions.at(slot);
        let mut journal = self.persistence.journal(journal as u16);
        session.move_old(journal.horizon(), Journal::is_lost, |offset, message| {
            journal.move_message(offset, message)
        });
        // What was on disk before, and could be sent, is on disk again with this turn.
        if session.is_connected() && session.queue_len() > 0 {
            self.persistence.wake_with_current(session.key());
        }
    }

    /// Returns the cost, units.
    fn write_session(&mut self, clock: Clock, journal: usize, slot: u32) -> u32 {
        let stored = self.stored_session(clock, slot);
        let number = self.sessions.at(slot).number();
        let mut journal = self.persistence.journal(journal as u16);
        if let Some(oldest) = stored.unsettled.iter().map(|run| run.offset).min() {
            journal.snapshots().refer_to(oldest);
        }
        push_session(&mut journal, number, &stored);
        let subscriptions = stored.subscriptions.len() as u32;
        SESSION_UNITS + SUBSCRIPTION_UNITS * subscriptions + RUN_UNITS * stored.unsettled.len() as u32
    }

    /// Writes sessions that have ended, and whose end is not recorded yet, as part of a snapshot.
    fn write_ending(&mut self, journal: usize) {
        let mut known = self.persistence.journal(journal as u16);
        let horizon = known.horizon();
        for (session, stored) in self.endings.unrecorded(journal) {
            stored.place_each(|offset| {
                let is_lost = Journal::is_lost(offset);
                let moved = if is_lost || offset < horizon { known.move_message(offset, None) } else { None };
                // After a failure of the disk in between, the next snapshot has to move it.
                let stays = !is_lost || !known.snapshots().is_writing();
                moved.or(stays.then_some(offset))
            });
            if let Some(oldest) = stored.unsettled.iter().map(|run| run.offset).min() {
                known.snapshots().refer_to(oldest);
            }
            push_session(&mut known, session, stored);
        }
    }

    /// A session as a snapshot contains it.
    fn stored_session(&mut self, clock: Clock, slot: u32) -> StoredSession {
        let session = self.sessions.at(slot);
        let mut stored = session.store(clock, self.persistence.durable_commit());
        let replays = session.ext_ref().map(|ext| &ext.retained);
        for subscription in session.subscriptions() {
            let Some(name) = self.shared.routes.name(subscription.filter) else { continue };
            let Some(subscriber) = self.router.subscriber(*subscription) else { continue };
            // What comes at QoS 0 may be lost, and is not replayed again.
            let replay_position = replays.and_then(|replays| replays.position(&name)).map(Into::into);
            let subscription =
                StoredSubscription { options: subscriber.options, id: subscriber.id, replay_position };
            stored.subscriptions.insert(name, subscription);
        }
        stored
    }

    /// A session that is about to end as its journal contains it until others have what it leaves to them. `None` if it
    /// leaves nothing.
    pub(super) fn stored_before_end(&mut self, clock: Clock, slot: u32) -> Option<Box<StoredSession>> {
        let session = self.sessions.at(slot);
        let leaves_something = session.has_load()
            || session.ext_ref().is_some_and(|ext| ext.will.stored().is_some() || !ext.reassigned.is_empty());
        (session.is_durable() && leaves_something).then(|| Box::new(self.stored_session(clock, slot)))
    }
}

/// Writes a session with its user, and where its client was.
fn push_session(journal: &mut OpenJournal<'_>, session: u32, stored: &StoredSession) {
    journal.push_snapshot(session, stored);
    if let Some(user) = &stored.user {
        journal.push(&Entry::User { session, user });
    }
    if let Some(origin) = &stored.origin {
        journal.push(&Entry::Client { session, origin: origin.clone() });
    }
}
