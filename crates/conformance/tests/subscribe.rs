//! SUBSCRIBE and SUBACK (3.8, 3.9).

use mainstem_conformance::prelude::*;
use wire::Wire;

const REFUSED: [u8; 2] = [reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR];

// [MQTT5-3.8.4-1] [MQTT3-3.8.4-1] [MQTT5-3.8.4-2] [MQTT3-3.8.4-2] [MQTT5-3.8.4-7] [MQTT3-3.8.4-6] [MQTT5-3.9.3-2]
// [MQTT3-3.9.3-2]
#[test]
fn each_subscribe_has_its_suback() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        for qos in 0..=2 {
            client.send(&Subscribe::new(100 + u16::from(qos)).filter(unique("f"), qos));
        }
        for qos in 0..=2 {
            let answer = client.expect_answer(SUBACK);
            assert_eq!((answer.id, answer.reasons.as_slice()), (100 + u16::from(qos), &[qos][..]));
        }
    }
}

// [MQTT5-3.8.4-5] [MQTT3-3.8.4-4] [MQTT5-3.8.4-6] [MQTT3-3.8.4-5] [MQTT5-3.9.3-1] [MQTT3-3.9.3-1]
#[test]
fn many_filters_get_one_suback_with_their_codes_in_order() {
    for version in BOTH {
        let root = unique("t");
        let mut subscribe = Subscribe::new(1);
        for n in 0..200_u8 {
            subscribe = subscribe.filter(format!("{root}/{n}"), n % 3);
        }
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&subscribe);
        let answer = client.expect_answer(SUBACK);
        assert!(answer.reasons.iter().copied().eq((0..200).map(|n| n % 3)), "{:?}", answer.reasons);
        client.expect_silence();
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in [0_u8, 1, 2, 198, 199] {
            publisher.publish(&format!("{root}/{n}"), "x", 2);
            assert_eq!(client.expect_message().qos, n % 3);
        }
    }
}

// [MQTT5-3.8.4-5] [MQTT5-3.8.4-6] [MQTT5-3.9.3-1]
#[test]
fn a_filter_twice_in_one_subscribe_counts_as_two_subscribes() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Subscribe::new(1).filter(&topic, 2).filter(&topic, 1));
        assert_eq!(client.expect_answer(SUBACK).reasons, [2, 1]);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "x", 2);
        let got = client.drain(&mut publisher);
        assert_eq!(got.iter().map(|message| message.qos).collect::<Vec<_>>(), [1]);
    }
}

// [MQTT5-3.8.3-2] [MQTT3-3.8.3-3]
#[test]
fn a_subscribe_without_filters_is_a_protocol_error() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Subscribe::new(1));
        client.expect_refused_with(&REFUSED);
    }
}

// [MQTT5-3.8.3-5] [MQTT3-3.8.3-4] [MQTT5-3.8.3-2]
#[test]
fn reserved_subscription_options_are_malformed() {
    let bad_v5 = [0x03, 0x40, 0x80, 0xC0, 0x41];
    let bad_v4 = [0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF];
    for (version, bad) in [(V5, &bad_v5[..]), (V4, &bad_v4[..])] {
        for options in bad {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(&Subscribe::new(1).filter(unique("f"), *options));
            client.expect_refused_with(&REFUSED);
        }
    }
}

// [MQTT5-3.8.3-2] [MQTT5-4.13.1-1]
#[test]
fn a_filter_without_its_options_is_malformed() {
    for version in BOTH {
        let mut bytes = Subscribe::new(1).filter(unique("f"), 0).bytes(version);
        bytes.pop();
        bytes[1] -= 1;
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&bytes);
        client.expect_refused_with(&REFUSED);
    }
}

// [MQTT5-4.13.1-1]
#[test]
fn subscription_identifier_0_is_a_protocol_error() {
    let mut client = Client::connect(Broker::shared(), V5);
    let props = Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, 0);
    client.send(&Subscribe::new(1).filter(unique("f"), 0).props(props));
    client.expect_refused_with(&REFUSED);
}

// [MQTT5-3.8.4-3] [MQTT3-3.8.4-3] [MQTT5-3.8.4-4]
#[test]
fn the_same_filter_again_replaces_the_subscription() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        let mut publisher = Client::connect(Broker::shared(), version);
        for qos in [0, 2, 1, 1] {
            client.subscribe(&topic, qos);
            publisher.publish(&topic, "x", 2);
            let got = client.drain(&mut publisher);
            assert_eq!(got.iter().map(|message| message.qos).collect::<Vec<_>>(), [qos]);
        }
    }
}

// [MQTT5-3.8.4-4] [MQTT3-3.8.4-3]
#[test]
fn replacing_a_subscription_loses_no_message() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..200 {
            publisher.send(&Publish::new(&topic, n.to_string()).qos(1).id(n + 1));
            subscriber.send(&Subscribe::new(n + 1).filter(&topic, 1));
        }
        for _ in 0..200 {
            publisher.expect_ack(PUBACK);
            assert_eq!(subscriber.expect_answer(SUBACK).reasons, [1]);
        }
        let got: Vec<String> = subscriber.drain(&mut publisher).iter().map(Message::text).collect();
        assert!(got == (0..200).map(|n| n.to_string()).collect::<Vec<_>>(), "{got:?}");
    }
}

// [MQTT5-3.8.3-3]
#[test]
fn no_local_keeps_a_client_s_own_messages_from_it() {
    let topic = unique("t");
    let id = unique("c");
    let connect = Connect::new(&id).durable();
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &connect);
    client.subscribe(&topic, 1 | wire::NO_LOCAL);
    let mut other = Client::connect(Broker::shared(), V5);
    other.subscribe(&topic, 1);
    client.publish(&topic, "mine", 1);
    other.publish(&topic, "other's", 1);
    assert_eq!(other.expect_message().text(), "mine");
    assert_eq!(client.expect_message().text(), "other's");
    // The option belongs to the session and goes by the client identifier, not by the connection.
    client.abort();
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &connect);
    client.publish(&topic, "mine again", 1);
    assert_eq!(client.drain(&mut other), []);
    // Another subscription of the same client without the option still gets it.
    client.subscribe(&format!("{topic}/#"), 0);
    client.publish(&topic, "by the other way", 1);
    assert_eq!(client.expect_message().text(), "by the other way");
}

// [MQTT5-3.8.3-3] [MQTT5-3.8.4-3]
#[test]
fn no_local_can_be_taken_back() {
    let topic = unique("t");
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(&topic, wire::NO_LOCAL);
    client.publish(&topic, "unheard", 0);
    client.subscribe(&topic, 0);
    client.publish(&topic, "heard", 0);
    assert_eq!(client.expect_message().text(), "heard");
}

// [MQTT5-3.8.3-4]
#[test]
fn no_local_on_a_shared_subscription_is_a_protocol_error() {
    let mut client = Client::connect(Broker::shared(), V5);
    client.send(&Subscribe::new(1).filter("$share/g/a", wire::NO_LOCAL));
    client.expect_refused(reason::PROTOCOL_ERROR);
}

// [MQTT5-3.8.4-1] [MQTT5-3.8.4-7]
#[test]
fn the_number_of_subscriptions_is_bounded() {
    let broker = Broker::with(&["mqtt.max_subscriptions_per_session=5"]);
    let mut client = Client::connect(&broker, V5);
    for n in 0..5 {
        client.subscribe(&format!("f/{n}"), 0);
    }
    assert_eq!(client.try_subscribe("f/5", 0), [reason::QUOTA_EXCEEDED]);
    client.subscribe("f/0", 1);
    client.unsubscribe("f/1");
    client.subscribe("f/5", 0);
    let mut old = Client::connect(&broker, V4);
    old.send(&(0..7).fold(Subscribe::new(1), |subscribe, n| subscribe.filter(format!("f/{n}"), 1)));
    let failed = reason::V4_SUBSCRIBE_FAILURE;
    assert_eq!(old.expect_answer(SUBACK).reasons, [1, 1, 1, 1, 1, failed, failed]);
}

// [MQTT5-3.8.4-7] [MQTT5-4.13.1-1]
#[test]
fn the_number_of_topic_levels_is_bounded() {
    let broker = Broker::with(&["mqtt.max_topic_levels=4"]);
    for version in BOTH {
        let mut client = Client::connect(&broker, version);
        client.subscribe("a/b/c/d", 1);
        let code = client.try_subscribe("a/b/c/d/e", 1)[0];
        let expected =
            if version == V5 { reason::TOPIC_FILTER_INVALID } else { reason::V4_SUBSCRIBE_FAILURE };
        assert_eq!(code, expected);
        client.publish("a/b/c/d", "x", 1);
        assert_eq!(client.expect_message().text(), "x");
    }
}

#[test]
fn topics_that_are_write_only_cannot_be_read() {
    let broker = Broker::with(&["mqtt.write_only_topics=[\"secret/#\", \"+/key\"]"]);
    for version in BOTH {
        let refused = if version == V5 { reason::NOT_AUTHORIZED } else { 0x80 };
        let mut client = Client::connect(&broker, version);
        let filters = ["secret/#", "secret/a", "secret/+", "a/key", "+/key", "$share/g/secret/a", "#", "+/+"];
        client.send(&filters.iter().fold(Subscribe::new(1), |packet, filter| packet.filter(filter, 1)));
        let reasons = client.expect_answer(SUBACK).reasons;
        assert_eq!(reasons, [&[refused; 6][..], &[1, 1]].concat(), "wider filters do not see these topics");
        let mut publisher = Client::connect(&broker, version);
        for topic in ["secret/a", "b/key", "public"] {
            publisher.publish(topic, topic, 1);
        }
        assert_eq!(client.expect_message().text(), "public");
        client.expect_silence();
    }
}
