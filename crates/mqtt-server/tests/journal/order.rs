//! The order of what one client publishes, whichever shards its sessions live on (MQTT 5, 4.6).

use mainstem_mqtt::{MessageProperties, Publish, QoS};

use crate::broker::{Broker, Link, TestStore};
use crate::story::config;

/// Three shards, and on the last a client that has subscribed to `t`.
fn broker() -> (Broker, usize) {
    let mut broker = Broker::new(&config(), &[], 3, 0);
    let reader = connect(&mut broker, 2, "reader");
    broker.subscribe(reader, "t", QoS::AtMostOnce, None);
    broker.settle();
    assert_eq!(broker.take(reader), ["connack", "suback [0]"]);
    (broker, reader)
}

/// Connects a client whose session ends with the connection.
fn connect(broker: &mut Broker, shard: usize, client_id: &'static str) -> usize {
    broker.connect(shard, Link { is_durable: false, ..Link::five(client_id) })
}

fn publish(broker: &mut Broker, client: usize, payload: &'static str) {
    broker.publish(client, Publish { topic: "t", payload: payload.as_bytes(), ..Publish::default() });
}

#[test]
fn messages_of_two_shards_arrive_in_sending_order() {
    let (mut broker, reader) = broker();
    for (shard, payload) in [(1, "a"), (0, "b"), (1, "c")] {
        let writer = connect(&mut broker, shard, "writer");
        publish(&mut broker, writer, payload);
        broker.disconnect(writer, false);
        broker.turn(shard);
    }
    broker.settle();
    assert_eq!(broker.take(reader), ["publish q0 0 t a", "publish q0 0 t b", "publish q0 0 t c"]);
}

#[test]
fn client_identifier_is_free_after_its_publishes_are_sent() {
    let (mut broker, reader) = broker();
    let first = connect(&mut broker, 1, "writer");
    publish(&mut broker, first, "a");
    broker.disconnect(first, false);
    // The first shard's turn goes on.
    let second = connect(&mut broker, 0, "writer");
    publish(&mut broker, second, "b");
    broker.turn(0);
    broker.settle();
    assert_eq!(broker.take(second), ["connack"]);
    assert_eq!(broker.take(reader), ["publish q0 0 t a", "publish q0 0 t b"]);
}

#[test]
fn early_retained_messages_are_replayed_to_a_new_subscription() {
    const TOPICS: [&str; 4] = ["r/a", "r/b", "r/c", "r/d"];
    let stores = [TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = connect(&mut broker, 0, "writer");
    let retained = |packet_id, topic, payload: &'static str| {
        let (qos, payload) = (QoS::AtLeastOnce, payload.as_bytes());
        Publish { qos, packet_id, topic, payload, retain: true, ..Publish::default() }
    };
    for (id, topic) in (1..).zip(TOPICS) {
        broker.publish(writer, retained(id, topic, "old"));
    }
    // One message at a time, so that the last topic is still to come.
    let reader = broker.connect(0, Link { receive_maximum: Some(1), ..Link::five("reader") });
    broker.subscribe(reader, "r/#", QoS::AtLeastOnce, None);
    broker.settle();
    broker.publish(writer, retained(5, "r/d", "new"));
    broker.settle();
    broker.unsubscribe(reader, "r/#");
    broker.subscribe(reader, "r/#", QoS::AtMostOnce, None);
    (1..=8).for_each(|id| {
        broker.acknowledge(reader, id);
        broker.settle();
    });
    let got = broker.take(reader);
    let of_second: Vec<_> = got.iter().filter(|line| line.starts_with("publish q0")).collect();
    let all = ["r/a old", "r/b old", "r/c old", "r/d new"].map(|what| format!("publish q0 0 {what} retain"));
    assert_eq!(of_second, all.iter().collect::<Vec<_>>());
}

#[test]
fn replay_continues_behind_an_expired_message() {
    let stores = [TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = connect(&mut broker, 0, "writer");
    for (packet_id, topic) in [(1, "r/a"), (2, "r/b")] {
        let (qos, payload) = (QoS::AtLeastOnce, &b"v"[..]);
        broker
            .publish(writer, Publish { qos, packet_id, topic, payload, retain: true, ..Publish::default() });
    }
    let reader = broker.connect(0, Link { receive_maximum: Some(1), ..Link::five("reader") });
    broker.subscribe(reader, "x", QoS::AtLeastOnce, None);
    broker.subscribe(reader, "r/#", QoS::AtLeastOnce, None);
    broker.settle();
    let properties = MessageProperties { message_expiry: Some(1), ..MessageProperties::default() };
    let expiring = Publish { qos: QoS::AtLeastOnce, packet_id: 3, topic: "x", ..Publish::default() };
    broker.publish(writer, Publish { properties, ..expiring });
    broker.pass(2_000);
    broker.acknowledge(reader, 1);
    broker.settle();
    let got = broker.take(reader);
    assert_eq!(
        got[1..],
        ["publish q1 1 r/a v retain", "suback [1]", "suback [1]", "publish q1 3 r/b v retain"]
    );
}
