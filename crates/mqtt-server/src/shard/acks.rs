//! Acknowledgements from and to clients: PUBACK, PUBREC, PUBREL and PUBCOMP (3.4 to 3.7).

use mainstem_mqtt::session::Acked;
use mainstem_mqtt::{Ack, Packet, PacketType, ReasonCode, Version};
use mainstem_runtime::Io;

use super::Shard;
use super::publication::{PUBCOMP, PUBREL};
use crate::broker_state::Mail;
use crate::pending_acks::{AckCondition, AckKind};
use crate::queue_consumers::FIRST_LEASE_ID;
use crate::session::delivery::put_ack;
use crate::session::offer::Delivery;
use crate::session::window::{release_delivery, settle_in_journal};

impl Shard {
    /// Handles an acknowledgement of this type.
    #[inline]
    pub(super) fn on_ack(&mut self, io: &mut Io<'_, Mail>, slot: u32, kind: PacketType, ack: &Ack<'_>) {
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
    pub(super) fn send_ack_packet(
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
}

fn pubrel(packet_id: u16) -> AckKind {
    AckKind::Ack { first: PUBREL, packet_id, reason: ReasonCode::Success }
}
