//! The QoS 1 and 2 exchanges (4.3), their packets (3.4 to 3.7), and delivery retry (4.4), in both roles.

use mainstem_conformance::prelude::*;

/// A client with a session to keep, and a CONNECT to resume it.
fn durable(version: Version) -> (Client, Connect) {
    let connect = Connect::new(unique("c")).durable();
    (Client::connect_with(Broker::shared(), version, &connect).0, connect)
}

fn resume(version: Version, connect: &Connect) -> Client {
    let (client, connack) = Client::connect_with(Broker::shared(), version, connect);
    assert!(connack.session_present);
    client
}

// [MQTT5-4.3.2-5] [MQTT3-4.3.2-2]
#[test]
fn after_puback_the_identifier_is_free_again() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for (n, publish) in
            [Publish::new(&topic, "0"), Publish::new(&topic, "1").dup()].into_iter().enumerate()
        {
            publisher.send(&publish.qos(1).id(9));
            assert_eq!(publisher.expect_ack(PUBACK).id, 9);
            assert_eq!(subscriber.expect_message().text(), n.to_string());
        }
    }
}

// [MQTT5-4.3.3-10] [MQTT5-4.3.3-8] [MQTT3-4.3.3-2]
#[test]
fn a_qos_2_publish_before_pubrel_is_a_duplicate() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let (mut publisher, connect) = durable(version);
        publisher.send(&Publish::new(&topic, "once").qos(2).id(9));
        assert_eq!(publisher.expect_ack(PUBREC).id, 9);
        publisher.send(&Publish::new(&topic, "once").qos(2).id(9).dup());
        assert!(publisher.expect_ack(PUBREC).reason < 0x80);
        publisher.abort();
        // The state belongs to the session: it holds on the next connection.
        let mut publisher = resume(version, &connect);
        publisher.send(&Publish::new(&topic, "once").qos(2).id(9).dup());
        assert_eq!(publisher.expect_ack(PUBREC).id, 9);
        publisher.send(&wire::ack(PUBREL, 9));
        assert_eq!(publisher.expect_ack(PUBCOMP).reason, 0);
        let got = subscriber.drain(&mut publisher);
        assert_eq!(got.iter().map(Message::text).collect::<Vec<_>>(), ["once"]);
    }
}

// [MQTT5-4.3.3-12] [MQTT5-4.3.3-11] [MQTT3-4.3.3-2]
#[test]
fn after_pubcomp_the_identifier_is_free_again() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..3 {
            publisher.send(&Publish::new(&topic, n.to_string()).qos(2).id(9));
            assert_eq!(publisher.expect_ack(PUBREC).id, 9);
            publisher.send(&wire::ack(PUBREL, 9));
            assert_eq!(publisher.expect_ack(PUBCOMP).id, 9);
            assert_eq!(subscriber.expect_message().text(), n.to_string());
        }
    }
}

// [MQTT5-4.3.3-9] [MQTT5-3.5.2-1]
#[test]
fn after_a_pubrec_with_an_error_the_identifier_is_free_again() {
    let topic = unique("t");
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(&topic, 2);
    client.send(&Publish::new("$SYS/mine", "x").qos(2).id(9));
    let refused = client.expect_ack(PUBREC);
    if refused.reason < 0x80 {
        client.send(&wire::ack(PUBREL, 9));
        client.expect_ack(PUBCOMP);
    }
    client.send(&Publish::new(&topic, "new").qos(2).id(9));
    assert_eq!(client.expect_ack(PUBREC).reason, 0);
    client.send(&wire::ack(PUBREL, 9));
    assert_eq!(client.expect_ack(PUBCOMP).reason, 0);
    assert_eq!(client.expect_message().text(), "new");
}

// [MQTT5-3.7.2-1] [MQTT5-4.3.3-11] [MQTT3-4.3.3-2]
#[test]
fn a_pubrel_for_nothing_is_answered() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&wire::ack(PUBREL, 77));
        let complete = client.expect_ack(PUBCOMP);
        let expected = if version == V5 { reason::PACKET_IDENTIFIER_NOT_FOUND } else { 0 };
        assert_eq!((complete.id, complete.reason), (77, expected));
    }
}

// [MQTT5-3.6.2-1] [MQTT5-4.3.3-4]
#[test]
fn acknowledgements_of_nothing_do_no_harm() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&wire::ack(PUBACK, 77));
        client.expect_silence();
        client.send(&wire::ack(PUBCOMP, 77));
        client.expect_silence();
        // PUBREC asks for a PUBREL; in version 5 it says that there is no such packet.
        client.send(&wire::ack(PUBREC, 77));
        let release = client.expect_ack(PUBREL);
        assert_eq!(release.id, 77);
        assert!(version != V5 || release.reason == reason::PACKET_IDENTIFIER_NOT_FOUND, "{release:?}");
        client.expect_silence();
    }
}

// [MQTT5-4.3.3-4]
#[test]
fn a_pubrec_with_an_error_never_gets_a_pubrel() {
    let topic = unique("t");
    let error = |id| wire::ack_with(PUBREC, id, reason::QUOTA_EXCEEDED, &Props::new());
    let mut client = Client::connect(Broker::shared(), V5);
    // For nothing.
    client.send(&error(77));
    client.expect_silence();
    // After a PUBREC without an error, and again when the exchange is over.
    client.subscribe(&topic, 2);
    Client::connect(Broker::shared(), V5).publish(&topic, "x", 2);
    let id = client.expect_publish().id;
    client.send(&wire::ack(PUBREC, id));
    assert_eq!(client.expect_ack(PUBREL).id, id);
    for _ in 0..2 {
        client.send(&error(id));
        client.expect_silence();
    }
}

// [MQTT5-3.4.2-1] [MQTT5-3.5.2-1] [MQTT5-3.6.2-1] [MQTT5-3.7.2-1]
#[test]
fn every_form_of_an_acknowledgement_is_understood() {
    let topic = unique("t");
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(&topic, 2);
    let props = Props::new().data(property::REASON_STRING, "fine").user("a", "b");
    let forms = |kind: u8, id| {
        let [high, low] = u16::to_be_bytes(id);
        let first = kind << 4 | if kind == PUBREL { 2_u8 } else { 0 };
        [
            vec![first, 2, high, low],
            vec![first, 3, high, low, 0],
            vec![first, 4, high, low, 0, 0],
            wire::ack_with(kind, id, 0, &props),
        ]
    };
    let mut publisher = Client::connect(Broker::shared(), V5);
    for form in 0..4 {
        publisher.send(&Publish::new(&topic, "2").qos(2).id(5));
        publisher.expect_ack(PUBREC);
        publisher.send(&forms(PUBREL, 5)[form]);
        assert_eq!(publisher.expect_ack(PUBCOMP).reason, 0);
        let id = client.expect_publish().id;
        client.send(&forms(PUBREC, id)[form]);
        assert_eq!(client.expect_ack(PUBREL).reason, 0);
        client.send(&forms(PUBCOMP, id)[form]);
        publisher.publish(&topic, "1", 1);
        let id = client.expect_publish().id;
        client.send(&forms(PUBACK, id)[form]);
        client.expect_silence();
    }
}

// [MQTT5-3.4.2-1] [MQTT5-3.5.2-1] [MQTT5-3.6.2-1] [MQTT5-3.7.2-1]
#[test]
fn acknowledgements_with_unknown_reason_codes_are_refused() {
    for kind in [PUBACK, PUBREC, PUBREL, PUBCOMP] {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&wire::ack_with(kind, 1, 0x7F, &Props::new()));
        client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
    }
}

// [MQTT5-4.4.0-2] [MQTT5-4.3.3-4] [MQTT5-4.8.2-6]
#[test]
fn an_acknowledgement_with_an_error_ends_the_exchange() {
    let topic = unique("t");
    let (mut subscriber, connect) = durable(V5);
    subscriber.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for (qos, kind) in [(1, PUBACK), (2, PUBREC)] {
        publisher.publish(&topic, "x", qos);
        let id = subscriber.expect_publish().id;
        subscriber.send(&wire::ack_with(kind, id, reason::UNSPECIFIED_ERROR, &Props::new()));
        subscriber.expect_silence();
    }
    subscriber.abort();
    let mut subscriber = resume(V5, &connect);
    assert_eq!(subscriber.drain(&mut publisher), []);
}

// [MQTT5-4.4.0-1] [MQTT3-4.4.0-1] [MQTT5-3.3.1-1] [MQTT3-3.3.1-1] [MQTT5-4.3.2-3] [MQTT3-4.3.2-1] [MQTT5-4.3.3-3]
// [MQTT3-4.3.3-1] [MQTT3-2.3.1-3] [MQTT5-4.5.0-1] [MQTT5-3.1.2-5] [MQTT3-3.1.2-4]
#[test]
fn unacknowledged_messages_are_sent_again_with_dup() {
    for version in BOTH {
        let topic = unique("t");
        let (mut subscriber, connect) = durable(version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..6 {
            publisher.publish(&topic, format!("{n}"), 1 + n % 2);
        }
        let sent: Vec<Message> = (0..6).map(|_| subscriber.expect_publish()).collect();
        assert!(sent.iter().all(|message| !message.dup));
        // One of each kind is acknowledged; the others are not.
        subscriber.acknowledge(&sent[0]);
        subscriber.acknowledge(&sent[1]);
        subscriber.ping();
        subscriber.abort();
        let mut subscriber = resume(version, &connect);
        for first in &sent[2..] {
            let again = subscriber.expect_message();
            assert_eq!((again.dup, again.id, again.qos), (true, first.id, first.qos));
            assert_eq!(again.payload, first.payload);
        }
        assert_eq!(subscriber.drain(&mut publisher), []);
        subscriber.abort();
        // All is acknowledged now.
        assert_eq!(resume(version, &connect).drain(&mut publisher), []);
    }
}

// [MQTT5-4.4.0-1] [MQTT3-4.4.0-1] [MQTT5-4.3.3-5] [MQTT5-4.3.3-6] [MQTT3-4.3.3-1] [MQTT5-4.3.3-4]
#[test]
fn an_unacknowledged_pubrel_is_sent_again_and_its_publish_is_not() {
    for version in BOTH {
        let topic = unique("t");
        let (mut subscriber, connect) = durable(version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "x", 2);
        let id = subscriber.expect_publish().id;
        subscriber.send(&wire::ack(PUBREC, id));
        assert_eq!(subscriber.expect_ack(PUBREL).id, id);
        for _ in 0..2 {
            subscriber.abort();
            subscriber = resume(version, &connect);
            assert_eq!(subscriber.expect_ack(PUBREL).id, id);
        }
        subscriber.send(&wire::ack(PUBCOMP, id));
        assert_eq!(subscriber.drain(&mut publisher), []);
        subscriber.abort();
        subscriber = resume(version, &connect);
        subscriber.expect_silence();
    }
}

// [MQTT5-4.4.0-1] [MQTT5-4.3.3-3]
#[test]
fn nothing_is_sent_again_on_the_same_connection() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "1", 1);
        publisher.publish(&topic, "2", 2);
        let ids = [subscriber.expect_publish().id, subscriber.expect_publish().id];
        subscriber.pass(std::time::Duration::from_secs(2));
        let after: Vec<Message> = subscriber.drain(&mut publisher);
        assert_eq!(after, [], "sent again: {ids:?}");
    }
}

// [MQTT5-4.3.3-4] [MQTT5-4.3.3-6] [MQTT3-4.3.3-1]
#[test]
fn a_second_pubrec_gets_a_second_pubrel() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&topic, 2);
        client.publish(&topic, "x", 2);
        let id = client.expect_publish().id;
        for _ in 0..2 {
            client.send(&wire::ack(PUBREC, id));
            let release = client.expect_ack(PUBREL);
            assert_eq!((release.id, release.reason), (id, 0));
        }
        client.send(&wire::ack(PUBCOMP, id));
        client.expect_silence();
    }
}

// [MQTT5-4.5.0-2]
#[test]
fn an_acknowledgement_of_the_wrong_kind_does_not_complete_the_exchange() {
    for version in BOTH {
        let topic = unique("t");
        let (mut subscriber, connect) = durable(version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "two", 2);
        let id = subscriber.expect_publish().id;
        // A PUBACK for a QoS 2 message: the server may end the connection, but must not forget the message.
        subscriber.send(&wire::ack(PUBACK, id));
        subscriber.try_send(&wire::PINGREQ).ok();
        while !matches!(subscriber.event(), Event::Closed | Event::Packet(Packet::PingResp)) {}
        drop(subscriber);
        let mut subscriber = resume(version, &connect);
        let again = subscriber.expect_message();
        assert_eq!((again.text().as_str(), again.id), ("two", id));
    }
}

// [MQTT5-4.3.3-1] [MQTT5-2.2.1-3] [MQTT5-4.3.3-10]
#[test]
fn an_identifier_in_use_for_qos_2_is_not_taken_for_another_qos() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&topic, 2);
        client.send(&Publish::new(&topic, "two").qos(2).id(3));
        client.expect_ack(PUBREC);
        // The client breaks the rule; whatever the server answers, the QoS 2 exchange must not be confused.
        client.send(&Publish::new(&topic, "one").qos(1).id(3));
        client.try_send(&wire::PINGREQ).ok();
        let mut answers = Vec::new();
        loop {
            match client.event() {
                Event::Closed => break,
                Event::Packet(Packet::PingResp) => {
                    client.send(&wire::ack(PUBREL, 3));
                    assert_eq!(client.expect_ack(PUBCOMP).reason, 0);
                    break;
                }
                Event::Packet(packet) => answers.push(packet),
            }
        }
        let allowed = answers.iter().all(|packet| match packet {
            Packet::Ack(ack) => {
                ack.kind == PUBACK && matches!(ack.reason, 0 | reason::PACKET_IDENTIFIER_IN_USE)
            }
            Packet::Disconnect(disconnect) => {
                matches!(disconnect.reason, reason::PROTOCOL_ERROR | reason::PACKET_IDENTIFIER_IN_USE)
            }
            Packet::Publish(_) => true,
            _ => false,
        });
        assert!(allowed, "{answers:?}");
    }
}
