//! CONNACK of durable sessions, and wills that are due meanwhile.

use mainstem_mqtt::{Publish, QoS, Will};

use crate::broker::{Broker, Link, TestStore};
use crate::faults::{after_kill, join, subscribe};
use crate::story::{PUMP, config};

const NOTHING: [&str; 0] = [];

#[test]
fn connack_waits_for_the_session_to_be_durable() {
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    stores[0].hold_completions();
    let client = broker.connect(0, Link::five("client"));
    broker.publish(client, Publish { qos: QoS::AtLeastOnce, packet_id: 1, topic: "t", ..Publish::default() });
    broker.settle();
    assert_eq!(broker.take(client), NOTHING);
    join(&mut broker, 0, Link { is_durable: false, ..Link::five("guest") }, false);

    stores[0].release_completions();
    broker.settle();
    assert_eq!(broker.take(client), ["connack", "puback 1 0x10"]);
    let mut broker = Broker::new(&config(), &after_kill(&stores), 1, 0);
    join(&mut broker, 0, Link::five("client"), true);
}

#[test]
fn taken_over_connection_gets_no_connack_before_its_session_is_durable() {
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    stores[0].hold_completions();
    let first = broker.connect(0, Link::five("client"));
    broker.turn(0);
    let second = broker.connect(0, Link::five("client"));
    broker.settle();
    stores[0].release_completions();
    broker.settle();
    assert_eq!(broker.take(first), NOTHING);
    assert_eq!(broker.take(second), ["connack present"]);
}

#[test]
fn reconnect_does_not_cancel_a_due_will() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let watcher = join(&mut broker, 1, Link::five("watcher"), false);
    subscribe(&mut broker, watcher, "wills/#", QoS::AtLeastOnce);
    let will = Will { delay_interval: None, ..PUMP };
    join(&mut broker, 0, Link { will: Some(will), ..Link::five("pump") }, false);

    let stores = after_kill(&stores);
    stores[1].hold_completions();
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    // The client is back before the timer of the will fires.
    let pump = broker.connect(0, Link::five("pump"));
    broker.settle();
    assert_eq!(broker.take(pump), NOTHING, "the watcher's shard does not have the will on disk");
    stores[1].release_completions();
    broker.settle();
    assert_eq!(broker.take(pump), ["connack present"]);
    let watcher = broker.connect(1, Link::five("watcher"));
    broker.settle();
    assert_eq!(broker.take(watcher), ["connack present", "publish q1 1 wills/pump down expiry 60"]);
}
