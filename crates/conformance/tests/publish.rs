//! PUBLISH (3.3): flags, topic names, the answer per QoS, overlapping subscriptions.

use mainstem_conformance::prelude::*;

fn identified(id: u32) -> Props {
    Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, id)
}

// [MQTT5-3.3.4-1] [MQTT3-3.3.4-1] [MQTT5-4.3.2-4] [MQTT3-4.3.2-2] [MQTT5-4.3.3-8] [MQTT3-4.3.3-2] [MQTT5-4.3.3-11]
#[test]
fn each_qos_has_its_answer() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Publish::new(&topic, "0"));
        client.expect_silence();
        client.send(&Publish::new(&topic, "1").qos(1).id(11));
        assert!(matches!(client.recv(), Packet::Ack(ack) if ack.kind == PUBACK && ack.id == 11));
        client.send(&Publish::new(&topic, "2").qos(2).id(12));
        assert!(matches!(client.recv(), Packet::Ack(ack) if ack.kind == PUBREC && ack.id == 12));
        client.expect_silence();
        client.send(&wire::ack(PUBREL, 12));
        assert!(matches!(client.recv(), Packet::Ack(ack) if ack.kind == PUBCOMP && ack.id == 12));
        client.expect_silence();
    }
}

// [MQTT5-3.4.2-1] [MQTT5-3.5.2-1]
#[test]
fn the_answer_tells_whether_anybody_was_there() {
    let (topic, empty) = (unique("t"), unique("nobody"));
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.subscribe(&topic, 0);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for qos in 1..=2 {
        assert_eq!(publisher.publish(&topic, "x", qos), reason::SUCCESS);
        assert_eq!(publisher.publish(&empty, "x", qos), reason::NO_MATCHING_SUBSCRIBERS);
    }
}

// [MQTT5-3.3.1-4] [MQTT3-3.3.1-4]
#[test]
fn qos_3_is_malformed() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Publish::new(unique("t"), "x").qos(3).id(1));
        client.expect_refused(reason::MALFORMED_PACKET);
    }
}

// [MQTT5-3.3.1-2] [MQTT3-3.3.1-2] [MQTT5-4.3.1-1] [MQTT3-4.3.1-1]
#[test]
fn dup_with_qos_0_ends_the_connection() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Publish::new(unique("t"), "x").dup());
        client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
    }
}

// [MQTT5-3.3.1-2] [MQTT3-3.3.1-2] [MQTT5-3.3.1-3] [MQTT3-3.3.1-3] [MQTT5-4.3.1-1] [MQTT3-4.3.1-1] [MQTT5-4.3.2-2]
// [MQTT3-4.3.2-1] [MQTT5-4.3.3-2] [MQTT3-4.3.3-1]
#[test]
fn dup_of_the_publisher_is_not_passed_on() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        for qos in 0..=2 {
            let publish = Publish::new(&topic, "x");
            publisher.publish_with(if qos > 0 { publish.dup() } else { publish }, qos);
            let message = subscriber.expect_message();
            assert_eq!((message.dup, message.qos), (false, qos));
        }
    }
}

// [MQTT5-3.3.2-2] [MQTT3-3.3.2-2] [MQTT5-4.7.0-1] [MQTT3-4.7.1-1]
#[test]
fn wildcards_in_a_topic_name_end_the_connection() {
    for version in BOTH {
        for topic in ["+", "#", "a/+", "a/#", "a+", "#a", "a/+/b", "/#"] {
            for qos in 0..=2 {
                let mut client = Client::connect(Broker::shared(), version);
                let publish = Publish::new(topic, "x").qos(qos);
                client.send(&if qos > 0 { publish.id(1) } else { publish });
                client.expect_refused_with(&[
                    reason::MALFORMED_PACKET,
                    reason::PROTOCOL_ERROR,
                    reason::TOPIC_NAME_INVALID,
                ]);
            }
        }
    }
}

// [MQTT5-4.7.3-1] [MQTT3-4.7.3-1] [MQTT5-3.3.2-1]
#[test]
fn an_empty_topic_name_without_alias_ends_the_connection() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Publish::new("", "x"));
        client.expect_refused_with(&[
            reason::MALFORMED_PACKET,
            reason::PROTOCOL_ERROR,
            reason::TOPIC_NAME_INVALID,
        ]);
    }
}

// [MQTT5-3.3.2-3] [MQTT3-3.3.2-3]
#[test]
fn messages_come_under_the_name_they_were_published_to() {
    for version in BOTH {
        let root = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&format!("{root}/#"), 0);
        let mut publisher = Client::connect(Broker::shared(), version);
        for tail in ["", "/", "/a", "/a/b", "//", "/é"] {
            let topic = format!("{root}{tail}");
            publisher.publish(&topic, "x", 0);
            assert_eq!(subscriber.expect_message().topic, topic);
        }
    }
}

// [MQTT5-3.3.4-1]
#[test]
fn payloads_of_any_bytes_and_length_come_unaltered() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        let all: Vec<u8> = (0..=255).collect();
        for payload in [vec![], vec![0], all.clone(), all.repeat(40), all.repeat(4096)] {
            for qos in 0..=2 {
                publisher.publish(&topic, &payload, qos);
                let message = subscriber.expect_message();
                assert!(message.payload == payload, "{} bytes at QoS {qos}", payload.len());
                assert_eq!(message.qos, qos);
            }
        }
    }
}

// [MQTT5-3.8.4-8] [MQTT3-3.8.4-6] [MQTT5-4.3.1-1]
#[test]
fn the_lower_qos_of_message_and_subscription_holds() {
    for from in BOTH {
        for to in BOTH {
            let topic = unique("t");
            let mut publisher = Client::connect(Broker::shared(), from);
            for granted in 0..=2 {
                let mut subscriber = Client::connect(Broker::shared(), to);
                subscriber.subscribe(&topic, granted);
                for sent in 0..=2 {
                    publisher.publish(&topic, "x", sent);
                    assert_eq!(subscriber.expect_message().qos, sent.min(granted), "{sent} to {granted}");
                }
                subscriber.disconnect();
            }
        }
    }
}

// [MQTT5-3.3.4-2] [MQTT3-3.3.5-1]
#[test]
fn overlapping_subscriptions_get_the_highest_qos() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&format!("{topic}/#"), 0);
        subscriber.subscribe(&format!("{topic}/+"), 2);
        subscriber.subscribe(&format!("{topic}/a"), 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&format!("{topic}/a"), "x", 2);
        let copies = subscriber.drain(&mut publisher);
        // One copy at the highest QoS, or one for each subscription at its own.
        let mut qos: Vec<u8> = copies.iter().map(|message| message.qos).collect();
        qos.sort_unstable();
        assert!(qos == [2] || qos == [0, 1, 2], "{qos:?}");
    }
}

// [MQTT5-3.3.4-3] [MQTT5-3.3.4-4] [MQTT5-3.3.4-5]
#[test]
fn overlapping_subscriptions_report_all_their_identifiers() {
    let topic = unique("t");
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.send(&Subscribe::new(1).filter(format!("{topic}/#"), 1).props(identified(1)));
    subscriber.send(&Subscribe::new(2).filter(format!("{topic}/+"), 2).props(identified(268_435_455)));
    subscriber.send(&Subscribe::new(3).filter(format!("{topic}/a"), 0));
    (0..3).for_each(|_| assert!(subscriber.expect_answer(SUBACK).reasons[0] < 3));
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish(&format!("{topic}/a"), "x", 2);
    let copies = subscriber.drain(&mut publisher);
    let mut ids: Vec<Vec<u32>> =
        copies.iter().map(|message| message.props.numbers(property::SUBSCRIPTION_IDENTIFIER)).collect();
    for copy in &mut ids {
        copy.sort_unstable();
    }
    ids.sort_unstable();
    assert!(ids == [vec![1, 268_435_455]] || ids == [vec![], vec![1], vec![268_435_455]], "{ids:?}");
    // A message that only one of them matches carries only that identifier.
    publisher.publish(&format!("{topic}/a/b"), "x", 2);
    let message = subscriber.expect_message();
    assert_eq!(message.props.numbers(property::SUBSCRIPTION_IDENTIFIER), [1]);
}

// [MQTT5-3.3.4-3]
#[test]
fn identifiers_belong_to_the_subscriber_and_may_repeat() {
    let topic = unique("t");
    let mut one = Client::connect(Broker::shared(), V5);
    one.send(&Subscribe::new(1).filter(&topic, 0).props(identified(7)));
    one.expect_answer(SUBACK);
    let mut other = Client::connect(Broker::shared(), V5);
    other.send(&Subscribe::new(1).filter(&topic, 0).filter(format!("{topic}/x"), 0).props(identified(9)));
    other.expect_answer(SUBACK);
    let mut none = Client::connect(Broker::shared(), V5);
    none.subscribe(&topic, 0);
    let mut old = Client::connect(Broker::shared(), V4);
    old.subscribe(&topic, 0);
    one.publish(&topic, "x", 0);
    assert_eq!(one.expect_message().props.numbers(property::SUBSCRIPTION_IDENTIFIER), [7]);
    assert_eq!(other.expect_message().props.numbers(property::SUBSCRIPTION_IDENTIFIER), [9]);
    assert!(none.expect_message().props.is_empty());
    assert!(old.expect_message().props.is_empty());
    // Subscribing again replaces the identifier, or takes it away.
    one.send(&Subscribe::new(2).filter(&topic, 0).props(identified(8)));
    one.expect_answer(SUBACK);
    one.publish(&topic, "x", 0);
    assert_eq!(one.expect_message().props.numbers(property::SUBSCRIPTION_IDENTIFIER), [8]);
    one.subscribe(&topic, 0);
    one.publish(&topic, "x", 0);
    assert_eq!(one.expect_message().props.numbers(property::SUBSCRIPTION_IDENTIFIER), [0_u32; 0]);
}

// [MQTT5-3.3.4-6]
#[test]
fn a_client_must_not_publish_a_subscription_identifier() {
    let mut client = Client::connect(Broker::shared(), V5);
    client.send(&Publish::new(unique("t"), "x").props(identified(1)));
    client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
}

// [MQTT5-3.3.4-1] [MQTT3-3.3.5-2]
#[test]
fn the_server_s_own_topics_cannot_be_published_to() {
    for version in BOTH {
        let topic = format!("$SYS/{}", unique("t"));
        let mut watcher = Client::connect(Broker::shared(), version);
        watcher.subscribe(&topic, 0);
        let mut client = Client::connect(Broker::shared(), version);
        let codes: Vec<u8> = (0..=2).map(|qos| client.publish(&topic, "x", qos)).collect();
        let refused = [reason::NOT_AUTHORIZED, reason::TOPIC_NAME_INVALID, reason::NO_MATCHING_SUBSCRIBERS];
        assert!(codes.iter().all(|code| *code == 0 || refused.contains(code)), "{codes:02x?}");
        assert_eq!(watcher.drain(&mut client), []);
    }
}
