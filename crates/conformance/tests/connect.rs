//! CONNECT (3.1): its format, flags, client identifiers, and what follows a bad one.

use std::io::{ErrorKind, Read};

use mainstem_conformance::prelude::*;
use wire::Wire;

/// A CONNECT with any protocol name and level, in the layout of the version that `level` comes nearest to.
fn connect_as(name: &str, level: u8) -> Vec<u8> {
    let mut body = wire::data(name);
    body.extend([level, 0x02, 0, 60]);
    if level >= 5 {
        body.push(0);
    }
    body.extend(wire::data(unique("c")));
    wire::frame(0x10, &body)
}

/// All bytes until the server closes.
fn answer_to(bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::open(Broker::shared(), V4);
    client.send(bytes);
    let mut answer = Vec::new();
    client.stream().set_read_timeout(Some(mainstem_conformance::DEADLINE)).expect("a socket");
    match client.stream().read_to_end(&mut answer) {
        Ok(_) => answer,
        Err(e) if e.kind() == ErrorKind::ConnectionReset => answer,
        Err(e) => panic!("the server did not close in time: {e}; it sent {answer:02x?}"),
    }
}

// [MQTT5-3.1.0-1] [MQTT3-3.1.0-1] [MQTT5-3.14.0-1]
#[test]
fn the_first_packet_must_be_connect() {
    for version in BOTH {
        let first = [
            Publish::new("a", "x").bytes(version),
            Publish::new("a", "x").qos(1).id(1).bytes(version),
            Subscribe::new(1).filter("a", 0).bytes(version),
            Unsubscribe::new(1).filter("a").bytes(version),
            wire::PINGREQ.to_vec(),
            wire::DISCONNECT.to_vec(),
            wire::ack(PUBREL, 1),
            wire::auth(0x18, &Props::new().data(property::AUTHENTICATION_METHOD, "m")),
        ];
        for packet in first {
            // Not even a DISCONNECT: that may only follow a CONNACK.
            assert_eq!(answer_to(&packet), b"", "{packet:02x?}");
        }
    }
}

// [MQTT5-3.1.0-2] [MQTT3-3.1.0-2] [MQTT5-3.2.0-2] [MQTT5-4.13.1-1]
#[test]
fn a_second_connect_is_a_protocol_error() {
    for version in BOTH {
        let id = unique("c");
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &Connect::new(&id));
        client.send(&Connect::new(&id));
        client.expect_refused(reason::PROTOCOL_ERROR);
    }
}

// [MQTT5-3.1.2-1] [MQTT3-3.1.2-1]
#[test]
fn other_protocol_names_are_refused() {
    for name in ["mqtt", "MQTTT", "MQT", "HTTP", "", "MQIsdp"] {
        for level in [4, 5] {
            let answer = answer_to(&connect_as(name, level));
            let fits = matches!(answer.as_slice(), [] | [0x20, 0x02, 0, 1] | [0x20, _, 0, 0x84 | 0x81, ..]);
            assert!(fits, "{name:?} level {level}: {answer:02x?}");
        }
    }
}

// [MQTT5-3.1.2-2] [MQTT3-3.1.2-2]
#[test]
fn unknown_protocol_levels_are_refused() {
    for level in [0, 1, 2, 3, 6, 7, 127, 255] {
        let answer = answer_to(&connect_as("MQTT", level));
        let fits = matches!(answer.as_slice(), [] | [0x20, 0x02, 0, 1] | [0x20, _, 0, 0x84, ..]);
        assert!(fits, "level {level}: {answer:02x?}");
    }
}

// [MQTT5-3.1.2-3] [MQTT3-3.1.2-3] [MQTT5-3.1.4-1] [MQTT3-3.1.4-1]
#[test]
fn the_reserved_connect_flag_must_be_0() {
    for version in BOTH {
        let connect = Connect::new(unique("c"));
        let code = Client::refused(
            Broker::shared(),
            version,
            &connect.bytes_with_flags(version, connect.flags() | 0x01),
        );
        assert!(code.is_none_or(|code| version != V5 || code == reason::MALFORMED_PACKET), "{code:02x?}");
    }
}

// [MQTT5-3.1.2-9] [MQTT3-3.1.2-9] [MQTT5-3.1.2-11] [MQTT3-3.1.2-11] [MQTT3-3.1.2-13] [MQTT5-3.1.2-12]
// [MQTT3-3.1.2-14] [MQTT5-3.1.2-13] [MQTT3-3.1.2-15] [MQTT5-3.1.4-1]
#[test]
fn will_flags_that_contradict_are_refused() {
    const WILL: u8 = 0x04;
    const WILL_QOS_1: u8 = 0x08;
    const WILL_QOS_2: u8 = 0x10;
    const WILL_RETAIN: u8 = 0x20;
    for version in BOTH {
        let plain = Connect::new(unique("c"));
        let willed = Connect::new(unique("c")).will(Will::new(unique("w"), "x"));
        let bad = [
            plain.bytes_with_flags(version, 0x02 | WILL_QOS_1),
            plain.bytes_with_flags(version, 0x02 | WILL_QOS_2),
            plain.bytes_with_flags(version, 0x02 | WILL_RETAIN),
            plain.bytes_with_flags(version, 0x02 | WILL),
            willed.bytes_with_flags(version, 0x02 | WILL | WILL_QOS_1 | WILL_QOS_2),
            willed.bytes_with_flags(version, 0x02),
        ];
        for connect in bad {
            let code = Client::refused(Broker::shared(), version, &connect);
            let fits = version != V5
                || matches!(code, None | Some(reason::MALFORMED_PACKET | reason::PROTOCOL_ERROR));
            assert!(fits, "{code:02x?} for {connect:02x?}");
        }
    }
}

// [MQTT5-3.1.2-16] [MQTT3-3.1.2-18] [MQTT5-3.1.2-17] [MQTT3-3.1.2-19] [MQTT5-3.1.2-18] [MQTT3-3.1.2-20]
// [MQTT5-3.1.2-19] [MQTT3-3.1.2-21]
#[test]
fn user_name_and_password_flags_must_fit_the_payload() {
    const USER: u8 = 0x80;
    const PASSWORD: u8 = 0x40;
    for version in BOTH {
        let plain = Connect::new(unique("c"));
        let user = Connect::new(unique("c")).username("u");
        let both = Connect::new(unique("c")).username("u").password("p");
        let bad = [
            plain.bytes_with_flags(version, 0x02 | USER),
            user.bytes_with_flags(version, 0x02),
            user.bytes_with_flags(version, 0x02 | USER | PASSWORD),
            both.bytes_with_flags(version, 0x02 | USER),
        ];
        for connect in bad {
            let code = Client::refused(Broker::shared(), version, &connect);
            let fits = version != V5
                || matches!(code, None | Some(reason::MALFORMED_PACKET | reason::PROTOCOL_ERROR));
            assert!(fits, "{code:02x?} for {connect:02x?}");
        }
        Client::connect_with(Broker::shared(), version, &user);
        Client::connect_with(Broker::shared(), version, &both);
    }
}

// [MQTT3-3.1.2-22]
#[test]
fn a_password_without_a_user_name_is_for_version_5_only() {
    let connect = Connect::new(unique("c")).password("p");
    Client::refused(Broker::shared(), V4, &connect);
    Client::connect_with(Broker::shared(), V5, &connect);
}

// [MQTT5-3.1.3-1] [MQTT3-3.1.3-1] [MQTT5-3.1.3-3] [MQTT3-3.1.3-3]
#[test]
fn all_payload_fields_are_read_in_their_order() {
    for version in BOTH {
        let topic = unique("will");
        let mut watcher = Client::connect(Broker::shared(), version);
        watcher.subscribe(&topic, 0);
        let connect =
            Connect::new(unique("c")).will(Will::new(&topic, "will")).username("user").password([0, 255]);
        let (client, _) = Client::connect_with(Broker::shared(), version, &connect);
        client.abort();
        assert_eq!(watcher.expect_message().text(), "will");
        // One byte short, and one too many.
        let mut bytes = connect.bytes(version);
        bytes.push(0);
        bytes[1] += 1;
        Client::refused(Broker::shared(), version, &bytes);
        bytes.truncate(bytes.len() - 2);
        bytes[1] -= 2;
        Client::refused(Broker::shared(), version, &bytes);
    }
}

// [MQTT5-3.1.3-5] [MQTT3-3.1.3-5]
#[test]
fn client_identifiers_of_1_to_23_letters_and_digits_are_accepted() {
    let characters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for version in [V3, V4, V5] {
        for start in (0..characters.len()).step_by(23) {
            let id = &characters[start..characters.len().min(start + 23)];
            let (client, _) = Client::connect_with(Broker::shared(), version, &Connect::new(id));
            client.disconnect();
        }
        Client::connect_with(Broker::shared(), version, &Connect::new("7")).0.disconnect();
    }
}

// [MQTT5-3.1.3-6] [MQTT5-3.1.3-7] [MQTT5-3.2.2-16]
#[test]
fn an_empty_client_identifier_is_replaced_by_a_unique_one() {
    let assigned = || {
        let connect = Connect::new("").session_expiry(60);
        let (client, connack) = Client::connect_with(Broker::shared(), V5, &connect);
        let id = connack
            .props
            .text(property::ASSIGNED_CLIENT_IDENTIFIER)
            .expect("an assigned identifier")
            .to_owned();
        assert!(!id.is_empty());
        (client, id)
    };
    let ((first, one), (second, two)) = (assigned(), assigned());
    // Nobody can guess one from another: about half of the 128 bits differ, never fewer than 20.
    let number =
        |id: &str| u128::from_str_radix(id.strip_prefix("auto-").expect("the prefix"), 16).expect("hex");
    assert!((number(&one) ^ number(&two)).count_ones() >= 20, "{one} and {two}");
    first.abort();
    second.abort();
    // The identifier is as good as one the client chose: its session can be resumed.
    let (_, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new(&one).resume());
    assert!(connack.session_present);
    assert!(!connack.props.has(property::ASSIGNED_CLIENT_IDENTIFIER));
}

// [MQTT3-3.1.3-6] [MQTT3-3.1.3-7]
#[test]
fn two_clients_without_identifier_are_two_clients() {
    let (mut one, _) = Client::connect_with(Broker::shared(), V4, &Connect::new(""));
    let (mut two, _) = Client::connect_with(Broker::shared(), V4, &Connect::new(""));
    one.ping();
    two.ping();
}

// [MQTT3-3.1.3-8] [MQTT3-3.2.2-5] [MQTT3-3.2.2-4]
#[test]
fn an_empty_identifier_with_a_kept_session_is_rejected_by_3_1_1() {
    let code = Client::refused(Broker::shared(), V4, &Connect::new("").resume());
    assert_eq!(code, Some(reason::V4_IDENTIFIER_REJECTED));
}

// [MQTT5-3.1.3-6]
#[test]
fn an_empty_identifier_may_ask_for_a_kept_session_in_version_5() {
    let (_, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new("").durable());
    assert!(!connack.session_present && connack.props.has(property::ASSIGNED_CLIENT_IDENTIFIER));
}

// [MQTT5-3.1.3-8] [MQTT3-3.1.3-9] [MQTT5-3.2.2-7]
#[test]
fn empty_identifiers_can_be_forbidden() {
    let broker = Broker::with(&["mqtt.allow_empty_client_id=false"]);
    assert_eq!(Client::refused(&broker, V5, &Connect::new("")), Some(reason::CLIENT_IDENTIFIER_NOT_VALID));
    assert_eq!(Client::refused(&broker, V4, &Connect::new("")), Some(reason::V4_IDENTIFIER_REJECTED));
    Client::connect(&broker, V5).ping();
}

// [MQTT5-3.1.3-2] [MQTT3-3.1.3-2]
#[test]
fn sessions_are_told_apart_by_the_client_identifier() {
    for version in BOTH {
        let (one, two) = (unique("id"), unique("ID"));
        Client::connect_with(Broker::shared(), version, &Connect::new(&one).durable()).0.abort();
        let connack = Client::connect_with(Broker::shared(), version, &Connect::new(&two).durable()).1;
        assert!(!connack.session_present);
        // Upper and lower case are different identifiers.
        let upper = one.to_uppercase();
        let connack = Client::connect_with(Broker::shared(), version, &Connect::new(&upper).durable()).1;
        assert!(!connack.session_present);
        let connack = Client::connect_with(Broker::shared(), version, &Connect::new(&one).durable()).1;
        assert!(connack.session_present);
    }
}

// [MQTT5-3.1.4-6] [MQTT3-3.1.4-5] [MQTT5-3.2.2-7] [MQTT5-4.13.2-1]
#[test]
fn nothing_behind_a_rejected_connect_is_processed() {
    for version in BOTH {
        let topic = unique("behind");
        let mut watcher = Client::connect(Broker::shared(), version);
        watcher.subscribe(&topic, 0);
        let mut bytes = match version {
            V5 => {
                let props = Props::new().data(property::AUTHENTICATION_METHOD, "none such");
                Connect::new(unique("c")).props(props).bytes(V5)
            }
            _ => Connect::new("").resume().bytes(version),
        };
        bytes.extend(Publish::new(&topic, "x").bytes(version));
        assert!(Client::refused(Broker::shared(), version, &bytes).is_some());
        let mut publisher = Client::connect(Broker::shared(), version);
        assert_eq!(watcher.drain(&mut publisher), []);
    }
}

// [MQTT5-3.2.0-1] [MQTT3-3.2.0-1] [MQTT5-4.2.0-1] [MQTT5-3.1.4-5] [MQTT3-3.1.4-4]
#[test]
fn packets_may_follow_connect_at_once() {
    for version in BOTH {
        let topic = unique("at-once");
        let mut bytes = Connect::new(unique("c")).bytes(version);
        bytes.extend(Subscribe::new(1).filter(&topic, 1).bytes(version));
        bytes.extend(Publish::new(&topic, "x").qos(1).id(2).bytes(version));
        bytes.extend(wire::PINGREQ);
        let mut client = Client::open(Broker::shared(), version);
        client.send(&bytes);
        assert!(matches!(client.recv(), Packet::ConnAck(connack) if connack.reason == 0));
        assert_eq!(client.expect_answer(SUBACK).id, 1);
        assert_eq!(client.expect_ack(PUBACK).id, 2);
        assert_eq!(client.expect_message().text(), "x");
        client.recv_where(|packet| (*packet == Packet::PingResp).then_some(()));
    }
}

// [MQTT5-4.2.0-1]
#[test]
fn packets_may_come_byte_by_byte() {
    for version in BOTH {
        let topic = unique("bytes");
        let mut bytes = Connect::new(unique("c")).username("u").bytes(version);
        bytes.extend(Subscribe::new(1).filter(&topic, 0).bytes(version));
        bytes.extend(Publish::new(&topic, vec![b'x'; 200]).bytes(version));
        let mut client = Client::open(Broker::shared(), version);
        for byte in bytes {
            client.send(&[byte]);
        }
        assert!(matches!(client.recv(), Packet::ConnAck(connack) if connack.reason == 0));
        assert_eq!(client.expect_answer(SUBACK).id, 1);
        assert_eq!(client.expect_message().payload.len(), 200);
    }
}

// [MQTT3-3.1.2-1]
#[test]
fn clients_of_version_3_1_are_served() {
    let topic = unique("v3");
    let mut client = Client::connect(Broker::shared(), V3);
    client.subscribe(&topic, 2);
    for qos in 0..=2 {
        client.publish(&topic, format!("{qos}"), qos);
        let message = client.expect_message();
        assert_eq!((message.qos, message.text()), (qos, format!("{qos}")));
    }
    client.ping();
    client.disconnect();
}

// [MQTT5-3.1.2-28]
#[test]
fn response_information_comes_only_when_asked_for() {
    let broker = Broker::with(&["mqtt.response_information=answers/here"]);
    let ask = |value| {
        let props = Props::new().byte(property::REQUEST_RESPONSE_INFORMATION, value);
        let (_, connack) = Client::connect_with(&broker, V5, &Connect::new(unique("c")).props(props));
        connack.props.text(property::RESPONSE_INFORMATION).map(str::to_owned)
    };
    assert_eq!(ask(0), None);
    assert_eq!(ask(1).as_deref(), Some("answers/here"));
    let (_, connack) = Client::connect_with(&broker, V5, &Connect::new(unique("c")));
    assert!(!connack.props.has(property::RESPONSE_INFORMATION));
}

// [MQTT5-3.1.2-29]
#[test]
fn problem_information_can_be_turned_off() {
    let quiet = Props::new().byte(property::REQUEST_PROBLEM_INFORMATION, 0);
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")).props(quiet));
    // Each answer reports a problem, so each has something to say.
    client.send(&Subscribe::new(1).filter("$SYS/#", 0).filter(unique("f"), 0));
    assert!(client.expect_answer(SUBACK).props.is_empty());
    client.send(&Unsubscribe::new(2).filter(unique("never")));
    assert!(client.expect_answer(UNSUBACK).props.is_empty());
    client.send(&Publish::new(unique("nobody"), "x").qos(1).id(3));
    assert!(client.expect_ack(PUBACK).props.is_empty());
    client.send(&Publish::new("$SYS/nothing", "x").qos(2).id(4));
    assert!(client.expect_ack(PUBREC).props.is_empty());
    client.send(&wire::ack(PUBREL, 5));
    assert!(client.expect_ack(PUBCOMP).props.is_empty());
}
