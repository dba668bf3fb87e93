//! Keep alive (3.1.2.10), Server Keep Alive (3.2.2.3.14), PINGREQ (3.12).

use std::time::{Duration, Instant};

use mainstem_conformance::prelude::*;

// [MQTT5-3.12.4-1] [MQTT3-3.12.4-1]
#[test]
fn a_ping_is_answered() {
    for version in [V3, V4, V5] {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&[wire::PINGREQ, wire::PINGREQ, wire::PINGREQ].concat());
        for _ in 0..3 {
            assert_eq!(client.recv(), Packet::PingResp);
        }
    }
}

// [MQTT5-3.12.4-1]
#[test]
fn a_ping_with_a_body_is_malformed() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&[0xC0, 0x01, 0x00]);
        client.expect_refused(reason::MALFORMED_PACKET);
    }
}

// [MQTT5-3.1.2-22] [MQTT3-3.1.2-24] [MQTT5-3.2.2-22] [MQTT5-3.1.2-8] [MQTT3-3.1.2-8]
#[test]
fn silence_beyond_the_keep_alive_ends_the_connection_and_publishes_the_will() {
    for version in BOTH {
        let topic = unique("will");
        let mut watcher = Client::connect(Broker::shared(), version);
        watcher.subscribe(&topic, 0);
        let connect = Connect::new(unique("c")).keep_alive(1).will(Will::new(&topic, "silent"));
        let start = Instant::now();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &connect);
        match client.event() {
            Event::Closed => {}
            Event::Packet(Packet::Disconnect(disconnect)) => {
                assert_eq!(disconnect.reason, reason::KEEP_ALIVE_TIMEOUT);
                client.expect_closed();
            }
            other @ Event::Packet(_) => panic!("{other:?}"),
        }
        // One and a half times the keep alive; never before the keep alive itself.
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(watcher.expect_message().text(), "silent");
    }
}

// [MQTT5-3.1.2-22] [MQTT3-3.1.2-24]
#[test]
fn any_packet_keeps_the_connection_alive() {
    for version in BOTH {
        let (mut client, _) =
            Client::connect_with(Broker::shared(), version, &Connect::new(unique("c")).keep_alive(1));
        for _ in 0..6 {
            client.pass(Duration::from_millis(500));
            client.publish(&unique("t"), "x", 0);
        }
        client.ping();
    }
}

// [MQTT5-3.1.2-22] [MQTT3-3.1.2-24]
#[test]
fn received_messages_do_not_keep_the_connection_alive() {
    for version in BOTH {
        let topic = unique("t");
        let (mut client, _) =
            Client::connect_with(Broker::shared(), version, &Connect::new(unique("c")).keep_alive(1));
        client.subscribe(&topic, 0);
        let mut publisher = Client::connect(Broker::shared(), version);
        let start = Instant::now();
        loop {
            publisher.publish(&topic, "x", 0);
            publisher.ping();
            match client.event() {
                Event::Packet(Packet::Publish(_)) => {}
                Event::Closed | Event::Packet(Packet::Disconnect(_)) => break,
                other @ Event::Packet(_) => panic!("{other:?}"),
            }
            assert!(start.elapsed() < mainstem_conformance::DEADLINE, "still connected");
        }
    }
}

// [MQTT5-3.1.2-22] [MQTT3-3.1.2-24]
#[test]
fn keep_alive_0_never_times_out() {
    for version in BOTH {
        let (mut client, _) =
            Client::connect_with(Broker::shared(), version, &Connect::new(unique("c")).keep_alive(0));
        client.pass(Duration::from_secs(2));
        client.ping();
    }
}

// [MQTT5-3.2.2-21] [MQTT5-3.2.2-22] [MQTT5-3.1.2-22]
#[test]
fn the_server_may_shorten_the_keep_alive() {
    let broker = Broker::with(&["mqtt.keep_alive_s_max=1"]);
    let start = Instant::now();
    for asked in [60, 0, 2] {
        let connect = Connect::new(unique("c")).keep_alive(asked);
        let (mut client, connack) = Client::connect_with(&broker, V5, &connect);
        assert_eq!(connack.props.number(property::SERVER_KEEP_ALIVE), Some(1), "asked for {asked}");
        client.expect_refused(reason::KEEP_ALIVE_TIMEOUT);
    }
    assert!(start.elapsed() >= Duration::from_secs(3));
    let (_, connack) = Client::connect_with(&broker, V5, &Connect::new(unique("c")).keep_alive(1));
    assert!(matches!(connack.props.number(property::SERVER_KEEP_ALIVE), None | Some(1)));
}
