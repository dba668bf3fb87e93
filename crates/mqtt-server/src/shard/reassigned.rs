//! Deliveries that sessions have passed on to other members of their groups, and sessions that end, as their journals
//! contain them until the new receivers have everything on disk.

use mainstem_runtime::{Clock, Io};

use super::Shard;
use crate::broker_state::Mail;
use crate::journal::Journal;
use crate::journal::entry::Mark;
use crate::journal::stored::StoredSession;

impl Shard {
    /// A delivery that this session has passed on is durable with its new receiver.
    pub(super) fn confirm_reassigned(&mut self, slot: u32, sequence: u64) {
        self.sessions.at(slot).ext().reassigned.confirm(sequence);
        if let Some((mut journal, session)) = self.journal(slot) {
            journal.mark(Mark::Settled { session, sequence });
        }
    }

    /// The new receiver of a delivery has it in memory only, until the disk recovers.
    pub(super) fn mark_reassigned_unconfirmed(&mut self, slot: u32, sequence: u64) {
        self.sessions.at(slot).ext().reassigned.fail(sequence);
        self.mark_unconfirmed(slot);
    }

    /// Deliveries or the will of a session could not be made durable elsewhere, and will be when the disk recovers.
    pub(super) fn mark_unconfirmed(&mut self, slot: u32) {
        let key = self.sessions.key(slot);
        self.unconfirmed.add(key);
    }

    /// When no disk fails any more, what could not be made durable at first has been.
    pub(super) fn confirm_after_recovery(&mut self, io: &Io<'_, Mail>) {
        if self.unconfirmed.is_empty() || self.shared.is_failing() {
            return;
        }
        for key in self.unconfirmed.take() {
            let Some(ext) = self.sessions.get(key).and_then(|session| session.ext_ref()) else { continue };
            let has_unconfirmed_will = ext.will.is_leaving() && !ext.acks.has_will();
            for sequence in ext.reassigned.failed() {
                self.confirm_reassigned(key.slot, sequence);
            }
            if has_unconfirmed_will {
                self.confirm_will(io, key.slot);
            }
        }
    }

    /// A session that is about to end as its journal contains it until others have what it leaves to them. `None` if it
    /// leaves nothing.
    pub(super) fn stored_before_end(&mut self, clock: Clock, slot: u32) -> Option<Box<StoredSession>> {
        let session = self.sessions.at(slot);
        let leaves_something = session.has_load()
            || session.ext_ref().is_some_and(|ext| ext.will.stored().is_some() || !ext.reassigned.is_empty());
        (session.is_durable() && leaves_something).then(|| Box::new(self.stored_session(clock, slot)))
    }

    /// Writes sessions that have ended, and whose end is not recorded yet, as part of a snapshot.
    pub(super) fn write_ending(&mut self, journal: usize) {
        let mut known = self.persistence.journal(journal as u16);
        let horizon = known.horizon();
        for (session, stored) in self.endings.unrecorded(journal) {
            stored.place_each(|offset| {
                let is_lost = Journal::is_lost(offset);
                let moved = if is_lost || offset < horizon { known.move_message(offset, None) } else { None };
                moved.or((!is_lost).then_some(offset))
            });
            if let Some(oldest) = stored.unsettled.iter().map(|run| run.offset).min() {
                known.snapshots().refer_to(oldest);
            }
            known.push_snapshot(session, stored);
        }
    }
}
