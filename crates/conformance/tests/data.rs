//! Data representation (1.5) and the form of control packets (2).

use mainstem_conformance::prelude::*;

/// Byte strings that are not UTF-8, or that MQTT forbids in its strings.
const ILL_FORMED: [&[u8]; 6] = [
    b"\xC0\x80",         // U+0000 in a form that is too long
    b"\xED\xA0\x80",     // the surrogate U+D800
    b"\xED\xBF\xBF",     // the surrogate U+DFFF
    b"\xF4\x90\x80\x80", // beyond U+10FFFF
    b"\xE2\x82",         // truncated
    b"\x80",             // a continuation byte alone
];

fn between(bad: &[u8]) -> Vec<u8> {
    [b"a", bad, b"z"].concat()
}

/// CONNECTs with `bad` in every string field that `version` has.
fn connects(version: Version, bad: &[u8]) -> Vec<Connect> {
    let mut list = vec![
        Connect::new(between(bad)),
        Connect::new(unique("c")).username(between(bad)),
        Connect::new(unique("c")).will(Will::new(between(bad), "x")),
    ];
    if version == V5 {
        let props = [
            Props::new().user(between(bad), "x"),
            Props::new().user("x", between(bad)),
            Props::new().data(property::AUTHENTICATION_METHOD, between(bad)),
        ];
        list.extend(props.map(|props| Connect::new(unique("c")).props(props)));
        let will_props = [
            Props::new().user(between(bad), "x"),
            Props::new().data(property::CONTENT_TYPE, between(bad)),
            Props::new().data(property::RESPONSE_TOPIC, between(bad)),
        ];
        let will = |props| Connect::new(unique("c")).will(Will::new("will", "x").props(props));
        list.extend(will_props.map(will));
    }
    list
}

/// Other packets with `bad` in every string field that `version` has.
fn packets(version: Version, bad: &[u8]) -> Vec<Vec<u8>> {
    use wire::Wire;
    let mut list = vec![
        Publish::new(between(bad), "x").bytes(version),
        Subscribe::new(1).filter(between(bad), 0).bytes(version),
        Subscribe::new(1).filter("fine", 0).filter(between(bad), 0).bytes(version),
        Unsubscribe::new(1).filter(between(bad)).bytes(version),
    ];
    if version == V5 {
        let user = || Props::new().user("x", between(bad));
        let props = [
            Props::new().user(between(bad), "x"),
            user(),
            Props::new().data(property::CONTENT_TYPE, between(bad)),
            Props::new().data(property::RESPONSE_TOPIC, between(bad)),
        ];
        list.extend(props.map(|props| Publish::new("fine", "x").props(props).bytes(version)));
        list.push(Subscribe::new(1).filter("fine", 0).props(user()).bytes(version));
        list.push(Unsubscribe::new(1).filter("fine").props(user()).bytes(version));
        list.push(wire::disconnect_with(0, &user()));
        list.push(wire::disconnect_with(0, &Props::new().data(property::REASON_STRING, between(bad))));
    }
    list
}

fn refused_everywhere(bad: &[u8]) {
    let broker = Broker::shared();
    for version in BOTH {
        for connect in connects(version, bad) {
            let code = Client::refused(broker, version, &connect);
            let fits = match version {
                V5 => matches!(
                    code,
                    None | Some(reason::MALFORMED_PACKET | reason::CLIENT_IDENTIFIER_NOT_VALID)
                ),
                _ => true,
            };
            assert!(fits, "{version:?}: code {code:02x?} for {connect:02x?}");
        }
        for packet in packets(version, bad) {
            let mut client = Client::connect(broker, version);
            client.send(&packet);
            client.expect_refused(reason::MALFORMED_PACKET);
        }
    }
}

// [MQTT5-1.5.4-1] [MQTT3-1.5.3-1] [MQTT5-1.5.7-1] [MQTT5-3.1.3-4] [MQTT3-3.1.3-4] [MQTT5-3.1.3-11] [MQTT3-3.1.3-10]
// [MQTT5-3.1.3-12] [MQTT3-3.1.3-11] [MQTT5-3.3.2-1] [MQTT3-3.3.2-1] [MQTT5-3.3.2-13] [MQTT5-3.3.2-19]
// [MQTT5-3.8.3-1] [MQTT3-3.8.3-1] [MQTT5-3.10.3-1] [MQTT3-3.10.3-1]
#[test]
fn ill_formed_utf8_ends_the_connection() {
    for bad in ILL_FORMED {
        refused_everywhere(bad);
    }
}

// [MQTT5-1.5.4-2] [MQTT3-1.5.3-2] [MQTT5-4.7.3-2] [MQTT3-4.7.3-2]
#[test]
fn the_null_character_ends_the_connection() {
    refused_everywhere(b"\0");
}

// [MQTT5-1.5.4-3] [MQTT3-1.5.3-3] [MQTT5-4.7.3-4] [MQTT3-4.7.3-4]
#[test]
fn a_byte_order_mark_is_a_character_like_any_other() {
    let broker = Broker::shared();
    for version in BOTH {
        let plain = unique("bom");
        let marked = format!("\u{FEFF}{plain}");
        let inside = format!("{plain}/\u{FEFF}/x");
        let mut client = Client::connect(broker, version);
        client.subscribe(&marked, 0);
        client.subscribe(&inside, 0);
        let props = Props::new().user("\u{FEFF}name", "\u{FEFF}");
        client.publish(&plain, "plain", 0);
        client.publish_with(Publish::new(&marked, "marked").props(props), 0);
        client.publish(&inside, "inside", 0);
        let message = client.expect_message();
        assert_eq!((message.topic.as_str(), message.text().as_str()), (marked.as_str(), "marked"));
        if version == V5 {
            assert_eq!(message.props.user(), [("\u{FEFF}name", "\u{FEFF}")]);
        }
        assert_eq!(client.expect_message().topic, inside);
    }
}

// [MQTT5-1.5.4-1] [MQTT3-1.5.3-1]
#[test]
fn strings_of_every_length_of_utf8_sequence_pass() {
    let broker = Broker::shared();
    for version in BOTH {
        let topic = format!("{}/\u{7F}é\u{7FF}ࠀ\u{D7FF}\u{E000}\u{FFFD}\u{10000}\u{10FFFD}", unique("utf8"));
        let mut client = Client::connect(broker, version);
        client.subscribe(&topic, 0);
        client.publish(&topic, "x", 0);
        assert_eq!(client.expect_message().topic, topic);
    }
}

// [MQTT5-1.5.5-1] [MQTT3-2.2.2-1]
#[test]
fn remaining_lengths_around_every_boundary_go_both_ways() {
    let broker = Broker::shared();
    for version in BOTH {
        let topic = unique("len");
        let mut client = Client::connect(broker, version);
        client.subscribe(&topic, 0);
        let head = 2 + topic.len() + usize::from(version == V5);
        for remaining in [head, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            let payload = vec![b'x'; remaining - head];
            client.publish(&topic, &payload, 0);
            // The reader insists on the shortest form of the remaining length.
            assert!(client.expect_message().payload == payload, "{version:?} {remaining}");
        }
    }
}

// [MQTT5-1.5.5-1] [MQTT5-4.13.1-1]
#[test]
fn a_remaining_length_of_five_bytes_is_malformed() {
    for version in BOTH {
        for bytes in [[0xC0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F], [0x30, 0x80, 0x80, 0x80, 0x80, 0x01]] {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(&bytes);
            client.expect_refused(reason::MALFORMED_PACKET);
        }
        assert_ne!(
            Client::refused(Broker::shared(), version, &[0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
            Some(0)
        );
    }
}

// [MQTT5-1.5.5-1]
#[test]
fn a_remaining_length_with_spare_bytes_is_refused_or_understood() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&[0xC0, 0x80, 0x00]);
        match client.event() {
            Event::Packet(Packet::PingResp) | Event::Closed => {}
            Event::Packet(Packet::Disconnect(disconnect)) => {
                assert_eq!(disconnect.reason, reason::MALFORMED_PACKET);
                client.expect_closed();
            }
            other @ Event::Packet(_) => panic!("{other:?}"),
        }
    }
}

// [MQTT5-2.1.3-1] [MQTT3-2.2.2-1] [MQTT3-2.2.2-2] [MQTT5-3.6.1-1] [MQTT3-3.6.1-1] [MQTT5-3.8.1-1] [MQTT3-3.8.1-1]
// [MQTT5-3.10.1-1] [MQTT3-3.10.1-1] [MQTT5-3.14.1-1] [MQTT3-3.14.1-1] [MQTT5-3.15.1-1]
#[test]
fn reserved_flags_of_the_fixed_header_are_malformed() {
    use wire::Wire;
    for version in BOTH {
        let good = [
            wire::ack(PUBACK, 1),
            wire::ack(PUBREC, 1),
            wire::ack(PUBREL, 1),
            wire::ack(PUBCOMP, 1),
            Subscribe::new(1).filter("a", 0).bytes(version),
            Unsubscribe::new(1).filter("a").bytes(version),
            wire::PINGREQ.to_vec(),
            wire::DISCONNECT.to_vec(),
        ];
        for packet in good {
            for bit in [0x01, 0x02, 0x04, 0x08] {
                let mut bad = packet.clone();
                bad[0] ^= bit;
                let mut client = Client::connect(Broker::shared(), version);
                client.send(&bad);
                client.expect_refused(reason::MALFORMED_PACKET);
            }
        }
        let mut connect = Connect::new(unique("c")).bytes(version);
        connect[0] |= 0x01;
        let code = Client::refused(Broker::shared(), version, &connect);
        assert!(version != V5 || matches!(code, None | Some(reason::MALFORMED_PACKET)), "{code:02x?}");
    }
    let mut client = Client::connect(Broker::shared(), V5);
    client.send(&[0xF1, 0x00]);
    client.expect_refused(reason::MALFORMED_PACKET);
}

// [MQTT5-2.1.3-1] [MQTT5-4.13.1-1] [MQTT3-4.8.0-1]
#[test]
fn packets_that_no_client_sends_end_the_connection() {
    let to_v5: [&[u8]; 5] = [
        b"\x00\x00",
        b"\x20\x03\x00\x00\x00",
        b"\x90\x04\x00\x01\x00\x00",
        b"\xB0\x04\x00\x01\x00\x00",
        b"\xD0\x00",
    ];
    let to_v4: [&[u8]; 6] = [
        b"\x00\x00",
        b"\x20\x02\x00\x00",
        b"\x90\x03\x00\x01\x00",
        b"\xB0\x02\x00\x01",
        b"\xD0\x00",
        b"\xF0\x00",
    ];
    for (version, packets) in [(V5, &to_v5[..]), (V4, &to_v4[..])] {
        for packet in packets {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(*packet);
            client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
        }
    }
}

// [MQTT5-2.2.1-3] [MQTT3-2.3.1-1]
#[test]
fn packet_identifier_0_ends_the_connection() {
    use wire::Wire;
    for version in BOTH {
        let bad = [
            Publish::new("a", "x").qos(1).id(0).bytes(version),
            Publish::new("a", "x").qos(2).id(0).bytes(version),
            Subscribe::new(0).filter("a", 0).bytes(version),
            Unsubscribe::new(0).filter("a").bytes(version),
        ];
        for packet in bad {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(&packet);
            client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
        }
    }
}

// [MQTT5-2.2.1-2] [MQTT3-2.3.1-5]
#[test]
fn a_qos_0_message_has_no_packet_identifier() {
    for version in BOTH {
        let topic = unique("no-id");
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&topic, 0);
        // Published at QoS 2, so an identifier could slip through: it would stand before the payload.
        client.publish(&topic, "exactly this", 2);
        let message = client.expect_message();
        assert_eq!((message.qos, message.text().as_str()), (0, "exactly this"));
    }
}

// [MQTT5-2.2.1-4] [MQTT3-2.3.1-1] [MQTT3-2.3.1-4] [MQTT5-4.3.2-1] [MQTT5-4.3.3-1]
#[test]
fn the_server_uses_identifiers_that_are_not_zero_and_not_in_use() {
    for version in BOTH {
        let topic = unique("ids");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        let mut in_use = Vec::new();
        for n in 0..20 {
            publisher.publish(&topic, format!("{n}"), 1 + n % 2);
            let message = subscriber.expect_publish();
            assert!(message.id != 0 && !in_use.contains(&message.id), "{} again: {in_use:?}", message.id);
            in_use.push(message.id);
        }
    }
}

// [MQTT5-2.2.1-5] [MQTT3-2.3.1-6] [MQTT5-2.2.1-6] [MQTT3-2.3.1-7] [MQTT5-3.8.4-2] [MQTT3-3.8.4-2]
// [MQTT5-3.10.4-5] [MQTT3-3.10.4-5]
#[test]
fn answers_carry_the_identifier_of_the_request() {
    for version in BOTH {
        for id in [1, 255, 256, 0x1234, 65_535] {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(&Subscribe::new(id).filter(unique("x"), 1));
            assert_eq!(client.expect_answer(SUBACK).id, id);
            client.send(&Unsubscribe::new(id).filter(unique("x")));
            assert_eq!(client.expect_answer(UNSUBACK).id, id);
            client.send(&Publish::new(unique("x"), "x").qos(1).id(id));
            assert_eq!(client.expect_ack(PUBACK).id, id);
            client.send(&Publish::new(unique("x"), "x").qos(2).id(id));
            assert_eq!(client.expect_ack(PUBREC).id, id);
            client.send(&wire::ack(PUBREL, id));
            assert_eq!(client.expect_ack(PUBCOMP).id, id);
        }
    }
}

// [MQTT5-2.2.1-3]
#[test]
fn client_and_server_may_use_the_same_identifier_at_once() {
    for version in BOTH {
        let topic = unique("same-id");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 1);
        Client::connect(Broker::shared(), version).publish(&topic, "in", 1);
        let id = subscriber.expect_publish().id;
        subscriber.send(&Publish::new(unique("out"), "out").qos(1).id(id));
        assert_eq!(subscriber.expect_ack(PUBACK).id, id);
        subscriber.send(&wire::ack(PUBACK, id));
        subscriber.expect_silence();
    }
}
