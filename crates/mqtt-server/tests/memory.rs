//! Memory: what is refused as the budget runs out, in which order, and what counts against it.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_mqtt::{
    Connect, Header, MessageProperties, Packet, Publish, QoS, ReasonCode, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscribeOptions, UserProperties, Version, decode,
};
use mainstem_mqtt_server::{Mail, MqttConfig, Shard, Shared};
use mainstem_runtime::{Clock, ConnId, Detached, Io, MemoryBudget, MemoryCharge};

const BUDGET: u64 = 100 * 1024 * 1024;
const MIB: usize = 1024 * 1024;

/// A broker of one shard, with a budget.
struct Broker {
    budget: Arc<MemoryBudget>,
    shared: Arc<Shared>,
    shard: Shard,
    detached: Detached<Mail>,
    now_ms: u64,
    /// What each connection was sent and a test has not looked at.
    sent: HashMap<ConnId, Vec<u8>>,
    /// Memory that somebody else uses.
    others: MemoryCharge,
}

fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(Version::V5, &mut frame).expect("a valid packet");
    frame
}

impl Broker {
    fn new(config: MqttConfig) -> Self {
        let config = MqttConfig { sys_interval_s: 0, ..config };
        let budget = MemoryBudget::new(BUDGET, 1);
        let shared = Shared::within(&budget, config, 1, 1);
        let others = budget.meter(0, budget.owner("others")).charge(0);
        let mut broker = Self {
            shard: Shard::new(0, Arc::clone(&shared)),
            detached: Io::<Mail>::detached_within(&budget, 1, 1).remove(0),
            now_ms: 1,
            sent: HashMap::new(),
            budget,
            shared,
            others,
        };
        broker.turn();
        broker
    }

    fn turn(&mut self) {
        self.now_ms += 1;
        let clock = Clock { now_ms: self.now_ms, unix_ms: self.now_ms };
        for (conn, bytes) in self.detached.turn(&mut self.shard, clock) {
            self.sent.entry(conn).or_default().extend_from_slice(&bytes);
        }
    }

    /// Lets somebody else use this share of the budget.
    fn fill(&mut self, percent: u64) {
        self.others.set(0);
        self.turn();
        let rest = (BUDGET / 100 * percent).saturating_sub(self.budget.used());
        self.others.set(rest as usize);
        self.turn();
    }

    fn send(&mut self, conn: ConnId, packet: &Packet<'_>) {
        self.detached.feed(&mut self.shard, conn, &encode(packet));
    }

    /// Runs two turns, and returns the first byte and the first reason code of each packet that the broker has sent.
    fn answers(&mut self, conn: ConnId) -> Vec<(u8, u8)> {
        self.turn();
        self.turn();
        let bytes = self.sent.remove(&conn).unwrap_or_default();
        let mut rest = &bytes[..];
        let mut answers = Vec::new();
        while let Some(header) = Header::parse(rest).expect("packets") {
            let (frame, behind) = rest.split_at(header.packet_len());
            rest = behind;
            let reason = match decode(Version::V5, frame).expect("packets") {
                Packet::ConnAck(ack) => ack.reason as u8,
                Packet::PubAck(ack) | Packet::PubRec(ack) => ack.reason as u8,
                Packet::SubAck(ack) => ack.reasons[0],
                Packet::Disconnect(disconnect) => disconnect.reason as u8,
                _ => 0,
            };
            answers.push((frame[0] & 0xf0, reason));
        }
        answers
    }

    fn connect(&mut self, client_id: &str, expiry_s: Option<u32>) -> (ConnId, u8) {
        let conn = self.detached.connect(&mut self.shard);
        let connect =
            Connect { clean_start: false, session_expiry: expiry_s, ..Connect::new(Version::V5, client_id) };
        self.send(conn, &connect.into());
        let answers = self.answers(conn);
        (conn, answers[0].1)
    }

    fn client(&mut self, client_id: &str) -> ConnId {
        let (conn, reason) = self.connect(client_id, None);
        assert_eq!(reason, 0, "{client_id} is refused");
        conn
    }

    fn subscribe(&mut self, conn: ConnId, filter: &str, qos: QoS) -> u8 {
        let filters = [SubscribeFilter { filter, options: SubscribeOptions::qos(qos) }];
        self.send(
            conn,
            &Packet::Subscribe(Subscribe {
                packet_id: 1,
                subscription_id: None,
                user_properties: UserProperties::default(),
                filters: SubscribeFilters::List(&filters),
            }),
        );
        let answers = self.answers(conn);
        answers.iter().find(|(kind, _)| *kind == 0x90).expect("a SUBACK").1
    }

    fn publish(&mut self, conn: ConnId, publish: &Publish<'_>) -> Option<(u8, u8)> {
        self.send(conn, &publish.clone().into());
        self.answers(conn).first().copied()
    }

    /// Memory by owner, without that of connections, which keep their slots, and of others.
    fn used_by(&self, owner: &str) -> usize {
        let by_owner = self.budget.used_by_owner();
        by_owner.iter().find(|(name, _)| *name == owner).map_or(0, |(_, bytes)| *bytes as usize)
    }
}

fn publish<'a>(qos: QoS, topic: &'a str, payload: &'a [u8]) -> Publish<'a> {
    let packet_id = u16::from(qos != QoS::AtMostOnce);
    Publish { qos, topic, payload, packet_id, ..Publish::default() }
}

const REFUSED: Option<(u8, u8)> = Some((0x40, ReasonCode::QuotaExceeded as u8));
const QUOTA: u8 = ReasonCode::QuotaExceeded as u8;

#[test]
fn retained_messages_are_refused_first() {
    let mut broker = Broker::new(MqttConfig::default());
    let client = broker.client("client");
    let retained = |payload| Publish { retain: true, ..publish(QoS::AtLeastOnce, "kept", payload) };
    broker.fill(79);
    assert_eq!(broker.publish(client, &retained(b"12")), Some((0x40, 0x10)), "nobody subscribes");
    broker.fill(81);
    assert_eq!(broker.publish(client, &retained(b"123")), REFUSED, "it would grow");
    assert_eq!(broker.publish(client, &retained(b"1")), Some((0x40, 0x10)), "it shrinks");
    assert_eq!(broker.publish(client, &retained(b"")), Some((0x40, 0x10)), "it goes");
    assert_eq!(broker.publish(client, &publish(QoS::AtLeastOnce, "other", b"1")), Some((0x40, 0x10)));
}

#[test]
fn qos_0_is_queued_only_while_there_is_memory() {
    let config = MqttConfig { queue_qos0: true, ..MqttConfig::default() };
    let mut broker = Broker::new(config);
    let (receiver, _) = broker.connect("receiver", Some(100));
    broker.subscribe(receiver, "t", QoS::AtMostOnce);
    broker.detached.hang_up(&mut broker.shard, receiver);
    let client = broker.client("client");
    for (percent, queued) in [(79, 1), (81, 1)] {
        broker.fill(percent);
        broker.publish(client, &publish(QoS::AtMostOnce, "t", b"1"));
        assert_eq!(broker.shared.counters().queued_messages, queued, "at {percent} %");
    }
    assert_eq!(broker.shared.counters().dropped(), 1);
}

#[test]
fn publishes_are_refused_next() {
    let mut broker = Broker::new(MqttConfig::default());
    let client = broker.client("client");
    let receiver = broker.client("receiver");
    broker.subscribe(receiver, "t", QoS::AtLeastOnce);
    broker.fill(89);
    assert_eq!(broker.publish(client, &publish(QoS::AtLeastOnce, "t", b"1")), Some((0x40, 0)));
    assert_eq!(broker.answers(receiver), [(0x30, 0)]);
    broker.fill(91);
    assert_eq!(broker.publish(client, &publish(QoS::AtLeastOnce, "t", b"1")), REFUSED);
    assert_eq!(broker.answers(receiver), [], "nobody gets what was refused");
    assert_eq!(broker.publish(client, &publish(QoS::AtMostOnce, "t", b"1")), None);
    assert_eq!(broker.answers(receiver), [(0x30, 0)], "QoS 0 needs no memory if its receivers read");
    let (_, reason) = broker.connect("another", None);
    assert_eq!(reason, 0, "connections are refused later");
    broker.fill(50);
    assert_eq!(broker.publish(client, &publish(QoS::AtLeastOnce, "t", b"1")), Some((0x40, 0)), "it is over");
}

#[test]
fn a_qos_2_exchange_that_has_begun_is_completed() {
    let mut broker = Broker::new(MqttConfig::default());
    let client = broker.client("client");
    assert_eq!(broker.publish(client, &publish(QoS::ExactlyOnce, "t", b"1")), Some((0x50, 0x10)));
    broker.fill(91);
    let again = Publish { dup: true, ..publish(QoS::ExactlyOnce, "t", b"1") };
    assert_eq!(broker.publish(client, &again), Some((0x50, 0)), "the PUBREC is repeated");
    let other = Publish { packet_id: 2, ..publish(QoS::ExactlyOnce, "t", b"1") };
    assert_eq!(broker.publish(client, &other), Some((0x50, QUOTA)));
}

#[test]
fn new_sessions_subscriptions_and_large_packets_are_refused_last() {
    let mut broker = Broker::new(MqttConfig::default());
    let client = broker.client("client");
    let (returning, _) = broker.connect("returning", Some(100));
    broker.detached.hang_up(&mut broker.shard, returning);
    broker.fill(96);
    assert_eq!(broker.connect("another", None).1, QUOTA);
    assert_eq!(broker.connect("returning", Some(100)).1, 0, "a client with a session may take what waits");
    assert_eq!(broker.subscribe(client, "t", QoS::AtLeastOnce), QUOTA);
    let large = encode(&publish(QoS::AtMostOnce, "t", &vec![0; MIB]).into());
    broker.detached.feed(&mut broker.shard, client, &large[..1000]);
    assert_eq!(broker.answers(client), [(0xe0, QUOTA)], "a packet that would need much memory");
}

/// 100 receivers that do not read get a message of 4.5 MiB of user properties: it exists once.
#[test]
fn receivers_share_user_properties() {
    for (qos, is_queued) in [(QoS::AtMostOnce, false), (QoS::AtLeastOnce, false), (QoS::AtLeastOnce, true)] {
        let mut broker = Broker::new(MqttConfig::default());
        let value = "v".repeat(60_000);
        let pairs: Vec<(&str, &str)> = (0..75).map(|_| ("key", &*value)).collect();
        let user_properties = UserProperties::Pairs(&pairs);
        let mut expected = Vec::new();
        assert!(user_properties.append_to(&mut expected));
        let receivers: Vec<ConnId> = (0..100).map(|number| broker.client(&format!("r{number}"))).collect();
        for conn in &receivers {
            broker.subscribe(*conn, "t", qos);
            broker.detached.stall(*conn);
        }
        let client = broker.client("client");
        let before = broker.budget.used() as usize;
        if is_queued {
            // Enough output that what follows waits in the queues of the sessions.
            let filler = vec![0; 5 * MIB];
            broker.publish(client, &publish(qos, "t", &filler));
        }
        let properties = MessageProperties { user_properties, ..MessageProperties::default() };
        let large = Publish { properties, ..publish(qos, "t", b"payload") };
        broker.publish(client, &large);
        let used = broker.budget.used() as usize - before;
        let once = expected.len() + if is_queued { 5 * MIB } else { 0 };
        assert!((once..once + 2 * MIB).contains(&used), "{used} bytes for {once}, {qos:?}");
        for conn in &receivers {
            broker.detached.resume(*conn);
        }
        for _ in 0..4 {
            broker.turn();
        }
        let last = &broker.sent[&receivers[99]];
        let end = [&expected[..], b"payload"].concat();
        assert!(last.ends_with(&end), "the packet is what it was");
        broker.publish(client, &publish(QoS::AtMostOnce, "other", b""));
        assert!(broker.used_by("messages") < MIB, "freed when all have it");
    }
}

/// User properties of about 975 kB.
const LARGE_PAIRS: usize = 15;
const LARGE_PAIR_BYTES: usize = 65_000;
const LARGE_MESSAGES: usize = 600;

/// Publishes a message of one byte with about 975 kB of user properties.
fn publish_large(broker: &mut Broker, client: ConnId, topic: &str, retain: bool) -> Option<(u8, u8)> {
    let value = "v".repeat(LARGE_PAIR_BYTES);
    let pairs = vec![("k", &*value); LARGE_PAIRS];
    let user_properties = UserProperties::Pairs(&pairs);
    let properties = MessageProperties { user_properties, ..MessageProperties::default() };
    broker.publish(client, &Publish { retain, properties, ..publish(QoS::AtLeastOnce, topic, b"1") })
}

fn asserts_accounts(broker: &mut Broker) {
    for (account, recomputed) in broker.shard.accounts() {
        assert_eq!(account, recomputed, "the account of a session");
    }
}

/// Filters of 60 kB each.
#[test]
fn long_filters_are_refused_beyond_the_bytes_of_a_session() {
    const PACKETS: usize = 4;
    const FILTERS_EACH: usize = 100;
    let config = MqttConfig { max_session_bytes: 16 * MIB as u64, ..MqttConfig::default() };
    let mut broker = Broker::new(config);
    let (other, attacker) = (broker.client("other"), broker.client("attacker"));
    let before = broker.used_by("sessions");
    let mut refused = 0;
    for packet in 0..PACKETS {
        let names: Vec<String> =
            (0..FILTERS_EACH).map(|number| format!("{packet}/{number}/{}", "f".repeat(60_000))).collect();
        let options = SubscribeOptions::qos(QoS::AtLeastOnce);
        let filters: Vec<_> = names.iter().map(|filter| SubscribeFilter { filter, options }).collect();
        let subscribe = Packet::Subscribe(Subscribe {
            packet_id: 1,
            subscription_id: None,
            user_properties: UserProperties::default(),
            filters: SubscribeFilters::List(&filters),
        });
        broker.send(attacker, &subscribe);
        let suback = loop {
            broker.detached.offer_held(&mut broker.shard);
            broker.turn();
            if let Some(suback) = broker.sent.remove(&attacker) {
                break suback;
            }
        };
        refused += suback[suback.len() - FILTERS_EACH..]
            .iter()
            .map(|code| usize::from(*code == QUOTA))
            .sum::<usize>();
    }
    let granted = PACKETS * FILTERS_EACH - refused;
    assert!((50..300).contains(&granted), "{granted} filters are granted");
    let used = broker.used_by("sessions");
    assert!((granted * 60_000..=17 * MIB).contains(&used), "{used} bytes for {granted} filters");
    asserts_accounts(&mut broker);
    assert_eq!(broker.subscribe(attacker, "short", QoS::AtLeastOnce), 1, "a short one has room");
    assert_eq!(broker.subscribe(other, "another/filter", QoS::AtLeastOnce), 1, "others go on");
    broker.detached.hang_up(&mut broker.shard, attacker);
    for _ in 0..100 {
        broker.turn();
    }
    asserts_accounts(&mut broker);
    assert!(broker.used_by("sessions") < before + 1024, "everything is given back");
}

/// Filters of many short levels: each level is a node of the index.
#[test]
fn levels_of_filters_with_wildcards_count() {
    let config = MqttConfig { max_session_bytes: MIB as u64, ..MqttConfig::default() };
    let mut broker = Broker::new(config);
    let client = broker.client("client");
    let filter = |number: usize| format!("{number}/+{}", "/x".repeat(190));
    let granted = (0..100).filter(|number| broker.subscribe(client, &filter(*number), QoS::AtMostOnce) == 0);
    let granted = granted.count();
    assert!((20..40).contains(&granted), "{granted} filters of 192 levels within a MiB");
}

#[test]
fn wills_are_refused_beyond_the_bytes_of_a_session_and_the_budget() {
    let config = MqttConfig { max_session_bytes: 15 * MIB as u64, ..MqttConfig::default() };
    let mut broker = Broker::new(config);
    let value = "v".repeat(LARGE_PAIR_BYTES);
    let connect = |broker: &mut Broker, client_id: &str, pairs: usize| {
        let pairs = vec![("k", &*value); pairs];
        let user_properties = UserProperties::Pairs(&pairs);
        let properties = MessageProperties { user_properties, ..MessageProperties::default() };
        let will = mainstem_mqtt::Will {
            topic: "will",
            payload: b"1",
            qos: QoS::AtLeastOnce,
            retain: false,
            delay_interval: Some(100),
            properties,
        };
        let conn = broker.detached.connect(&mut broker.shard);
        let connect = Connect {
            will: Some(will),
            session_expiry: Some(100),
            clean_start: false,
            ..Connect::new(Version::V5, client_id)
        };
        broker.send(conn, &connect.into());
        (conn, broker.answers(conn)[0].1)
    };
    assert_eq!(connect(&mut broker, "too large", 15 * MIB / LARGE_PAIR_BYTES + 1).1, QUOTA);
    assert!(broker.used_by("messages") < MIB, "what is refused is not kept");
    let (first, reason) = connect(&mut broker, "0", 200);
    assert_eq!(reason, 0);
    asserts_accounts(&mut broker);
    let reasons: Vec<u8> = (1..40).map(|number| connect(&mut broker, &number.to_string(), 200).1).collect();
    let granted = reasons.iter().map(|reason| usize::from(*reason == 0)).sum::<usize>();
    assert!((5..9).contains(&granted), "{granted} wills of 13 MB within 100 MiB");
    assert_eq!(reasons[39 - 1], QUOTA);
    let used = broker.budget.used();
    assert!(used < BUDGET + 14 * MIB as u64, "{used} bytes");
    // A will that replaces another of the same size has room.
    broker.fill(0);
    broker.detached.hang_up(&mut broker.shard, first);
    assert_eq!(connect(&mut broker, "0", 200).1, 0);
    asserts_accounts(&mut broker);
}

#[test]
fn properties_of_retained_messages_count() {
    let config = MqttConfig { max_retained_bytes: 10 * MIB as u64, ..MqttConfig::default() };
    let mut broker = Broker::new(config);
    let client = broker.client("client");
    let mut granted = 0;
    for number in 0..LARGE_MESSAGES {
        let answer = publish_large(&mut broker, client, &format!("t/{number}"), true);
        granted += usize::from(answer != REFUSED);
    }
    assert_eq!(granted, 10 * MIB / (LARGE_PAIRS * LARGE_PAIR_BYTES), "10 MiB of them");
    let used = broker.used_by("messages");
    assert!(used < 11 * MIB, "{used} bytes");
}

/// The receiver is offline, or is connected and acknowledges nothing.
#[test]
fn properties_of_messages_of_a_session_count() {
    for is_offline in [true, false] {
        let limit = 16 * MIB;
        let config = MqttConfig {
            max_session_bytes: limit as u64,
            max_queued_bytes: 100 * MIB as u64,
            ..MqttConfig::default()
        };
        let mut broker = Broker::new(config);
        let client = broker.client("client");
        let (receiver, _) = broker.connect("receiver", Some(100));
        broker.subscribe(receiver, "t", QoS::AtLeastOnce);
        if is_offline {
            broker.detached.hang_up(&mut broker.shard, receiver);
        }
        for _ in 0..LARGE_MESSAGES {
            publish_large(&mut broker, client, "t", false);
            broker.sent.remove(&receiver);
        }
        let used = broker.used_by("messages");
        assert!((limit - 2 * MIB..limit + 2 * MIB).contains(&used), "{used} bytes, offline: {is_offline}");
        asserts_accounts(&mut broker);
        let dropped = broker.shared.counters().dropped() as usize;
        let kept = limit / (LARGE_PAIRS * LARGE_PAIR_BYTES);
        assert!((LARGE_MESSAGES - kept..=LARGE_MESSAGES - kept + 1).contains(&dropped), "{dropped} dropped");
        let (_, reason) = broker.connect("receiver", Some(0));
        assert_eq!(reason, 0);
    }
}

/// With each acknowledgement, the next message finds room.
#[test]
fn messages_in_flight_make_room_for_the_next() {
    let config = MqttConfig { max_session_bytes: MIB as u64, ..MqttConfig::default() };
    let mut broker = Broker::new(config);
    let client = broker.client("client");
    let (receiver, _) = broker.connect("receiver", Some(100));
    broker.subscribe(receiver, "t", QoS::AtLeastOnce);
    let payload = vec![0; 3 * MIB];
    for id in 1..=20_u16 {
        // Larger than the limit: the only message in flight always has room.
        broker.publish(client, &publish(QoS::AtLeastOnce, "t", &payload));
        assert_eq!(broker.answers(receiver), [(0x30, 0)], "message {id}");
        broker.publish(client, &publish(QoS::AtLeastOnce, "t", &payload));
        assert_eq!(broker.answers(receiver), [], "message {id} is not acknowledged");
        asserts_accounts(&mut broker);
        broker.send(receiver, &Packet::PubAck(mainstem_mqtt::Ack { packet_id: id, ..Default::default() }));
        broker.turn();
        asserts_accounts(&mut broker);
    }
    assert_eq!(broker.shared.counters().dropped(), 20);
}
