//! Retained messages (3.3.1.3) and the subscription options about them (3.8.3.1).

use mainstem_conformance::prelude::*;

/// Subscribes a new client to `filter` with `options`; what comes of retained messages.
fn retained(version: Version, filter: &str, options: u8) -> Vec<Message> {
    let mut client = Client::connect(Broker::shared(), version);
    client.subscribe(filter, options);
    let mut publisher = Client::connect(Broker::shared(), version);
    client.drain(&mut publisher)
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

fn retain(publisher: &mut Client, topic: &str, payload: &str, qos: u8) {
    publisher.publish_with(Publish::new(topic, payload).retain(), qos);
}

// [MQTT5-3.3.1-5] [MQTT3-3.3.1-5] [MQTT3-3.3.1-6] [MQTT3-3.3.1-8] [MQTT5-3.3.1-9] [MQTT3-3.3.1-7]
#[test]
fn the_last_retained_message_goes_to_new_subscribers() {
    for version in BOTH {
        let topic = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        for qos in [0, 1, 2, 0] {
            retain(&mut publisher, &topic, "old", qos);
            retain(&mut publisher, &topic, &format!("new {qos}"), qos);
            publisher.ping();
            let got = retained(version, &topic, 2);
            assert_eq!(texts(&got), [format!("new {qos}")]);
            assert_eq!((got[0].retain, got[0].qos, got[0].dup), (true, qos, false));
        }
        retain(&mut publisher, &topic, "", 1);
    }
}

// [MQTT5-3.3.1-6] [MQTT3-3.3.1-10] [MQTT5-3.3.1-7] [MQTT3-3.3.1-11]
#[test]
fn an_empty_payload_removes_the_retained_message_and_is_not_stored() {
    for version in BOTH {
        for qos in 0..=2 {
            let topic = unique("t");
            let mut watcher = Client::connect(Broker::shared(), version);
            watcher.subscribe(&topic, 2);
            let mut publisher = Client::connect(Broker::shared(), version);
            retain(&mut publisher, &topic, "x", qos);
            retain(&mut publisher, &topic, "", qos);
            publisher.ping();
            // Those subscribed already get the empty message as any other.
            assert_eq!(texts(&watcher.drain(&mut publisher)), ["x", ""]);
            assert_eq!(retained(version, &topic, 2), []);
        }
    }
}

// [MQTT5-3.3.1-8] [MQTT3-3.3.1-12]
#[test]
fn messages_without_retain_leave_the_retained_one_alone() {
    for version in BOTH {
        let topic = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "not stored", 1);
        assert_eq!(retained(version, &topic, 2), []);
        retain(&mut publisher, &topic, "stored", 1);
        publisher.publish(&topic, "not stored", 1);
        publisher.publish(&topic, "", 1);
        assert_eq!(texts(&retained(version, &topic, 2)), ["stored"]);
        retain(&mut publisher, &topic, "", 1);
    }
}

// [MQTT3-3.3.1-9] [MQTT5-3.3.1-12]
#[test]
fn live_messages_lose_retain() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 0);
        let mut publisher = Client::connect(Broker::shared(), version);
        retain(&mut publisher, &topic, "live", 0);
        assert!(!subscriber.expect_message().retain);
        retain(&mut publisher, &topic, "", 0);
        assert!(!subscriber.expect_message().retain);
    }
}

// [MQTT5-3.3.1-12] [MQTT5-3.3.1-13]
#[test]
fn retain_as_published_keeps_the_flag() {
    let topic = unique("t");
    let mut keeps = Client::connect(Broker::shared(), V5);
    keeps.subscribe(&topic, 1 | wire::RETAIN_AS_PUBLISHED);
    let mut drops = Client::connect(Broker::shared(), V5);
    drops.subscribe(&topic, 1);
    let mut publisher = Client::connect(Broker::shared(), V5);
    retain(&mut publisher, &topic, "x", 1);
    publisher.publish(&topic, "y", 1);
    assert!(keeps.expect_message().retain && !keeps.expect_message().retain);
    assert!(!drops.expect_message().retain && !drops.expect_message().retain);
    // What was retained before comes with the flag, whichever option is set.
    for options in [1, 1 | wire::RETAIN_AS_PUBLISHED] {
        assert!(retained(V5, &topic, options)[0].retain);
    }
    retain(&mut publisher, &topic, "", 1);
}

// [MQTT5-3.3.1-9] [MQTT5-3.8.4-4] [MQTT3-3.8.4-3]
#[test]
fn retain_handling_0_sends_at_every_subscribe() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        retain(&mut client, &topic, "x", 1);
        for _ in 0..3 {
            client.subscribe(&topic, 1);
            let message = client.expect_message();
            assert_eq!((message.text().as_str(), message.retain), ("x", true));
        }
        retain(&mut client, &topic, "", 1);
    }
}

// [MQTT5-3.3.1-10]
#[test]
fn retain_handling_1_sends_only_to_a_new_subscription() {
    let topic = unique("t");
    let mut publisher = Client::connect(Broker::shared(), V5);
    retain(&mut publisher, &topic, "x", 1);
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(&topic, 1 | wire::RETAINED_IF_NEW);
    assert_eq!(texts(&client.drain(&mut publisher)), ["x"]);
    client.subscribe(&topic, 1 | wire::RETAINED_IF_NEW);
    client.subscribe(&topic, 2 | wire::RETAINED_IF_NEW);
    assert_eq!(client.drain(&mut publisher), []);
    client.unsubscribe(&topic);
    client.subscribe(&topic, 1 | wire::RETAINED_IF_NEW);
    assert_eq!(texts(&client.drain(&mut publisher)), ["x"]);
    retain(&mut publisher, &topic, "", 1);
}

// [MQTT5-3.3.1-10] [MQTT5-4.1.0-1]
#[test]
fn a_subscription_in_a_resumed_session_is_not_new() {
    let (topic, id) = (unique("t"), unique("c"));
    let mut publisher = Client::connect(Broker::shared(), V5);
    retain(&mut publisher, &topic, "x", 1);
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    client.subscribe(&topic, 1 | wire::RETAINED_IF_NEW);
    client.expect_message();
    client.abort();
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    client.subscribe(&topic, 1 | wire::RETAINED_IF_NEW);
    assert_eq!(client.drain(&mut publisher), []);
    retain(&mut publisher, &topic, "", 1);
}

// [MQTT5-3.3.1-11]
#[test]
fn retain_handling_2_sends_none() {
    let topic = unique("t");
    let mut publisher = Client::connect(Broker::shared(), V5);
    retain(&mut publisher, &topic, "x", 1);
    assert_eq!(retained(V5, &topic, 1 | wire::RETAINED_NEVER), []);
    retain(&mut publisher, &topic, "", 1);
}

// [MQTT5-3.8.3-5]
#[test]
fn retain_handling_3_is_a_protocol_error() {
    let mut client = Client::connect(Broker::shared(), V5);
    client.send(&Subscribe::new(1).filter(unique("t"), 0x30));
    client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
}

// [MQTT5-3.3.1-9] [MQTT3-3.3.1-6]
#[test]
fn a_wildcard_finds_all_retained_messages_it_matches() {
    for version in BOTH {
        let root = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        let topics = ["", "/a", "/b", "/a/b", "/b/b", "//b"].map(|tail| format!("{root}{tail}"));
        for topic in &topics {
            retain(&mut publisher, topic, topic, 1);
        }
        let found = |filter: &str| {
            let mut names = texts(&retained(version, filter, 1));
            names.sort_unstable();
            names.iter().map(|name| name[root.len()..].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found(&format!("{root}/#")), ["", "//b", "/a", "/a/b", "/b", "/b/b"]);
        assert_eq!(found(&format!("{root}/+")), ["/a", "/b"]);
        assert_eq!(found(&format!("{root}/+/b")), ["//b", "/a/b", "/b/b"]);
        assert_eq!(found(&format!("{root}/a/#")), ["/a", "/a/b"]);
        for topic in &topics {
            retain(&mut publisher, topic, "", 1);
        }
        assert_eq!(retained(version, &format!("{root}/#"), 1), []);
    }
}

// [MQTT5-3.3.1-9] [MQTT5-3.8.4-8]
#[test]
fn retained_messages_keep_to_the_subscription_s_qos_and_identifier() {
    let topic = unique("t");
    let mut client = Client::connect(Broker::shared(), V5);
    retain(&mut client, &topic, "x", 2);
    for qos in 0..=2 {
        let props = Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, u32::from(qos) + 1);
        client.send(&Subscribe::new(1).filter(&topic, qos).props(props));
        client.expect_answer(SUBACK);
        let message = client.expect_message();
        assert_eq!(message.qos, qos);
        assert_eq!(message.props.numbers(property::SUBSCRIPTION_IDENTIFIER), [u32::from(qos) + 1]);
    }
    retain(&mut client, &topic, "", 1);
}

// [MQTT5-3.3.1-9] [MQTT5-4.8.2-1]
#[test]
fn shared_subscriptions_get_no_retained_messages() {
    let topic = unique("t");
    let mut publisher = Client::connect(Broker::shared(), V5);
    retain(&mut publisher, &topic, "x", 1);
    assert_eq!(retained(V5, &format!("$share/{topic}/{topic}"), 1), []);
    retain(&mut publisher, &topic, "", 1);
}

// [MQTT3-3.1.2-7] [MQTT5-3.3.1-5]
#[test]
fn retained_messages_outlive_their_publisher_s_session() {
    for version in BOTH {
        let (topic, id) = (unique("t"), unique("c"));
        let (mut publisher, _) = Client::connect_with(Broker::shared(), version, &Connect::new(&id));
        retain(&mut publisher, &topic, "x", 1);
        publisher.disconnect();
        Client::connect_with(Broker::shared(), version, &Connect::new(&id)).0.disconnect();
        assert_eq!(texts(&retained(version, &topic, 0)), ["x"]);
        retain(&mut Client::connect(Broker::shared(), version), &topic, "", 1);
    }
}

// [MQTT5-3.3.2-4] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18]
#[test]
fn retained_messages_keep_their_properties() {
    let topic = unique("t");
    let mut client = Client::connect(Broker::shared(), V5);
    let props = Props::new()
        .byte(property::PAYLOAD_FORMAT_INDICATOR, 1)
        .user("z", "1")
        .user("a", "2")
        .data(property::CONTENT_TYPE, "text");
    client.publish_with(Publish::new(&topic, "x").retain().props(props), 1);
    client.subscribe(&topic, 1);
    let message = client.expect_message();
    assert_eq!(message.props.user(), [("z", "1"), ("a", "2")]);
    assert_eq!(message.props.number(property::PAYLOAD_FORMAT_INDICATOR), Some(1));
    assert_eq!(message.props.text(property::CONTENT_TYPE), Some("text"));
    retain(&mut client, &topic, "", 1);
}

// [MQTT5-3.3.1-9] [MQTT5-4.1.0-1] [MQTT3-3.3.1-6]
#[test]
fn retained_messages_on_their_way_survive_a_lost_connection() {
    for version in BOTH {
        let root = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        let topics: Vec<String> = (10..90).map(|n| format!("{root}/{n}")).collect();
        for topic in &topics {
            retain(&mut publisher, topic, topic, 1);
        }
        let props = Props::new().two(property::RECEIVE_MAXIMUM, 1);
        let durable = Connect::new(unique("c")).props(props).durable();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &durable);
        client.subscribe(&format!("{root}/#"), 1);
        let first = client.expect_message();
        client.ping();
        client.abort();
        let (mut client, _) = Client::connect_with(Broker::shared(), version, &durable);
        let mut got = vec![first.text()];
        got.extend((1..topics.len()).map(|_| client.expect_message().text()));
        got.sort_unstable();
        assert_eq!(got, topics);
        for topic in &topics {
            retain(&mut publisher, topic, "", 1);
        }
    }
}

// [MQTT5-4.6.0-5] [MQTT5-4.6.0-6]
#[test]
fn no_older_message_follows_a_newer_retained_one() {
    for is_durable in [false, true] {
        let root = unique("t");
        let last = format!("{root}/z");
        let mut publisher = Client::connect(Broker::shared(), V5);
        for topic in [&format!("{root}/a"), &last] {
            retain(&mut publisher, topic, "0", 1);
        }
        let props = Props::new().two(property::RECEIVE_MAXIMUM, 1);
        let connect = Connect::new(unique("c")).props(props);
        let connect = if is_durable { connect.durable() } else { connect };
        let (mut client, _) = Client::connect_with(Broker::shared(), V5, &connect);
        client.subscribe(&format!("{root}/#"), 1);
        // Until it is acknowledged, the other retained message has to wait.
        let first = client.expect_publish();
        assert_eq!(first.topic, format!("{root}/a"));
        for number in 1..=3 {
            retain(&mut publisher, &last, &number.to_string(), 1);
        }
        client.acknowledge(&first);
        let got: Vec<Message> = client.drain(&mut publisher);
        let got: Vec<String> = got.iter().filter(|got| got.topic == last).map(Message::text).collect();
        let newer = got.strip_prefix(&["0".to_owned()]).unwrap_or(&got);
        assert_eq!(newer, ["1", "2", "3"], "durable: {is_durable}");
        for topic in ["a", "z"] {
            retain(&mut publisher, &format!("{root}/{topic}"), "", 1);
        }
    }
}

// [MQTT5-3.3.1-5] [MQTT3-3.3.1-5]
#[test]
fn the_number_of_retained_messages_is_bounded() {
    let broker = Broker::with(&["mqtt.max_retained_messages=3", "mqtt.sys_interval_s=0"]);
    let mut client = Client::connect(&broker, V5);
    let set = |client: &mut Client, topic: &str, payload: &str| {
        client.publish_with(Publish::new(topic, payload).retain(), 1)
    };
    for n in 0..3 {
        assert!(set(&mut client, &format!("r/{n}"), "x") < 0x80);
    }
    assert_eq!(set(&mut client, "r/3", "x"), reason::QUOTA_EXCEEDED);
    assert!(set(&mut client, "r/0", "replaced") < 0x80);
    assert!(set(&mut client, "r/1", "") < 0x80);
    assert!(set(&mut client, "r/3", "room again") < 0x80);
    client.subscribe("r/#", 0);
    let mut got: Vec<String> = (0..3).map(|_| client.expect_message().text()).collect();
    got.sort_unstable();
    assert_eq!(got, ["replaced", "room again", "x"]);
    client.expect_silence();
}
