//! Sessions survive the end of the broker, by `kill -9` and by SIGTERM: subscriptions, queues, exchanges under way.

use mainstem_conformance::End;
use mainstem_conformance::prelude::*;

const ENDS: [End; 2] = [End::Kill, End::Term];

/// Runs a test for both versions and both ends.
fn for_each(test: impl Fn(Version, End)) {
    for version in BOTH {
        for end in ENDS {
            test(version, end);
        }
    }
}

fn resume(broker: &Broker, version: Version, connect: &Connect) -> Client {
    let (client, connack) = Client::connect_with(broker, version, connect);
    assert!(connack.session_present, "MQTT {version:?}: the session is there");
    client
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

// [MQTT5-4.1.0-1] [MQTT5-3.1.2-5] [MQTT3-3.1.2-4]
#[test]
fn subscriptions_survive() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (kept, dropped, durable) =
            (unique("kept"), unique("dropped"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &durable);
        client.subscribe(&format!("{kept}/#"), 1);
        client.subscribe(&format!("{kept}/+/high"), 2);
        client.subscribe(&dropped, 1);
        client.unsubscribe(&dropped);
        broker.restart(end);
        let mut client = resume(&broker, version, &durable);
        let mut publisher = Client::connect(&broker, version);
        publisher.publish(&dropped, "no", 1);
        publisher.publish(&format!("{kept}/a"), "low", 2);
        publisher.publish(&format!("{kept}/a/high"), "high", 2);
        let got = client.drain(&mut publisher);
        let mut got: Vec<_> = got.iter().map(|message| (message.text(), message.qos)).collect();
        got.sort();
        assert_eq!(got, [("high".into(), 2), ("low".into(), 1)], "MQTT {version:?}, {end:?}");
    });
}

// [MQTT5-4.1.0-1]
#[test]
fn options_and_identifiers_of_subscriptions_survive() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let (own, kept, durable) = (unique("own"), unique("kept"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, V5, &durable);
        let identified = |id, subscribe: Subscribe| {
            subscribe.props(Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, id))
        };
        client.send(&identified(200_000, Subscribe::new(1).filter(&kept, 2 | wire::RETAIN_AS_PUBLISHED)));
        client.expect_answer(SUBACK);
        client.send(&identified(7, Subscribe::new(2).filter(&own, 1 | wire::NO_LOCAL)));
        client.expect_answer(SUBACK);
        broker.restart(end);
        let mut client = resume(&broker, V5, &durable);
        let mut publisher = Client::connect(&broker, V5);
        client.publish(&own, "mine", 1);
        publisher.publish(&own, "not mine", 1);
        publisher.publish_with(Publish::new(&kept, "retained").retain(), 2);
        let got = client.drain(&mut publisher);
        let ids = |message: &Message| message.props.numbers(property::SUBSCRIPTION_IDENTIFIER);
        let got: Vec<_> = got.iter().map(|m| (m.text(), m.retain, ids(m))).collect();
        let expected =
            [("not mine".to_owned(), false, vec![7]), ("retained".to_owned(), true, vec![200_000])];
        assert_eq!(got, expected, "{end:?}");
    }
}

// [MQTT5-4.5.0-1] [MQTT3-4.5.0-1] [MQTT5-4.6.0-5] [MQTT3-4.6.0-5]
#[test]
fn queued_messages_survive_in_their_order() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &durable);
        client.subscribe(&topic, 2);
        client.abort();
        let mut publisher = Client::connect(&broker, version);
        for n in 0..300_u32 {
            publisher.publish(&topic, n.to_string(), 1 + (n % 2) as u8);
        }
        broker.restart(end);
        let mut publisher = Client::connect(&broker, version);
        for n in 300..330_u32 {
            publisher.publish(&topic, n.to_string(), 1 + (n % 2) as u8);
        }
        let mut client = resume(&broker, version, &durable);
        let got = client.drain(&mut publisher);
        // The order holds within one quality of service.
        for qos in [1, 2] {
            let at: Vec<String> = got.iter().filter(|m| m.qos == qos).map(Message::text).collect();
            let all = (0..330_u32).filter(|n| 1 + (n % 2) as u8 == qos);
            assert_eq!(at, all.map(|n| n.to_string()).collect::<Vec<_>>(), "MQTT {version:?}, {end:?}");
        }
    });
}

// [MQTT5-4.5.0-1] [MQTT5-3.3.2-17]
#[test]
fn queued_messages_survive_whole() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, V5, &durable);
        client.subscribe(&topic, 2);
        client.abort();
        let mut publisher = Client::connect(&broker, V5);
        let props = Props::new()
            .byte(property::PAYLOAD_FORMAT_INDICATOR, 1)
            .data(property::CONTENT_TYPE, "text/plain")
            .data(property::RESPONSE_TOPIC, "answers")
            .data(property::CORRELATION_DATA, [0, 255, 1])
            .user("a", "1")
            .user("a", "2");
        publisher.publish_with(Publish::new(&topic, "with properties").props(props), 2);
        let large: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        publisher.publish(&topic, &large, 2);
        publisher.publish(&topic, "", 2);
        broker.restart(end);
        let mut client = resume(&broker, V5, &durable);
        let first = client.expect_message();
        assert_eq!(first.text(), "with properties");
        assert_eq!(first.props.number(property::PAYLOAD_FORMAT_INDICATOR), Some(1));
        assert_eq!(first.props.text(property::CONTENT_TYPE), Some("text/plain"));
        assert_eq!(first.props.text(property::RESPONSE_TOPIC), Some("answers"));
        assert_eq!(first.props.data(property::CORRELATION_DATA), Some([0, 255, 1].as_slice()));
        assert_eq!(first.props.user(), [("a", "1"), ("a", "2")]);
        assert!(client.expect_message().payload == large, "{end:?}: a large payload");
        assert_eq!(client.expect_message().payload, b"");
    }
}

// [MQTT5-4.4.0-1] [MQTT3-4.4.0-1] [MQTT5-3.3.1-1] [MQTT3-3.3.1-1]
#[test]
fn what_was_in_flight_comes_again_with_its_identifier() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &durable);
        client.subscribe(&topic, 2);
        let mut publisher = Client::connect(&broker, version);
        let sent = [("one", 1), ("two", 2), ("three", 1), ("four", 2)];
        for (text, qos) in sent {
            publisher.publish(&topic, text, qos);
        }
        let before: Vec<_> =
            sent.iter().map(|_| client.expect_publish()).map(|m| (m.text(), m.qos, m.id)).collect();
        // Once a later message is acknowledged, it is on disk that these were sent.
        publisher.publish(&topic, "last", 1);
        broker.restart(end);
        let mut client = resume(&broker, version, &durable);
        let mut publisher = Client::connect(&broker, version);
        let mut again = client.drain(&mut publisher);
        assert_eq!(again.pop().expect("all come").text(), "last");
        assert!(again.iter().all(|message| message.dup), "MQTT {version:?}, {end:?}: {again:?}");
        let again: Vec<_> = again.iter().map(|m| (m.text(), m.qos, m.id)).collect();
        assert_eq!(again, before, "MQTT {version:?}, {end:?}");
    });
}

// [MQTT5-4.3.3-6] [MQTT3-4.3.3-1] [MQTT5-4.4.0-1] [MQTT3-4.4.0-1]
#[test]
fn a_message_that_was_released_is_not_sent_again_and_its_pubrel_is() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &durable);
        client.subscribe(&topic, 2);
        Client::connect(&broker, version).publish(&topic, "once", 2);
        let message = client.expect_publish();
        client.send(&wire::ack(PUBREC, message.id));
        client.expect_ack_of(PUBREL, message.id);
        broker.restart(end);
        let mut client = resume(&broker, version, &durable);
        client.expect_ack_of(PUBREL, message.id);
        client.send(&wire::ack(PUBCOMP, message.id));
        let mut publisher = Client::connect(&broker, version);
        assert_eq!(client.drain(&mut publisher), [], "MQTT {version:?}, {end:?}");
    });
}

// [MQTT5-4.3.3-10] [MQTT3-4.3.3-2]
#[test]
fn a_qos_2_publish_that_is_sent_again_is_not_delivered_again() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (topic, subscriber, publisher) =
            (unique("t"), Connect::new(unique("s")).durable(), Connect::new(unique("p")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &subscriber);
        client.subscribe(&topic, 2);
        let (mut source, _) = Client::connect_with(&broker, version, &publisher);
        let publish = |id, text: &str| Publish::new(&topic, text).qos(2).id(id);
        // One is received, one released as well.
        for (id, text) in [(7, "received"), (8, "released")] {
            source.send(&publish(id, text));
            assert_eq!(source.expect_ack_of(PUBREC, id).reason, 0);
        }
        source.send(&wire::ack(PUBREL, 8));
        source.expect_ack_of(PUBCOMP, 8);
        broker.restart(end);
        let mut source = resume(&broker, version, &publisher);
        source.send(&publish(7, "received").dup());
        source.expect_ack_of(PUBREC, 7);
        source.send(&wire::ack(PUBREL, 7));
        assert_eq!(source.expect_ack_of(PUBCOMP, 7).reason, 0, "the identifier was held");
        // Both identifiers are free: what comes with them now is new.
        for id in [7, 8] {
            source.send(&publish(id, "new"));
            source.expect_ack_of(PUBREC, id);
            source.send(&wire::ack(PUBREL, id));
            source.expect_ack_of(PUBCOMP, id);
        }
        let mut client = resume(&broker, version, &subscriber);
        let got = client.drain(&mut source);
        assert_eq!(texts(&got), ["received", "released", "new", "new"], "MQTT {version:?}, {end:?}");
    });
}

// [MQTT5-4.3.3-10] [MQTT3-4.3.3-2]
#[test]
fn an_identifier_stays_held_over_many_ends() {
    let mut broker = Broker::with(&[]);
    let (topic, durable) = (unique("t"), Connect::new(unique("p")).durable());
    let subscriber = Connect::new(unique("s")).durable();
    let (mut client, _) = Client::connect_with(&broker, V5, &subscriber);
    client.subscribe(&topic, 2);
    let (mut source, _) = Client::connect_with(&broker, V5, &durable);
    source.send(&Publish::new(&topic, "once").qos(2).id(9));
    source.expect_ack_of(PUBREC, 9);
    for shards in [1, 3, 2, 1, 2] {
        broker.restart_with(End::Kill, shards);
        source = resume(&broker, V5, &durable);
        source.send(&Publish::new(&topic, "once").qos(2).id(9).dup());
        source.expect_ack_of(PUBREC, 9);
    }
    source.send(&wire::ack(PUBREL, 9));
    assert_eq!(source.expect_ack_of(PUBCOMP, 9).reason, 0);
    let mut client = resume(&broker, V5, &subscriber);
    assert_eq!(texts(&client.drain(&mut source)), ["once"]);
}

// [MQTT5-4.1.0-1] [MQTT3-3.1.2-4]
#[test]
fn what_was_acknowledged_before_a_polite_end_does_not_come_again() {
    for version in BOTH {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &durable);
        client.subscribe(&topic, 2);
        let mut publisher = Client::connect(&broker, version);
        for (text, qos) in [("one", 1), ("two", 2), ("three", 1)] {
            publisher.publish(&topic, text, qos);
            assert_eq!(client.expect_message().text(), text);
        }
        client.ping();
        broker.restart(End::Term);
        let mut client = resume(&broker, version, &durable);
        let mut publisher = Client::connect(&broker, version);
        assert_eq!(client.drain(&mut publisher), [], "MQTT {version:?}");
    }
}

// [MQTT5-4.1.0-1] [MQTT3-3.1.2-4] [MQTT5-4.6.0-5] [MQTT3-4.6.0-5]
#[test]
fn a_session_moves_to_however_many_shards_there_are() {
    for version in BOTH {
        let mut broker = Broker::with(&[]);
        let names: Vec<(String, Connect)> =
            (0..12).map(|_| (unique("t"), Connect::new(unique("c")).durable())).collect();
        for (topic, durable) in &names {
            let (mut client, _) = Client::connect_with(&broker, version, durable);
            client.subscribe(topic, 1);
            client.abort();
        }
        for (round, shards) in [1, 3, 2, 4, 1].into_iter().enumerate() {
            let mut publisher = Client::connect(&broker, version);
            for (topic, _) in &names {
                publisher.publish(topic, round.to_string(), 1);
            }
            broker.restart_with(ENDS[round % 2], shards);
        }
        let mut publisher = Client::connect(&broker, version);
        for (_, durable) in &names {
            let mut client = resume(&broker, version, durable);
            assert_eq!(texts(&client.drain(&mut publisher)), numbers(0..5), "MQTT {version:?}");
        }
    }
}

// [MQTT5-4.1.0-1] [MQTT3-3.1.2-4]
#[test]
fn a_queue_grows_over_many_ends() {
    for version in BOTH {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, version, &durable);
        client.subscribe(&topic, 1);
        drop(client);
        for round in 0..12 {
            let mut publisher = Client::connect(&broker, version);
            for n in 10 * round..10 * (round + 1) {
                publisher.publish(&topic, n.to_string(), 1);
            }
            broker.restart(End::Kill);
        }
        let mut publisher = Client::connect(&broker, version);
        let mut client = resume(&broker, version, &durable);
        assert_eq!(texts(&client.drain(&mut publisher)), numbers(0..120), "MQTT {version:?}");
    }
}

// [MQTT5-3.1.2-4] [MQTT3-3.1.2-6]
#[test]
fn a_session_that_was_discarded_does_not_come_back() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (topic, id) = (unique("t"), unique("c"));
        let (mut client, _) = Client::connect_with(&broker, version, &Connect::new(&id).durable());
        client.subscribe(&topic, 1);
        client.abort();
        let mut publisher = Client::connect(&broker, version);
        publisher.publish(&topic, "of the old session", 1);
        // Version 5 begins a new durable session; 3.1.1 has to end the old one first.
        let (mut client, connack) =
            Client::connect_with(&broker, version, &Connect::new(&id).session_expiry(600));
        assert!(!connack.session_present);
        if version == V4 {
            client.disconnect();
            (client, _) = Client::connect_with(&broker, version, &Connect::new(&id).durable());
        }
        let other = unique("other");
        client.subscribe(&other, 1);
        broker.restart(end);
        let mut client = resume(&broker, version, &Connect::new(&id).durable());
        let mut publisher = Client::connect(&broker, version);
        publisher.publish(&topic, "no", 1);
        publisher.publish(&other, "yes", 1);
        assert_eq!(texts(&client.drain(&mut publisher)), ["yes"], "MQTT {version:?}, {end:?}");
    });
}

// [MQTT5-4.1.0-2] [MQTT3-3.1.2-6]
#[test]
fn a_session_that_was_to_end_with_its_connection_ends_with_the_broker() {
    for_each(|version, end| {
        let mut broker = Broker::with(&[]);
        let (topic, id) = (unique("t"), unique("c"));
        let (mut client, _) = Client::connect_with(&broker, version, &Connect::new(&id));
        client.subscribe(&topic, 1);
        Client::connect(&broker, version).publish(&topic, "lost", 1);
        broker.restart(end);
        let (mut client, connack) = Client::connect_with(&broker, version, &Connect::new(&id).durable());
        assert!(!connack.session_present, "MQTT {version:?}, {end:?}");
        let mut publisher = Client::connect(&broker, version);
        publisher.publish(&topic, "no", 1);
        assert_eq!(client.drain(&mut publisher), []);
    });
}

// [MQTT5-3.2.2-16]
#[test]
fn a_client_identifier_that_the_broker_assigned_survives() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let topic = unique("t");
        let (mut client, connack) = Client::connect_with(&broker, V5, &Connect::new("").session_expiry(600));
        let id = connack.props.text(property::ASSIGNED_CLIENT_IDENTIFIER).expect("an identifier").to_owned();
        client.subscribe(&topic, 1);
        broker.restart(end);
        let mut publisher = Client::connect(&broker, V5);
        publisher.publish(&topic, "x", 1);
        let (_, other) = Client::connect_with(&broker, V5, &Connect::new("").session_expiry(600));
        assert_ne!(other.props.text(property::ASSIGNED_CLIENT_IDENTIFIER), Some(id.as_str()));
        let mut client = resume(&broker, V5, &Connect::new(&id).durable());
        assert_eq!(client.expect_message().text(), "x", "{end:?}");
    }
}

// [MQTT5-4.1.0-1]
#[test]
fn a_session_may_come_back_in_another_version() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, V4, &durable);
        client.subscribe(&topic, 1);
        client.abort();
        let mut publisher = Client::connect(&broker, V5);
        publisher.publish_with(Publish::new(&topic, "x").props(Props::new().user("a", "b")), 1);
        broker.restart(end);
        let mut client = resume(&broker, V5, &durable);
        let message = client.expect_message();
        assert_eq!((message.text().as_str(), message.props.user()), ("x", vec![("a", "b")]), "{end:?}");
    }
}
