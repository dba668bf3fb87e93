//! Wills and messages that sessions have passed on, until these are known to be durable elsewhere.
//!
//! If the receiver's disk fails, the message is there in memory only. Taking it back would deliver it twice, and
//! recording it as passed on could lose it, so it stays unconfirmed: this session's journal keeps it until no disk
//! fails any more, and then records that it has left.

use mainstem_runtime::Io;

use super::SessionHost;
use crate::broker_state::Mail;
use crate::journal::entry::Mark;
use crate::message::SessionKey;

impl SessionHost {
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

    /// The published will is durable everywhere.
    pub(super) fn confirm_will(&mut self, io: &Io<'_, Mail>, slot: u32) {
        self.sessions.at(slot).ext().will.confirm();
        self.append_session(io.clock, slot);
    }

    /// Whether the will of a session without a connection was published and is not durable yet. Its client must not get
    /// a CONNACK before it is: the journal would drop the will.
    pub(crate) fn has_leaving_will(&mut self, key: SessionKey) -> bool {
        let session = self.sessions.at(key.slot);
        session.is_durable() && session.ext_ref().is_some_and(|ext| ext.will.is_leaving())
    }
}
