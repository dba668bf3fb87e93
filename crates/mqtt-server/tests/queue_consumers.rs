//! Queue consumers of MQTT sessions. The tests play the queues.

use mainstem_log::{MemoryStore, StoreAt};
use mainstem_mqtt::{
    Ack, Connect, Disconnect, Header, MessageProperties, Packet, Publish, QoS, ReasonCode, Subscribe,
    SubscribeFilter, SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties,
    Version, decode,
};
use mainstem_mqtt_server::{
    Mail, MqttConfig, QueueDelivery, QueueRequest, Shard, Shared, Sink, SinkOutcome, queue_of,
};
use mainstem_queue_core::{Disposition, QueueError, Receipt, Request, Settlement};
use mainstem_runtime::{Clock, ConnId, Detached, Io};

/// A packet for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    ConnAck { present: bool },
    Publish { topic: String, id: u16, dup: bool, payload: Vec<u8>, subscriptions: Vec<u32> },
    Ack { kind: u8, id: u16, reason: u8 },
    List(Vec<u8>),
    Disconnect(u8),
}

/// When the leases of these tests end, ms since 1970.
const LEASE_UNTIL_MS: u64 = 1_800_000_030_000;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;

/// One shard and its clients.
struct Broker {
    shard: Shard,
    detached: Detached<Mail>,
    now_ms: u64,
}

impl Broker {
    fn new(config: MqttConfig) -> Self {
        Self::of(Shard::new(0, Shared::new(config, 1, 7)))
    }

    /// Sessions that ask for it outlive the process.
    fn durable(config: MqttConfig) -> Self {
        let stores = [StoreAt::new(0, Box::new(MemoryStore::new()))].into_iter().collect();
        let clock = Clock { now_ms: 1, unix_ms: 1 };
        let (shard, _) = Shard::restore(0, Shared::new(config, 1, 7), stores, clock).unwrap();
        Self::of(shard)
    }

    fn of(shard: Shard) -> Self {
        let mut detached = Io::<Mail>::detached(1, 7);
        let mut broker = Self { shard, detached: detached.remove(0), now_ms: 0 };
        broker.turn();
        broker
    }

    /// Ends a turn and begins the next. Returns what clients have been sent.
    fn turn(&mut self) -> Vec<(ConnId, Sent)> {
        self.now_ms += 1;
        let mut got = Vec::new();
        self.detached.end_turn(&mut self.shard, |conn, bytes| {
            let mut rest = bytes;
            while let Some(header) = Header::parse(rest).unwrap() {
                let (frame, behind) = rest.split_at(header.packet_len());
                got.push((conn, read(frame)));
                rest = behind;
            }
        });
        let clock = Clock { now_ms: self.now_ms, unix_ms: 1_800_000_000_000 + self.now_ms };
        self.detached.begin_turn(&mut self.shard, clock);
        got
    }

    fn got(&mut self) -> Vec<Sent> {
        self.turn().into_iter().map(|(_, got)| got).collect()
    }

    fn feed(&mut self, conn: ConnId, packet: &Packet<'_>) {
        let mut frame = Vec::new();
        packet.encode(Version::V5, &mut frame).unwrap();
        self.detached.feed(&mut self.shard, conn, &frame);
    }

    fn connect(&mut self, connect: Connect<'_>) -> ConnId {
        let conn = self.detached.connect(&mut self.shard);
        self.feed(conn, &connect.into());
        conn
    }

    fn connect_client(&mut self, client_id: &str) -> ConnId {
        let conn = self.connect(Connect::new(Version::V5, client_id));
        self.turn();
        conn
    }

    /// Subscribes, plays the queue that answers, and returns the consumer.
    fn subscribe(&mut self, conn: ConnId, filter: &str) -> u64 {
        self.ask_to_subscribe(conn, &[filter], QoS::AtLeastOnce);
        let consumer = self.receives()[0].0;
        assert!(self.shard.confirm_consumer(&mut self.detached.io(), consumer));
        assert_eq!(self.got(), [Sent::List(vec![1])]);
        consumer
    }

    fn ask_to_subscribe(&mut self, conn: ConnId, filters: &[&str], qos: QoS) {
        let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
        let filters: Vec<_> = filters.iter().map(|filter| SubscribeFilter { filter, options }).collect();
        let subscribe = Subscribe {
            packet_id: 9,
            subscription_id: Some(5),
            user_properties: UserProperties::default(),
            filters: SubscribeFilters::List(&filters),
        };
        self.feed(conn, &Packet::Subscribe(subscribe));
    }

    fn publish(&mut self, conn: ConnId, topic: &str, qos: QoS, id: u16) {
        let publish = Publish { topic, qos, packet_id: id, payload: b"work", ..Publish::default() };
        self.feed(conn, &publish.into());
    }

    fn requests(&mut self) -> Vec<QueueRequest> {
        self.shard.take_queue_requests(&mut self.detached.io())
    }

    /// The requests for messages: consumer, most messages, whether it waits for them.
    fn receives(&mut self) -> Vec<(u64, u32, bool)> {
        let requests = self.requests().into_iter().map(|request| Asked::of(&request));
        let receive = |asked| {
            if let Asked::Receive(consumer, max, waits) = asked { Some((consumer, max, waits)) } else { None }
        };
        requests.filter_map(receive).collect()
    }

    fn settled(&mut self) -> Vec<(u64, Disposition)> {
        let requests = self.requests().into_iter().map(|request| Asked::of(&request));
        let settled = |asked| if let Asked::Settle(settled) = asked { settled } else { Vec::new() };
        requests.flat_map(settled).collect()
    }

    /// A queue has these messages for a consumer.
    fn deliver(&mut self, consumer: u64, offsets: impl IntoIterator<Item = u64>) -> bool {
        let mut io = self.detached.io();
        let is_there = self.shard.confirm_consumer(&mut io, consumer);
        offsets.into_iter().all(|offset| {
            let properties = MessageProperties::default();
            let receipt = Receipt { offset, count: 1, incarnation: 7 };
            let payload = &[offset as u8];
            self.shard.deliver_from_queue(
                &mut io,
                consumer,
                &QueueDelivery { receipt, lease_until_ms: LEASE_UNTIL_MS, payload, properties },
            )
        }) && is_there
    }

    fn puback(&mut self, conn: ConnId, id: u16, reason: ReasonCode) {
        self.feed(conn, &Packet::PubAck(Ack { packet_id: id, reason, ..Ack::default() }));
    }
}

/// A request as the tests compare it.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Consumer, most messages, whether it waits for them.
    Receive(u64, u32, bool),
    /// Offsets and what became of them.
    Settle(Vec<(u64, Disposition)>),
    /// Consumer.
    Leave(u64),
}

impl Asked {
    fn of(request: &QueueRequest) -> Self {
        match &request.request {
            Request::Receive { consumer, max, wait_ms, .. } => {
                Self::Receive(*consumer, *max, *wait_ms == u64::MAX)
            }
            Request::Settle { settlements, .. } => {
                let pair = |known: &Settlement| {
                    assert_eq!((known.receipt.count, known.receipt.incarnation), (1, 7));
                    (known.receipt.offset, known.disposition)
                };
                Self::Settle(settlements.iter().map(pair).collect())
            }
            Request::Leave { consumer, .. } => Self::Leave(*consumer),
            other => panic!("{other:?}"),
        }
    }
}

fn read(frame: &[u8]) -> Sent {
    match decode(Version::V5, frame).unwrap() {
        Packet::ConnAck(connack) => Sent::ConnAck { present: connack.session_present },
        Packet::Publish(publish) => Sent::Publish {
            topic: publish.topic.into(),
            id: publish.packet_id,
            dup: publish.dup,
            payload: publish.payload.into(),
            subscriptions: publish.subscription_ids.iter().collect(),
        },
        Packet::PubAck(ack) => Sent::Ack { kind: PUBACK, id: ack.packet_id, reason: ack.reason as u8 },
        Packet::PubRec(ack) => Sent::Ack { kind: PUBREC, id: ack.packet_id, reason: ack.reason as u8 },
        Packet::SubAck(list) | Packet::UnsubAck(list) => Sent::List(list.reasons.into()),
        Packet::Disconnect(disconnect) => Sent::Disconnect(disconnect.reason as u8),
        other => panic!("{other:?}"),
    }
}

/// The packet identifiers of what was delivered.
fn ids(got: &[Sent]) -> Vec<u16> {
    let id = |got: &Sent| if let Sent::Publish { id, .. } = got { Some(*id) } else { None };
    got.iter().filter_map(id).collect()
}

fn small() -> MqttConfig {
    MqttConfig { queue_prefetch: 3, ..MqttConfig::default() }
}

fn persistent(client_id: &str) -> Connect<'_> {
    Connect { clean_start: false, session_expiry: Some(u32::MAX), ..Connect::new(Version::V5, client_id) }
}

#[test]
fn publish_to_queue_is_acked_when_durable_there() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    broker.publish(conn, "$queue/jobs/k/1", QoS::AtLeastOnce, 3);
    let messages = broker.shard.take_sink_messages();
    assert_eq!(
        (messages.len(), messages[0].sink, messages[0].payload()),
        (1, Sink::Queue, b"work".as_slice())
    );
    assert_eq!(queue_of(messages[0].topic()), Some(("jobs", Some("k/1"))));
    assert_eq!(broker.got(), [], "the queue has not said that it is kept");
    broker.shard.settle_sink_message(&mut broker.detached.io(), messages[0].ticket, SinkOutcome::Durable);
    assert_eq!(broker.got(), [Sent::Ack { kind: PUBACK, id: 3, reason: 0 }]);
}

#[test]
fn queue_error_reaches_the_publisher() {
    let mut broker = Broker::durable(small());
    let conn = broker.connect(persistent("a"));
    broker.turn();
    let full = SinkOutcome::Refused(ReasonCode::QuotaExceeded);
    for (qos, kind) in [(QoS::AtLeastOnce, PUBACK), (QoS::ExactlyOnce, PUBREC)] {
        // The second time because the identifier is free again.
        for _ in 0..2 {
            broker.publish(conn, "$queue/jobs", qos, 3);
            let messages = broker.shard.take_sink_messages();
            assert_eq!(messages.len(), 1);
            broker.shard.settle_sink_message(&mut broker.detached.io(), messages[0].ticket, full);
            let got = [broker.got(), broker.got()].concat();
            assert_eq!(got, [Sent::Ack { kind, id: 3, reason: 0x97 }]);
        }
    }
    // What is not known to be lost is not refused: the exchange goes on when it comes again.
    broker.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 4);
    let messages = broker.shard.take_sink_messages();
    broker.shard.settle_sink_message(&mut broker.detached.io(), messages[0].ticket, SinkOutcome::NotDurable);
    assert_eq!(broker.got(), [Sent::Disconnect(0x97)]);
    let conn = broker.connect(persistent("a"));
    broker.turn();
    broker.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 4);
    assert_eq!(broker.shard.take_sink_messages().len(), 1);
}

#[test]
fn repeated_qos_2_publish_is_enqueued_once() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    broker.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 3);
    let messages = broker.shard.take_sink_messages();
    broker.shard.settle_sink_message(&mut broker.detached.io(), messages[0].ticket, SinkOutcome::Durable);
    assert_eq!(broker.got(), [Sent::Ack { kind: PUBREC, id: 3, reason: 0 }]);
    broker.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 3);
    assert_eq!(broker.shard.take_sink_messages().len(), 0);
    assert_eq!(broker.got(), [Sent::Ack { kind: PUBREC, id: 3, reason: 0 }]);
}

#[test]
fn rejects_invalid_queue_names() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    for topic in ["$queue/", "$queue//key", "$queue/größe"] {
        broker.publish(conn, topic, QoS::AtLeastOnce, 3);
        assert_eq!(broker.got(), [Sent::Ack { kind: PUBACK, id: 3, reason: 0x90 }], "{topic}");
    }
    let filters = ["$queue/+", "$queue/#", "$queue/a/b", "$queue/", "$share/g/$queue/+"];
    broker.ask_to_subscribe(conn, &filters, QoS::AtLeastOnce);
    assert_eq!(broker.got(), [Sent::List(vec![0x8F; 5])]);
    broker.ask_to_subscribe(conn, &["$queue/jobs"], QoS::AtMostOnce);
    assert_eq!(broker.got(), [Sent::List(vec![0x83])]);
    assert!(!broker.shard.has_queue_requests() && broker.shard.take_sink_messages().is_empty());
}

#[test]
fn suback_carries_the_answer_of_the_queue() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    broker.ask_to_subscribe(conn, &["$queue/there", "plain", "$queue/missing"], QoS::ExactlyOnce);
    let asked = broker.receives();
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|(_, _, waits)| !waits));
    assert_eq!(broker.got(), []);
    let io = &mut broker.detached.io();
    broker.shard.refuse_consumer(io, asked[1].0, &QueueError::UnknownQueue);
    assert!(broker.shard.confirm_consumer(io, asked[0].0));
    assert_eq!(broker.got(), [Sent::List(vec![1, 2, 0x8F])]);
    // What is proven waits; what was refused is no consumer any more.
    let requests = broker.requests();
    let requests: Vec<_> = requests.iter().map(|known| (Asked::of(known), known.group.queue())).collect();
    let expected = [(Asked::Leave(asked[1].0), "missing"), (Asked::Receive(asked[0].0, 3, true), "there")];
    assert_eq!(requests, expected);
}

#[test]
fn asks_for_free_places_and_batches_settlements() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    let consumer = broker.subscribe(conn, "$queue/jobs");
    assert_eq!(broker.receives(), [(consumer, 3, true)]);
    assert!(broker.deliver(consumer, [10, 11, 12]));
    let got = broker.got();
    let ids = ids(&got);
    assert!(ids.iter().all(|id| *id >= 0xC000) && ids.len() == 3);
    let first = Sent::Publish {
        topic: "$queue/jobs".into(),
        id: ids[0],
        dup: false,
        payload: vec![10],
        subscriptions: vec![5],
    };
    assert_eq!(got[0], first);
    assert_eq!(broker.receives(), [], "it has all that it may have");
    broker.puback(conn, ids[1], ReasonCode::Success);
    broker.puback(conn, ids[2], ReasonCode::PayloadFormatInvalid);
    broker.puback(conn, ids[2], ReasonCode::Success);
    let requests = broker.requests();
    assert_eq!(requests.len(), 2);
    let settled = vec![(11, Disposition::Ack), (12, Disposition::Reject)];
    assert_eq!(Asked::of(&requests[0]), Asked::Settle(settled));
    assert_eq!(Asked::of(&requests[1]), Asked::Receive(consumer, 2, true));
}

#[test]
fn deliveries_without_room_are_held_in_order() {
    let mut broker = Broker::new(small());
    let conn = broker.connect(Connect { receive_maximum: Some(2), ..Connect::new(Version::V5, "a") });
    broker.turn();
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.ask_to_subscribe(conn, &["plain"], QoS::AtLeastOnce);
    assert_eq!(broker.receives(), [(consumer, 2, true)]);
    broker.turn();
    // An ordinary message takes a place that was free when the queue was asked.
    broker.publish(conn, "plain", QoS::AtLeastOnce, 1);
    assert!(broker.deliver(consumer, [20, 21]));
    let got = broker.got();
    let delivered = ids(&got);
    assert_eq!(delivered.len(), 2);
    assert_eq!((delivered[0], delivered[1]), (1, 0xC000));
    assert_eq!(broker.receives(), [], "one is held");
    broker.puback(conn, 1, ReasonCode::Success);
    assert_eq!(ids(&broker.got()), [0xC001]);
    broker.puback(conn, 0xC000, ReasonCode::Success);
    let requests = broker.requests();
    assert_eq!(Asked::of(&requests[1]), Asked::Receive(consumer, 1, true));
}

#[test]
fn held_deliveries_are_unsent_when_the_consumer_leaves() {
    let mut broker = Broker::new(small());
    let small_window = Connect { receive_maximum: Some(1), ..Connect::new(Version::V5, "a") };
    let conn = broker.connect(small_window);
    broker.turn();
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.receives();
    assert!(broker.deliver(consumer, [1, 2]));
    assert_eq!(ids(&broker.got()), [0xC000]);
    broker.detached.hang_up(&mut broker.shard, conn);
    assert_eq!(broker.settled(), [(1, Disposition::Release), (2, Disposition::Unsent)]);
}

#[test]
fn held_deliveries_are_dropped_when_their_lease_ends() {
    let mut broker = Broker::new(small());
    let small_window = Connect { receive_maximum: Some(1), ..Connect::new(Version::V5, "a") };
    let conn = broker.connect(small_window);
    broker.turn();
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.receives();
    assert!(broker.deliver(consumer, [1, 2]));
    assert_eq!(ids(&broker.got()), [0xC000]);
    broker.now_ms += 30_000;
    broker.turn();
    broker.puback(conn, 0xC000, ReasonCode::Success);
    assert_eq!(broker.got(), []);
    assert_eq!(broker.settled(), [(1, Disposition::Ack)], "the queue knows that the other lease has ended");
}

#[test]
fn lost_connection_releases_deliveries() {
    let mut broker = Broker::durable(small());
    let conn = broker.connect(persistent("a"));
    broker.turn();
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.receives();
    broker.deliver(consumer, [30, 31]);
    let delivered = ids(&broker.got());
    broker.puback(conn, delivered[0], ReasonCode::Success);
    broker.detached.hang_up(&mut broker.shard, conn);
    let requests = broker.requests();
    let settled = vec![(30, Disposition::Ack), (31, Disposition::Release)];
    assert_eq!(Asked::of(&requests[0]), Asked::Settle(settled));
    assert_eq!(Asked::of(&requests[1]), Asked::Leave(consumer));
    assert_eq!(requests.len(), 2);
    assert!(!broker.deliver(consumer, [32]), "nobody takes what comes too late");
    // The session is back, and with it the subscription, as another consumer.
    let conn = broker.connect(persistent("a"));
    let got = (broker.got(), broker.got());
    assert_eq!(got, (vec![Sent::ConnAck { present: true }], vec![]), "nothing is sent again");
    let asked = broker.receives();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].0 != consumer && !asked[0].2);
    broker.deliver(asked[0].0, [31]);
    assert_eq!(broker.got().len(), 1);
    broker.feed(conn, &Packet::Disconnect(Disconnect::default()));
    assert_eq!(broker.settled(), [(31, Disposition::Release)]);
}

#[test]
fn deliveries_can_be_acked_after_unsubscribe() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    let consumer = broker.subscribe(conn, "$share/audit/$queue/jobs");
    broker.receives();
    broker.deliver(consumer, [40]);
    let delivered = ids(&broker.got());
    let unsubscribe = |broker: &mut Broker| {
        let filters = UnsubscribeFilters::List(&["$share/audit/$queue/jobs"]);
        let user_properties = UserProperties::default();
        broker.feed(conn, &Packet::Unsubscribe(Unsubscribe { packet_id: 2, user_properties, filters }));
    };
    unsubscribe(&mut broker);
    let requests = broker.requests();
    assert_eq!((requests.len(), &**requests[0].group.name()), (1, "audit"));
    assert_eq!(Asked::of(&requests[0]), Asked::Leave(consumer));
    assert_eq!(broker.got(), [Sent::List(vec![0])]);
    broker.puback(conn, delivered[0], ReasonCode::UnspecifiedError);
    assert_eq!(broker.settled(), [(40, Disposition::Nack(None))]);
    unsubscribe(&mut broker);
    assert_eq!(broker.got(), [Sent::List(vec![0x11])]);
}

#[test]
fn too_large_delivery_is_nacked() {
    let mut broker = Broker::new(small());
    let small_window = Connect { maximum_packet_size: Some(60), ..Connect::new(Version::V5, "a") };
    let conn = broker.connect(small_window);
    broker.turn();
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.receives();
    let io = &mut broker.detached.io();
    assert!(broker.shard.confirm_consumer(io, consumer));
    let (receipt, properties) =
        (Receipt { offset: 1, count: 1, incarnation: 7 }, MessageProperties::default());
    assert!(broker.shard.deliver_from_queue(
        io,
        consumer,
        &QueueDelivery { receipt, lease_until_ms: LEASE_UNTIL_MS, payload: &[0; 80], properties }
    ));
    assert_eq!(broker.settled(), [(1, Disposition::Nack(None))]);
    assert_eq!(broker.got(), []);
}

#[test]
fn refused_consumer_asks_again_after_a_pause() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.receives();
    broker.shard.refuse_consumer(&mut broker.detached.io(), consumer, &QueueError::UnknownQueue);
    assert_eq!(broker.got(), []);
    assert_eq!(broker.receives(), []);
    broker.now_ms += 4_900;
    broker.turn();
    assert_eq!(broker.receives(), []);
    broker.now_ms += 120;
    broker.turn();
    assert_eq!(broker.receives(), [(consumer, 3, false)]);
}

#[test]
fn slow_reader_gets_nothing_more() {
    let mut broker = Broker::new(small());
    let conn = broker.connect_client("a");
    let consumer = broker.subscribe(conn, "$queue/jobs");
    broker.receives();
    broker.detached.stall(conn);
    let io = &mut broker.detached.io();
    assert!(broker.shard.confirm_consumer(io, consumer));
    let (receipt, properties) =
        (Receipt { offset: 1, count: 1, incarnation: 7 }, MessageProperties::default());
    let payload = vec![0; 300 * 1024];
    assert!(broker.shard.deliver_from_queue(
        io,
        consumer,
        &QueueDelivery { receipt, lease_until_ms: LEASE_UNTIL_MS, payload: &payload, properties }
    ));
    assert!(broker.shard.has_queue_requests());
    assert_eq!(broker.receives(), []);
    broker.turn();
    broker.detached.resume(conn);
    assert_eq!(broker.got().len(), 1);
    broker.turn();
    assert_eq!(broker.receives(), [(consumer, 2, true)]);
}

#[test]
fn mqtt_3_1_1_clients_consume_queues() {
    let mut broker = Broker::new(small());
    let conn = broker.detached.connect(&mut broker.shard);
    let four = |broker: &mut Broker, packet: &Packet<'_>| {
        let mut frame = Vec::new();
        packet.encode(Version::V4, &mut frame).unwrap();
        broker.detached.feed(&mut broker.shard, conn, &frame);
    };
    let frames = |broker: &mut Broker| {
        let mut all = Vec::new();
        broker.detached.end_turn(&mut broker.shard, |_, bytes| all.extend_from_slice(bytes));
        let clock = Clock { now_ms: broker.now_ms, unix_ms: broker.now_ms };
        broker.detached.begin_turn(&mut broker.shard, clock);
        all
    };
    four(&mut broker, &Connect::new(Version::V4, "a").into());
    frames(&mut broker);
    let subscribe = |qos| {
        let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
        [SubscribeFilter { filter: "$queue/jobs", options }]
    };
    for (qos, code) in [(QoS::AtMostOnce, 0x80), (QoS::ExactlyOnce, 1)] {
        let filters = subscribe(qos);
        let subscribe = Subscribe {
            packet_id: 1,
            subscription_id: None,
            user_properties: UserProperties::default(),
            filters: SubscribeFilters::List(&filters),
        };
        four(&mut broker, &Packet::Subscribe(subscribe));
        for (consumer, _, _) in broker.receives() {
            assert!(broker.shard.confirm_consumer(&mut broker.detached.io(), consumer));
        }
        assert_eq!(frames(&mut broker), [0x90, 3, 0, 1, code]);
    }
    let consumer = broker.receives()[0].0;
    broker.deliver(consumer, [50]);
    let frame = frames(&mut broker);
    assert_eq!(frame, [&[0x32, 16, 0, 11], b"$queue/jobs".as_slice(), &[0xC0, 0, 50]].concat());
    four(&mut broker, &Packet::PubAck(Ack { packet_id: 0xC000, ..Ack::default() }));
    assert_eq!(broker.settled(), [(50, Disposition::Ack)]);
    // It cannot be told that a queue refuses: its connection ends, so that it does not take the message for kept.
    let publish = Publish { topic: "$queue/jobs", qos: QoS::AtLeastOnce, packet_id: 2, ..Publish::default() };
    four(&mut broker, &publish.into());
    let messages = broker.shard.take_sink_messages();
    let full = SinkOutcome::Refused(ReasonCode::QuotaExceeded);
    broker.shard.settle_sink_message(&mut broker.detached.io(), messages[0].ticket, full);
    frames(&mut broker);
    assert!(!broker.detached.is_known(conn) || !broker.detached.io().is_open(conn));
}

#[test]
fn will_can_go_to_a_queue() {
    let mut broker = Broker::new(small());
    let will = mainstem_mqtt::Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "$queue/lost",
        payload: b"a is gone",
        delay_interval: None,
        properties: MessageProperties::default(),
    };
    let conn = broker.connect(Connect { will: Some(will), ..Connect::new(Version::V5, "a") });
    broker.turn();
    broker.detached.hang_up(&mut broker.shard, conn);
    let messages = broker.shard.take_sink_messages();
    assert_eq!((messages[0].topic(), messages[0].payload()), ("$queue/lost", b"a is gone".as_slice()));
}
