//! Acknowledgements, of clients and to them: PUBACK, PUBREC, PUBREL and PUBCOMP (3.4 to 3.7).

use mainstem_mqtt::session::Acked;
use mainstem_mqtt::{Ack, Packet, ReasonCode, Version};
use mainstem_runtime::Io;

use crate::answers::{Wait, What};
use crate::publish::{PUBCOMP, PUBREL};
use crate::session::Delivery;
use crate::shard::Shard;
use crate::shared::Mail;
use crate::work::FIRST_LEASE_ID;

impl Shard {
    pub(crate) fn on_puback(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        session.progress_ms = io.clock.now_ms;
        if ack.packet_id >= FIRST_LEASE_ID {
            return self.on_queue_ack(slot, ack);
        }
        let acked = session.window.puback(ack.packet_id);
        settle(self, slot, acked);
    }

    pub(crate) fn on_pubrec(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        session.progress_ms = io.clock.now_ms;
        let packet_id = ack.packet_id;
        let acked = session.window.pubrec(packet_id, ack.reason.is_error());
        if let Acked::Release(delivery) = &acked
            && !session.lasts()
        {
            if let Some(delivery) = delivery {
                session.settle(delivery);
            }
            self.answer_at_once(io, slot, PUBREL, packet_id, ReasonCode::Success);
            return;
        }
        match acked {
            Acked::Release(None) => {
                // The PUBREL before this one may still wait.
                let wait = Wait { commit: self.commits.latest(false), receipts: 0 };
                self.answer(io, slot, wait, None, pubrel(packet_id));
            }
            Acked::Release(Some(delivery)) => {
                session.settle(&delivery);
                // A client that forgets the identifier must not meet it again: it would take the message twice.
                let commit = match &delivery.message {
                    Some(_) => self.commits.current(),
                    None => self.commits.latest(false),
                };
                let wait = Wait { commit, receipts: 0 };
                self.deliveries.note_release(slot, packet_id, &delivery);
                self.answer(io, slot, wait, None, pubrel(packet_id));
            }
            acked @ Acked::Done(_) => settle(self, slot, acked),
            // It may belong to a session that this client has forgotten we ended: let it finish.
            Acked::Unknown => {
                self.answer_at_once(io, slot, PUBREL, packet_id, ReasonCode::PacketIdentifierNotFound);
            }
        }
    }

    pub(crate) fn on_pubrel(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let packet_id = ack.packet_id;
        let session = self.deliveries.sessions.at(slot);
        let known = session.received.release(packet_id);
        let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
        if !session.lasts() {
            self.answer_at_once(io, slot, PUBCOMP, packet_id, reason);
            return;
        }
        let wait = if known {
            self.entering(|shard| shard.enter_release(slot, packet_id)).1
        } else {
            // The PUBCOMP before this one may still wait.
            Wait { commit: self.commits.latest(false), receipts: 0 }
        };
        self.answer(io, slot, wait, None, What::Ack { first: PUBCOMP, packet_id, reason });
    }

    pub(crate) fn on_pubcomp(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        session.progress_ms = io.clock.now_ms;
        let acked = session.window.pubcomp(ack.packet_id);
        settle(self, slot, acked);
    }

    /// Sends an acknowledgement. Codes other than success exist only in MQTT 5.
    pub(crate) fn acknowledge(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        first: u8,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let session = self.deliveries.sessions.at(slot);
        if reason != ReasonCode::Success && session.version == Version::V5 {
            let ack = Ack { packet_id, reason, ..Ack::default() };
            let packet = match first >> 4 {
                4 => Packet::PubAck(ack),
                5 => Packet::PubRec(ack),
                6 => Packet::PubRel(ack),
                _ => Packet::PubComp(ack),
            };
            self.send(io, slot, &packet);
        } else if let Some(output) = io.output(session.conn) {
            crate::delivery::put_ack(output.buffer(), first, packet_id);
            self.deliveries.counters.messages_sent += 1;
        }
    }
}

fn pubrel(packet_id: u16) -> What {
    What::Ack { first: PUBREL, packet_id, reason: ReasonCode::Success }
}

/// An exchange is over: whoever deals out shared subscriptions is to know.
fn settle(shard: &mut Shard, slot: u32, acked: Acked<Delivery>) {
    if let Acked::Done(Some(delivery)) = acked {
        shard.deliveries.sessions.at(slot).settle(&delivery);
        shard.deliveries.forget(slot, &delivery);
    }
}
