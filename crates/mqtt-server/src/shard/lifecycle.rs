//! The end of connections and sessions: DISCONNECT, wills, expiry, and messages that other members of a group get
//! (3.14, 3.1.2.5, 4.1).
//!
//! What a session leaves behind must neither vanish nor come back. Its will and its unacknowledged messages of shared
//! subscriptions go elsewhere, perhaps to another shard, and only then does its journal record that they are gone: a
//! crash in between may deliver them twice, but does not lose them. The end of a durable session is recorded in the
//! same way, after what it has passed on is durable.

use mainstem_mqtt::{Disconnect, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};

use super::Shard;
use crate::broker_state::{GroupMail, Mail};
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::SessionKey;
use crate::session::Session;
use crate::session_host::Disconnected;
use crate::timers::Timer;

/// Pause before the expiry of a session is tried again that waits for the disk, ms.
const EXPIRY_RETRY_MS: u64 = 1_000;

impl Shard {
    pub(super) fn on_disconnect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        disconnect: &Disconnect<'_>,
    ) -> Handled {
        let expiry_max = self.config().session_expiry_s_max;
        let session = self.host.session(slot);
        if disconnect.server_reference.is_some() {
            return Err(ProtocolError::new(
                ReasonCode::ProtocolError,
                "Server Reference from a client (3.14.2.2.5)",
            ));
        }
        if let Some(expiry_s) = disconnect.session_expiry {
            if session.expiry_s() == 0 && expiry_s != 0 {
                let what = "a session that was to end now is to stay (3.14.2.2.2)";
                return Err(ProtocolError::new(ReasonCode::ProtocolError, what));
            }
            session.set_expiry(expiry_s.min(expiry_max));
        }
        // Only a normal DISCONNECT removes the will [MQTT-3.14.4-3].
        if (disconnect.reason == ReasonCode::Success || session.version() < Version::V5)
            && let Some(ext) = session.ext_mut()
        {
            ext.will.discard();
        }
        self.vacate(conn);
        io.close(conn);
        self.detach(io, slot);
        Ok(Next::Gone)
    }

    /// The session has lost its connection.
    pub(super) fn detach(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let now_ms = io.clock.now_ms;
        let Disconnected { key, will_delay_s, expiry_s } =
            self.host.disconnect(io, slot, self.connections.is_draining());
        // What waited behind acks that are not sent any more.
        self.send_pending_acks(io, slot);
        match will_delay_s {
            Some(0) if expiry_s > 0 => self.publisher.send_will(io, &mut self.host, slot),
            Some(delay_s) if delay_s < expiry_s => {
                io.set_timer(now_ms + u64::from(delay_s) * 1000, Timer::Will(key).token());
            }
            // There is none, or the end of the session comes first and publishes it.
            _ => {}
        }
        if expiry_s > 0 {
            self.host.append_session(io.clock, slot);
        }
        match expiry_s {
            0 => self.end_session(io, slot),
            u32::MAX => {}
            _ => io.set_timer(now_ms + u64::from(expiry_s) * 1000, Timer::Expiry(key).token()),
        }
    }

    pub(super) fn check_expiry(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let now_ms = io.clock.now_ms;
        let is_expired = |session: &&mut Session| {
            session.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms.cast_signed())
        };
        let Some(session) = self.host.find_session(key).filter(is_expired) else { return };
        let (is_durable, gone_at_ms) = (session.is_durable(), session.gone_at_ms());
        if is_durable && !self.host.persistence().commits().are_over(gone_at_ms) {
            // Its journal does not have the disconnection yet: a crash would bring the session back, without what came
            // since.
            io.set_timer(now_ms + EXPIRY_RETRY_MS, Timer::Expiry(key).token());
            return;
        }
        self.host.counters_mut().clients_expired += 1;
        self.end_session(io, key.slot);
    }

    /// Ends a session that has no connection: its will is published, its subscriptions and messages go.
    pub(super) fn end_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let journal = self.host.session(slot).journal();
        let stored = self.host.begin_end(io, slot);
        let token = self.host.next_ack_token(slot);
        let before = self.host.persistence().position_elsewhere(journal);
        // Only now, or a group that the session was in might give the will to this very session.
        let (_, receipts) = self.publisher.publish_will(io, &mut self.host, slot, token);
        let receipts = receipts + self.host.leave_to_others(io, slot, token);
        let mut condition = self.host.persistence().condition_elsewhere_since(journal, before);
        condition.receipts = receipts;
        self.host.finish_end(slot, stored, token, condition);
    }

    /// A message from another shard, for a member that should live here.
    pub(super) fn on_group_message(&mut self, io: &mut Io<'_, Mail>, mail: &GroupMail) {
        let before = self.host.persistence().position();
        let passed_on = self.host.offer_to_member(io, mail);
        self.host.append_message(io, &mail.message, mail.origin);
        let condition = self.host.persistence().condition_since(before);
        if passed_on == 0 {
            self.send_receipt_when_durable(io, condition, mail.token, Some(&mail.group));
        }
    }
}
