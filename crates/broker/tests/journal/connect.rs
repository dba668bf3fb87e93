//! What a CONNECT waits for, and a will that comes between.

use mainstem_mqtt::{Publish, QoS, Will};

use crate::broker::{Broker, Kept, Link};
use crate::faults::{join, killed, subscribe};
use crate::story::{PUMP, config};

const NOTHING: [&str; 0] = [];

#[test]
fn a_connack_and_what_follows_it_wait_for_the_session() {
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    stores[0].stop_telling();
    let client = broker.connect(0, Link::five("client"));
    broker.publish(client, Publish { qos: QoS::AtLeastOnce, packet_id: 1, topic: "t", ..Publish::default() });
    broker.settle();
    assert_eq!(broker.take(client), NOTHING);
    join(&mut broker, 0, Link { lasts: false, ..Link::five("guest") }, false);

    stores[0].tell_again();
    broker.settle();
    assert_eq!(broker.take(client), ["connack", "puback 1 0x10"]);
    let mut broker = Broker::new(&config(), &killed(&stores), 1, 0);
    join(&mut broker, 0, Link::five("client"), true);
}

#[test]
fn who_is_followed_by_another_before_the_session_is_on_disk_hears_nothing() {
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    stores[0].stop_telling();
    let first = broker.connect(0, Link::five("client"));
    broker.turn(0);
    let second = broker.connect(0, Link::five("client"));
    broker.settle();
    stores[0].tell_again();
    broker.settle();
    assert_eq!(broker.take(first), NOTHING);
    assert_eq!(broker.take(second), ["connack present"]);
}

#[test]
fn a_client_that_is_back_does_not_take_back_a_will_that_was_due() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let watcher = join(&mut broker, 1, Link::five("watcher"), false);
    subscribe(&mut broker, watcher, "wills/#", QoS::AtLeastOnce);
    let will = Will { delay_interval: None, ..PUMP };
    join(&mut broker, 0, Link { will: Some(will), ..Link::five("pump") }, false);

    let stores = killed(&stores);
    stores[1].stop_telling();
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    // It is back before the broker has come to the will.
    let pump = broker.connect(0, Link::five("pump"));
    broker.settle();
    assert_eq!(broker.take(pump), NOTHING, "the watcher's shard does not have the will on disk");
    stores[1].tell_again();
    broker.settle();
    assert_eq!(broker.take(pump), ["connack present"]);
    let watcher = broker.connect(1, Link::five("watcher"));
    broker.settle();
    assert_eq!(broker.take(watcher), ["connack present", "publish q1 1 wills/pump down expiry 60"]);
}
