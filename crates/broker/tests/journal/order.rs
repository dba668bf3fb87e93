//! The order of what one client publishes, whichever shards its sessions live on (MQTT 5, 4.6).

use mainstem_mqtt::{Publish, QoS};

use crate::broker::{Broker, Link};
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
    broker.connect(shard, Link { lasts: false, ..Link::five(client_id) })
}

fn publish(broker: &mut Broker, client: usize, payload: &'static str) {
    broker.publish(client, Publish { topic: "t", payload: payload.as_bytes(), ..Publish::default() });
}

#[test]
fn what_two_shards_have_sent_comes_in_the_order_in_which_they_sent_it() {
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
fn a_client_identifier_is_not_free_before_what_its_client_has_published_is_on_its_way() {
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
