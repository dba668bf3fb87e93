//! CONNACK (3.2): session present, what the server offers, and refusals.

use mainstem_conformance::prelude::*;

fn connack(broker: &Broker) -> ConnAck {
    Client::connect_with(broker, V5, &Connect::new(unique("c"))).1
}

/// Sends a SUBSCRIBE that the server does not support: it says so in the SUBACK, or in a DISCONNECT.
fn subscribe_unsupported(broker: &Broker, subscribe: &Subscribe, code: u8) {
    let mut client = Client::connect(broker, V5);
    client.send(subscribe);
    match client.event() {
        Event::Packet(Packet::Answer(answer)) => assert_eq!(answer.reasons, [code]),
        Event::Packet(Packet::Disconnect(disconnect)) => {
            assert_eq!(disconnect.reason, code);
            client.expect_closed();
        }
        other => panic!("{code:02x} expected: {other:?}"),
    }
}

// [MQTT5-3.2.0-1] [MQTT5-3.2.2-1] [MQTT5-3.2.2-8] [MQTT3-3.2.0-1] [MQTT5-3.1.4-5] [MQTT3-3.1.4-4]
#[test]
fn connack_is_the_first_packet() {
    for version in BOTH {
        let mut client = Client::open(Broker::shared(), version);
        client.send(&Connect::new(unique("c")));
        // The reader checks the reserved bits of its flags and the set of its codes.
        assert!(matches!(client.recv(), Packet::ConnAck(connack) if connack.reason == 0));
        client.expect_silence();
    }
}

// [MQTT5-3.2.2-2] [MQTT3-3.2.2-1] [MQTT5-3.2.2-3] [MQTT3-3.2.2-2] [MQTT3-3.2.2-3] [MQTT5-3.1.2-4] [MQTT5-3.1.2-5]
// [MQTT5-3.1.2-6] [MQTT5-3.1.4-4] [MQTT3-3.1.4-3]
#[test]
fn session_present_tells_whether_a_session_was_kept() {
    for version in BOTH {
        let id = unique("c");
        let present = |connect: Connect| {
            let (client, connack) = Client::connect_with(Broker::shared(), version, &connect);
            client.abort();
            connack.session_present
        };
        assert!(!present(Connect::new(&id).durable()), "nothing is kept yet");
        assert!(present(Connect::new(&id).durable()));
        assert!(present(Connect::new(&id).durable()));
        // A clean start ends the old session; in version 5 the new one may be kept again.
        assert!(!present(Connect::new(&id).session_expiry(600)));
        assert_eq!(present(Connect::new(&id).durable()), version == V5);
        assert!(!present(Connect::new(&id)));
        assert!(!present(Connect::new(&id).durable()), "the last session ended with its connection");
    }
}

// [MQTT5-3.2.2-6] [MQTT3-3.2.2-4] [MQTT5-3.2.2-7] [MQTT3-3.2.2-5] [MQTT5-4.12.0-1]
#[test]
fn a_refusal_says_no_session_and_closes() {
    let id = unique("c");
    Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable()).0.abort();
    let props = Props::new().data(property::AUTHENTICATION_METHOD, "none such");
    // The reader insists on session present 0 wherever the code is not 0.
    let code = Client::refused(Broker::shared(), V5, &Connect::new(&id).resume().props(props));
    assert_eq!(code, Some(reason::BAD_AUTHENTICATION_METHOD));
    // The refused attempt did not touch the session.
    assert!(Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable()).1.session_present);
}

// [MQTT5-3.2.2-9]
#[test]
fn what_the_server_supports_in_full_is_not_mentioned_or_said_to_be_there() {
    let props = connack(Broker::shared()).props;
    assert_eq!(props.number(property::MAXIMUM_QOS), None, "the property is 0 or 1 where it is there");
    for id in [
        property::RETAIN_AVAILABLE,
        property::WILDCARD_SUBSCRIPTION_AVAILABLE,
        property::SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        property::SHARED_SUBSCRIPTION_AVAILABLE,
    ] {
        assert!(matches!(props.number(id), None | Some(1)), "property {id:#04x}");
    }
    assert!(!props.has(property::AUTHENTICATION_METHOD) && !props.has(property::ASSIGNED_CLIENT_IDENTIFIER));
}

// [MQTT5-3.2.2-9]
#[test]
fn limits_stand_in_the_connack() {
    let broker = Broker::with(&[
        "mqtt.receive_maximum=7",
        "mqtt.topic_alias_maximum=3",
        "mqtt.max_packet_size_bytes=5000",
        "mqtt.session_expiry_s_max=100",
    ]);
    let props = connack(&broker).props;
    assert_eq!(props.number(property::RECEIVE_MAXIMUM), Some(7));
    assert_eq!(props.number(property::TOPIC_ALIAS_MAXIMUM), Some(3));
    assert_eq!(props.number(property::MAXIMUM_PACKET_SIZE), Some(5000));
    let asked = |seconds| {
        let connect = Connect::new(unique("c")).session_expiry(seconds);
        Client::connect_with(&broker, V5, &connect).1.props.number(property::SESSION_EXPIRY_INTERVAL)
    };
    assert_eq!(asked(101), Some(100));
    assert_eq!(asked(u32::MAX), Some(100));
    assert!(matches!(asked(99), None | Some(99)));
}

// [MQTT5-3.2.2-9] [MQTT5-3.2.2-10] [MQTT5-3.2.2-11] [MQTT5-3.2.2-12]
#[test]
fn maximum_qos_binds_publishers_and_wills_but_not_subscribers() {
    for maximum in [0, 1] {
        let broker = Broker::with(&[&format!("mqtt.maximum_qos={maximum}")]);
        assert_eq!(connack(&broker).props.number(property::MAXIMUM_QOS), Some(u32::from(maximum)));
        let topic = unique("t");
        let mut subscriber = Client::connect(&broker, V5);
        for qos in 0..=2 {
            let granted = subscriber.try_subscribe(&topic, qos);
            assert!(granted[0] <= qos, "QoS {qos} at maximum {maximum}: {granted:?}");
        }
        for qos in 0..=2 {
            let will = Connect::new(unique("c")).will(Will::new(unique("w"), "x").qos(qos));
            let mut publisher = Client::connect(&broker, V5);
            if qos <= maximum {
                Client::connect_with(&broker, V5, &will).0.disconnect();
                publisher.publish(&topic, "x", qos);
                assert_eq!(subscriber.expect_message().qos, qos);
            } else {
                assert_eq!(Client::refused(&broker, V5, &will), Some(reason::QOS_NOT_SUPPORTED));
                publisher.send(&Publish::new(&topic, "x").qos(qos).id(1));
                publisher.expect_refused(reason::QOS_NOT_SUPPORTED);
            }
        }
        Client::refused(&broker, V4, &Connect::new(unique("c")).will(Will::new("w", "x").qos(2)));
    }
}

// [MQTT5-3.2.2-13] [MQTT5-3.2.2-14]
#[test]
fn retained_messages_can_be_turned_off() {
    let broker = Broker::with(&["mqtt.retain_available=false"]);
    assert_eq!(connack(&broker).props.number(property::RETAIN_AVAILABLE), Some(0));
    let will = Connect::new(unique("c")).will(Will::new(unique("w"), "x").retain());
    assert_eq!(Client::refused(&broker, V5, &will), Some(reason::RETAIN_NOT_SUPPORTED));
    Client::refused(&broker, V4, &will);
    let mut publisher = Client::connect(&broker, V5);
    publisher.send(&Publish::new(unique("t"), "x").retain());
    publisher.expect_refused(reason::RETAIN_NOT_SUPPORTED);
}

// [MQTT5-4.13.1-1]
#[test]
fn wildcard_subscriptions_can_be_turned_off() {
    let broker = Broker::with(&["mqtt.wildcard_subscription_available=false"]);
    assert_eq!(connack(&broker).props.number(property::WILDCARD_SUBSCRIPTION_AVAILABLE), Some(0));
    for filter in ["#", "a/+", "$share/g/+"] {
        let subscribe = Subscribe::new(1).filter(filter, 0);
        subscribe_unsupported(&broker, &subscribe, reason::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED);
    }
    Client::connect(&broker, V5).subscribe("plain", 0);
}

// [MQTT5-4.13.1-1]
#[test]
fn subscription_identifiers_can_be_turned_off() {
    let broker = Broker::with(&["mqtt.subscription_ids_available=false"]);
    assert_eq!(connack(&broker).props.number(property::SUBSCRIPTION_IDENTIFIERS_AVAILABLE), Some(0));
    let props = Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, 1);
    let subscribe = Subscribe::new(1).filter("a", 0).props(props);
    subscribe_unsupported(&broker, &subscribe, reason::SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED);
    Client::connect(&broker, V5).subscribe("plain", 0);
}

// [MQTT5-4.13.1-1]
#[test]
fn shared_subscriptions_can_be_turned_off() {
    let broker = Broker::with(&["mqtt.shared_subscription_available=false"]);
    assert_eq!(connack(&broker).props.number(property::SHARED_SUBSCRIPTION_AVAILABLE), Some(0));
    let subscribe = Subscribe::new(1).filter("$share/g/a", 0);
    subscribe_unsupported(&broker, &subscribe, reason::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED);
    Client::connect(&broker, V5).subscribe("plain", 0);
}

// [MQTT5-3.2.2-7] [MQTT5-4.13.2-1]
#[test]
fn clients_can_be_sent_to_another_server() {
    for (redirect, code) in
        [("use-another-server", reason::USE_ANOTHER_SERVER), ("server-moved", reason::SERVER_MOVED)]
    {
        let broker =
            Broker::with(&[&format!("mqtt.redirect={redirect}"), "mqtt.server_reference=other:1884"]);
        let (mut client, connack) = Client::try_connect(&broker, V5, &Connect::new(unique("c")));
        assert_eq!(connack.reason, code);
        assert_eq!(connack.props.text(property::SERVER_REFERENCE), Some("other:1884"));
        client.expect_closed();
        Client::refused(&broker, V4, &Connect::new(unique("c")));
    }
}

// [MQTT5-3.2.2-19] [MQTT5-3.2.2-20] [MQTT5-3.1.2-24]
#[test]
fn a_refusal_leaves_out_what_the_client_has_no_room_for() {
    let reference = "r".repeat(200);
    let broker = Broker::with(&["mqtt.redirect=server-moved", &format!("mqtt.server_reference={reference}")]);
    // Five bytes: a CONNACK without any property.
    for size in [5, 20, 100] {
        let props = Props::new().four(property::MAXIMUM_PACKET_SIZE, size);
        let mut client = Client::open(&broker, V5);
        client.limit_packets(size as usize);
        client.send(&Connect::new(unique("c")).props(props));
        match client.event() {
            Event::Closed => {}
            Event::Packet(Packet::ConnAck(connack)) => {
                assert_eq!(connack.reason, reason::SERVER_MOVED);
                client.expect_closed();
            }
            other @ Event::Packet(_) => panic!("{other:?}"),
        }
    }
}
