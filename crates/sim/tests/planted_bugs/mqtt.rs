//! Bugs of brokers with MQTT clients.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_mqtt::{Connect, Packet, Publish, QoS, Version, decode};
use mainstem_sim::{FaultInjector, WrapStore};

use super::stores::{EarlyAcks, LostBatch};
use super::{Bug, is_turn};

pub(crate) const BUGS: [Bug; 10] = [
    Bug::new("acknowledged before it is synced", "was acknowledged and", 2080, || Box::new(EarlyAck)),
    Bug::new("a batch is lost at recovery", "was acknowledged and", 2087, || Box::new(BatchLost)),
    Bug::new("delivered twice", "at QoS 2 for the 2. time", 2080, || Box::new(Qos2Repeated::default())),
    Bug::new("reordered", "behind message", 2080, || Box::new(Reordered::default())),
    Bug::new("leaked to another client", "no subscription", 2082, || Box::new(Leaked::default())),
    Bug::new("a retained message is forgotten", "retain", 2085, || Box::new(RetainRemoved::default())),
    Bug::new("an identifier gets another message", "and comes as", 2080, || {
        Box::new(IdentifierSwapped::default())
    }),
    Bug::new("a session is forgotten", "its session is gone", 2080, || Box::new(SessionAbsent::default())),
    Bug::new("acknowledged and dropped", "was acknowledged and never came", 2083, || {
        Box::new(PayloadRemoved::default())
    }),
    Bug::new("wills are ignored", "was a will that is due and never came", 2130, || {
        Box::new(WillRemoved::default())
    }),
];

struct EarlyAck;

impl FaultInjector for EarlyAck {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(EarlyAcks::new(store)))
    }
}

struct BatchLost;

impl FaultInjector for BatchLost {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(LostBatch::new(store, "mqtt")))
    }
}

/// The PUBLISH in a frame, and its version: the one in which it decodes to a payload of the simulator.
pub(super) fn publish(frame: &[u8]) -> Option<(Version, Publish<'_>)> {
    [Version::V5, Version::V4].into_iter().find_map(|version| match decode(version, frame) {
        Ok(Packet::Publish(publish)) if publish.payload.first().is_none_or(u8::is_ascii_digit) => {
            Some((version, publish))
        }
        _ => None,
    })
}

pub(super) fn encode(version: Version, publish: Publish<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    Packet::Publish(publish).encode(version, &mut frame).expect("it was decoded");
    frame
}

/// Some QoS 2 messages are delivered again, under another identifier.
#[derive(Default)]
struct Qos2Repeated(u64);

impl FaultInjector for Qos2Repeated {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let again = publish(&frame)
            .filter(|(_, publish)| publish.qos == QoS::ExactlyOnce && !publish.retain)
            .filter(|_| is_turn(&mut self.0, 20))
            .map(|(version, publish)| encode(version, Publish { packet_id: 60_000, ..publish }));
        std::iter::once(frame).chain(again).map(|frame| (client, frame)).collect()
    }
}

/// Some messages arrive after the next.
#[derive(Default)]
struct Reordered {
    count: u64,
    held: HashMap<usize, Vec<u8>>,
}

impl FaultInjector for Reordered {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        if let Some(held) = self.held.remove(&client) {
            return vec![(client, frame), (client, held)];
        }
        let is_held = publish(&frame).is_some_and(|(_, publish)| publish.qos == QoS::AtLeastOnce);
        if is_held && is_turn(&mut self.count, 10) {
            self.held.insert(client, frame);
            return Vec::new();
        }
        vec![(client, frame)]
    }
}

/// Some messages are also delivered to another client.
#[derive(Default)]
struct Leaked(u64);

impl FaultInjector for Leaked {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let leaked = publish(&frame).filter(|_| is_turn(&mut self.0, 10)).map(|(version, publish)| {
            let (qos, packet_id) = (QoS::AtMostOnce, 0);
            encode(version, Publish { qos, packet_id, dup: false, ..publish })
        });
        let neighbour = usize::from(client == 0);
        std::iter::once((client, frame)).chain(leaked.map(|frame| (neighbour, frame))).collect()
    }
}

/// Some messages lose their retain flag.
#[derive(Default)]
struct RetainRemoved(u64);

impl FaultInjector for RetainRemoved {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let forgotten = publish(&frame)
            .filter(|(_, publish)| publish.retain && !publish.payload.is_empty() && is_turn(&mut self.0, 5))
            .map(|(version, publish)| encode(version, Publish { retain: false, ..publish }));
        vec![forgotten.unwrap_or(frame)]
    }
}

/// Some messages that are sent again have the identifier of another.
#[derive(Default)]
struct IdentifierSwapped {
    last: HashMap<usize, u16>,
}

impl FaultInjector for IdentifierSwapped {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let Some((version, publish)) = publish(&frame).filter(|(_, publish)| publish.dup) else {
            return vec![(client, frame)];
        };
        let own = publish.packet_id;
        let packet_id = self.last.insert(client, own).unwrap_or(own);
        vec![(client, encode(version, Publish { packet_id, ..publish }))]
    }
}

/// Some CONNACKs report no session.
#[derive(Default)]
struct SessionAbsent(u64);

impl FaultInjector for SessionAbsent {
    fn to_client(&mut self, client: usize, mut frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        const CONNACK: u8 = 0x20;
        if frame[0] == CONNACK && frame.get(2..4) == Some(&[1, 0]) && is_turn(&mut self.0, 5) {
            frame[2] = 0;
        }
        vec![(client, frame)]
    }
}

/// Some messages lose their payload: they are acknowledged, and unknown to the oracle.
#[derive(Default)]
struct PayloadRemoved(u64);

impl FaultInjector for PayloadRemoved {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let changed = publish(&frame)
            .filter(|(_, publish)| publish.qos == QoS::AtLeastOnce && !publish.retain)
            .filter(|_| is_turn(&mut self.0, 20))
            .map(|(version, publish)| encode(version, Publish { payload: b"", ..publish }));
        vec![(client, changed.unwrap_or(frame))]
    }
}

/// Some CONNECTs lose their will.
#[derive(Default)]
struct WillRemoved(u64);

impl FaultInjector for WillRemoved {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Ok(Packet::Connect(connect)) = decode(Version::V5, &frame) else { return vec![frame] };
        if connect.will.is_none() || !is_turn(&mut self.0, 3) {
            return vec![frame];
        }
        let mut changed = Vec::new();
        let version = connect.version;
        let without = Packet::Connect(Connect { will: None, ..connect });
        without.encode(version, &mut changed).expect("it was decoded");
        vec![changed]
    }
}
