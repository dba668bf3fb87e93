//! Properties (2.2.2): lengths, places, duplicates, values.

use mainstem_conformance::prelude::*;
use wire::Wire;

/// Each property, with a value that is right for it.
fn every_property() -> Vec<(u8, Props)> {
    let byte = [
        property::PAYLOAD_FORMAT_INDICATOR,
        property::REQUEST_PROBLEM_INFORMATION,
        property::REQUEST_RESPONSE_INFORMATION,
        property::MAXIMUM_QOS,
        property::RETAIN_AVAILABLE,
        property::WILDCARD_SUBSCRIPTION_AVAILABLE,
        property::SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        property::SHARED_SUBSCRIPTION_AVAILABLE,
    ];
    let two = [
        property::SERVER_KEEP_ALIVE,
        property::RECEIVE_MAXIMUM,
        property::TOPIC_ALIAS_MAXIMUM,
        property::TOPIC_ALIAS,
    ];
    let four = [
        property::MESSAGE_EXPIRY_INTERVAL,
        property::SESSION_EXPIRY_INTERVAL,
        property::WILL_DELAY_INTERVAL,
        property::MAXIMUM_PACKET_SIZE,
    ];
    let data = [
        property::CONTENT_TYPE,
        property::RESPONSE_TOPIC,
        property::CORRELATION_DATA,
        property::ASSIGNED_CLIENT_IDENTIFIER,
        property::AUTHENTICATION_METHOD,
        property::AUTHENTICATION_DATA,
        property::RESPONSE_INFORMATION,
        property::SERVER_REFERENCE,
        property::REASON_STRING,
    ];
    let mut all = vec![
        (property::SUBSCRIPTION_IDENTIFIER, Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, 7)),
        (property::USER_PROPERTY, Props::new().user("n", "v")),
    ];
    all.extend(byte.map(|id| (id, Props::new().byte(id, 1))));
    all.extend(two.map(|id| (id, Props::new().two(id, 9))));
    all.extend(four.map(|id| (id, Props::new().four(id, 900))));
    all.extend(data.map(|id| (id, Props::new().data(id, "text"))));
    assert_eq!(all.len(), 27);
    all
}

/// A packet's name, what a client may put into it (2.2.2.2), and how to build it.
type Place = (&'static str, Vec<u8>, fn(&Props) -> Vec<u8>);

fn places() -> Vec<Place> {
    vec![
        ("PUBLISH", vec![0x01, 0x02, 0x03, 0x08, 0x09, 0x23, 0x26], |p| {
            Publish::new(unique("p"), "x").props(p.clone()).bytes(V5)
        }),
        ("PUBACK", vec![0x1F, 0x26], |p| wire::ack_with(PUBACK, 1, 0, p)),
        ("PUBREC", vec![0x1F, 0x26], |p| wire::ack_with(PUBREC, 1, 0, p)),
        ("PUBREL", vec![0x1F, 0x26], |p| wire::ack_with(PUBREL, 1, 0, p)),
        ("PUBCOMP", vec![0x1F, 0x26], |p| wire::ack_with(PUBCOMP, 1, 0, p)),
        ("SUBSCRIBE", vec![0x0B, 0x26], |p| Subscribe::new(1).filter("p", 0).props(p.clone()).bytes(V5)),
        ("UNSUBSCRIBE", vec![0x26], |p| Unsubscribe::new(1).filter("p").props(p.clone()).bytes(V5)),
        // Server Reference is for servers; a Session Expiry Interval would need one in CONNECT.
        ("DISCONNECT", vec![0x11, 0x1C, 0x1F, 0x26], |p| wire::disconnect_with(0, p)),
    ]
}

const REFUSED: [u8; 2] = [reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR];

// [MQTT5-4.13.1-1] [MQTT5-3.3.4-6]
#[test]
fn a_property_in_the_wrong_packet_ends_the_connection() {
    for (name, allowed, packet) in places() {
        for (id, props) in every_property().iter().filter(|(id, _)| !allowed.contains(id)) {
            let mut client = Client::connect(Broker::shared(), V5);
            client.send(&packet(props));
            match client.event() {
                Event::Packet(Packet::Disconnect(d)) if REFUSED.contains(&d.reason) => client.expect_closed(),
                other => panic!("{name} with property {id:#04x}: {other:02x?}"),
            }
        }
    }
}

// [MQTT5-3.1.4-1]
#[test]
fn a_property_in_the_wrong_place_of_connect_is_refused() {
    let in_connect = [0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27];
    let in_will = [0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26];
    for (id, props) in every_property() {
        if !in_connect.contains(&id) {
            let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).props(props.clone()));
            assert!(code.is_none_or(|code| REFUSED.contains(&code)), "CONNECT, {id:#04x}: {code:02x?}");
        }
        if !in_will.contains(&id) {
            let will = Will::new(unique("w"), "x").props(props);
            let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).will(will));
            assert!(code.is_none_or(|code| REFUSED.contains(&code)), "will, {id:#04x}: {code:02x?}");
        }
    }
}

// [MQTT5-4.13.1-1]
#[test]
fn a_property_twice_is_a_protocol_error() {
    for (name, allowed, packet) in places() {
        for (id, props) in every_property() {
            if !allowed.contains(&id) || id == property::USER_PROPERTY {
                continue;
            }
            let twice = props.clone().raw(props.content());
            let mut client = Client::connect(Broker::shared(), V5);
            client.send(&packet(&twice));
            match client.event() {
                Event::Packet(Packet::Disconnect(d)) if REFUSED.contains(&d.reason) => client.expect_closed(),
                other => panic!("{name} with property {id:#04x} twice: {other:02x?}"),
            }
        }
    }
    for id in [0x11, 0x17, 0x19, 0x21, 0x22, 0x27] {
        let (_, props) = every_property().into_iter().find(|p| p.0 == id).expect("listed");
        let twice = props.clone().raw(props.content());
        let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).props(twice));
        assert!(code.is_none_or(|code| REFUSED.contains(&code)), "CONNECT, {id:#04x} twice: {code:02x?}");
    }
    for id in [0x01, 0x02, 0x03, 0x08, 0x09, 0x18] {
        let (_, props) = every_property().into_iter().find(|p| p.0 == id).expect("listed");
        let twice = props.clone().raw(props.content());
        let will = Will::new(unique("w"), "x").props(twice);
        let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).will(will));
        assert!(code.is_none_or(|code| REFUSED.contains(&code)), "will, {id:#04x} twice: {code:02x?}");
    }
}

// [MQTT5-4.13.1-1]
#[test]
fn unknown_properties_are_malformed() {
    for unknown in [0x00, 0x04, 0x0A, 0x10, 0x14, 0x1B, 0x20, 0x2B, 0x7F] {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&Publish::new(unique("p"), "x").props(Props::new().byte(unknown, 0)));
        client.expect_refused_with(&REFUSED);
    }
}

// [MQTT5-2.2.2-1] [MQTT5-4.13.1-1]
#[test]
fn property_lengths_must_fit() {
    // Each body: an identifier or topic, then a property length that does not fit what follows.
    let bad: [(u8, &[u8]); 9] = [
        (0x30, b"\x00\x01a"),                     // PUBLISH without a property length
        (0x30, b"\x00\x01a\x05\x01\x00"),         // longer than the packet
        (0x30, b"\x00\x01a\x01\x01"),             // ends inside a property
        (0x30, b"\x00\x01a\x03\x03\x00\x05"),     // ends inside a string
        (0x30, b"\x00\x01a\xFF\xFF\xFF\xFF\x7F"), // five bytes long
        (0x82, b"\x00\x01"),                      // SUBSCRIBE without a property length
        (0x82, b"\x00\x01\x7F\x00\x01a\x00"),     // that swallows the filters, and more
        (0xA2, b"\x00\x01"),                      // UNSUBSCRIBE without a property length
        (0x40, b"\x00\x01\x00\x05"),              // PUBACK with a property length and no properties
    ];
    for (first, body) in bad {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&wire::frame(first, body));
        client.expect_refused_with(&REFUSED);
    }
    let mut no_length = wire::data("MQTT");
    no_length.extend([5, 2, 0, 60]);
    let code = Client::refused(Broker::shared(), V5, &wire::frame(0x10, &no_length));
    assert!(code.is_none_or(|code| REFUSED.contains(&code)), "{code:02x?}");
}

// [MQTT5-4.13.1-1] [MQTT5-3.3.2-8]
#[test]
fn values_out_of_range_in_publish_end_the_connection() {
    let bad = [
        (Props::new().byte(property::PAYLOAD_FORMAT_INDICATOR, 2), &REFUSED[..]),
        (
            Props::new().two(property::TOPIC_ALIAS, 0),
            &[reason::TOPIC_ALIAS_INVALID, reason::PROTOCOL_ERROR][..],
        ),
    ];
    for (props, reasons) in bad {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&Publish::new(unique("p"), "x").props(props));
        client.expect_refused_with(reasons);
    }
}

// [MQTT5-3.1.4-1]
#[test]
fn values_out_of_range_in_connect_are_refused() {
    let bad = [
        Props::new().two(property::RECEIVE_MAXIMUM, 0),
        Props::new().four(property::MAXIMUM_PACKET_SIZE, 0),
        Props::new().byte(property::REQUEST_PROBLEM_INFORMATION, 2),
        Props::new().byte(property::REQUEST_RESPONSE_INFORMATION, 2),
        Props::new().data(property::AUTHENTICATION_DATA, "data without a method"),
    ];
    for props in bad {
        let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).props(props.clone()));
        assert!(code.is_none_or(|code| REFUSED.contains(&code)), "{props:02x?}: {code:02x?}");
    }
    let will = Will::new(unique("w"), "x").props(Props::new().byte(property::PAYLOAD_FORMAT_INDICATOR, 2));
    let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).will(will));
    assert!(code.is_none_or(|code| REFUSED.contains(&code)), "{code:02x?}");
}

// [MQTT5-2.2.2-1]
#[test]
fn every_property_a_client_may_send_is_accepted() {
    let connect = Props::new()
        .four(property::SESSION_EXPIRY_INTERVAL, 1)
        .two(property::RECEIVE_MAXIMUM, 10)
        .four(property::MAXIMUM_PACKET_SIZE, 100_000)
        .two(property::TOPIC_ALIAS_MAXIMUM, 5)
        .byte(property::REQUEST_RESPONSE_INFORMATION, 1)
        .byte(property::REQUEST_PROBLEM_INFORMATION, 1)
        .user("a", "1")
        .user("a", "2");
    let will = Props::new()
        .four(property::WILL_DELAY_INTERVAL, 1)
        .byte(property::PAYLOAD_FORMAT_INDICATOR, 1)
        .four(property::MESSAGE_EXPIRY_INTERVAL, 1)
        .data(property::CONTENT_TYPE, "text")
        .data(property::RESPONSE_TOPIC, "answer")
        .data(property::CORRELATION_DATA, [0, 1, 2])
        .user("a", "1");
    let will = Will::new(unique("w"), "x").props(will);
    let (mut client, _) =
        Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")).props(connect).will(will));
    for (name, allowed, packet) in places() {
        if !matches!(name, "PUBLISH" | "SUBSCRIBE" | "UNSUBSCRIBE") {
            continue;
        }
        for (id, props) in every_property().iter().filter(|(id, _)| allowed.contains(id)) {
            client.send(&packet(props));
            if name != "PUBLISH" {
                let kind = if name == "SUBSCRIBE" { SUBACK } else { UNSUBACK };
                assert_eq!(client.expect_answer(kind).id, 1, "{name}, {id:#04x}");
            }
            client.ping();
        }
    }
    client.send(&wire::disconnect_with(
        0,
        &Props::new()
            .four(property::SESSION_EXPIRY_INTERVAL, 0)
            .data(property::REASON_STRING, "bye")
            .user("a", "1"),
    ));
    client.expect_closed();
}
