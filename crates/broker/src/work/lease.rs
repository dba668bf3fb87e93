//! Messages of queues on their way to a client, and what it says of them.

use std::sync::Arc;

use mainstem_mqtt::{
    Ack, MessageProperties, Packet, Publish, QoS, ReasonCode, SubscriptionIds, UserProperties,
};
use mainstem_runtime::Io;

use super::{FIRST_LEASE_ID, Held, LEASES_MAX, Lease, Leased, Parcel, Verdict};
use crate::message::{Content, Message};
use crate::session::Session;
use crate::shard::Shard;
use crate::shared::Mail;

/// The user property of a PUBACK that says when a message that failed is to be tried again, ms.
const DELAY_MS: &str = "delay-ms";

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    /// The window is full, or the client reads too slowly.
    NoRoom,
    /// The client takes no packets that large.
    TooLarge,
}

impl Shard {
    /// Gives a consumer a message that its queue has for it. False if the consumer is gone: then it has not taken it.
    pub fn deliver(&mut self, io: &mut Io<'_, Mail>, consumer: u64, parcel: &Parcel<'_>) -> bool {
        let now_ms = io.clock.now_ms;
        let Some((key, known)) = self.find_consumer(consumer) else { return false };
        let Parcel { lease, until_ms, payload, properties } = *parcel;
        let waits = !known.held.is_empty();
        if waits || self.send_leased(io, key.slot, consumer, lease, payload, &properties) == Sent::NoRoom {
            let content = Content {
                qos: QoS::AtLeastOnce,
                retain: false,
                publisher: None,
                topic: "",
                payload,
                properties,
            };
            let message = Message::new(&content, now_ms);
            if let Some((_, known)) = self.find_consumer(consumer) {
                known.held.push_back(Held { lease, until_ms, message });
            }
        }
        true
    }

    /// Sends what a session's queues have sent before there was room for it, and lets it ask for more.
    pub(crate) fn pump_queues(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let now_ms = io.clock.now_ms;
        let session = self.deliveries.sessions.at(slot);
        let Some(worker) = session.rare.as_ref().and_then(|rare| rare.worker.as_ref()) else { return };
        let holding = worker.subscriptions.iter().filter(|known| !known.held.is_empty());
        let holding: Vec<u64> = holding.map(|known| known.consumer).collect();
        for consumer in holding {
            while let Some(held) = self.find_consumer(consumer).and_then(|(_, known)| known.held.pop_front())
            {
                if held.until_ms <= io.clock.unix_ms {
                    continue;
                }
                let (payload, properties) = (held.message.payload(), held.message.properties(now_ms));
                if self.send_leased(io, slot, consumer, held.lease, payload, &properties) == Sent::NoRoom {
                    if let Some((_, known)) = self.find_consumer(consumer) {
                        known.held.push_front(held);
                    }
                    break;
                }
            }
        }
        self.note_worker(slot);
    }

    fn send_leased(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        consumer: u64,
        lease: Lease,
        payload: &[u8],
        properties: &MessageProperties<'_>,
    ) -> Sent {
        let session = self.deliveries.sessions.at(slot);
        let Session { conn, version, packet_max, inflight_max, window, rare, progress_ms, client_id, .. } =
            session;
        let Some(worker) = rare.as_mut().and_then(|rare| rare.worker.as_mut()) else { return Sent::NoRoom };
        let Some(known) = worker.subscriptions.iter_mut().find(|known| known.consumer == consumer) else {
            return Sent::NoRoom;
        };
        if window.in_flight() >= *inflight_max || worker.leased.len() >= LEASES_MAX {
            return Sent::NoRoom;
        }
        let Some(output) = io.output_if_room(*conn) else { return Sent::NoRoom };
        let place = worker.leased.vacant_entry();
        let ids = [known.id];
        let packet = Packet::Publish(Publish {
            qos: QoS::AtLeastOnce,
            topic: &known.of.topic,
            packet_id: FIRST_LEASE_ID + place.key() as u16,
            subscription_ids: SubscriptionIds::List(if known.id == 0 { &[] } else { &ids }),
            properties: *properties,
            payload,
            ..Publish::default()
        });
        let fits = packet.encoded_len(*version) <= *packet_max as usize;
        if !fits || packet.encode(*version, output.buffer()).is_err() {
            // Another consumer may take it.
            worker.settled.push((Arc::clone(&known.of), lease, Verdict::Nack(None)));
            if !std::mem::replace(&mut worker.too_large_logged, true) {
                log::warn!(
                    "client {client_id:?} leaves messages of {:?}: it takes none that large",
                    known.filter
                );
            }
            self.note_worker(slot);
            return Sent::TooLarge;
        }
        place.insert(Leased { of: Arc::clone(&known.of), consumer, lease });
        known.leased += 1;
        if window.in_flight() == 0 {
            *progress_ms = io.clock.now_ms;
        }
        // Until it is acknowledged, the window has one place less.
        *inflight_max -= 1;
        let counters = &mut self.deliveries.counters;
        counters.messages_sent += 1;
        counters.publish_sent += 1;
        counters.publish_bytes_sent += payload.len() as u64;
        Sent::Yes
    }

    /// PUBACK of a message of a queue.
    pub(crate) fn on_queue_ack(&mut self, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        let Some(worker) = session.rare.as_mut().and_then(|rare| rare.worker.as_mut()) else { return };
        let place = usize::from(ack.packet_id - FIRST_LEASE_ID);
        let Some(Leased { of, consumer, lease }) = worker.leased.try_remove(place) else { return };
        session.inflight_max += 1;
        if let Some(known) = worker.subscriptions.iter_mut().find(|known| known.consumer == consumer) {
            known.leased -= 1;
        }
        worker.settled.push((of, lease, verdict(ack.reason, &ack.user_properties)));
        self.note_worker(slot);
    }
}

/// What a PUBACK says of a message.
fn verdict(reason: ReasonCode, properties: &UserProperties<'_>) -> Verdict {
    match reason {
        ReasonCode::PayloadFormatInvalid | ReasonCode::ImplementationSpecificError => Verdict::Reject,
        reason if reason.is_error() => {
            let delay = properties.iter().find(|(name, _)| *name == DELAY_MS);
            Verdict::Nack(delay.and_then(|(_, value)| value.trim().parse().ok()))
        }
        _ => Verdict::Ack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_codes_say_what_becomes_of_a_message() {
        let none = UserProperties::default();
        let delay = UserProperties::Pairs(&[("why", "busy"), (DELAY_MS, "250")]);
        let odd = UserProperties::Pairs(&[(DELAY_MS, "soon")]);
        let table = [
            (ReasonCode::Success, none, Verdict::Ack),
            (ReasonCode::NoMatchingSubscribers, none, Verdict::Ack),
            (ReasonCode::UnspecifiedError, none, Verdict::Nack(None)),
            (ReasonCode::UnspecifiedError, delay, Verdict::Nack(Some(250))),
            (ReasonCode::QuotaExceeded, odd, Verdict::Nack(None)),
            (ReasonCode::PayloadFormatInvalid, delay, Verdict::Reject),
            (ReasonCode::ImplementationSpecificError, none, Verdict::Reject),
        ];
        for (reason, properties, expected) in table {
            assert_eq!(verdict(reason, &properties), expected, "{reason:?}");
        }
    }
}
