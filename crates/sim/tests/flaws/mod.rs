//! Brokers with a bug each. The product's code is the same; what is wrong stands between it and its disk, or
//! between it and its clients.

pub(crate) mod kafka;
pub(crate) mod queue;
mod stores;

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_mqtt::{Connect, Packet, Publish, QoS, Version, decode};
use mainstem_sim::{Flaw, Wrap};

use stores::{EarlyAcks, LostBatch};

/// Makes a flaw.
type Make = fn() -> Box<dyn Flaw>;

/// All flaws there are, with words of what must be found because of them.
pub(crate) const ALL: [(&str, &str, Make); 10] = [
    ("acknowledged before it is synced", "was acknowledged and", || Box::new(Early)),
    ("a batch is lost at recovery", "was acknowledged and", || Box::new(Lossy)),
    ("delivered twice", "at QoS 2 for the 2. time", || Box::new(Twice::default())),
    ("reordered", "behind message", || Box::new(Reordered::default())),
    ("leaked to another client", "no subscription", || Box::new(Leaked::default())),
    ("a retained message is forgotten", "retain", || Box::new(Forgetful::default())),
    ("an identifier gets another message", "and comes as", || Box::new(Swapped::default())),
    ("a session is forgotten", "its session is gone", || Box::new(Absent::default())),
    ("acknowledged and thrown away", "was acknowledged and never came", || Box::new(Thrown::default())),
    ("a will is not taken", "was a will that is due and never came", || Box::new(Unheard::default())),
];

struct Early;

impl Flaw for Early {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(EarlyAcks::new(store)))
    }
}

struct Lossy;

impl Flaw for Lossy {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(LostBatch::new(store, "mqtt")))
    }
}

/// The PUBLISH in a frame, and the version it is of. Versions are told apart by what decodes to a topic and payload
/// that the simulator uses.
fn publish(frame: &[u8]) -> Option<(Version, Publish<'_>)> {
    [Version::V5, Version::V4].into_iter().find_map(|version| match decode(version, frame) {
        Ok(Packet::Publish(publish)) if publish.payload.first().is_none_or(u8::is_ascii_digit) => {
            Some((version, publish))
        }
        _ => None,
    })
}

fn encode(version: Version, publish: Publish<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    Packet::Publish(publish).encode(version, &mut frame).expect("it was decoded");
    frame
}

/// True once in `every` calls.
pub(crate) fn is_turn(count: &mut u64, every: u64) -> bool {
    *count += 1;
    count.is_multiple_of(every)
}

/// Some QoS 2 messages come a second time, under another identifier.
#[derive(Default)]
struct Twice(u64);

impl Flaw for Twice {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let again = publish(&frame)
            .filter(|(_, publish)| publish.qos == QoS::ExactlyOnce && !publish.retain)
            .filter(|_| is_turn(&mut self.0, 20))
            .map(|(version, publish)| encode(version, Publish { packet_id: 60_000, ..publish }));
        std::iter::once(frame).chain(again).map(|frame| (client, frame)).collect()
    }
}

/// Some messages come behind the next.
#[derive(Default)]
struct Reordered {
    count: u64,
    held: HashMap<usize, Vec<u8>>,
}

impl Flaw for Reordered {
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

/// Some messages come to the neighbour as well.
#[derive(Default)]
struct Leaked(u64);

impl Flaw for Leaked {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let leaked = publish(&frame).filter(|_| is_turn(&mut self.0, 10)).map(|(version, publish)| {
            let (qos, packet_id) = (QoS::AtMostOnce, 0);
            encode(version, Publish { qos, packet_id, dup: false, ..publish })
        });
        let neighbour = usize::from(client == 0);
        std::iter::once((client, frame)).chain(leaked.map(|frame| (neighbour, frame))).collect()
    }
}

/// Some messages that are to be retained are not.
#[derive(Default)]
struct Forgetful(u64);

impl Flaw for Forgetful {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let forgotten = publish(&frame)
            .filter(|(_, publish)| publish.retain && !publish.payload.is_empty() && is_turn(&mut self.0, 5))
            .map(|(version, publish)| encode(version, Publish { retain: false, ..publish }));
        vec![forgotten.unwrap_or(frame)]
    }
}

/// Some messages that are sent again come under the identifier of another.
#[derive(Default)]
struct Swapped {
    last: HashMap<usize, u16>,
}

impl Flaw for Swapped {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let Some((version, publish)) = publish(&frame).filter(|(_, publish)| publish.dup) else {
            return vec![(client, frame)];
        };
        let own = publish.packet_id;
        let packet_id = self.last.insert(client, own).unwrap_or(own);
        vec![(client, encode(version, Publish { packet_id, ..publish }))]
    }
}

/// Some CONNACKs say that there is no session.
#[derive(Default)]
struct Absent(u64);

impl Flaw for Absent {
    fn to_client(&mut self, client: usize, mut frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        const CONNACK: u8 = 0x20;
        if frame[0] == CONNACK && frame.get(2..4) == Some(&[1, 0]) && is_turn(&mut self.0, 5) {
            frame[2] = 0;
        }
        vec![(client, frame)]
    }
}

/// Some messages never come, although the broker is told that they have.
#[derive(Default)]
struct Thrown(u64);

impl Flaw for Thrown {
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let changed = publish(&frame)
            .filter(|(_, publish)| publish.qos == QoS::AtLeastOnce && !publish.retain)
            .filter(|_| is_turn(&mut self.0, 20))
            // What has no payload is acknowledged, and tells nobody what it is.
            .map(|(version, publish)| encode(version, Publish { payload: b"", ..publish }));
        vec![(client, changed.unwrap_or(frame))]
    }
}

/// Some wills are not heard of.
#[derive(Default)]
struct Unheard(u64);

impl Flaw for Unheard {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Ok(Packet::Connect(connect)) = decode(Version::V5, &frame) else { return vec![frame] };
        if connect.will.is_none() || !is_turn(&mut self.0, 3) {
            return vec![frame];
        }
        let mut unheard = Vec::new();
        let version = connect.version;
        let without = Packet::Connect(Connect { will: None, ..connect });
        without.encode(version, &mut unheard).expect("it was decoded");
        vec![unheard]
    }
}
