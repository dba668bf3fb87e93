//! Acknowledgements from clients, and pending ones to them: PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
//!
//! A client's acknowledgement frees a place in the window of its session and is recorded in the journal as a mark,
//! which is not synced by itself: after a crash, a message may be sent again at QoS 1. At QoS 2 it must not, so for a
//! durable session the PUBREL, after which the client forgets the packet identifier, waits until the journal has the
//! PUBREC.
//!
//! An acknowledgement to a client leaves at once if it waits for nothing and no earlier one of the session is pending;
//! otherwise it is pending, and `shard/durability.rs` continues it.

use std::sync::Arc;

use mainstem_mqtt::session::Acked;
use mainstem_mqtt::{Ack, Packet, PacketType, ReasonCode, SubAck, UserProperties, Version};
use mainstem_runtime::Io;

use super::SessionHost;
use crate::broker_state::Mail;
use crate::pending_acks::{AckCondition, AckKind, AckToken, Failure, PendingAck};
use crate::publication::{PUBACK, PUBCOMP, PUBREC, PUBREL};
use crate::queue_consumers::FIRST_LEASE_ID;
use crate::session::delivery::put_ack;
use crate::session::offer::Delivery;
use crate::session::window::{release_delivery, settle_in_journal};

/// Why a client is disconnected that was promised what cannot be kept.
pub(crate) struct BrokenPromise {
    pub(crate) reason: ReasonCode,
    pub(crate) why: &'static str,
}

impl SessionHost {
    /// Handles an acknowledgement of this type.
    #[inline]
    pub(crate) fn on_ack(&mut self, io: &mut Io<'_, Mail>, slot: u32, kind: PacketType, ack: &Ack<'_>) {
        match kind {
            PacketType::PubAck => self.on_puback(io, slot, ack),
            PacketType::PubRec => self.on_pubrec(io, slot, ack),
            PacketType::PubRel => self.on_pubrel(io, slot, ack),
            PacketType::PubComp => self.on_pubcomp(io, slot, ack),
            _ => unreachable!("no acknowledgement"),
        }
    }

    #[inline]
    fn on_puback(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.sessions.at(slot);
        session.note_progress(io.clock.now_ms);
        if ack.packet_id >= FIRST_LEASE_ID {
            return self.on_queue_ack(slot, ack);
        }
        // A message that nobody would get again was not kept.
        if let Acked::Done(Some(delivery)) = session.on_puback(ack.packet_id) {
            self.settle_delivery(slot, &delivery);
        }
    }

    fn on_pubrec(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.sessions.at(slot);
        session.note_progress(io.clock.now_ms);
        let packet_id = ack.packet_id;
        let acked = session.on_pubrec(packet_id, ack.reason.is_error());
        if let Acked::Release(delivery) = &acked
            && !session.is_durable()
        {
            if let Some(delivery) = delivery {
                session.settle(delivery);
            }
            self.ack_now(io, slot, PUBREL, packet_id, ReasonCode::Success);
            return;
        }
        match acked {
            Acked::Release(None) => {
                // The PUBREL before this one may still wait.
                let condition = self.persistence.condition_of_earlier_turns();
                self.ack(io, slot, condition, None, pubrel(packet_id));
            }
            Acked::Release(Some(delivery)) => {
                session.settle(&delivery);
                // A client that forgets the identifier must not see it again: it would take the message twice.
                let condition = if delivery.message.is_some() {
                    AckCondition { commit: self.persistence.current_commit(), receipts: 0 }
                } else {
                    self.persistence.condition_of_earlier_turns()
                };
                release_delivery(&mut self.persistence, session, packet_id, &delivery);
                self.ack(io, slot, condition, None, pubrel(packet_id));
            }
            Acked::Done(Some(delivery)) => self.settle_delivery(slot, &delivery),
            Acked::Done(None) => {}
            // An error ends the exchange on both sides: no PUBREL may follow [MQTT-4.3.3-4].
            Acked::Unknown if ack.reason.is_error() => {}
            // It may belong to a session that this client does not know has ended: let it finish.
            Acked::Unknown => {
                self.ack_now(io, slot, PUBREL, packet_id, ReasonCode::PacketIdentifierNotFound);
            }
        }
    }

    fn on_pubrel(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let packet_id = ack.packet_id;
        let session = self.sessions.at(slot);
        let is_known = session.release(packet_id);
        let reason = if is_known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
        if !session.is_durable() {
            self.ack_now(io, slot, PUBCOMP, packet_id, reason);
            return;
        }
        let condition = if is_known {
            let before = self.persistence.position();
            self.append_release(slot, packet_id);
            self.persistence.condition_since(before)
        } else {
            // The PUBCOMP before this one may still wait.
            self.persistence.condition_of_earlier_turns()
        };
        self.ack(io, slot, condition, None, AckKind::Ack { first: PUBCOMP, packet_id, reason });
    }

    fn on_pubcomp(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.sessions.at(slot);
        session.note_progress(io.clock.now_ms);
        if let Acked::Done(Some(delivery)) = session.on_pubcomp(ack.packet_id) {
            self.settle_delivery(slot, &delivery);
        }
    }

    /// The exchange of a delivery is over.
    fn settle_delivery(&mut self, slot: u32, delivery: &Delivery) {
        let session = self.sessions.at(slot);
        session.settle(delivery);
        settle_in_journal(&mut self.persistence, session, delivery);
    }

    /// Sends an acknowledgement. Reason codes other than success exist only in MQTT 5.
    fn send_ack_packet(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        first: u8,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let session = self.sessions.at(slot);
        if reason != ReasonCode::Success && session.version() == Version::V5 {
            let ack = Ack { packet_id, reason, ..Ack::default() };
            let packet = match first >> 4 {
                4 => Packet::PubAck(ack),
                5 => Packet::PubRec(ack),
                6 => Packet::PubRel(ack),
                _ => Packet::PubComp(ack),
            };
            self.send(io, slot, &packet);
            return;
        }
        // A publisher waits for the others; PUBREL goes to a subscriber, who has the message.
        let conn = session.conn();
        let output = if first == PUBREL { io.output_with_fan_outs(conn) } else { io.output(conn) };
        if let Some(output) = output {
            put_ack(output.buffer(), first, packet_id);
            self.deliveries.counters_mut().messages_sent += 1;
        }
    }

    /// Sends an acknowledgement that waits for nothing but earlier ones, as nearly all do of sessions that are not
    /// durable.
    #[inline]
    pub(super) fn ack_now(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        first: u8,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        if self.sessions.at(slot).has_pending_acks() {
            let kind = AckKind::Ack { first, packet_id, reason };
            self.ack(io, slot, AckCondition::default(), None, kind);
        } else {
            self.send_ack_packet(io, slot, first, packet_id, reason);
        }
    }

    /// Sends an ack as soon as `condition` is met, behind earlier acks of the session.
    pub(crate) fn ack(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        condition: AckCondition,
        token: Option<AckToken>,
        kind: AckKind,
    ) {
        self.ack_publish(io, slot, (condition, token), kind, false);
    }

    /// The same; with `completes` the ack also ends a QoS 2 publish that is in flight.
    pub(super) fn ack_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        (condition, token): (AckCondition, Option<AckToken>),
        kind: AckKind,
        completes: bool,
    ) {
        let durable = self.persistence.durable_commit();
        let is_first = !self.sessions.at(slot).has_pending_acks();
        if is_first && condition.is_met(durable) {
            self.send_ack(io, slot, &kind, completes);
            return;
        }
        // Each that waits has a number of its own, by which receipts find it.
        let number = token.unwrap_or_else(|| self.next_ack_token(slot)).number;
        let session = self.sessions.at(slot);
        session.ext().acks.push(PendingAck { number, condition, failure: None, completes, kind });
        if condition.commit > durable {
            self.persistence.commits_mut().wake_with(condition.commit, session.key());
        }
    }

    fn send_ack(&mut self, io: &mut Io<'_, Mail>, slot: u32, kind: &AckKind, completes: bool) {
        match *kind {
            AckKind::Ack { first, packet_id, reason } => {
                if completes {
                    self.complete_publish(slot, packet_id);
                }
                self.send_ack_packet(io, slot, first, packet_id, reason);
            }
            AckKind::WillSent => self.confirm_will(io, slot),
            AckKind::Settled { sequence } => self.confirm_reassigned(slot, sequence),
            AckKind::List { is_subscribe, packet_id, ref reasons } => {
                self.send_list(io, slot, is_subscribe, packet_id, reasons);
            }
        }
    }

    /// Sends SUBACK or UNSUBACK. Only MQTT 5 has reason codes in the latter.
    fn send_list(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        is_subscribe: bool,
        packet_id: u16,
        reasons: &[u8],
    ) {
        let has_reasons = is_subscribe || self.sessions.at(slot).version() == Version::V5;
        let list = SubAck {
            packet_id,
            reason_string: None,
            user_properties: UserProperties::default(),
            reasons: if has_reasons { reasons } else { &[] },
        };
        self.send(io, slot, &if is_subscribe { Packet::SubAck(list) } else { Packet::UnsubAck(list) });
    }

    // Acks to clients.

    /// A number for an ack of a session, for which other shards send receipts.
    pub(crate) fn next_ack_token(&mut self, slot: u32) -> AckToken {
        AckToken { session: self.sessions.key(slot), number: self.persistence.next_ack() }
    }

    /// Sends the pending acks of a session whose conditions are met. Returns why its client has to be disconnected, if
    /// one cannot be sent: the others follow by another call, if the session is still there.
    pub(crate) fn send_pending_acks(&mut self, io: &mut Io<'_, Mail>, slot: u32) -> Option<BrokenPromise> {
        loop {
            let durable = self.persistence.durable_commit();
            let session = self.sessions.at(slot);
            let ack = session.ext_mut().and_then(|ext| ext.acks.pop(durable))?;
            match ack.failure {
                None => self.send_ack(io, slot, &ack.kind, ack.completes),
                Some(failure) => {
                    if let Some(broken) = self.send_ack_failure(io, slot, ack, failure) {
                        return Some(broken);
                    }
                }
            }
        }
    }

    /// What an ack would promise is not durable, or was rejected. Returns why the client has to be disconnected, if it
    /// cannot be told otherwise.
    fn send_ack_failure(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        ack: PendingAck,
        failure: Failure,
    ) -> Option<BrokenPromise> {
        let session = self.sessions.at(slot);
        let (reason, why) = match failure {
            Failure::NotDurable => (ReasonCode::QuotaExceeded, "what it asked for cannot be kept on disk"),
            Failure::Refused(reason) => (reason, "a queue or a topic refuses what it published"),
        };
        match &ack.kind {
            // A PUBREC with an error would end an exchange that the disk may have; a durable session is disconnected
            // instead, and continues with it.
            AckKind::Ack { first, packet_id, .. }
                if session.version() == Version::V5
                    && (*first == PUBACK || (*first == PUBREC && !session.is_durable())) =>
            {
                session.release(*packet_id);
                self.send_ack_packet(io, slot, *first, *packet_id, reason);
            }
            AckKind::Ack { first, .. }
                if session.version() == Version::V5
                    && *first == PUBREC
                    && matches!(failure, Failure::Refused(_)) =>
            {
                self.reject_exchange(slot, ack, reason);
            }
            AckKind::WillSent if matches!(failure, Failure::Refused(_)) => {
                self.send_ack(io, slot, &ack.kind, false);
            }
            // They stay with this session as well, and may be delivered twice.
            AckKind::Settled { sequence } => self.mark_reassigned_unconfirmed(slot, *sequence),
            AckKind::WillSent => self.mark_unconfirmed(slot),
            _ if !session.is_connected() => {}
            _ => {
                let client_id = Arc::clone(session.client_id());
                if let AckKind::Ack { packet_id, .. } = ack.kind
                    && !session.is_durable()
                {
                    // No journal has it, so that it counts as new when it comes again.
                    session.release(packet_id);
                }
                self.interrupt_publish(slot, &ack.kind);
                log::warn!("client {client_id:?} is disconnected: {why}");
                return Some(BrokenPromise { reason, why });
            }
        }
        None
    }
}

fn pubrel(packet_id: u16) -> AckKind {
    AckKind::Ack { first: PUBREL, packet_id, reason: ReasonCode::Success }
}
