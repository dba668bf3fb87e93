//! What happens before the broker is killed: two shards, and an example of everything that their logs can contain.

use mainstem_log::batches;
use mainstem_mqtt::{MessageProperties, Publish, QoS, UserProperties, Will};
use mainstem_mqtt_server::MqttConfig;

use crate::broker::{Broker, Link, TestStore};

pub(crate) fn config() -> MqttConfig {
    MqttConfig { snapshot_bytes: 4096, sys_interval_s: 0, ..MqttConfig::default() }
}

pub(crate) const PUMP: Will<'static> = Will {
    qos: QoS::AtLeastOnce,
    retain: false,
    topic: "wills/pump",
    payload: b"down",
    delay_interval: Some(3600),
    properties: MessageProperties {
        payload_format: None,
        message_expiry: Some(60),
        content_type: None,
        response_topic: None,
        correlation_data: None,
        user_properties: UserProperties::Pairs(&[]),
    },
};

/// A client that never connects, whose messages make a journal grow.
pub(crate) const FILLER: Will<'static> = Will {
    qos: QoS::AtMostOnce,
    retain: false,
    topic: "filler",
    payload: &[b'.'; 1500],
    delay_interval: None,
    properties: PUMP.properties,
};

/// The logs of the two shards when the broker is killed.
pub(crate) fn story() -> Vec<TestStore> {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let publish = |broker: &mut Broker, client, qos, packet_id, topic, payload: &'static str| {
        let payload = payload.as_bytes();
        broker.publish(client, Publish { qos, packet_id, topic, payload, ..Publish::default() });
        broker.settle();
    };
    let (exactly_once, least) = (QoS::ExactlyOnce, QoS::AtLeastOnce);

    let visitor = broker.connect(0, Link::five("visitor"));
    broker.disconnect(visitor, false);
    let sensor = broker.connect(0, Link::five("sensor"));
    retain(&mut broker, sensor);
    let panel = broker.connect(0, Link::five("panel"));
    broker.subscribe(panel, "gone", least, None);
    broker.unsubscribe(panel, "gone");
    broker.subscribe(panel, "plant/1/+", least, Some(7));
    for (filter, qos) in [("alarms/#", exactly_once), ("$share/crew/jobs", least), ("wills/#", least)] {
        broker.subscribe(panel, filter, qos, None);
    }
    let hall = broker.connect(1, Link::four("hall"));
    broker.subscribe(hall, "alarms/#", least, None);
    // One message in flight at a time: its replay of two retained messages stops behind the first.
    let late = broker.connect(1, Link { receive_maximum: Some(1), ..Link::five("late") });
    broker.subscribe(late, "plant/#", least, None);
    broker.settle();
    broker.acknowledge(panel, 1);

    // Released there, and here; delivered and acknowledged, delivered and not.
    publish(&mut broker, sensor, least, 1, "plant/1/humidity", "51");
    broker.acknowledge(panel, 2);
    publish(&mut broker, sensor, exactly_once, 1, "alarms/1", "a1");
    broker.release(sensor, 1);
    broker.receive(panel, 3);
    broker.acknowledge(hall, 1);
    publish(&mut broker, sensor, exactly_once, 2, "alarms/2", "a2");
    publish(&mut broker, sensor, exactly_once, 3, "nobody/there", "n");
    broker.release(sensor, 3);
    publish(&mut broker, sensor, exactly_once, 4, "jobs", "j1");

    // Queued for a client that is offline.
    broker.hang_up(panel);
    publish(&mut broker, sensor, least, 9, "plant/1/temp", "22");
    publish(&mut broker, sensor, exactly_once, 9, "alarms/3", "a3");
    broker.release(sensor, 9);
    publish(&mut broker, sensor, least, 9, "jobs", "j2");
    let pump = broker.connect(1, Link { will: Some(PUMP), ..Link::five("pump") });
    broker.hang_up(pump);

    // Snapshots: of the first shard while a publish is in flight to the second; then of the second; then of the first
    // again, which moves messages that are older than the one before.
    let payload = b"a4";
    broker.publish(
        sensor,
        Publish { qos: exactly_once, packet_id: 5, topic: "alarms/4", payload, ..Publish::default() },
    );
    fill(&mut broker, &stores, 0);
    broker.settle();
    broker.release(sensor, 5);
    fill(&mut broker, &stores, 1);
    broker.settle();
    fill(&mut broker, &stores, 0);
    publish(&mut broker, sensor, exactly_once, 9, "alarms/5", "a5");
    broker.release(sensor, 9);
    broker.settle();

    // The broker is killed when the first shard has it, and the second has not.
    let payload = b"a6";
    broker.publish(
        sensor,
        Publish { qos: exactly_once, packet_id: 6, topic: "alarms/6", payload, ..Publish::default() },
    );
    broker.turn(0);
    stores
}

/// Three topics with retained messages, of which one is cleared.
fn retain(broker: &mut Broker, sensor: usize) {
    let plain = MessageProperties::default();
    let rich = MessageProperties {
        content_type: Some("text/plain"),
        message_expiry: Some(86_400),
        ..MessageProperties::default()
    };
    for (topic, payload, properties) in [
        ("plant/1/temp", "20", plain),
        ("plant/2/temp", "21", rich),
        ("plant/3/temp", "22", plain),
        ("plant/3/temp", "", plain),
    ] {
        let payload = payload.as_bytes();
        let (qos, packet_id, retain) = (QoS::AtLeastOnce, 1, true);
        let message = Publish { qos, packet_id, retain, topic, payload, properties, ..Publish::default() };
        broker.publish(sensor, message);
    }
    broker.settle();
}

/// Makes a journal grow until it has another snapshot.
pub(crate) fn fill(broker: &mut Broker, stores: &[TestStore], shard: usize) {
    let client_id = ["filler-0", "filler-1"][shard];
    let snapshots = || batches(&stores[shard].bytes("mqtt-snapshot")).count();
    let before = snapshots();
    while snapshots() == before {
        let filler = broker.connect(shard, Link { will: Some(FILLER), ..Link::five(client_id) });
        broker.disconnect(filler, true);
        broker.turn(shard);
    }
}
