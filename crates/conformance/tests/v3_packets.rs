//! What 3.x puts on the wire where version 5 puts something else: return codes, closes without a word, no properties.

use std::io::{ErrorKind, Read};

use mainstem_conformance::prelude::*;
use wire::Wire;

const OLD: [Version; 2] = [V3, V4];

/// Sends bytes on a new connection and returns all that comes until the server closes.
fn answer_to(broker: &Broker, bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::open(broker, V4);
    client.send(bytes);
    let mut answer = Vec::new();
    client.stream().set_read_timeout(Some(mainstem_conformance::DEADLINE)).expect("a socket");
    match client.stream().read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("no close in time: {error}"),
        _ => answer,
    }
}

/// The next bytes of a connection, of which as many are read as are expected.
fn expect_bytes(client: &Client, expected: &[u8]) {
    let mut came = vec![0; expected.len()];
    client.stream().set_read_timeout(Some(mainstem_conformance::DEADLINE)).expect("a socket");
    client.stream().read_exact(&mut came).expect("an answer in time");
    assert_eq!(came, expected);
}

fn connect_as(name: &str, level: u8) -> Vec<u8> {
    let body = [wire::data(name), vec![level, 0x02, 0, 60], wire::data(unique("c"))].concat();
    wire::frame(0x10, &body)
}

// [MQTT3-3.1.2-2] [MQTT3-3.2.2-4] [MQTT3-3.2.2-5]
#[test]
fn a_protocol_level_below_4_is_answered_by_return_code_1() {
    for level in 0..4 {
        assert_eq!(answer_to(Broker::shared(), &connect_as("MQTT", level)), [0x20, 2, 0, 1], "level {level}");
    }
}

// [MQTT3-3.1.4-4] [MQTT3-3.2.0-1] [MQTT3-7.1.1-1]
#[test]
fn every_answer_of_3_x_has_its_old_form() {
    for version in OLD {
        let topic = unique("t");
        let mut client = Client::open(Broker::shared(), version);
        client.send(&Connect::new(unique("c")));
        expect_bytes(&client, &[0x20, 2, 0, 0]);
        client.send(&Subscribe::new(0x0102).filter(&topic, 2).filter(unique("t"), 0));
        expect_bytes(&client, &[0x90, 4, 1, 2, 2, 0]);
        client.send(&Unsubscribe::new(0x0304).filter(&topic));
        expect_bytes(&client, &[0xB0, 2, 3, 4]);
        client.send(&Publish::new(&topic, "x").qos(1).id(0x0506));
        expect_bytes(&client, &[0x40, 2, 5, 6]);
        client.send(&Publish::new(&topic, "x").qos(2).id(0x0708));
        expect_bytes(&client, &[0x50, 2, 7, 8]);
        client.send(&wire::ack(PUBREL, 0x0708));
        expect_bytes(&client, &[0x70, 2, 7, 8]);
        client.send(&wire::PINGREQ);
        expect_bytes(&client, &[0xD0, 0]);
        client.disconnect();
    }
}

// [MQTT3-3.1.3-8] [MQTT3-3.1.3-6] [MQTT3-3.2.2-4] [MQTT3-3.2.2-5]
#[test]
fn an_empty_client_identifier_needs_clean_session() {
    let refused = Connect::new("").resume().bytes(V4);
    assert_eq!(answer_to(Broker::shared(), &refused), [0x20, 2, 0, 2]);
    // Two at once are two sessions: each has an identifier of its own.
    let (mut first, _) = Client::connect_with(Broker::shared(), V4, &Connect::new(""));
    let (mut second, _) = Client::connect_with(Broker::shared(), V4, &Connect::new(""));
    first.ping();
    second.ping();
}

// [MQTT3-3.1.3-9] [MQTT3-3.2.2-4] [MQTT3-3.2.2-5]
#[test]
fn a_refused_client_identifier_is_answered_by_return_code_2() {
    let broker = Broker::with(&["mqtt.allow_empty_client_id=false"]);
    assert_eq!(answer_to(&broker, &Connect::new("").bytes(V4)), [0x20, 2, 0, 2]);
}

// [MQTT3-3.2.2-6] [MQTT3-3.2.2-5]
#[test]
fn a_refusal_has_a_return_code_of_3_1_1_or_none() {
    let broker = Broker::with(&["mqtt.maximum_qos=1", "mqtt.retain_available=false"]);
    for will in [Will::new("t", "x").qos(2), Will::new("t", "x").retain()] {
        let answer = answer_to(&broker, &Connect::new(unique("c")).will(will).bytes(V4));
        // The reasons of version 5, 0x9A and 0x9B, have no counterpart: what comes is the server's choice.
        assert!(matches!(answer[..], [] | [0x20, 2, 0, 1..=5]), "{answer:02x?}");
    }
}

// [MQTT3-4.8.0-1] [MQTT3-3.3.1-4] [MQTT3-3.3.2-2] [MQTT3-2.2.2-2] [MQTT3-3.1.0-2]
#[test]
fn a_violation_ends_the_connection_without_a_word() {
    let violations = [
        Publish::new("t", "x").qos(3).id(1).bytes(V4),
        Publish::new("t/+", "x").bytes(V4),
        Publish::new("t/#", "x").qos(1).id(1).bytes(V4),
        Publish::new("", "x").bytes(V4),
        Publish::new("t", "x").qos(1).id(0).bytes(V4),
        Publish::new("t", "x").qos(2).id(0).bytes(V4),
        Subscribe::new(0).filter("t", 0).bytes(V4),
        Connect::new(unique("c")).bytes(V4),
        wire::frame(0xC1, &[]),
        wire::frame(0xE1, &[]),
        wire::frame(0xF0, &[]),
        wire::frame(0x00, &[]),
        wire::frame(0x20, &[0, 0]),
        wire::frame(0x60, &[0, 1]),
    ];
    for violation in violations {
        let mut client = Client::connect(Broker::shared(), V4);
        client.send(&violation);
        client.expect_closed();
    }
}

// [MQTT3-3.1.2-3] [MQTT3-2.2.2-2]
#[test]
fn a_connect_with_a_reserved_bit_is_closed_without_a_word() {
    for (name, level) in [("MQIsdp", 3), ("MQTT", 4)] {
        let valid = connect_as(name, level);
        assert_eq!(answer_to_connect(&valid), [0x20, 2, 0, 0]);
        for flags in 1..16 {
            let mut header = valid.clone();
            header[0] |= flags;
            assert_eq!(answer_to(Broker::shared(), &header), [], "{name}, fixed header {:#x}", header[0]);
        }
        let mut reserved = valid;
        reserved[2 + 2 + name.len() + 1] |= 1;
        assert_eq!(answer_to(Broker::shared(), &reserved), [], "{name}, reserved connect flag");
    }
}

/// The CONNACK to a CONNECT that is accepted.
fn answer_to_connect(bytes: &[u8]) -> [u8; 4] {
    let mut client = Client::open(Broker::shared(), V4);
    client.send(bytes);
    let mut answer = [0; 4];
    client.stream().set_read_timeout(Some(mainstem_conformance::DEADLINE)).expect("a socket");
    client.stream().read_exact(&mut answer).expect("an answer in time");
    answer
}

// [MQTT3-3.1.4-5]
#[test]
fn what_follows_a_refused_connect_is_not_processed() {
    let topic = unique("t");
    let mut subscriber = Client::connect(Broker::shared(), V4);
    subscriber.subscribe(&topic, 1);
    let refused = Connect::new("").resume().bytes(V4);
    let both = [refused, Publish::new(&topic, "x").bytes(V4)].concat();
    assert_eq!(answer_to(Broker::shared(), &both), [0x20, 2, 0, 2]);
    let mut publisher = Client::connect(Broker::shared(), V4);
    assert_eq!(subscriber.drain(&mut publisher), []);
}

// [MQTT3-7.0.0-2] [MQTT3-3.3.2-3]
#[test]
fn messages_cross_between_the_versions_without_what_the_older_lacks() {
    for (from, to) in [(V5, V4), (V5, V3), (V4, V5), (V3, V5), (V3, V4)] {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), to);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), from);
        let props = Props::new()
            .byte(property::PAYLOAD_FORMAT_INDICATOR, 1)
            .data(property::CONTENT_TYPE, "text/plain")
            .user("name", "value");
        publisher.publish_with(Publish::new(&topic, "x").props(props), 1);
        let message = subscriber.expect_message();
        assert_eq!((message.topic.as_str(), message.text().as_str(), message.qos), (topic.as_str(), "x", 1));
        if to != V5 {
            assert_eq!(message.packet_len, 2 + 2 + topic.len() + 2 + 1, "no properties in MQTT {to:?}");
        }
    }
}

// [MQTT3-3.1.2-24]
#[test]
fn keep_alive_ends_a_silent_connection_without_a_word() {
    for version in OLD {
        let connect = Connect::new(unique("c")).keep_alive(1);
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &connect);
        client.expect_closed();
    }
}
