//! Interprets arbitrary bytes as actions of several clients on a broker with two shards: the broker never panics, and
//! sends only whole packets of the types that servers send.
//!
//! Input: steps of two bytes. The first is the action and, in its low two bits, the client; the second is the argument:
//! the packet of the table below, the number of raw bytes that follow, or tenths of a second.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstem_mqtt::{
    Ack, Connect, Header, Packet, Publish, QoS, Subscribe, SubscribeFilter, SubscribeFilters,
    SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties, Version,
};
use mainstem_mqtt_server::{Mail, MqttConfig, Shard, Shared};
use mainstem_runtime::{Clock, ConnId, Detached, Io};

const SHARDS: usize = 2;
const CLIENTS: usize = 4;
/// More output per run than any input of libFuzzer's default size can cause, bytes.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

struct World {
    shards: Vec<(Detached<Mail>, Shard)>,
    /// Shard and connection id of each client.
    clients: [Option<(usize, ConnId)>; CLIENTS],
    now_ms: u64,
    output: usize,
}

fuzz_target!(|input: &[u8]| {
    let config = MqttConfig { max_queued_messages: 20, max_inflight_messages: 3, ..MqttConfig::default() };
    let shared = Shared::new(config, SHARDS, 1);
    let shards = Io::detached(SHARDS, 1)
        .into_iter()
        .enumerate()
        .map(|(number, io)| (io, Shard::new(number, shared.clone())))
        .collect();
    let mut world = World { shards, clients: [None; CLIENTS], now_ms: 0, output: 0 };
    world.turn(0);
    let mut rest = input;
    while let [step, argument, behind @ ..] = rest {
        rest = behind;
        let who = usize::from(step & 3);
        match step >> 2 & 7 {
            0 => world.open(who),
            1 => world.hang_up(who),
            2 => world.turn(u64::from(*argument) * 100),
            3 => {
                let (raw, behind) = rest.split_at(rest.len().min(usize::from(*argument)));
                rest = behind;
                world.feed(who, raw);
            }
            _ => {
                world.feed(who, &packet(who, *argument));
            }
        }
    }
    for _ in 0..3 {
        world.turn(100_000);
    }
    assert!(world.output < OUTPUT_BYTES_MAX, "{} bytes of output", world.output);
});

impl World {
    fn open(&mut self, who: usize) {
        self.hang_up(who);
        let shard = who % SHARDS;
        let (io, service) = &mut self.shards[shard];
        self.clients[who] = Some((shard, io.connect(service)));
    }

    fn hang_up(&mut self, who: usize) {
        if let Some((shard, conn)) = self.clients[who].take() {
            let (io, service) = &mut self.shards[shard];
            io.hang_up(service, conn);
        }
    }

    fn feed(&mut self, who: usize, bytes: &[u8]) {
        if let Some((shard, conn)) = self.clients[who] {
            let (io, service) = &mut self.shards[shard];
            io.feed(service, conn, bytes);
        }
    }

    fn turn(&mut self, later_ms: u64) {
        self.now_ms += later_ms;
        let clock = Clock { now_ms: self.now_ms, unix_ms: self.now_ms };
        for shard in 0..SHARDS {
            let (io, service) = &mut self.shards[shard];
            for (_, bytes) in io.turn(service, clock) {
                self.output += bytes.len();
                check(&bytes);
            }
            for _ in 0..io.held_count() {
                io.offer_held(service);
            }
            for departure in io.departures() {
                let (io, service) = &mut self.shards[departure.to];
                let conn = io.connect(service);
                io.feed(service, conn, &departure.input);
                for client in self.clients.iter_mut().flatten() {
                    if *client == (shard, departure.conn) {
                        *client = (departure.to, conn);
                    }
                }
            }
        }
    }
}

/// Output is a sequence of whole packets that a server may send.
fn check(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let header = Header::parse(bytes).expect("a good header").expect("a whole header");
        assert!(header.packet_len() <= bytes.len(), "a whole packet");
        assert!(matches!(header.first >> 4, 2..=7 | 9 | 11 | 13 | 14), "type {}", header.first >> 4);
        bytes = &bytes[header.packet_len()..];
    }
}

/// Packets that reach deep states: each client may use any version, and a few identifiers repeat.
fn packet(who: usize, argument: u8) -> Vec<u8> {
    const NAMES: [&str; CLIENTS] = ["a", "b", "c", "a"];
    const FILTERS: [&str; 4] = ["t/1", "t/+", "#", "$share/g/t/#"];
    const TOPICS: [&str; 2] = ["t/1", "t/2"];
    let version = [Version::V3, Version::V4, Version::V5, Version::V5][usize::from(argument >> 6)];
    let low = usize::from(argument >> 4 & 3);
    let packet_id = u16::from(argument >> 4 & 3) + 1;
    let ack = Ack { packet_id, ..Ack::default() };
    let publish = |qos, retain| Publish {
        qos,
        retain,
        topic: TOPICS[low % 2],
        packet_id: if qos == QoS::AtMostOnce { 0 } else { packet_id },
        payload: if low == 3 { b"" } else { b"payload" },
        ..Publish::default()
    };
    let packet = match argument & 15 {
        0 | 1 => {
            let clean_start = argument & 1 == 1;
            Packet::Connect(Connect {
                clean_start,
                session_expiry: Some(60),
                ..Connect::new(version, NAMES[who])
            })
        }
        2 => Packet::Publish(publish(QoS::AtMostOnce, false)),
        3 => Packet::Publish(publish(QoS::AtLeastOnce, false)),
        4 => Packet::Publish(publish(QoS::ExactlyOnce, false)),
        5 => Packet::Publish(publish(QoS::AtLeastOnce, true)),
        6 => Packet::PubAck(ack),
        7 => Packet::PubRec(ack),
        8 => Packet::PubRel(ack),
        9 => Packet::PubComp(ack),
        10..=12 => {
            let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(argument & 15) - 10];
            return subscribe(version, FILTERS[low], qos);
        }
        13 => Packet::Unsubscribe(Unsubscribe {
            packet_id,
            user_properties: UserProperties::default(),
            filters: UnsubscribeFilters::List(match low {
                0 => &["t/1"],
                1 => &["t/+"],
                2 => &["#"],
                _ => &["$share/g/t/#"],
            }),
        }),
        14 => Packet::PingReq,
        _ => Packet::Disconnect(mainstem_mqtt::Disconnect::default()),
    };
    encoded(version, &packet)
}

fn subscribe(version: Version, filter: &str, qos: QoS) -> Vec<u8> {
    let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
    let packet = Packet::Subscribe(Subscribe {
        packet_id: 1,
        subscription_id: None,
        user_properties: UserProperties::default(),
        filters: SubscribeFilters::List(&[SubscribeFilter { filter, options }]),
    });
    encoded(version, &packet)
}

fn encoded(version: Version, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes).expect("the table can be encoded");
    bytes
}
