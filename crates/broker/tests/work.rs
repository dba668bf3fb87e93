//! Work queues as the MQTT door has them, with a test in the place of the queues.

use mainstem_broker::{
    Errand, Lease, Mail, MqttConfig, Outcome, Parcel, Shard, Shared, Sink, StoreAt, Verdict, Wants, queue_of,
};
use mainstem_log::Memory;
use mainstem_mqtt::{
    Ack, Connect, Disconnect, Header, MessageProperties, Packet, Publish, QoS, ReasonCode, Subscribe,
    SubscribeFilter, SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties,
    Version, decode,
};
use mainstem_runtime::{Clock, ConnId, Detached, Io};

/// What a client is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    ConnAck { present: bool },
    Publish { topic: String, id: u16, dup: bool, payload: Vec<u8>, subscriptions: Vec<u32> },
    Ack { kind: u8, id: u16, reason: u8 },
    List(Vec<u8>),
    Disconnect(u8),
}

/// When what the queues of these tests lease is theirs again, ms since 1970.
const LEASE_MS: u64 = 1_800_000_030_000;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;

/// One shard, with its clients, and the queues played by the test.
struct Desk {
    shard: Shard,
    detached: Detached<Mail>,
    now_ms: u64,
}

impl Desk {
    fn new(config: MqttConfig) -> Self {
        Self::of(Shard::new(0, Shared::new(config, 1, 7)))
    }

    /// Sessions that ask for it outlive the process.
    fn keeping(config: MqttConfig) -> Self {
        let stores = vec![StoreAt { home: 0, store: Box::new(Memory::new()) }];
        let clock = Clock { now_ms: 1, unix_ms: 1 };
        let (shard, _) = Shard::restore(0, Shared::new(config, 1, 7), stores, clock).unwrap();
        Self::of(shard)
    }

    fn of(shard: Shard) -> Self {
        let mut detached = Io::<Mail>::detached(1, 7);
        let mut desk = Self { shard, detached: detached.remove(0), now_ms: 0 };
        desk.turn();
        desk
    }

    /// Ends a turn and begins the next. Returns what clients have been sent.
    fn turn(&mut self) -> Vec<(ConnId, Got)> {
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

    fn got(&mut self) -> Vec<Got> {
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

    fn worker(&mut self, client_id: &str) -> ConnId {
        let conn = self.connect(Connect::new(Version::V5, client_id));
        self.turn();
        conn
    }

    /// Subscribes, plays the queue that answers, and returns the consumer.
    fn subscribe(&mut self, conn: ConnId, filter: &str) -> u64 {
        self.ask_to_subscribe(conn, &[filter], QoS::AtLeastOnce);
        let consumer = self.receives()[0].0;
        assert!(self.shard.queue_answered(&mut self.detached.io(), consumer));
        assert_eq!(self.got(), [Got::List(vec![1])]);
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

    fn errands(&mut self) -> Vec<Errand> {
        self.shard.take_errands(&mut self.detached.io())
    }

    /// What consumers ask for: consumer, most messages, whether they wait.
    fn receives(&mut self) -> Vec<(u64, u32, bool)> {
        let asked = |errand: Errand| match errand.wants {
            Wants::Receive { consumer, max, waits } => Some((consumer, max, waits)),
            _ => None,
        };
        self.errands().into_iter().filter_map(asked).collect()
    }

    fn settled(&mut self) -> Vec<(u64, Verdict)> {
        let settled = |errand: Errand| match errand.wants {
            Wants::Settle(settled) => settled,
            _ => Vec::new(),
        };
        let settled = self.errands().into_iter().flat_map(settled);
        settled.map(|(lease, verdict)| (lease.offset, verdict)).collect()
    }

    /// A queue has these messages for a consumer.
    fn deliver(&mut self, consumer: u64, offsets: impl IntoIterator<Item = u64>) -> bool {
        let mut io = self.detached.io();
        let is_there = self.shard.queue_answered(&mut io, consumer);
        offsets.into_iter().all(|offset| {
            let properties = MessageProperties::default();
            let lease = Lease { offset, count: 1, life: 7 };
            let payload = &[offset as u8];
            self.shard.deliver(&mut io, consumer, &Parcel { lease, until_ms: LEASE_MS, payload, properties })
        }) && is_there
    }

    fn puback(&mut self, conn: ConnId, id: u16, reason: ReasonCode) {
        self.feed(conn, &Packet::PubAck(Ack { packet_id: id, reason, ..Ack::default() }));
    }
}

fn read(frame: &[u8]) -> Got {
    match decode(Version::V5, frame).unwrap() {
        Packet::ConnAck(connack) => Got::ConnAck { present: connack.session_present },
        Packet::Publish(publish) => Got::Publish {
            topic: publish.topic.into(),
            id: publish.packet_id,
            dup: publish.dup,
            payload: publish.payload.into(),
            subscriptions: publish.subscription_ids.iter().collect(),
        },
        Packet::PubAck(ack) => Got::Ack { kind: PUBACK, id: ack.packet_id, reason: ack.reason as u8 },
        Packet::PubRec(ack) => Got::Ack { kind: PUBREC, id: ack.packet_id, reason: ack.reason as u8 },
        Packet::SubAck(list) | Packet::UnsubAck(list) => Got::List(list.reasons.into()),
        Packet::Disconnect(disconnect) => Got::Disconnect(disconnect.reason as u8),
        other => panic!("{other:?}"),
    }
}

/// The packet identifiers of what was delivered.
fn ids(got: &[Got]) -> Vec<u16> {
    let id = |got: &Got| if let Got::Publish { id, .. } = got { Some(*id) } else { None };
    got.iter().filter_map(id).collect()
}

fn small() -> MqttConfig {
    MqttConfig { queue_prefetch: 3, ..MqttConfig::default() }
}

fn lasting(client_id: &str) -> Connect<'_> {
    Connect { clean_start: false, session_expiry: Some(u32::MAX), ..Connect::new(Version::V5, client_id) }
}

#[test]
fn a_publish_goes_to_its_queue_alone_and_waits_for_it() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    desk.publish(conn, "$queue/jobs/k/1", QoS::AtLeastOnce, 3);
    let sunk = desk.shard.take_sunk();
    assert_eq!((sunk.len(), sunk[0].sink, sunk[0].payload()), (1, Sink::Queue, b"work".as_slice()));
    assert_eq!(queue_of(sunk[0].topic()), Some(("jobs", Some("k/1"))));
    assert_eq!(desk.got(), [], "the queue has not said that it is kept");
    desk.shard.settle_sunk(&mut desk.detached.io(), sunk[0].ticket, Outcome::Kept);
    assert_eq!(desk.got(), [Got::Ack { kind: PUBACK, id: 3, reason: 0 }]);
}

#[test]
fn a_refusal_reaches_the_publisher() {
    let mut desk = Desk::keeping(small());
    let conn = desk.connect(lasting("a"));
    desk.turn();
    let full = Outcome::Refused(ReasonCode::QuotaExceeded);
    for (qos, kind) in [(QoS::AtLeastOnce, PUBACK), (QoS::ExactlyOnce, PUBREC)] {
        // The second time because the identifier is free again.
        for _ in 0..2 {
            desk.publish(conn, "$queue/jobs", qos, 3);
            let sunk = desk.shard.take_sunk();
            assert_eq!(sunk.len(), 1);
            desk.shard.settle_sunk(&mut desk.detached.io(), sunk[0].ticket, full);
            let got = [desk.got(), desk.got()].concat();
            assert_eq!(got, [Got::Ack { kind, id: 3, reason: 0x97 }]);
        }
    }
    // What is not known to be lost is not refused: the exchange goes on when it comes again.
    desk.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 4);
    let sunk = desk.shard.take_sunk();
    desk.shard.settle_sunk(&mut desk.detached.io(), sunk[0].ticket, Outcome::NotKept);
    assert_eq!(desk.got(), [Got::Disconnect(0x97)]);
    let conn = desk.connect(lasting("a"));
    desk.turn();
    desk.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 4);
    assert_eq!(desk.shard.take_sunk().len(), 1);
}

#[test]
fn a_qos_2_publish_that_comes_again_is_enqueued_once() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    desk.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 3);
    let sunk = desk.shard.take_sunk();
    desk.shard.settle_sunk(&mut desk.detached.io(), sunk[0].ticket, Outcome::Kept);
    assert_eq!(desk.got(), [Got::Ack { kind: PUBREC, id: 3, reason: 0 }]);
    desk.publish(conn, "$queue/jobs", QoS::ExactlyOnce, 3);
    assert_eq!(desk.shard.take_sunk().len(), 0);
    assert_eq!(desk.got(), [Got::Ack { kind: PUBREC, id: 3, reason: 0 }]);
}

#[test]
fn names_that_no_queue_can_have_are_refused() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    for topic in ["$queue/", "$queue//key", "$queue/größe"] {
        desk.publish(conn, topic, QoS::AtLeastOnce, 3);
        assert_eq!(desk.got(), [Got::Ack { kind: PUBACK, id: 3, reason: 0x90 }], "{topic}");
    }
    let filters = ["$queue/+", "$queue/#", "$queue/a/b", "$queue/", "$share/g/$queue/+"];
    desk.ask_to_subscribe(conn, &filters, QoS::AtLeastOnce);
    assert_eq!(desk.got(), [Got::List(vec![0x8F; 5])]);
    desk.ask_to_subscribe(conn, &["$queue/jobs"], QoS::AtMostOnce);
    assert_eq!(desk.got(), [Got::List(vec![0x83])]);
    assert!(!desk.shard.has_errands() && desk.shard.take_sunk().is_empty());
}

#[test]
fn a_suback_says_what_the_queue_says() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    desk.ask_to_subscribe(conn, &["$queue/there", "plain", "$queue/missing"], QoS::ExactlyOnce);
    let asked = desk.receives();
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|(_, _, waits)| !waits));
    assert_eq!(desk.got(), []);
    let io = &mut desk.detached.io();
    desk.shard.refuse_consumer(io, asked[1].0, ReasonCode::TopicFilterInvalid, &"there is none");
    assert!(desk.shard.queue_answered(io, asked[0].0));
    assert_eq!(desk.got(), [Got::List(vec![1, 2, 0x8F])]);
    // What is proven waits; what was refused is no consumer any more.
    let wanted = desk.errands();
    let still: Vec<_> = wanted.iter().map(|errand| (&errand.wants, errand.of.queue())).collect();
    let gone = Wants::Leave { consumer: asked[1].0 };
    let waits = Wants::Receive { consumer: asked[0].0, max: 3, waits: true };
    assert_eq!(still, [(&gone, "missing"), (&waits, "there")]);
}

#[test]
fn credit_is_what_is_free_and_verdicts_leave_together() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    let consumer = desk.subscribe(conn, "$queue/jobs");
    assert_eq!(desk.receives(), [(consumer, 3, true)]);
    assert!(desk.deliver(consumer, [10, 11, 12]));
    let got = desk.got();
    let ids = ids(&got);
    assert!(ids.iter().all(|id| *id >= 0xC000) && ids.len() == 3);
    let first = Got::Publish {
        topic: "$queue/jobs".into(),
        id: ids[0],
        dup: false,
        payload: vec![10],
        subscriptions: vec![5],
    };
    assert_eq!(got[0], first);
    assert_eq!(desk.receives(), [], "it has all that it may have");
    desk.puback(conn, ids[1], ReasonCode::Success);
    desk.puback(conn, ids[2], ReasonCode::PayloadFormatInvalid);
    desk.puback(conn, ids[2], ReasonCode::Success);
    let errands = desk.errands();
    assert_eq!(errands.len(), 2);
    let lease = |offset| Lease { offset, count: 1, life: 7 };
    let settled = vec![(lease(11), Verdict::Ack), (lease(12), Verdict::Reject)];
    assert_eq!(errands[0].wants, Wants::Settle(settled));
    assert_eq!(errands[1].wants, Wants::Receive { consumer, max: 2, waits: true });
}

#[test]
fn what_finds_no_room_is_held_and_goes_before_the_next() {
    let mut desk = Desk::new(small());
    let conn = desk.connect(Connect { receive_maximum: Some(2), ..Connect::new(Version::V5, "a") });
    desk.turn();
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.ask_to_subscribe(conn, &["plain"], QoS::AtLeastOnce);
    assert_eq!(desk.receives(), [(consumer, 2, true)]);
    desk.turn();
    // An ordinary message takes a place that was free when the queue was asked.
    desk.publish(conn, "plain", QoS::AtLeastOnce, 1);
    assert!(desk.deliver(consumer, [20, 21]));
    let got = desk.got();
    let delivered = ids(&got);
    assert_eq!(delivered.len(), 2);
    assert_eq!((delivered[0], delivered[1]), (1, 0xC000));
    assert_eq!(desk.receives(), [], "one is held");
    desk.puback(conn, 1, ReasonCode::Success);
    assert_eq!(ids(&desk.got()), [0xC001]);
    desk.puback(conn, 0xC000, ReasonCode::Success);
    let errands = desk.errands();
    assert_eq!(errands[1].wants, Wants::Receive { consumer, max: 1, waits: true });
}

#[test]
fn what_is_held_when_its_consumer_goes_was_never_sent() {
    let mut desk = Desk::new(small());
    let narrow = Connect { receive_maximum: Some(1), ..Connect::new(Version::V5, "a") };
    let conn = desk.connect(narrow);
    desk.turn();
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.receives();
    assert!(desk.deliver(consumer, [1, 2]));
    assert_eq!(ids(&desk.got()), [0xC000]);
    desk.detached.hang_up(&mut desk.shard, conn);
    assert_eq!(desk.settled(), [(1, Verdict::Release), (2, Verdict::Unsent)]);
}

#[test]
fn what_is_held_too_long_is_not_sent() {
    let mut desk = Desk::new(small());
    let narrow = Connect { receive_maximum: Some(1), ..Connect::new(Version::V5, "a") };
    let conn = desk.connect(narrow);
    desk.turn();
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.receives();
    assert!(desk.deliver(consumer, [1, 2]));
    assert_eq!(ids(&desk.got()), [0xC000]);
    desk.now_ms += 30_000;
    desk.turn();
    desk.puback(conn, 0xC000, ReasonCode::Success);
    assert_eq!(desk.got(), []);
    assert_eq!(desk.settled(), [(1, Verdict::Ack)], "the queue knows that the other lease has ended");
}

#[test]
fn a_lost_connection_gives_back_what_it_had() {
    let mut desk = Desk::keeping(small());
    let conn = desk.connect(lasting("a"));
    desk.turn();
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.receives();
    desk.deliver(consumer, [30, 31]);
    let delivered = ids(&desk.got());
    desk.puback(conn, delivered[0], ReasonCode::Success);
    desk.detached.hang_up(&mut desk.shard, conn);
    let errands = desk.errands();
    let lease = |offset| Lease { offset, count: 1, life: 7 };
    let settled = vec![(lease(30), Verdict::Ack), (lease(31), Verdict::Release)];
    assert_eq!(errands[0].wants, Wants::Settle(settled));
    assert_eq!(errands[1].wants, Wants::Leave { consumer });
    assert_eq!(errands.len(), 2);
    assert!(!desk.deliver(consumer, [32]), "nobody takes what comes too late");
    // The session is back, and with it the subscription, as another consumer.
    let conn = desk.connect(lasting("a"));
    let got = (desk.got(), desk.got());
    assert_eq!(got, (vec![Got::ConnAck { present: true }], vec![]), "nothing is sent again");
    let asked = desk.receives();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].0 != consumer && !asked[0].2);
    desk.deliver(asked[0].0, [31]);
    assert_eq!(desk.got().len(), 1);
    desk.feed(conn, &Packet::Disconnect(Disconnect::default()));
    assert_eq!(desk.settled(), [(31, Verdict::Release)]);
}

#[test]
fn an_unsubscribe_leaves_what_was_sent_to_be_acknowledged() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    let consumer = desk.subscribe(conn, "$share/audit/$queue/jobs");
    desk.receives();
    desk.deliver(consumer, [40]);
    let delivered = ids(&desk.got());
    let unsubscribe = |desk: &mut Desk| {
        let filters = UnsubscribeFilters::List(&["$share/audit/$queue/jobs"]);
        let user_properties = UserProperties::default();
        desk.feed(conn, &Packet::Unsubscribe(Unsubscribe { packet_id: 2, user_properties, filters }));
    };
    unsubscribe(&mut desk);
    let errands = desk.errands();
    assert_eq!((errands.len(), &*errands[0].of.group), (1, "audit"));
    assert_eq!(errands[0].wants, Wants::Leave { consumer });
    assert_eq!(desk.got(), [Got::List(vec![0])]);
    desk.puback(conn, delivered[0], ReasonCode::UnspecifiedError);
    assert_eq!(desk.settled(), [(40, Verdict::Nack(None))]);
    unsubscribe(&mut desk);
    assert_eq!(desk.got(), [Got::List(vec![0x11])]);
}

#[test]
fn a_message_that_is_too_large_for_one_is_left_to_others() {
    let mut desk = Desk::new(small());
    let narrow = Connect { maximum_packet_size: Some(60), ..Connect::new(Version::V5, "a") };
    let conn = desk.connect(narrow);
    desk.turn();
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.receives();
    let io = &mut desk.detached.io();
    assert!(desk.shard.queue_answered(io, consumer));
    let (lease, properties) = (Lease { offset: 1, count: 1, life: 7 }, MessageProperties::default());
    assert!(desk.shard.deliver(
        io,
        consumer,
        &Parcel { lease, until_ms: LEASE_MS, payload: &[0; 80], properties }
    ));
    assert_eq!(desk.settled(), [(1, Verdict::Nack(None))]);
    assert_eq!(desk.got(), []);
}

#[test]
fn a_queue_that_has_gone_is_asked_again_after_a_while() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.receives();
    let reason = ReasonCode::TopicFilterInvalid;
    desk.shard.refuse_consumer(&mut desk.detached.io(), consumer, reason, &"there is none");
    assert_eq!(desk.got(), []);
    assert_eq!(desk.receives(), []);
    desk.now_ms += 4_900;
    desk.turn();
    assert_eq!(desk.receives(), []);
    desk.now_ms += 120;
    desk.turn();
    assert_eq!(desk.receives(), [(consumer, 3, false)]);
}

#[test]
fn who_does_not_read_gets_nothing_more() {
    let mut desk = Desk::new(small());
    let conn = desk.worker("a");
    let consumer = desk.subscribe(conn, "$queue/jobs");
    desk.receives();
    desk.detached.stall(conn);
    let io = &mut desk.detached.io();
    assert!(desk.shard.queue_answered(io, consumer));
    let (lease, properties) = (Lease { offset: 1, count: 1, life: 7 }, MessageProperties::default());
    let payload = vec![0; 300 * 1024];
    assert!(desk.shard.deliver(
        io,
        consumer,
        &Parcel { lease, until_ms: LEASE_MS, payload: &payload, properties }
    ));
    assert!(desk.shard.has_errands());
    assert_eq!(desk.receives(), []);
    desk.turn();
    desk.detached.resume(conn);
    assert_eq!(desk.got().len(), 1);
    desk.turn();
    assert_eq!(desk.receives(), [(consumer, 2, true)]);
}

#[test]
fn clients_of_3_1_1_get_and_acknowledge_work() {
    let mut desk = Desk::new(small());
    let conn = desk.detached.connect(&mut desk.shard);
    let four = |desk: &mut Desk, packet: &Packet<'_>| {
        let mut frame = Vec::new();
        packet.encode(Version::V4, &mut frame).unwrap();
        desk.detached.feed(&mut desk.shard, conn, &frame);
    };
    let frames = |desk: &mut Desk| {
        let mut all = Vec::new();
        desk.detached.end_turn(&mut desk.shard, |_, bytes| all.extend_from_slice(bytes));
        let clock = Clock { now_ms: desk.now_ms, unix_ms: desk.now_ms };
        desk.detached.begin_turn(&mut desk.shard, clock);
        all
    };
    four(&mut desk, &Connect::new(Version::V4, "a").into());
    frames(&mut desk);
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
        four(&mut desk, &Packet::Subscribe(subscribe));
        for (consumer, _, _) in desk.receives() {
            assert!(desk.shard.queue_answered(&mut desk.detached.io(), consumer));
        }
        assert_eq!(frames(&mut desk), [0x90, 3, 0, 1, code]);
    }
    let consumer = desk.receives()[0].0;
    desk.deliver(consumer, [50]);
    let frame = frames(&mut desk);
    assert_eq!(frame, [&[0x32, 16, 0, 11], b"$queue/jobs".as_slice(), &[0xC0, 0, 50]].concat());
    four(&mut desk, &Packet::PubAck(Ack { packet_id: 0xC000, ..Ack::default() }));
    assert_eq!(desk.settled(), [(50, Verdict::Ack)]);
    // It cannot be told that a queue refuses: its connection ends, so that it does not take the message for kept.
    let publish = Publish { topic: "$queue/jobs", qos: QoS::AtLeastOnce, packet_id: 2, ..Publish::default() };
    four(&mut desk, &publish.into());
    let sunk = desk.shard.take_sunk();
    let full = Outcome::Refused(ReasonCode::QuotaExceeded);
    desk.shard.settle_sunk(&mut desk.detached.io(), sunk[0].ticket, full);
    frames(&mut desk);
    assert!(!desk.detached.is_known(conn) || !desk.detached.io().is_open(conn));
}

#[test]
fn a_will_can_be_work() {
    let mut desk = Desk::new(small());
    let will = mainstem_mqtt::Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "$queue/lost",
        payload: b"a is gone",
        delay_interval: None,
        properties: MessageProperties::default(),
    };
    let conn = desk.connect(Connect { will: Some(will), ..Connect::new(Version::V5, "a") });
    desk.turn();
    desk.detached.hang_up(&mut desk.shard, conn);
    let sunk = desk.shard.take_sunk();
    assert_eq!((sunk[0].topic(), sunk[0].payload()), ("$queue/lost", b"a is gone".as_slice()));
}
