//! Those who receive by MQTT: they subscribe to a queue, and acknowledge what comes, or refuse or reject it, or are gone.

use std::collections::VecDeque;

use mainstem_mqtt::{Ack, Connect, Packet, Publish, QoS, ReasonCode, UserProperties, Version, decode};
use mainstem_queue::{GroupName, Verdict};

use crate::frames;
use crate::ledger::Violation;
use crate::machine::LinkId;

/// A delivery that has not been acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Had {
    packet_id: u16,
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) heard_ms: u64,
}

/// What has come.
#[derive(Debug)]
pub(crate) enum Came {
    /// A message: its payload.
    Message(Had, Vec<u8>),
    /// It has no subscription.
    Refused,
    /// Nothing that matters.
    Other,
}

#[derive(Debug)]
pub(crate) struct Subscriber {
    id: String,
    pub(crate) group: &'static str,
    receive_maximum: u16,
    /// Chances in 100 that it acknowledges, and that it is gone.
    pub(crate) acks: u64,
    pub(crate) vanishes: u64,
    /// The queue that it takes from now, and its connection.
    pub(crate) queue: usize,
    pub(crate) link: Option<LinkId>,
    partial: Vec<u8>,
    pub(crate) held: VecDeque<Had>,
}

impl Subscriber {
    pub(crate) fn new(
        number: usize,
        group: &'static str,
        receive_maximum: u16,
        acks: u64,
        vanishes: u64,
    ) -> Self {
        Self {
            id: format!("worker-{number}"),
            group,
            receive_maximum,
            acks,
            vanishes,
            queue: 0,
            link: None,
            partial: Vec::new(),
            held: VecDeque::new(),
        }
    }

    pub(crate) fn group_name(&self) -> GroupName {
        self.group.into()
    }

    /// It connects and subscribes: what it has to say.
    pub(crate) fn connect(&mut self, link: LinkId, queue: usize, name: &str) -> Vec<u8> {
        self.gone();
        (self.link, self.queue) = (Some(link), queue);
        let connect = Connect {
            clean_start: true,
            receive_maximum: Some(self.receive_maximum),
            ..Connect::new(Version::V5, &self.id)
        };
        let mut frames = Vec::new();
        Packet::Connect(connect).encode(Version::V5, &mut frames).expect("what a client says can be said");
        let filter = match self.group {
            mainstem_queue::DEFAULT_GROUP => format!("$queue/{name}"),
            group => format!("$share/{group}/$queue/{name}"),
        };
        frames.extend(frames::subscribe(Version::V5, 1, &filter, QoS::AtLeastOnce));
        frames
    }

    /// Its connection is gone.
    pub(crate) fn gone(&mut self) {
        self.link = None;
        self.partial.clear();
        self.held.clear();
    }

    /// Bytes come: what they are.
    pub(crate) fn take(&mut self, bytes: &[u8], now_ms: u64) -> Result<Vec<Came>, Violation> {
        self.partial.extend_from_slice(bytes);
        let mut came = Vec::new();
        while let Some(len) = frames::whole(&self.partial) {
            let rest = self.partial.split_off(len);
            let frame = std::mem::replace(&mut self.partial, rest);
            let packet = decode(Version::V5, &frame)
                .map_err(|error| Violation(format!("{} cannot read what came: {error:?}", self.id)))?;
            came.push(match packet {
                Packet::Publish(publish) => {
                    let had = had(&publish, now_ms)
                        .ok_or_else(|| Violation(format!("{}: no delivery: {publish:?}", self.id)))?;
                    self.held.push_back(had);
                    Came::Message(had, publish.payload.to_vec())
                }
                Packet::SubAck(suback) if suback.reasons != [QoS::AtLeastOnce as u8] => Came::Refused,
                _ => Came::Other,
            });
        }
        Ok(came)
    }
}

/// What a delivery says of itself.
fn had(publish: &Publish<'_>, heard_ms: u64) -> Option<Had> {
    let number = |wanted: &str| {
        let mut properties = publish.properties.user_properties.iter();
        properties.find(|(name, _)| *name == wanted)?.1.parse::<u64>().ok()
    };
    let count = u32::try_from(number("delivery-count")?).ok()?;
    Some(Had { packet_id: publish.packet_id, offset: number("offset")?, count, heard_ms })
}

/// The PUBACK that says so of a delivery.
pub(crate) fn puback(had: &Had, verdict: Verdict) -> Vec<u8> {
    let delay = match verdict {
        Verdict::Nack(Some(delay_ms)) => Some(delay_ms.to_string()),
        _ => None,
    };
    let delay: Vec<(&str, &str)> = delay.iter().map(|delay_ms| ("delay-ms", delay_ms.as_str())).collect();
    let reason = match verdict {
        Verdict::Ack => ReasonCode::Success,
        Verdict::Reject => ReasonCode::PayloadFormatInvalid,
        _ => ReasonCode::UnspecifiedError,
    };
    let (packet_id, user_properties) = (had.packet_id, UserProperties::Pairs(&delay));
    let ack = Ack { packet_id, reason, user_properties, ..Ack::default() };
    let mut frame = Vec::new();
    Packet::PubAck(ack).encode(Version::V5, &mut frame).expect("what a client says can be said");
    frame
}
