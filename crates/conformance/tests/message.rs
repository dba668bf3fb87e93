//! The properties that travel with a message (3.3.2.3), message expiry, request and response (4.10).

use std::time::Duration;

use mainstem_conformance::prelude::*;

// [MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]
#[test]
fn properties_arrive_unaltered_and_in_order() {
    let topic = unique("t");
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for qos in 0..=2 {
        for format in 0..=1 {
            let props = Props::new()
                .user("b", "1")
                .data(property::RESPONSE_TOPIC, "answer/to/é")
                .user("a", "")
                .byte(property::PAYLOAD_FORMAT_INDICATOR, format)
                .user("", "2")
                .data(property::CONTENT_TYPE, "Ünicode")
                .user("b", "1")
                .data(property::CORRELATION_DATA, [0, 1, 0xFF, 0]);
            publisher.publish_with(Publish::new(&topic, "x").props(props), qos);
            let props = subscriber.expect_message().props;
            assert_eq!(props.user(), [("b", "1"), ("a", ""), ("", "2"), ("b", "1")]);
            assert_eq!(props.number(property::PAYLOAD_FORMAT_INDICATOR), Some(format.into()));
            assert_eq!(props.text(property::RESPONSE_TOPIC), Some("answer/to/é"));
            assert_eq!(props.text(property::CONTENT_TYPE), Some("Ünicode"));
            assert_eq!(props.data(property::CORRELATION_DATA), Some(&[0, 1, 0xFF, 0][..]));
        }
    }
    publisher.publish(&topic, "none", 1);
    assert!(subscriber.expect_message().props.is_empty(), "nothing is made up");
}

// [MQTT5-3.3.2-17] [MQTT5-3.3.2-18]
#[test]
fn many_and_long_user_properties_pass() {
    let topic = unique("t");
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.subscribe(&topic, 1);
    let long = "v".repeat(65_535);
    let pairs: Vec<(String, String)> = (0..300).map(|n| (format!("n{}", n % 7), format!("{n}"))).collect();
    let mut props = Props::new().user("long", &long);
    for (name, value) in &pairs {
        props = props.user(name, value);
    }
    Client::connect(Broker::shared(), V5).publish_with(Publish::new(&topic, "x").props(props), 1);
    let message = subscriber.expect_message();
    let got = message.props.user();
    assert!(got[0] == ("long", &long));
    assert!(got[1..].iter().copied().eq(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str()))));
}

// [MQTT5-3.3.2-17] [MQTT5-3.3.2-20] [MQTT5-3.3.4-3] [MQTT5-3.3.2-11]
#[test]
fn each_receiver_gets_its_own_form_of_a_message() {
    for length in [0, 10, 4096, 8192, 70_000] {
        let topic = unique("t");
        let payload: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
        let mut old = Client::connect(Broker::shared(), V4);
        old.subscribe(&topic, 1);
        let aliasing = Props::new().two(property::TOPIC_ALIAS_MAXIMUM, 3);
        let connect = Connect::new(unique("c")).props(aliasing);
        let (mut aliased, _) = Client::connect_with(Broker::shared(), V5, &connect);
        aliased.subscribe(&topic, 2);
        let mut identified: Vec<Client> = [1, 300, 70_000]
            .into_iter()
            .map(|id| {
                let mut client = Client::connect(Broker::shared(), V5);
                let props = Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, id);
                client.send(&Subscribe::new(1).filter(&topic, 0).props(props));
                client.expect_answer(SUBACK);
                client
            })
            .collect();
        let mut publisher = Client::connect(Broker::shared(), V5);
        for round in 0..3 {
            let props = Props::new().user("round", round.to_string()).data(property::CONTENT_TYPE, "c");
            publisher.publish_with(Publish::new(&topic, &payload).props(props), 2);
            let message = old.expect_message();
            assert!(message.topic == topic && message.qos == 1 && message.payload == payload);
            let message = aliased.expect_message();
            assert!(message.qos == 2 && message.payload == payload);
            assert_eq!(message.props.user(), [("round", round.to_string().as_str())]);
            assert!(message.topic == topic || round > 0 && message.props.has(property::TOPIC_ALIAS));
            for (client, id) in identified.iter_mut().zip([1, 300, 70_000]) {
                let message = client.expect_message();
                assert!(message.topic == topic && message.qos == 0 && message.payload == payload);
                assert_eq!(message.props.numbers(property::SUBSCRIPTION_IDENTIFIER), [id]);
                assert_eq!(message.props.text(property::CONTENT_TYPE), Some("c"));
            }
        }
    }
}

// [MQTT5-3.3.2-20] [MQTT5-3.3.2-4]
#[test]
fn properties_do_not_reach_3_1_1_and_its_messages_have_none() {
    let topic = unique("t");
    let mut old = Client::connect(Broker::shared(), V4);
    old.subscribe(&topic, 1);
    let mut new = Client::connect(Broker::shared(), V5);
    new.subscribe(&topic, 1);
    let props = Props::new().user("a", "b").byte(property::PAYLOAD_FORMAT_INDICATOR, 1);
    new.publish_with(Publish::new(&topic, "payload").props(props), 1);
    assert_eq!(old.expect_message().text(), "payload");
    assert_eq!(new.expect_message().props.user(), [("a", "b")]);
    old.publish(&topic, "payload", 1);
    let message = new.expect_message();
    assert_eq!((message.text().as_str(), message.props.is_empty()), ("payload", true));
}

// [MQTT5-3.3.2-14] [MQTT5-4.7.0-1]
#[test]
fn a_response_topic_with_wildcards_ends_the_connection() {
    for response in ["a/+", "#", "a/#/b"] {
        let mut client = Client::connect(Broker::shared(), V5);
        let props = Props::new().data(property::RESPONSE_TOPIC, response);
        client.send(&Publish::new(unique("t"), "x").props(props));
        client.expect_refused_with(&[
            reason::MALFORMED_PACKET,
            reason::PROTOCOL_ERROR,
            reason::TOPIC_NAME_INVALID,
        ]);
    }
}

// [MQTT5-3.3.2-4]
#[test]
fn a_payload_that_is_not_the_utf8_it_claims_to_be_is_passed_on_or_refused() {
    let topic = unique("t");
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.subscribe(&topic, 1);
    let mut publisher = Client::connect(Broker::shared(), V5);
    let props = Props::new().byte(property::PAYLOAD_FORMAT_INDICATOR, 1);
    publisher.send(&Publish::new(&topic, [0xFF, 0xFE]).qos(1).id(1).props(props));
    // Checking is allowed, not demanded (3.3.2.3.2).
    match publisher.event() {
        Event::Packet(Packet::Ack(ack)) if ack.reason == 0 => {
            assert_eq!(subscriber.expect_message().payload, [0xFF, 0xFE]);
        }
        Event::Packet(Packet::Ack(ack)) => assert_eq!(ack.reason, reason::PAYLOAD_FORMAT_INVALID),
        Event::Packet(Packet::Disconnect(disconnect)) => {
            assert_eq!(disconnect.reason, reason::PAYLOAD_FORMAT_INVALID);
        }
        other => panic!("{other:?}"),
    }
}

fn expiring(seconds: u32) -> Props {
    Props::new().four(property::MESSAGE_EXPIRY_INTERVAL, seconds)
}

// [MQTT5-3.3.2-6]
#[test]
fn a_message_that_did_not_wait_keeps_its_expiry() {
    let topic = unique("t");
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(&topic, 0);
    for seconds in [100, u32::MAX] {
        client.publish_with(Publish::new(&topic, "x").props(expiring(seconds)), 0);
        let left =
            client.expect_message().props.number(property::MESSAGE_EXPIRY_INTERVAL).expect("an expiry");
        assert!((seconds - 2..=seconds).contains(&left), "{left} of {seconds}");
    }
    client.publish(&topic, "x", 0);
    assert!(!client.expect_message().props.has(property::MESSAGE_EXPIRY_INTERVAL));
}

// [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]
#[test]
fn the_time_in_the_queue_counts_against_the_expiry() {
    let (topic, id) = (unique("t"), unique("c"));
    let (mut subscriber, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    subscriber.subscribe(&topic, 2);
    subscriber.abort();
    let mut publisher = Client::connect(Broker::shared(), V5);
    for (payload, props) in [("short", expiring(1)), ("long", expiring(100)), ("ever", Props::new())] {
        publisher.publish_with(Publish::new(&topic, payload).props(props.clone()), 1);
        publisher.publish_with(Publish::new(&topic, payload).props(props), 2);
    }
    publisher.pass(Duration::from_millis(2500));
    let (mut subscriber, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    let got: Vec<_> = subscriber
        .drain(&mut publisher)
        .iter()
        .map(|m| (m.text(), m.props.number(property::MESSAGE_EXPIRY_INTERVAL)))
        .collect();
    let texts: Vec<&str> = got.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["long", "long", "ever", "ever"]);
    for (_, left) in &got[..2] {
        let left = left.expect("an expiry");
        assert!((90..=98).contains(&left), "{left} of 100 after 2.5 s");
    }
    assert_eq!((got[2].1, got[3].1), (None, None));
}

// [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]
#[test]
fn retained_messages_expire() {
    let (short, long) = (unique("t"), unique("t"));
    let mut client = Client::connect(Broker::shared(), V5);
    client.publish_with(Publish::new(&short, "x").retain().props(expiring(1)), 1);
    client.publish_with(Publish::new(&long, "x").retain().props(expiring(100)), 1);
    client.pass(Duration::from_millis(2500));
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.subscribe(&short, 1);
    subscriber.subscribe(&long, 1);
    let got = subscriber.drain(&mut client);
    assert_eq!(got.len(), 1, "{got:?}");
    let left = got[0].props.number(property::MESSAGE_EXPIRY_INTERVAL).expect("an expiry");
    assert!(got[0].topic == long && (90..=98).contains(&left), "{left}");
    client.publish_with(Publish::new(&long, "").retain(), 1);
}

// [MQTT5-4.3.3-7] [MQTT5-4.3.3-13] [MQTT5-3.3.2-5]
#[test]
fn a_message_that_was_sent_does_not_expire() {
    let (topic, id) = (unique("t"), unique("c"));
    let (mut subscriber, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    subscriber.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish_with(Publish::new(&topic, "one").props(expiring(1)), 2);
    publisher.publish_with(Publish::new(&topic, "two").props(expiring(1)), 2);
    let (one, two) = (subscriber.expect_publish(), subscriber.expect_publish());
    subscriber.send(&wire::ack(PUBREC, one.id));
    subscriber.expect_ack_of(PUBREL, one.id);
    subscriber.pass(Duration::from_millis(2500));
    // The exchange goes on where it stood, on this connection and on the next.
    subscriber.send(&wire::ack(PUBCOMP, one.id));
    subscriber.ping();
    subscriber.abort();
    let (mut subscriber, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    let again = subscriber.expect_message();
    assert_eq!((again.id, again.dup, again.text().as_str()), (two.id, true, "two"));
}

// [MQTT5-3.3.2-15] [MQTT5-3.3.2-16]
#[test]
fn a_request_gets_its_response() {
    let (service, answers) = (unique("service"), unique("answers"));
    let mut responder = Client::connect(Broker::shared(), V5);
    responder.subscribe(&service, 1);
    let mut requester = Client::connect(Broker::shared(), V5);
    requester.subscribe(&answers, 1 | wire::NO_LOCAL);
    for n in 0..3_u8 {
        let props =
            Props::new().data(property::RESPONSE_TOPIC, &answers).data(property::CORRELATION_DATA, [n]);
        requester.publish_with(Publish::new(&service, "question").props(props), 1);
        let request = responder.expect_message();
        let to = request.props.text(property::RESPONSE_TOPIC).expect("a response topic").to_owned();
        let mark = request.props.data(property::CORRELATION_DATA).expect("correlation data");
        let props = Props::new().data(property::CORRELATION_DATA, mark);
        responder.publish_with(Publish::new(to, "answer").props(props), 1);
        assert_eq!(requester.expect_message().props.data(property::CORRELATION_DATA), Some(&[n][..]));
    }
}
