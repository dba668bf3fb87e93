//! UNSUBSCRIBE and UNSUBACK (3.10, 3.11).

use mainstem_conformance::prelude::*;

const REFUSED: [u8; 2] = [reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR];

// [MQTT5-3.10.4-4] [MQTT3-3.10.4-4] [MQTT5-3.10.4-5] [MQTT3-3.10.4-5] [MQTT5-3.11.3-2]
#[test]
fn each_unsubscribe_has_its_unsuback() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&topic, 0);
        // The last two do not delete anything, and are answered all the same.
        for (id, expected) in
            [(1, 0), (2, reason::NO_SUBSCRIPTION_EXISTED), (3, reason::NO_SUBSCRIPTION_EXISTED)]
        {
            client.send(&Unsubscribe::new(id).filter(&topic));
            let answer = client.expect_answer(UNSUBACK);
            assert_eq!(answer.id, id);
            let codes: &[u8] = if version == V5 { &[expected] } else { &[] };
            assert_eq!(answer.reasons, codes);
        }
    }
}

// [MQTT5-3.10.4-6] [MQTT3-3.10.4-6] [MQTT5-3.11.3-1]
#[test]
fn many_filters_get_one_unsuback_with_their_codes_in_order() {
    for version in BOTH {
        let root = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        for tail in ["a", "b", "d"] {
            client.subscribe(&format!("{root}/{tail}"), 0);
        }
        let filters = ["c", "a", "x", "b", "a"].map(|tail| format!("{root}/{tail}"));
        client.send(&filters.iter().fold(Unsubscribe::new(1), Unsubscribe::filter));
        let none = reason::NO_SUBSCRIPTION_EXISTED;
        let codes: &[u8] = if version == V5 { &[none, 0, none, 0, none] } else { &[] };
        assert_eq!(client.expect_answer(UNSUBACK).reasons, codes);
        client.expect_silence();
        let mut publisher = Client::connect(Broker::shared(), version);
        for tail in ["a", "b", "c", "d"] {
            publisher.publish(&format!("{root}/{tail}"), tail, 1);
        }
        let got: Vec<String> = client.drain(&mut publisher).iter().map(Message::text).collect();
        assert_eq!(got, ["d"]);
    }
}

// [MQTT5-3.10.3-2] [MQTT3-3.10.3-2]
#[test]
fn an_unsubscribe_without_filters_is_a_protocol_error() {
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        client.send(&Unsubscribe::new(1));
        client.expect_refused_with(&REFUSED);
    }
}

// [MQTT5-3.10.4-1] [MQTT3-3.10.4-1]
#[test]
fn filters_are_compared_character_by_character() {
    for version in BOTH {
        let root = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&format!("{root}/+"), 0);
        client.subscribe(&format!("{root}/é"), 0);
        // None of these is one of the filters above, though some match the same topics.
        for other in ["#", "a", "+/", "+/#", "É", "e\u{301}"] {
            let codes = client.unsubscribe(&format!("{root}/{other}"));
            assert!(version != V5 || codes == [reason::NO_SUBSCRIPTION_EXISTED], "{other}");
        }
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&format!("{root}/a"), "still there", 0);
        assert_eq!(client.expect_message().text(), "still there");
        let codes = client.unsubscribe(&format!("{root}/+"));
        assert!(version != V5 || codes == [0]);
        publisher.publish(&format!("{root}/a"), "gone", 0);
        publisher.publish(&format!("{root}/é"), "still there", 0);
        assert_eq!(client.expect_message().text(), "still there");
    }
}

// [MQTT5-3.10.4-2] [MQTT3-3.10.4-2]
#[test]
fn after_unsuback_no_new_message_is_added() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &durable);
        client.subscribe(&topic, 2);
        client.unsubscribe(&topic);
        let mut publisher = Client::connect(Broker::shared(), version);
        (0..=2).for_each(|qos| assert_ne!(publisher.publish(&topic, "x", qos), 0x80));
        assert_eq!(client.drain(&mut publisher), []);
        client.abort();
        publisher.publish(&topic, "x", 2);
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &durable);
        assert_eq!(client.drain(&mut publisher), []);
    }
}

// [MQTT5-3.10.4-3] [MQTT3-3.10.4-3]
#[test]
fn what_was_sent_before_is_completed() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &durable);
        client.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "1", 1);
        publisher.publish(&topic, "2", 2);
        publisher.publish(&topic, "3", 2);
        let sent: Vec<Message> = (0..3).map(|_| client.expect_publish()).collect();
        client.send(&wire::ack(PUBREC, sent[1].id));
        client.expect_ack_of(PUBREL, sent[1].id);
        client.unsubscribe(&topic);
        client.send(&wire::ack(PUBCOMP, sent[1].id));
        client.ping();
        client.abort();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &durable);
        for message in [&sent[0], &sent[2]] {
            let again = client.expect_message();
            assert_eq!((again.id, again.dup, again.text()), (message.id, true, message.text()));
        }
        assert_eq!(client.drain(&mut publisher), []);
    }
}

// [MQTT5-3.10.4-1]
#[test]
fn other_clients_keep_their_subscription_to_the_same_filter() {
    for version in BOTH {
        let topic = unique("t");
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(Broker::shared(), version)).collect();
        for client in &mut clients {
            client.subscribe(&topic, 0);
        }
        let mut publisher = Client::connect(Broker::shared(), version);
        while let Some(mut leaving) = clients.pop() {
            leaving.unsubscribe(&topic);
            publisher.publish(&topic, "x", 0);
            for client in &mut clients {
                assert_eq!(client.expect_message().text(), "x");
            }
            assert_eq!(leaving.drain(&mut publisher), []);
        }
    }
}

// [MQTT5-3.10.4-1] [MQTT5-3.11.3-2]
#[test]
fn a_shared_subscription_is_unsubscribed_by_its_full_filter() {
    let topic = unique("t");
    let shared = format!("$share/{topic}/{topic}");
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(&topic, 0);
    client.subscribe(&shared, 0);
    assert_eq!(client.unsubscribe(&format!("$share/other/{topic}")), [reason::NO_SUBSCRIPTION_EXISTED]);
    assert_eq!(client.unsubscribe(&shared), [0]);
    assert_eq!(client.unsubscribe(&shared), [reason::NO_SUBSCRIPTION_EXISTED]);
    client.publish(&topic, "once", 0);
    let mut publisher = Client::connect(Broker::shared(), V5);
    assert_eq!(client.drain(&mut publisher).len(), 1);
}

// [MQTT5-3.10.3-1] [MQTT5-3.11.3-2]
#[test]
fn a_filter_that_cannot_exist_is_answered_or_refused() {
    for filter in ["a/#/b", "a+", "$share//a", "$share/g"] {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&Unsubscribe::new(1).filter(filter));
        match client.event() {
            Event::Packet(Packet::Answer(answer)) => {
                let code = answer.reasons[0];
                assert!(
                    matches!(code, reason::NO_SUBSCRIPTION_EXISTED | reason::TOPIC_FILTER_INVALID),
                    "{code:02x}"
                );
            }
            Event::Packet(Packet::Disconnect(disconnect)) => {
                let known = [REFUSED[0], REFUSED[1], reason::TOPIC_FILTER_INVALID];
                assert!(known.contains(&disconnect.reason), "{disconnect:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}
