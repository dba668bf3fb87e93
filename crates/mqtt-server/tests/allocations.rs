//! What a fan-out of one small publish to a thousand subscribers asks of the allocator, acknowledgements and
//! turns of the shards included: in the steady state nothing per delivery, and per publish what each test names.

use std::sync::Arc;

use allocation_counter::measure;
use mainstem_mqtt::{
    Connect, MessageProperties, Packet, Publish, QoS, Subscribe, SubscribeFilter, SubscribeFilters,
    SubscribeOptions, UserProperties, Version, decode,
};
use mainstem_mqtt_server::{Mail, MqttConfig, Shard, Shared};
use mainstem_runtime::{Clock, ConnId, Detached, Io};

const SUBSCRIBERS: usize = 1000;
/// Publishes until every buffer has the size it needs: more than the broker keeps messages for reuse.
const WARM_UP: u64 = 80;
const MEASURED: u64 = 10;

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;

/// Shards with a publisher on the first and subscribers on all of them in turn.
struct Bench {
    shards: Vec<Shard>,
    detached: Vec<Detached<Mail>>,
    publisher: ConnId,
    now_ms: u64,
    /// The frame that the publisher sends again and again.
    publish: Vec<u8>,
    /// What was received in the last turn: shard, connection, first byte and packet identifier.
    received: Vec<(usize, ConnId, u8, u16)>,
    deliveries: u64,
}

/// What is published, and who subscribes to it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    shards: usize,
    version: Version,
    qos: QoS,
    /// Sessions that outlive their connections keep messages until they are acknowledged.
    is_persistent: bool,
    filters: &'static [&'static str],
    subscription_id: Option<u32>,
    has_properties: bool,
    payload_bytes: usize,
}

const PLAIN: Setup = Setup {
    shards: 1,
    version: Version::V4,
    qos: QoS::AtMostOnce,
    is_persistent: false,
    filters: &["plant/+/temp"],
    subscription_id: None,
    has_properties: false,
    payload_bytes: 100,
};

const OVERLAPPING: &[&str] = &["plant/+/temp", "plant/#", "#"];

fn encode(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(version, &mut frame).expect("a valid packet");
    frame
}

fn connect(version: Version, client_id: &str, is_persistent: bool) -> Vec<u8> {
    let connect = Connect {
        clean_start: !is_persistent,
        session_expiry: (version == Version::V5 && is_persistent).then_some(u32::MAX),
        ..Connect::new(version, client_id)
    };
    encode(&connect.into(), version)
}

impl Bench {
    fn new(setup: Setup) -> Self {
        let config = MqttConfig { sys_interval_s: 0, ..MqttConfig::default() };
        let shared = Shared::new(config, setup.shards, 1);
        let mut shards: Vec<Shard> =
            (0..setup.shards).map(|me| Shard::new(me, Arc::clone(&shared))).collect();
        let mut detached = Io::<Mail>::detached(setup.shards, 1);
        let publisher = detached[0].connect(&mut shards[0]);
        detached[0].feed(&mut shards[0], publisher, &connect(setup.version, "publisher", false));
        let options = SubscribeOptions::qos(setup.qos);
        let filters: Vec<SubscribeFilter<'_>> =
            setup.filters.iter().map(|filter| SubscribeFilter { filter, options }).collect();
        let subscribe = Packet::Subscribe(Subscribe {
            packet_id: 1,
            subscription_id: setup.subscription_id,
            user_properties: UserProperties::default(),
            filters: SubscribeFilters::List(&filters),
        });
        let subscribe = encode(&subscribe, setup.version);
        for number in 0..SUBSCRIBERS {
            let at = number % setup.shards;
            let conn = detached[at].connect(&mut shards[at]);
            let hello = connect(setup.version, &format!("subscriber-{number}"), setup.is_persistent);
            detached[at].feed(&mut shards[at], conn, &hello);
            detached[at].feed(&mut shards[at], conn, &subscribe);
        }
        let publish = Publish {
            qos: setup.qos,
            topic: "plant/7/temp",
            packet_id: u16::from(setup.qos != QoS::AtMostOnce),
            properties: MessageProperties {
                content_type: setup.has_properties.then_some("text/plain"),
                user_properties: UserProperties::Pairs(if setup.has_properties {
                    &[("k", "v")]
                } else {
                    &[]
                }),
                ..MessageProperties::default()
            },
            payload: &vec![b'x'; setup.payload_bytes],
            ..Publish::default()
        };
        let publish = encode(&publish.into(), setup.version);
        let received = Vec::with_capacity(4 * SUBSCRIBERS);
        let mut bench = Self { shards, detached, publisher, now_ms: 1, publish, received, deliveries: 0 };
        bench.turn(setup.version);
        // That many clients are too much for one turn.
        while bench.detached.iter().any(|shard| shard.held_count() > 0) {
            bench.turn(setup.version);
        }
        bench
    }

    /// One turn of every shard: what the clients get is noted.
    fn turn(&mut self, version: Version) {
        self.now_ms += 1;
        self.received.clear();
        let clock = Clock { now_ms: self.now_ms, unix_ms: self.now_ms };
        for (at, detached) in self.detached.iter_mut().enumerate() {
            let (received, deliveries) = (&mut self.received, &mut self.deliveries);
            for _ in 0..detached.held_count() {
                if detached.offer_held(&mut self.shards[at]).is_none() {
                    break;
                }
            }
            detached.end_turn(&mut self.shards[at], |conn, mut bytes| {
                while let Some((packet_id, frame)) = first_packet(version, bytes) {
                    *deliveries += u64::from(frame[0] >> 4 == 3);
                    received.push((at, conn, frame[0], packet_id));
                    bytes = &bytes[frame.len()..];
                }
            });
            detached.begin_turn(&mut self.shards[at], clock);
        }
    }

    /// One publish with all that follows from it, to the last acknowledgement.
    fn publish(&mut self, version: Version) {
        self.detached[0].feed(&mut self.shards[0], self.publisher, &self.publish);
        loop {
            // Mail takes one turn, the output it causes another.
            self.turn(version);
            let is_quiet = self.received.is_empty();
            self.answer();
            if is_quiet {
                self.turn(version);
                self.answer();
                if self.received.is_empty() {
                    return;
                }
            }
        }
    }

    /// Every client acknowledges what it got.
    fn answer(&mut self) {
        let Self { detached, shards, received, .. } = self;
        for (at, conn, first, packet_id) in received.iter().copied() {
            let answer = match first & 0xf6 {
                0x32 => PUBACK,
                0x34 => PUBREC,
                PUBREC => PUBREL,
                PUBREL => PUBCOMP,
                _ => continue,
            };
            let [high, low] = packet_id.to_be_bytes();
            detached[at].feed(&mut shards[at], conn, &[answer, 2, high, low]);
        }
    }
}

/// The packet at the front, and its identifier if it has one that matters here.
fn first_packet(version: Version, bytes: &[u8]) -> Option<(u16, &[u8])> {
    let header = mainstem_mqtt::Header::parse(bytes).expect("packets")?;
    let frame = &bytes[..header.packet_len()];
    let packet_id = match decode(version, frame).expect("packets") {
        Packet::Publish(publish) => publish.packet_id,
        Packet::PubRec(ack) | Packet::PubRel(ack) => ack.packet_id,
        _ => 0,
    };
    Some((packet_id, frame))
}

/// Allocations per publish, each of which comes to everybody once.
fn allocations(setup: Setup) -> u64 {
    let mut bench = Bench::new(setup);
    for _ in 0..WARM_UP {
        bench.publish(setup.version);
    }
    bench.deliveries = 0;
    let count = measure(|| {
        for _ in 0..MEASURED {
            bench.publish(setup.version);
        }
    })
    .count_total;
    assert_eq!(bench.deliveries, MEASURED * SUBSCRIBERS as u64);
    assert_eq!(count % MEASURED, 0, "{count} allocations in {MEASURED} publishes: not the same for each");
    count / MEASURED
}

/// `check` for every QoS, for sessions that end with their connections and sessions that do not.
fn for_each(version: Version, check: impl Fn(Setup)) {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for is_persistent in [false, true] {
            check(Setup { version, qos, is_persistent, ..PLAIN });
        }
    }
}

#[test]
fn a_fan_out_allocates_nothing() {
    for version in [Version::V4, Version::V5] {
        for_each(version, |setup| assert_eq!(allocations(setup), 0, "{setup:?}"));
    }
}

#[test]
fn nor_does_one_that_goes_by_mail_to_another_shard() {
    for version in [Version::V4, Version::V5] {
        for_each(version, |setup| {
            let setup = Setup { shards: 2, ..setup };
            assert_eq!(allocations(setup), 0, "{setup:?}");
        });
    }
}

#[test]
fn nor_do_subscriptions_that_overlap() {
    for_each(Version::V4, |setup| {
        let setup = Setup { filters: OVERLAPPING, ..setup };
        assert_eq!(allocations(setup), 0, "{setup:?}");
    });
}

/// A message that has properties keeps them beside its payload: one block for the properties, one for the
/// content type, one for the user properties.
#[test]
fn properties_cost_three_allocations_for_all_subscribers_together() {
    for_each(Version::V5, |setup| {
        let setup = Setup { has_properties: true, ..setup };
        assert_eq!(allocations(setup), 3, "{setup:?}");
    });
}

/// A Subscription Identifier is kept with a message until it is acknowledged, if the session is to survive its
/// connection: a block for what is unusual of the delivery, and a list of one identifier in it. Where
/// subscriptions overlap, the identifiers of each client are gathered in a list first.
#[test]
fn subscription_identifiers_cost_allocations_per_delivery() {
    for_each(Version::V5, |setup| {
        let kept = if setup.is_persistent && setup.qos != QoS::AtMostOnce { 2 } else { 0 };
        let setup = Setup { subscription_id: Some(7), ..setup };
        assert_eq!(allocations(setup), kept * SUBSCRIBERS as u64, "{setup:?}");
        let setup = Setup { filters: OVERLAPPING, ..setup };
        assert_eq!(allocations(setup), (kept + 1) * SUBSCRIBERS as u64, "{setup:?}");
    });
}

/// From 8 KiB on a payload is shared by all outputs: message, topic, payload and the count of its memory are made anew,
/// and each output keeps a list of what it shares, in a block of its own, until it has left.
#[test]
fn a_large_payload_costs_four_allocations_and_two_per_delivery() {
    for_each(Version::V4, |setup| {
        let setup = Setup { payload_bytes: 16 * 1024, ..setup };
        assert_eq!(allocations(setup), 4 + 2 * SUBSCRIBERS as u64, "{setup:?}");
    });
}
