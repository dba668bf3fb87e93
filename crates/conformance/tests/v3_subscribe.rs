//! What 3.x says of subscriptions and of retained messages.

use mainstem_conformance::prelude::*;
use wire::Wire;

const OLD: [Version; 2] = [V3, V4];

/// A return code of SUBACK: the filter is refused.
const FAILURE: u8 = 0x80;

// [MQTT3-3.8.3-4] [MQTT3-4.8.0-1]
#[test]
fn what_version_5_made_of_the_reserved_bits_is_still_refused() {
    for version in OLD {
        for options in [0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFC | 1] {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(&Subscribe::new(1).filter(unique("t"), options));
            client.expect_closed();
        }
    }
}

// [MQTT3-3.8.3-3] [MQTT3-3.10.3-2]
#[test]
fn a_request_without_filters_is_refused() {
    for request in [Subscribe::new(1).bytes(V4), Unsubscribe::new(1).bytes(V4)] {
        let mut client = Client::connect(Broker::shared(), V4);
        client.send(&request);
        client.expect_closed();
    }
}

// [MQTT3-3.8.3-2] [MQTT3-3.8.4-5] [MQTT3-3.9.3-1] [MQTT3-3.9.3-2]
#[test]
fn without_wildcard_support_filters_with_wildcards_fail_and_others_do_not() {
    let broker = Broker::with(&["mqtt.wildcard_subscription_available=false"]);
    for version in OLD {
        let mut client = Client::connect(&broker, version);
        let request =
            Subscribe::new(3).filter("a", 2).filter("a/#", 1).filter("b", 0).filter("+", 0).filter("c", 1);
        client.send(&request);
        let answer = client.expect_answer(SUBACK);
        assert_eq!((answer.id, answer.reasons), (3, vec![2, FAILURE, 0, FAILURE, 1]));
        client.publish("a", "x", 1);
        assert_eq!(client.expect_message().topic, "a");
        client.publish("a/b", "nobody", 1);
        client.expect_silence();
    }
}

// [MQTT3-3.8.4-1] [MQTT3-3.8.4-2] [MQTT3-3.8.4-4] [MQTT3-3.8.4-5] [MQTT3-3.9.3-1]
#[test]
fn many_filters_get_one_suback_with_a_code_each() {
    for version in OLD {
        let base = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        let qos_of = |at: u8| at % 3;
        let filters = (0..30)
            .fold(Subscribe::new(77), |request, at| request.filter(format!("{base}/{at}"), qos_of(at)));
        client.send(&filters);
        let answer = client.expect_answer(SUBACK);
        assert_eq!((answer.id, answer.reasons), (77, (0..30).map(qos_of).collect()));
        let mut publisher = Client::connect(Broker::shared(), version);
        for at in 0..30 {
            publisher.publish(&format!("{base}/{at}"), "x", 2);
            assert_eq!(client.expect_message().qos, qos_of(at));
        }
    }
}

// [MQTT3-3.8.4-3] [MQTT3-3.3.1-6] [MQTT3-3.3.1-8]
#[test]
fn subscribing_again_replaces_and_sends_retained_messages_again() {
    for version in OLD {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "kept").retain(), 1);
        for qos in [0, 1, 0] {
            client.subscribe(&topic, qos);
            let message = client.expect_message();
            assert_eq!((message.text().as_str(), message.retain, message.qos), ("kept", true, qos));
        }
        publisher.publish(&topic, "live", 1);
        let live = client.drain(&mut publisher);
        assert_eq!(live.len(), 1, "one subscription, one copy: {live:?}");
        assert_eq!((live[0].qos, live[0].retain), (0, false), "at the QoS of the last SUBSCRIBE");
        publisher.publish_with(Publish::new(&topic, "").retain(), 1);
    }
}

// [MQTT3-3.3.1-7]
#[test]
fn a_retained_qos_0_message_replaces_the_one_before() {
    for version in OLD {
        let topic = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "old").retain(), 2);
        publisher.publish_with(Publish::new(&topic, "new").retain(), 0);
        let mut client = Client::connect(Broker::shared(), version);
        publisher.ping();
        client.subscribe(&topic, 2);
        let texts: Vec<String> = client.drain(&mut publisher).iter().map(Message::text).collect();
        // Keeping it is what a server should do; the older one must not be there.
        assert!(texts.is_empty() || texts == ["new"], "{texts:?}");
        publisher.publish_with(Publish::new(&topic, "").retain(), 1);
    }
}

// [MQTT3-3.3.1-5] [MQTT3-3.3.1-8] [MQTT3-3.3.1-9]
#[test]
fn retain_is_set_for_a_new_subscription_only() {
    for version in OLD {
        let topic = unique("t");
        let mut standing = Client::connect(Broker::shared(), version);
        standing.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "x").retain(), 2);
        let live = standing.expect_message();
        assert_eq!((live.retain, live.qos), (false, 2));
        let mut late = Client::connect(Broker::shared(), version);
        late.subscribe(&topic, 2);
        let kept = late.expect_message();
        assert_eq!((kept.retain, kept.qos, kept.text().as_str()), (true, 2, "x"), "kept with its QoS");
        publisher.publish_with(Publish::new(&topic, "").retain(), 1);
    }
}

// [MQTT3-3.3.1-10] [MQTT3-3.3.1-11] [MQTT3-3.3.1-12]
#[test]
fn an_empty_retained_message_is_delivered_and_removes() {
    for version in OLD {
        let topic = unique("t");
        let mut standing = Client::connect(Broker::shared(), version);
        standing.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "kept").retain(), 1);
        publisher.publish_with(Publish::new(&topic, "passing"), 1);
        let mut late = Client::connect(Broker::shared(), version);
        late.subscribe(&topic, 1);
        assert_eq!(late.expect_message().text(), "kept", "a message without RETAIN changes nothing");

        publisher.publish_with(Publish::new(&topic, "").retain(), 1);
        let texts: Vec<String> = (0..3).map(|_| standing.expect_message().text()).collect();
        assert_eq!(texts, ["kept", "passing", ""]);
        let mut later = Client::connect(Broker::shared(), version);
        later.subscribe(&topic, 1);
        assert_eq!(later.drain(&mut publisher), []);
    }
}

// [MQTT3-3.10.4-1] [MQTT3-3.10.4-2] [MQTT3-3.10.4-4] [MQTT3-3.10.4-5] [MQTT3-3.10.4-6]
#[test]
fn unsubscribe_removes_what_is_equal_and_is_answered_once() {
    for version in OLD {
        let base = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        for filter in ["a", "b", "+"] {
            client.subscribe(&format!("{base}/{filter}"), 1);
        }
        let request = Unsubscribe::new(40)
            .filter(format!("{base}/a"))
            .filter(format!("{base}/#"))
            .filter(format!("{base}/+"));
        client.send(&request);
        let answer = client.expect_answer(UNSUBACK);
        assert_eq!((answer.id, answer.reasons), (40, vec![]), "an UNSUBACK of 3.x has no codes");
        client.expect_silence();
        let mut publisher = Client::connect(Broker::shared(), version);
        for topic in ["a", "b", "c"] {
            publisher.publish(&format!("{base}/{topic}"), topic, 1);
        }
        let left: Vec<String> = client.drain(&mut publisher).iter().map(Message::text).collect();
        assert_eq!(left, ["b"]);
    }
}

// [MQTT3-3.10.4-3]
#[test]
fn a_delivery_begun_before_unsubscribe_is_completed() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &Connect::new(&id).resume());
        client.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "one", 1);
        publisher.publish(&topic, "two", 2);
        let (one, two) = (client.expect_publish(), client.expect_publish());
        client.unsubscribe(&topic);
        client.send(&wire::ack(PUBREC, two.id));
        assert_eq!(client.expect_ack(PUBREL).id, two.id);
        client.abort();

        let resume = Connect::new(&id).resume();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &resume);
        assert_eq!(client.expect_message().id, one.id, "unacknowledged, so sent again");
        assert_eq!(client.expect_ack(PUBREL).id, two.id);
        client.send(&wire::ack(PUBCOMP, two.id));
        client.expect_silence();
    }
}

// [MQTT3-3.3.5-1] [MQTT3-3.8.4-6]
#[test]
fn overlapping_filters_deliver_at_the_highest_qos_that_matches() {
    for version in OLD {
        let base = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&format!("{base}/+"), 0);
        client.subscribe(&format!("{base}/a"), 2);
        client.subscribe(&format!("{base}/#"), 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for qos in 0..3 {
            publisher.publish(&format!("{base}/a"), "x", qos);
            let copies = client.drain(&mut publisher);
            assert_eq!(copies.iter().map(|copy| copy.qos).max(), Some(qos), "{copies:?}");
        }
    }
}

// [MQTT3-3.3.5-2]
#[test]
fn a_publish_without_permission_is_acknowledged_or_ends_the_connection() {
    for version in OLD {
        let topic = format!("$SYS/{}", unique("t"));
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.try_subscribe(&topic, 1);
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Publish::new(&topic, "x").qos(1).id(1));
        match client.event() {
            Event::Closed => {}
            Event::Packet(Packet::Ack(ack)) => assert_eq!((ack.kind, ack.id), (PUBACK, 1)),
            Event::Packet(other) => panic!("PUBACK or a close expected, came {other:?}"),
        }
        let mut publisher = Client::connect(Broker::shared(), version);
        assert_eq!(subscriber.drain(&mut publisher), [], "nobody but the server writes below $SYS");
    }
}
