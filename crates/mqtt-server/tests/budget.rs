//! One client does not stall the others: under each kind of load, a turn stays within its work budget, what a client
//! asks for is done completely and in order, and a client beside it is served within three turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_mqtt::{
    Connect, Header, MessageProperties, Packet, Publish, QoS, RetainHandling, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties, Version, decode,
};
use mainstem_mqtt_server::{Mail, MqttConfig, Shard, Shared};
use mainstem_runtime::{Clock, ConnId, Detached, Io, TURN_UNITS};

/// Most units of a turn: the shares of all its phases, and the last item of each.
const MOST_UNITS: u64 = 2 * TURN_UNITS as u64;
/// Turns in which everything here must be done.
const TURNS_MAX: usize = 20_000;
/// Turns that a bystander may have to wait: for the end of this one, and for a round of connections held before it.
const MISSED_MAX: usize = 2;
const QUOTA_EXCEEDED: u8 = 0x97;

/// A broker of one shard, and what its clients have received.
struct Broker {
    shared: Arc<Shared>,
    shard: Shard,
    detached: Detached<Mail>,
    now_ms: u64,
    received: BTreeMap<usize, Vec<u8>>,
    /// A client that sends a PINGREQ in each turn.
    bystander: Option<ConnId>,
    /// Consecutive turns in which it got no answer.
    missed: usize,
    /// The shard has requested another turn.
    is_busy: bool,
    turns: usize,
    units: u64,
}

impl Broker {
    fn new() -> Self {
        Self::with(MqttConfig::default())
    }

    fn with(config: MqttConfig) -> Self {
        let shared = Shared::new(MqttConfig { sys_interval_s: 0, ..config }, 1, 1);
        let mut broker = Self {
            shard: Shard::new(0, Arc::clone(&shared)),
            shared,
            detached: Io::<Mail>::detached(1, 1).remove(0),
            now_ms: 1_000,
            received: BTreeMap::new(),
            bystander: None,
            missed: 0,
            is_busy: false,
            turns: 0,
            units: 0,
        };
        broker.turn();
        broker.bystander = Some(broker.connect("bystander", 0));
        broker.settle();
        broker
    }

    fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        self.detached.feed(&mut self.shard, conn, bytes);
    }

    fn connect(&mut self, client_id: &str, expiry_s: u32) -> ConnId {
        self.connect_as(client_id, expiry_s, true)
    }

    fn resume(&mut self, client_id: &str, expiry_s: u32) -> ConnId {
        self.connect_as(client_id, expiry_s, false)
    }

    fn connect_as(&mut self, client_id: &str, expiry_s: u32, clean_start: bool) -> ConnId {
        let conn = self.detached.connect(&mut self.shard);
        let connect =
            Connect { clean_start, session_expiry: Some(expiry_s), ..Connect::new(Version::V5, client_id) };
        self.feed(conn, &encode(&connect.into()));
        conn
    }

    /// One turn, which must stay within its budget and serve the bystander.
    fn turn(&mut self) {
        if let Some(bystander) = self.bystander {
            self.feed(bystander, &[0xc0, 0]);
        }
        for _ in 0..self.detached.held_count() {
            if self.detached.offer_held(&mut self.shard).is_none() {
                break;
            }
        }
        let received = &mut self.received;
        self.detached.end_turn(&mut self.shard, |conn, bytes| {
            received.entry(conn.slot()).or_default().extend_from_slice(bytes);
        });
        self.is_busy = self.detached.wants_turn();
        let units = self.detached.io().charged();
        assert!(units <= MOST_UNITS, "{units} units in one turn");
        if let Some(bystander) = self.bystander {
            let pongs = self.received.remove(&bystander.slot()).unwrap_or_default();
            self.missed = if pongs.ends_with(&[0xd0, 0]) { 0 } else { self.missed + 1 };
            assert!(self.missed <= MISSED_MAX, "the bystander gets no answer for {} turns", self.missed);
        }
        self.units += units;
        self.turns += 1;
        self.now_ms += 1;
        let clock = Clock { now_ms: self.now_ms, unix_ms: self.now_ms };
        self.detached.begin_turn(&mut self.shard, clock);
    }

    /// Runs turns until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            if self.detached.held_count() == 0 && !self.is_busy && !self.detached.wants_turn() {
                self.turn();
                return;
            }
        }
        panic!("not done after {TURNS_MAX} turns");
    }

    /// Feeds bytes and runs turns until they are handled. Returns the number of turns and units that took.
    fn run(&mut self, conn: ConnId, bytes: &[u8]) -> (usize, u64) {
        let (turns, units) = (self.turns, self.units);
        self.feed(conn, bytes);
        self.settle();
        (self.turns - turns, self.units - units)
    }

    /// What a client has received since the last call: packet types with their bytes.
    fn take(&mut self, conn: ConnId) -> Vec<Vec<u8>> {
        frames(&self.received.remove(&conn.slot()).unwrap_or_default())
    }

    /// The topics that a client has received since the last call, in order.
    fn topics(&mut self, conn: ConnId) -> Vec<String> {
        let frames = self.take(conn);
        let packets = frames.iter().map(|frame| decode(Version::V5, frame).unwrap());
        let topics = packets.filter_map(|packet| match packet {
            Packet::Publish(publish) => Some(publish.topic.to_owned()),
            _ => None,
        });
        topics.collect()
    }

    /// Subscribes, in packets of 1,000 filters, and returns the reason codes.
    fn subscribe_all(&mut self, conn: ConnId, filters: &[String]) -> Vec<u8> {
        let mut reasons = Vec::new();
        self.take(conn);
        for chunk in filters.chunks(1000) {
            self.run(conn, &subscribe(chunk.iter().map(String::as_str)));
            for frame in self.take(conn) {
                if let Packet::SubAck(suback) = decode(Version::V5, &frame).unwrap() {
                    reasons.extend_from_slice(suback.reasons);
                }
            }
        }
        reasons
    }
}

fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(Version::V5, &mut frame).unwrap();
    frame
}

fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(header) = Header::parse(bytes).unwrap() {
        frames.push(bytes[..header.packet_len()].to_vec());
        bytes = &bytes[header.packet_len()..];
    }
    frames
}

fn subscribe<'a>(filters: impl Iterator<Item = &'a str>) -> Vec<u8> {
    subscribe_with(SubscribeOptions::qos(QoS::AtMostOnce), filters)
}

fn subscribe_with<'a>(options: SubscribeOptions, filters: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let filters: Vec<_> = filters.map(|filter| SubscribeFilter { filter, options }).collect();
    encode(&Packet::Subscribe(Subscribe {
        packet_id: 1,
        subscription_id: None,
        user_properties: UserProperties::default(),
        filters: SubscribeFilters::List(&filters),
    }))
}

fn unsubscribe<'a>(filters: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let filters: Vec<_> = filters.collect();
    encode(&Packet::Unsubscribe(Unsubscribe {
        packet_id: 2,
        user_properties: UserProperties::default(),
        filters: UnsubscribeFilters::List(&filters),
    }))
}

fn publish(topic: &str, retain: bool) -> Vec<u8> {
    let properties = MessageProperties::default();
    encode(&Publish { topic, payload: b"x", retain, properties, ..Publish::default() }.into())
}

fn count_granted(reasons: &[u8]) -> usize {
    reasons.iter().copied().filter(|reason| *reason == 0).count()
}

/// Filters of 30 levels that all match `a/a/a/…`: each has its wildcards in other places.
fn overlapping(count: u32) -> Vec<String> {
    let level = |bits: u32, level: u32| if bits >> (level % 14) & 1 == 1 { "+" } else { "a" };
    (1..=count).map(|bits| (0..30).map(|at| level(bits, at)).collect::<Vec<_>>().join("/")).collect()
}

#[test]
fn overlapping_filters_of_one_client_cost_publishers_a_bounded_amount() {
    let mut broker = Broker::new();
    let (greedy, publisher) = (broker.connect("greedy", 0), broker.connect("publisher", 0));
    let reasons = broker.subscribe_all(greedy, &overlapping(9_900));
    let granted = count_granted(&reasons);
    assert_eq!(reasons.len(), 9_900);
    assert_eq!(granted, 16_384 / 30, "the levels of all shapes are limited");
    assert!(reasons[granted..].iter().all(|reason| *reason == QUOTA_EXCEEDED));
    // Each topic is new, and so not in the match cache.
    let tail = ["a"; 29].join("/");
    let topics: Vec<_> =
        (0..200).map(|number| format!("a/{tail}/{number}")).map(|topic| topic[..59].to_owned()).collect();
    broker.settle();
    for topic in &topics {
        let (_, units) = broker.run(publisher, &publish(topic, false));
        assert!(units < 16_384 + 1_000, "{units} units for one publish: more than the levels of all shapes");
    }
    assert_eq!(broker.topics(greedy).len(), topics.len(), "one copy of each");
    // What is removed makes room.
    let filters = overlapping(9_900);
    broker.run(greedy, &unsubscribe(filters[..50].iter().map(String::as_str)));
    let reasons = broker.subscribe_all(greedy, &filters[5_000..5_100]);
    assert_eq!(count_granted(&reasons), 50);
}

#[test]
fn many_filters_of_one_shape_are_granted() {
    let mut broker = Broker::new();
    let client = broker.connect("dashboard", 0);
    let filters: Vec<_> = (0..9_990).map(|device| format!("device/{device}/+/state")).collect();
    assert!(broker.subscribe_all(client, &filters).iter().all(|reason| *reason == 0));
}

#[test]
fn a_packet_with_many_filters_takes_many_turns_and_is_acknowledged_once() {
    const FILTERS: usize = 100_000;
    let mut broker = Broker::new();
    let client = broker.connect("client", 0);
    broker.settle();
    broker.take(client);
    for (request, acknowledgement) in [
        (subscribe(std::iter::repeat_n("a", FILTERS)), 9),
        (unsubscribe(["a"].into_iter().cycle().take(FILTERS)), 11),
    ] {
        let mut bytes = request;
        bytes.extend_from_slice(&[0xc0, 0]);
        let (turns, units) = broker.run(client, &bytes);
        assert!(units > FILTERS as u64, "each filter is charged: {units} units");
        assert!(turns > FILTERS / TURN_UNITS as usize, "{turns} turns");
        let received = broker.take(client);
        let kinds: Vec<_> = received.iter().map(|frame| frame[0] >> 4).collect();
        assert_eq!(kinds, [acknowledgement, 13], "one acknowledgement, then the answer to what came behind");
        assert!(received[0].len() > FILTERS, "a code for each filter");
    }
    assert_eq!(broker.shared.counters().subscriptions, 0);
}

#[test]
fn a_packet_with_more_filters_than_a_server_handles_ends_its_connection() {
    const FILTERS_MAX: usize = 128 * 1024;
    for (is_fitting, count) in [(true, FILTERS_MAX), (false, FILTERS_MAX + 1)] {
        let requests =
            [subscribe(std::iter::repeat_n("a", count)), unsubscribe(std::iter::repeat_n("a", count))];
        for request in requests {
            let mut broker = Broker::new();
            let client = broker.connect("client", 0);
            broker.settle();
            broker.take(client);
            let (_, units) = broker.run(client, &request);
            assert_eq!(broker.detached.is_known(client), is_fitting);
            let response = broker.take(client);
            if is_fitting {
                assert!(response[0].len() > count, "a code for each filter");
            } else {
                assert_eq!((response.len(), response[0][0], response[0][2]), (1, 0xe0, QUOTA_EXCEEDED));
                assert!(units < 2 * count as u64, "{units} units: the filters are only counted");
            }
        }
    }
}

#[test]
fn a_subscribe_of_a_client_that_has_gone_is_dropped() {
    const FILTERS: usize = 9_000;
    let mut broker = Broker::new();
    let (client, other) = (broker.connect("client", 60), broker.connect("other", 0));
    broker.subscribe_all(other, &["last".to_owned()]);
    broker.take(client);
    let filters: Vec<_> = (0..FILTERS).map(|number| format!("filter/{number}")).collect();
    let retain_handling = RetainHandling::DoNotSend;
    let options = SubscribeOptions { retain_handling, ..SubscribeOptions::qos(QoS::AtMostOnce) };
    let mut bytes = subscribe_with(options, filters.iter().map(String::as_str));
    bytes.extend_from_slice(&publish("last", false));
    broker.feed(client, &bytes);
    broker.turn();
    assert!(broker.detached.is_held(client), "it takes many turns");
    let before = broker.shared.counters().subscriptions;
    assert!((2..FILTERS as u64).contains(&before), "{before} subscriptions");
    broker.detached.announce_close(client);
    let turns = broker.turns;
    broker.settle();
    assert!(broker.turns - turns < 5, "{} turns for work that nobody waits for", broker.turns - turns);
    assert_eq!(broker.shared.counters().subscriptions, before);
    assert_eq!(broker.take(client), Vec::<Vec<u8>>::new(), "what was not done is not acknowledged");
    assert_eq!(broker.topics(other), ["last"], "what it had sent behind it is handled");
    broker.detached.hang_up(&mut broker.shard, client);
    broker.settle();
}

#[test]
fn a_malformed_filter_at_the_end_changes_nothing() {
    let mut broker = Broker::new();
    let client = broker.connect("client", 0);
    broker.settle();
    let filters: Vec<_> = (0..5_000).map(|number| format!("filter/{number}")).collect();
    let mut bytes = subscribe(filters.iter().map(String::as_str));
    *bytes.last_mut().unwrap() = 3;
    broker.run(client, &bytes);
    assert!(!broker.detached.is_known(client));
    assert_eq!(broker.shared.counters().subscriptions, 0);
}

#[test]
fn subscriptions_of_many_ended_sessions_are_removed_in_the_background() {
    const CLIENTS: usize = 20;
    let mut broker = Broker::new();
    let publisher = broker.connect("publisher", 0);
    let filters: Vec<_> = (0..2_000).map(|number| format!("t/{number}/+")).collect();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let conn = broker.connect(&format!("client-{client}"), 0);
            broker.subscribe_all(conn, &filters);
            broker.subscribe_all(conn, &["$share/g/shared".to_owned()]);
            conn
        })
        .collect();
    let member = broker.connect("member", 0);
    broker.subscribe_all(member, &["$share/g/shared".to_owned()]);
    assert_eq!(broker.shared.counters().subscriptions, (CLIENTS * 2_001 + 1) as u64);
    for conn in clients {
        broker.detached.hang_up(&mut broker.shard, conn);
    }
    // Before everything is removed: one of them comes back, and others publish.
    let back = broker.connect("client-7", 0);
    broker.turn();
    broker.turn();
    assert!(broker.shared.counters().subscriptions > 20_000, "they are still there");
    broker.feed(back, &subscribe(["t/1/+", "t/1999/+"].into_iter()));
    broker.turn();
    broker.take(back);
    for topic in ["t/1/x", "t/5/x", "t/1999/x", "shared"] {
        broker.feed(publisher, &publish(topic, false));
    }
    broker.turn();
    assert!(broker.shared.counters().subscriptions > 10_000, "they are still there");
    assert_eq!(broker.topics(back), ["t/1/x", "t/1999/x"]);
    assert_eq!(broker.topics(member), ["shared"]);
    let (turns, units) = broker.run(publisher, &[]);
    assert!(units > 100_000 && turns > 20, "{units} units in {turns} turns");
    assert_eq!(broker.shared.counters().subscriptions, 3);
    broker.run(publisher, &publish("t/1/y", false));
    assert_eq!(broker.topics(back), ["t/1/y"]);
}

#[test]
fn sessions_that_expire_together_are_spread_over_turns() {
    let mut broker = Broker::new();
    for client in 0..100 {
        let conn = broker.connect(&format!("client-{client}"), 10);
        let filters: Vec<_> = (0..50).map(|number| format!("{client}/{number}")).collect();
        broker.subscribe_all(conn, &filters);
        broker.detached.hang_up(&mut broker.shard, conn);
    }
    broker.settle();
    assert_eq!(broker.shared.counters().sessions, 101);
    broker.now_ms += 20_000;
    let before = broker.turns;
    broker.settle();
    assert_eq!(broker.shared.counters().sessions, 1);
    assert!(broker.turns - before > 10, "{} turns", broker.turns - before);
}

#[test]
fn thousands_of_tiny_packets_in_one_read_are_handled_in_order_over_turns() {
    const MESSAGES: usize = 8_000;
    let mut broker = Broker::new();
    let (subscriber, publisher) = (broker.connect("subscriber", 0), broker.connect("publisher", 0));
    broker.subscribe_all(subscriber, &["n/#".to_owned()]);
    let topics: Vec<_> = (0..MESSAGES).map(|number| format!("n/{number}")).collect();
    let bytes: Vec<u8> = topics.iter().flat_map(|topic| publish(topic, false)).collect();
    assert!(bytes.len() < 128 * 1024, "as much as one read");
    let (turns, _) = broker.run(publisher, &bytes);
    assert!(turns > 3, "{turns} turns");
    assert_eq!(broker.topics(subscriber), topics);
}

#[test]
fn a_session_that_returns_gets_its_messages_over_turns() {
    const MESSAGES: usize = 9_000;
    let mut broker = Broker::with(MqttConfig {
        max_inflight_messages: u16::MAX,
        max_queued_messages: MESSAGES as u32,
        ..MqttConfig::default()
    });
    let (away, publisher) = (broker.connect("away", 60), broker.connect("publisher", 0));
    let options = SubscribeOptions::qos(QoS::AtLeastOnce);
    broker.run(away, &subscribe_with(options, ["q/#"].into_iter()));
    broker.detached.hang_up(&mut broker.shard, away);
    let topics: Vec<_> = (0..MESSAGES).map(|number| format!("q/{number}")).collect();
    for (number, topic) in topics.iter().enumerate() {
        let qos = QoS::AtLeastOnce;
        let message = Publish { topic, qos, packet_id: 1 + number as u16, ..Publish::default() };
        broker.feed(publisher, &encode(&message.into()));
    }
    broker.settle();
    // First from its queue, then again, since it has acknowledged nothing.
    for _ in 0..2 {
        let turns = broker.turns;
        let back = broker.resume("away", 60);
        broker.settle();
        assert_eq!(broker.topics(back), topics);
        assert!(broker.turns - turns > 4, "{} turns", broker.turns - turns);
        broker.detached.hang_up(&mut broker.shard, back);
    }
}

#[test]
fn replays_of_retained_messages_to_many_sessions_are_spread_over_turns() {
    const MESSAGES: usize = 3_000;
    let mut broker = Broker::new();
    let publisher = broker.connect("publisher", 0);
    for number in 0..MESSAGES {
        broker.feed(publisher, &publish(&format!("r/{number:04}"), true));
    }
    broker.settle();
    let clients: Vec<_> = (0..20).map(|client| broker.connect(&format!("client-{client}"), 0)).collect();
    broker.settle();
    for conn in &clients {
        // The second filter matches nothing, but visits everything.
        broker.feed(*conn, &subscribe(["r/#", "+/+/none"].into_iter()));
    }
    let before = broker.turns;
    broker.settle();
    assert!(broker.turns - before > 20, "{} turns", broker.turns - before);
    for conn in clients {
        assert_eq!(broker.topics(conn).len(), MESSAGES);
    }
}

/// Subscribes to a filter, and waits for nothing.
fn subscribe_at(qos: QoS, filter: &str) -> Vec<u8> {
    subscribe_with(SubscribeOptions::qos(qos), [filter].into_iter())
}

fn publish_with(qos: QoS, packet_id: u16, topic: &str, payload: &[u8]) -> Vec<u8> {
    encode(&Publish { qos, packet_id, topic, payload, ..Publish::default() }.into())
}

/// Connects many subscribers of one filter.
fn crowd(broker: &mut Broker, count: usize, expiry_s: u32, qos: QoS) -> Vec<ConnId> {
    let clients: Vec<_> = (0..count)
        .map(|number| {
            let client = broker.connect(&format!("crowd-{number}"), expiry_s);
            broker.feed(client, &subscribe_at(qos, "crowd/#"));
            if number % 100 == 0 {
                broker.settle();
            }
            client
        })
        .collect();
    broker.settle();
    broker.received.clear();
    clients
}

/// The payloads that a client has received since the last call, in order.
fn payloads(broker: &mut Broker, conn: ConnId) -> Vec<u8> {
    let frames = broker.take(conn);
    let packets = frames.iter().map(|frame| decode(Version::V5, frame).unwrap());
    let payloads = packets.filter_map(|packet| match packet {
        Packet::Publish(publish) => Some(publish.payload[0]),
        _ => None,
    });
    payloads.collect()
}

#[test]
fn a_publish_to_very_many_subscribers_takes_many_turns() {
    const CROWD: usize = 30_000;
    let mut broker = Broker::new();
    let crowd = crowd(&mut broker, CROWD, 0, QoS::AtLeastOnce);
    let [publisher, other, monitor] = ["publisher", "other", "monitor"].map(|id| broker.connect(id, 0));
    for filter in ["#", "crowd/+", "few"] {
        broker.run(monitor, &subscribe_at(QoS::AtMostOnce, filter));
    }
    broker.take(monitor);
    broker.take(publisher);
    let began = broker.turns;
    let mut bytes = publish_with(QoS::AtMostOnce, 0, "crowd/news", b"1");
    bytes.extend(publish_with(QoS::AtMostOnce, 0, "crowd/other", b"2"));
    bytes.extend(publish_with(QoS::AtLeastOnce, 3, "few", b"3"));
    broker.feed(publisher, &bytes);
    broker.turn();
    // Others go on meanwhile, and what they send to the same topic waits its turn.
    broker.feed(other, &publish("few", false));
    broker.feed(other, &publish_with(QoS::AtMostOnce, 0, "crowd/news", b"9"));
    broker.turn();
    assert!(payloads(&mut broker, monitor).contains(&b'x'), "a small publish does not wait for a large one");
    assert!(broker.take(publisher).is_empty(), "its publish waits for the ones before");
    while broker.take(publisher).is_empty() {
        broker.turn();
        assert!(broker.turns - began < 1_000);
    }
    assert!(broker.turns - began > 2 * CROWD / 5_000, "{} turns", broker.turns - began);
    broker.settle();
    for client in &crowd {
        let mut got = payloads(&mut broker, *client);
        got.retain(|payload| *payload != b'9');
        assert_eq!(got, b"12", "in the order of their publisher");
    }
    assert_eq!(broker.shard.unfinished(), 0);
}

#[test]
fn messages_to_one_topic_keep_their_order_and_their_subscribers() {
    let mut broker = Broker::new();
    let crowd = crowd(&mut broker, 20_000, 0, QoS::AtMostOnce);
    let publishers = ["a", "b", "c"].map(|id| broker.connect(id, 0));
    for (number, publisher) in publishers.iter().enumerate() {
        broker.feed(*publisher, &publish_with(QoS::AtMostOnce, 0, "crowd/x", &[number as u8]));
    }
    broker.turn();
    // Some leave, some come, and one publisher goes.
    for (number, client) in crowd.iter().enumerate().filter(|(number, _)| number % 7 == 0) {
        if number % 2 == 0 {
            broker.feed(*client, &unsubscribe(["crowd/#"].into_iter()));
        } else {
            broker.detached.hang_up(&mut broker.shard, *client);
        }
        if number % 1_000 < 7 {
            broker.turn();
        }
    }
    broker.detached.hang_up(&mut broker.shard, publishers[0]);
    assert!(broker.shard.unfinished() > 0, "the messages are under way");
    let late = broker.connect("late", 0);
    broker.feed(late, &subscribe_at(QoS::AtMostOnce, "crowd/#"));
    broker.settle();
    let order = payloads(&mut broker, crowd[1]);
    assert_eq!(order.len(), publishers.len());
    for (number, client) in crowd.iter().enumerate().skip(2).filter(|(number, _)| number % 7 != 0) {
        assert_eq!(payloads(&mut broker, *client), order, "client {number}");
    }
    let got = payloads(&mut broker, late);
    assert!(order.ends_with(&got), "{got:?} of {order:?}");
    assert_eq!(broker.shard.unfinished(), 0);
}
