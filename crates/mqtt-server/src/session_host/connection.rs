//! The connection of a session: what changes for the session when it gets one, and when it loses it.
//!
//! A session outlives its connections. It has one at most, and what it owes the client (window, queue, will) is not
//! changed by losing it; what only a connected session has, such as unsent QoS 0 messages, leases of work queues and
//! its turn in shared subscriptions, is given back at once.

use std::sync::Arc;

use mainstem_mqtt::QoS;
use mainstem_runtime::{ConnId, Io};

use super::SessionHost;
use crate::broker_state::Mail;
use crate::message::SessionKey;
use crate::pending_acks::AckKind;
use crate::session::{ClientParameters, TakenDeliveries};

/// What is due once a session has lost its connection.
pub(crate) struct Disconnected {
    pub(crate) key: SessionKey,
    /// Seconds after which its will is due, if it has one.
    pub(crate) will_delay_s: Option<u32>,
    /// Seconds after which the session ends.
    pub(crate) expiry_s: u32,
}

impl SessionHost {
    /// Creates the session of a client.
    ///
    /// # Errors
    /// Another shard has made one meanwhile, with this key.
    pub(crate) fn add_session(
        &mut self,
        client_id: &Arc<str>,
        conn: ConnId,
    ) -> Result<SessionKey, SessionKey> {
        let key = self.sessions.insert(Arc::clone(client_id), conn);
        if let Err(other) = self.shared.registry.claim(client_id, key) {
            self.sessions.remove(key.slot);
            return Err(other);
        }
        self.deliveries.counters_mut().sessions += 1;
        Ok(key)
    }

    /// Gives a session its connection. A new session that outlives it becomes durable.
    pub(crate) fn connect(&mut self, slot: u32, parameters: ClientParameters, is_present: bool) {
        let expiry_s = parameters.expiry_s;
        let session = self.sessions.at(slot);
        session.connect(parameters);
        self.deliveries.on_connect(session);
        if expiry_s > 0 && !is_present {
            self.make_durable(slot);
        }
        let session = self.sessions.at(slot);
        if session.is_durable() {
            // What was in flight when the process ended is sent again.
            let mut journal = self.persistence.journal(session.journal());
            session.load_window(|offset| journal.message(offset));
        }
        self.deliveries.counters_mut().clients_connected += 1;
    }

    /// Takes its connection from a session. Messages of shared subscriptions that it has not acknowledged go to other
    /// members, unless the process is to end and the session keeps them.
    pub(crate) fn disconnect(&mut self, io: &mut Io<'_, Mail>, slot: u32, is_draining: bool) -> Disconnected {
        self.deliveries.on_disconnect(self.sessions.at(slot));
        self.stop_consumers(slot);
        let session = self.sessions.at(slot);
        let will_delay_s = session.disconnect(io.clock.now_ms);
        let (key, expiry_s) = (session.key(), session.expiry_s());
        self.deliveries.counters_mut().clients_connected -= 1;
        self.deliveries.drop_qos0(&mut self.persistence, session);
        self.reassign(io, slot, is_draining);
        Disconnected { key, will_delay_s, expiry_s }
    }

    /// Gives messages of shared subscriptions that this session has not acknowledged to other members.
    fn reassign(&mut self, io: &mut Io<'_, Mail>, slot: u32, is_draining: bool) {
        let session = self.sessions.at(slot);
        let key = session.key();
        let is_durable = session.is_durable();
        let stays = is_draining && is_durable;
        if stays || !session.has_load() {
            return;
        }
        // A crash in the middle of a move leaves the message with both. At QoS 1 that is allowed.
        let TakenDeliveries { sent, queued } = session.take_movable(|qos, group| {
            (!is_durable || qos < QoS::ExactlyOnce) && group.has_other_online(key)
        });
        self.deliveries.on_dequeued(queued.len(), false);
        let sent = sent.into_iter().map(|delivery| (delivery, true));
        for (delivery, was_sent) in sent.chain(queued.into_iter().map(|delivery| (delivery, false))) {
            let session = self.sessions.at(slot);
            session.settle(&delivery);
            if delivery.sequence == 0 {
                self.send_to_group_again(io, slot, &delivery, key, None);
                continue;
            }
            session.ext().reassigned.push(delivery.clone(), was_sent);
            let journal = session.journal();
            let token = self.next_ack_token(slot);
            let before = self.persistence.position_elsewhere(journal);
            let receipts = self.send_to_group_again(io, slot, &delivery, key, Some(token));
            let mut condition = self.persistence.condition_elsewhere_since(journal, before);
            condition.receipts = receipts;
            // It is over here when it is durable elsewhere.
            let kind = AckKind::Settled { sequence: delivery.sequence };
            self.ack(io, slot, condition, Some(token), kind);
        }
    }
}
