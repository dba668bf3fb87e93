//! MQTT consumers of queues: they subscribe to a queue, settle what arrives by PUBACK, and vanish.

use std::collections::VecDeque;

use mainstem_mqtt::{Ack, Connect, Packet, Publish, QoS, ReasonCode, UserProperties, Version, decode};
use mainstem_queue_core::{Disposition, GroupName};

use super::plan::WorkerProfile;
use crate::Violation;
use crate::engine::LinkId;
use crate::mqtt::frames;

/// A delivery without a PUBACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldDelivery {
    packet_id: u16,
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) received_ms: u64,
}

/// A packet of interest.
#[derive(Debug)]
pub(crate) enum Received {
    /// A delivery and its payload.
    Message(HeldDelivery, Vec<u8>),
    /// The subscription was refused.
    Refused,
    Other,
}

#[derive(Debug)]
pub(crate) struct Subscriber {
    id: String,
    pub(crate) group: &'static str,
    receive_maximum: u16,
    /// Chances in 100 that it acknowledges, and that it vanishes.
    pub(crate) acks: u64,
    pub(crate) vanishes: u64,
    /// The queue it is subscribed to.
    pub(crate) queue: usize,
    pub(crate) link: Option<LinkId>,
    partial: Vec<u8>,
    pub(crate) held: VecDeque<HeldDelivery>,
}

impl Subscriber {
    pub(crate) fn new(number: usize, profile: &WorkerProfile) -> Self {
        Self {
            id: format!("worker-{number}"),
            group: profile.group,
            receive_maximum: profile.max as u16,
            acks: profile.acks,
            vanishes: profile.vanishes,
            queue: 0,
            link: None,
            partial: Vec::new(),
            held: VecDeque::new(),
        }
    }

    pub(crate) fn group_name(&self) -> GroupName {
        self.group.into()
    }

    /// Connects and subscribes. Returns the packets to be sent.
    pub(crate) fn connect(&mut self, link: LinkId, queue: usize, name: &str) -> Vec<Vec<u8>> {
        self.disconnected();
        (self.link, self.queue) = (Some(link), queue);
        let connect = Connect {
            clean_start: true,
            receive_maximum: Some(self.receive_maximum),
            ..Connect::new(Version::V5, &self.id)
        };
        let connect = frames::encode(&Packet::Connect(connect), Version::V5);
        let filter = match self.group {
            mainstem_queue_core::DEFAULT_GROUP => format!("$queue/{name}"),
            group => format!("$share/{group}/$queue/{name}"),
        };
        vec![connect, frames::subscribe(Version::V5, 1, &filter, QoS::AtLeastOnce)]
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&mut self) {
        self.link = None;
        self.partial.clear();
        self.held.clear();
    }

    /// Takes bytes. Returns what has arrived.
    pub(crate) fn take(&mut self, bytes: &[u8], now_ms: u64) -> Result<Vec<Received>, Violation> {
        self.partial.extend_from_slice(bytes);
        let mut received = Vec::new();
        while let Some(len) = frames::whole(&self.partial) {
            let rest = self.partial.split_off(len);
            let frame = std::mem::replace(&mut self.partial, rest);
            let packet = decode(Version::V5, &frame)
                .map_err(|error| Violation(format!("{} cannot read what came: {error:?}", self.id)))?;
            received.push(match packet {
                Packet::Publish(publish) => {
                    let delivery = delivery(&publish, now_ms)
                        .ok_or_else(|| Violation(format!("{}: no delivery: {publish:?}", self.id)))?;
                    self.held.push_back(delivery);
                    Received::Message(delivery, publish.payload.to_vec())
                }
                Packet::SubAck(suback) if suback.reasons != [QoS::AtLeastOnce as u8] => Received::Refused,
                _ => Received::Other,
            });
        }
        Ok(received)
    }
}

/// Reads the properties of a delivery.
fn delivery(publish: &Publish<'_>, received_ms: u64) -> Option<HeldDelivery> {
    let number = |wanted: &str| {
        let mut properties = publish.properties.user_properties.iter();
        properties.find(|(name, _)| *name == wanted)?.1.parse::<u64>().ok()
    };
    let count = u32::try_from(number("delivery-count")?).ok()?;
    Some(HeldDelivery { packet_id: publish.packet_id, offset: number("offset")?, count, received_ms })
}

/// The PUBACK that settles a delivery.
pub(crate) fn puback(delivery: &HeldDelivery, disposition: Disposition) -> Vec<u8> {
    let delay = match disposition {
        Disposition::Nack(Some(delay_ms)) => Some(delay_ms.to_string()),
        _ => None,
    };
    let delay: Vec<(&str, &str)> = delay.iter().map(|delay_ms| ("delay-ms", delay_ms.as_str())).collect();
    let reason = match disposition {
        Disposition::Ack => ReasonCode::Success,
        Disposition::Reject => ReasonCode::PayloadFormatInvalid,
        _ => ReasonCode::UnspecifiedError,
    };
    let (packet_id, user_properties) = (delivery.packet_id, UserProperties::Pairs(&delay));
    let ack = Ack { packet_id, reason, user_properties, ..Ack::default() };
    frames::encode(&Packet::PubAck(ack), Version::V5)
}
