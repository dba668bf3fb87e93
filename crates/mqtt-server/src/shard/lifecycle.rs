//! The end of connections and sessions: DISCONNECT, wills, expiry, and messages that other members of a group get
//! (3.14, 3.1.2.5, 4.1).
//!
//! What a session leaves behind must neither vanish nor come back. Its will and its unacknowledged messages of shared
//! subscriptions go elsewhere, perhaps to another shard, and only then does its journal record that they are gone: a
//! crash in between may deliver them twice, but does not lose them. The end of a durable session is recorded in the
//! same way, after what it has passed on is durable.

use mainstem_mqtt::{Disconnect, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};

use super::Shard;
use crate::broker_state::{GroupMail, Mail};
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::{Content, SessionKey};
use crate::pending_acks::{AckKind, AckToken};
use crate::publication::PublishContext;
use crate::session::{Session, TakenDeliveries};
use crate::timers::Timer;
use crate::wills::Will;

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
        let session = self.host.sessions.at(slot);
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
        self.host.deliveries.on_disconnect(self.host.sessions.at(slot));
        self.host.stop_consumers(slot);
        let session = self.host.sessions.at(slot);
        let will_delay_s = session.disconnect(now_ms);
        let (key, expiry_s) = (session.key(), session.expiry_s());
        self.host.deliveries.counters_mut().clients_connected -= 1;
        self.host.deliveries.drop_qos0(&mut self.host.persistence, session);
        self.reassign(io, slot);
        // What waited behind acks that are not sent any more.
        self.send_pending_acks(io, slot);
        match will_delay_s {
            Some(0) if expiry_s > 0 => self.send_will(io, slot),
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

    /// Gives messages of shared subscriptions that this session has not acknowledged to other members.
    fn reassign(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.host.sessions.at(slot);
        let key = session.key();
        let is_durable = session.is_durable();
        let stays = self.connections.is_draining() && is_durable;
        if stays || !session.has_load() {
            return;
        }
        // A crash in the middle of a move leaves the message with both. At QoS 1 that is allowed.
        let TakenDeliveries { sent, queued } = session.take_movable(|qos, group| {
            (!is_durable || qos < QoS::ExactlyOnce) && group.has_other_online(key)
        });
        self.host.deliveries.on_dequeued(queued.len(), false);
        let sent = sent.into_iter().map(|delivery| (delivery, true));
        for (delivery, was_sent) in sent.chain(queued.into_iter().map(|delivery| (delivery, false))) {
            let session = self.host.sessions.at(slot);
            session.settle(&delivery);
            if delivery.sequence == 0 {
                self.host.send_to_group_again(io, slot, &delivery, key, None);
                continue;
            }
            session.ext().reassigned.push(delivery.clone(), was_sent);
            let journal = session.journal();
            let token = self.host.next_ack_token(slot);
            let before = self.host.persistence.position_elsewhere(journal);
            let receipts = self.host.send_to_group_again(io, slot, &delivery, key, Some(token));
            let mut condition = self.host.persistence.condition_elsewhere_since(journal, before);
            condition.receipts = receipts;
            // It is over here when it is durable elsewhere.
            let kind = AckKind::Settled { sequence: delivery.sequence };
            self.host.ack(io, slot, condition, Some(token), kind);
        }
    }

    /// Publishes the will of a session, if it has one. Returns it, and how many other shards will report that their
    /// part is durable.
    fn publish_will(&mut self, io: &mut Io<'_, Mail>, slot: u32, token: AckToken) -> (Option<Will>, u32) {
        let session = self.host.sessions.at(slot);
        let will = session.ext_mut().and_then(|ext| ext.will.take());
        let Some(will) = will else { return (None, 0) };
        if !self.host.may_publish_will(slot, will.message.topic()) {
            // Users or rules have changed since CONNECT.
            self.host.deliveries.counters_mut().publish_dropped += 1;
            return (Some(will), 0);
        }
        let mut properties = will.message.properties(0);
        properties.message_expiry = will.expiry_s;
        let content = Content {
            qos: will.message.qos,
            retain: will.message.retain,
            publisher: will.message.publisher,
            topic: will.message.topic(),
            payload: will.message.payload(),
            properties,
        };
        let ack_context = PublishContext { token: Some(token), ..PublishContext::default() };
        let (_, receipts) = self.publish(io, &content, &ack_context);
        (Some(will), receipts)
    }

    /// Publishes the will of a session that continues. Its journal keeps the will until the message is durable: a crash
    /// may publish it twice, but not lose it.
    fn send_will(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let journal = self.host.sessions.at(slot).journal();
        let token = self.host.next_ack_token(slot);
        let before = self.host.persistence.position_elsewhere(journal);
        let (will, receipts) = self.publish_will(io, slot, token);
        let mut condition = self.host.persistence.condition_elsewhere_since(journal, before);
        condition.receipts = receipts;
        let Some(will) = will else { return };
        self.host.sessions.at(slot).ext().will.set_leaving(will);
        self.host.ack(io, slot, condition, Some(token), AckKind::WillSent);
    }

    pub(super) fn check_will(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let due = self.host.sessions.get(key).is_some_and(|session| {
            !session.is_connected() && session.ext_ref().is_some_and(|ext| ext.will.is_due(io.clock.now_ms))
        });
        if due {
            self.send_will(io, key.slot);
        }
    }

    pub(super) fn check_expiry(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let now_ms = io.clock.now_ms;
        let is_expired = |session: &&mut Session| {
            session.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms.cast_signed())
        };
        let Some(session) = self.host.sessions.get(key).filter(is_expired) else { return };
        if session.is_durable() && !self.host.persistence.commits().are_over(session.gone_at_ms()) {
            // Its journal does not have the disconnection yet: a crash would bring the session back, without what came
            // since.
            io.set_timer(now_ms + EXPIRY_RETRY_MS, Timer::Expiry(key).token());
            return;
        }
        self.host.deliveries.counters_mut().clients_expired += 1;
        self.end_session(io, key.slot);
    }

    /// Ends a session that has no connection: its will is published, its subscriptions and messages go.
    pub(super) fn end_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let journal = self.host.sessions.at(slot).journal();
        let stored = self.host.begin_end(io, slot);
        let token = self.host.next_ack_token(slot);
        let before = self.host.persistence.position_elsewhere(journal);
        // Only now, or a group that the session was in might give the will to this very session.
        let (_, receipts) = self.publish_will(io, slot, token);
        let receipts = receipts + self.host.leave_to_others(io, slot, token);
        let mut condition = self.host.persistence.condition_elsewhere_since(journal, before);
        condition.receipts = receipts;
        self.host.finish_end(slot, stored, token, condition);
    }

    /// A message from another shard, for a member that should live here.
    pub(super) fn on_group_message(&mut self, io: &mut Io<'_, Mail>, mail: &GroupMail) {
        let before = self.host.persistence.position();
        let passed_on = self.host.offer_to_member(io, mail);
        self.host.append_message(io, &mail.message, mail.origin);
        let condition = self.host.persistence.condition_since(before);
        if passed_on == 0 {
            self.send_receipt_when_durable(io, condition, mail.token, Some(&mail.group));
        }
    }
}
