//! The will (3.1.2.5, 3.1.3.2, 3.14.4): when it is published, with what, and when not.

use std::time::{Duration, Instant};

use mainstem_conformance::prelude::*;

/// A subscriber to `topic` at QoS 2.
fn watcher(version: Version, topic: &str) -> Client {
    let mut watcher = Client::connect(Broker::shared(), version);
    watcher.subscribe(topic, 2);
    watcher
}

fn willed(version: Version, will: Will) -> Client {
    Client::connect_with(Broker::shared(), version, &Connect::new(unique("c")).will(will)).0
}

fn delayed(topic: &str, seconds: u32) -> Will {
    Will::new(topic, "will").props(Props::new().four(property::WILL_DELAY_INTERVAL, seconds))
}

/// Shows that no will came to `watcher` up to now.
fn expect_no_will(watcher: &mut Client, version: Version) {
    let mut publisher = Client::connect(Broker::shared(), version);
    assert_eq!(watcher.drain(&mut publisher), [], "{version:?}");
}

// [MQTT5-3.1.2-7] [MQTT5-3.1.2-8] [MQTT3-3.1.2-8] [MQTT5-3.1.2-12]
#[test]
fn a_lost_connection_publishes_the_will_at_its_qos() {
    for version in BOTH {
        for qos in 0..=2 {
            let topic = unique("will");
            let mut watcher = watcher(version, &topic);
            willed(version, Will::new(&topic, "gone").qos(qos)).abort();
            let will = watcher.expect_message();
            assert_eq!((will.text().as_str(), will.qos, will.retain), ("gone", qos, false));
        }
    }
}

// [MQTT5-3.14.4-3] [MQTT3-3.14.4-3] [MQTT5-3.1.2-10] [MQTT3-3.1.2-10]
#[test]
fn a_normal_disconnect_discards_the_will() {
    for version in BOTH {
        let topic = unique("will");
        let mut watcher = watcher(version, &topic);
        willed(version, Will::new(&topic, "gone")).disconnect();
        if version == V5 {
            willed(version, Will::new(&topic, "gone")).disconnect_with(&[0xE0, 0x01, 0x00]);
            willed(version, Will::new(&topic, "gone"))
                .disconnect_with(&wire::disconnect_with(0, &Props::new()));
        }
        expect_no_will(&mut watcher, version);
    }
}

// [MQTT5-3.1.2-8] [MQTT5-3.14.4-3]
#[test]
fn a_disconnect_with_another_reason_publishes_the_will() {
    for code in
        [reason::DISCONNECT_WITH_WILL, reason::UNSPECIFIED_ERROR, reason::IMPLEMENTATION_SPECIFIC_ERROR]
    {
        let topic = unique("will");
        let mut watcher = watcher(V5, &topic);
        willed(V5, Will::new(&topic, "gone")).disconnect_with(&[0xE0, 0x01, code]);
        assert_eq!(watcher.expect_message().text(), "gone");
    }
}

// [MQTT5-3.1.2-8] [MQTT3-3.1.2-8]
#[test]
fn a_protocol_error_publishes_the_will() {
    for version in BOTH {
        let topic = unique("will");
        let mut watcher = watcher(version, &topic);
        let mut client = willed(version, Will::new(&topic, "gone"));
        client.send(&[0x00, 0x00]);
        assert_eq!(watcher.expect_message().text(), "gone");
    }
}

// [MQTT5-3.1.2-8] [MQTT5-3.1.4-3] [MQTT3-3.1.4-2]
#[test]
fn a_takeover_publishes_the_will_of_the_old_connection() {
    for version in BOTH {
        let (topic, id) = (unique("will"), unique("c"));
        let mut watcher = watcher(version, &topic);
        let connect = Connect::new(&id).will(Will::new(&topic, "old"));
        let (_old, _) = Client::connect_with(Broker::shared(), version, &connect);
        Client::connect_with(Broker::shared(), version, &Connect::new(&id)).0.disconnect();
        assert_eq!(watcher.expect_message().text(), "old");
        expect_no_will(&mut watcher, version);
    }
}

// [MQTT5-3.1.2-10] [MQTT3-3.1.2-10] [MQTT3-3.1.2-12]
#[test]
fn a_will_is_published_once_and_the_next_connection_has_its_own() {
    for version in BOTH {
        let (topic, id) = (unique("will"), unique("c"));
        let mut watcher = watcher(version, &topic);
        let first = Connect::new(&id).durable().will(Will::new(&topic, "first"));
        Client::connect_with(Broker::shared(), version, &first).0.abort();
        assert_eq!(watcher.expect_message().text(), "first");
        Client::connect_with(Broker::shared(), version, &Connect::new(&id).durable()).0.abort();
        let third = Connect::new(&id).durable().will(Will::new(&topic, "third"));
        Client::connect_with(Broker::shared(), version, &third).0.abort();
        assert_eq!(watcher.expect_message().text(), "third");
        expect_no_will(&mut watcher, version);
    }
}

// [MQTT5-3.1.2-14] [MQTT3-3.1.2-16] [MQTT5-3.1.2-15] [MQTT3-3.1.2-17]
#[test]
fn will_retain_decides_whether_the_will_is_retained() {
    for version in BOTH {
        let (live, kept) = (unique("will"), unique("will"));
        let mut watching = watcher(version, &live);
        watching.subscribe(&kept, 2);
        willed(version, Will::new(&live, "live").qos(1)).abort();
        willed(version, Will::new(&kept, "kept").qos(1).retain()).abort();
        assert_eq!(watching.expect_message().text(), "live");
        assert_eq!(watching.expect_message().text(), "kept");
        let mut late = watcher(version, &live);
        late.subscribe(&kept, 2);
        let will = late.expect_message();
        assert_eq!((will.text().as_str(), will.retain), ("kept", true));
        late.publish_with(Publish::new(&kept, "").retain(), 1);
    }
}

// [MQTT5-3.1.2-8] [MQTT5-3.1.3-9]
#[test]
fn a_delayed_will_comes_after_its_delay() {
    let topic = unique("will");
    let mut watcher = watcher(V5, &topic);
    let connect = Connect::new(unique("c")).session_expiry(60).will(delayed(&topic, 2));
    let client = Client::connect_with(Broker::shared(), V5, &connect).0;
    let start = Instant::now();
    client.abort();
    assert_eq!(watcher.expect_message().text(), "will");
    assert!(start.elapsed() > Duration::from_secs(1), "after {:?} of 2 s", start.elapsed());
}

// [MQTT5-3.1.3-9] [MQTT5-3.1.2-8]
#[test]
fn a_new_connection_within_the_delay_cancels_the_will() {
    let (topic, id) = (unique("will"), unique("c"));
    let mut watcher = watcher(V5, &topic);
    let connect = Connect::new(&id).session_expiry(60).will(delayed(&topic, 5));
    Client::connect_with(Broker::shared(), V5, &connect).0.abort();
    let (mut again, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    assert!(connack.session_present);
    again.pass(Duration::from_millis(6500));
    expect_no_will(&mut watcher, V5);
}

// [MQTT5-3.1.3-9] [MQTT5-3.1.4-3]
#[test]
fn a_takeover_that_continues_the_session_cancels_a_delayed_will() {
    let (topic, id) = (unique("will"), unique("c"));
    let mut watcher = watcher(V5, &topic);
    let connect = Connect::new(&id).session_expiry(60).will(delayed(&topic, 5));
    let (mut old, _) = Client::connect_with(Broker::shared(), V5, &connect);
    let (mut new, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    assert!(connack.session_present);
    old.expect_refused(reason::SESSION_TAKEN_OVER);
    new.pass(Duration::from_millis(6500));
    expect_no_will(&mut watcher, V5);
}

// [MQTT5-3.1.2-8]
#[test]
fn the_end_of_the_session_ends_the_delay() {
    // The session expires at the close, after one second, or when a clean start discards it.
    let topic = unique("will");
    let mut watcher = watcher(V5, &topic);
    let start = Instant::now();
    for expiry in [0, 1] {
        let connect = Connect::new(unique("c")).session_expiry(expiry).will(delayed(&topic, 600));
        Client::connect_with(Broker::shared(), V5, &connect).0.abort();
        assert_eq!(watcher.expect_message().text(), "will", "session expiry {expiry}");
    }
    let id = unique("c");
    let connect = Connect::new(&id).session_expiry(600).will(delayed(&topic, 600));
    Client::connect_with(Broker::shared(), V5, &connect).0.abort();
    let (_, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id));
    assert!(!connack.session_present);
    assert_eq!(watcher.expect_message().text(), "will");
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
}

// [MQTT5-3.1.2-8]
#[test]
fn a_disconnect_that_ends_the_session_ends_the_delay() {
    let topic = unique("will");
    let mut watcher = watcher(V5, &topic);
    let connect = Connect::new(unique("c")).session_expiry(600).will(delayed(&topic, 600));
    let (client, _) = Client::connect_with(Broker::shared(), V5, &connect);
    let now = Props::new().four(property::SESSION_EXPIRY_INTERVAL, 0);
    client.disconnect_with(&wire::disconnect_with(reason::DISCONNECT_WITH_WILL, &now));
    assert_eq!(watcher.expect_message().text(), "will");
}

// [MQTT5-3.1.3-10] [MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18]
// [MQTT5-3.3.2-20]
#[test]
fn will_properties_go_out_with_the_will() {
    let topic = unique("will");
    let mut watcher = watcher(V5, &topic);
    let props = Props::new()
        .user("b", "1")
        .byte(property::PAYLOAD_FORMAT_INDICATOR, 1)
        .user("a", "2")
        .four(property::MESSAGE_EXPIRY_INTERVAL, 1000)
        .data(property::CONTENT_TYPE, "text/plain")
        .user("b", "1")
        .data(property::RESPONSE_TOPIC, "answer/here")
        .data(property::CORRELATION_DATA, [0, 255]);
    willed(V5, Will::new(&topic, "gone").props(props)).abort();
    let will = watcher.expect_message();
    assert_eq!(will.props.user(), [("b", "1"), ("a", "2"), ("b", "1")]);
    assert_eq!(will.props.number(property::PAYLOAD_FORMAT_INDICATOR), Some(1));
    assert_eq!(will.props.text(property::CONTENT_TYPE), Some("text/plain"));
    assert_eq!(will.props.text(property::RESPONSE_TOPIC), Some("answer/here"));
    assert_eq!(will.props.data(property::CORRELATION_DATA), Some(&[0, 255][..]));
    let left = will.props.number(property::MESSAGE_EXPIRY_INTERVAL).expect("a message expiry");
    assert!((990..=1000).contains(&left), "{left}");
    assert!(!will.props.has(property::WILL_DELAY_INTERVAL));
}

// [MQTT5-3.1.2-8]
#[test]
fn an_empty_will_is_a_will() {
    for version in BOTH {
        let topic = unique("will");
        let mut watcher = watcher(version, &topic);
        willed(version, Will::new(&topic, "")).abort();
        assert_eq!(watcher.expect_message().payload, b"");
    }
}

// [MQTT5-3.1.2-8] [MQTT5-4.7.0-1] [MQTT5-4.7.3-1] [MQTT3-4.7.1-1] [MQTT3-4.7.3-1]
#[test]
fn a_will_topic_must_be_a_topic_name() {
    for version in BOTH {
        for topic in ["a/+", "a/#", "#", "+/a", ""] {
            let connect = Connect::new(unique("c")).will(Will::new(topic, "x"));
            let code = Client::refused(Broker::shared(), version, &connect);
            let fits = match version {
                V5 => matches!(code, None | Some(0x81 | 0x82 | 0x90)),
                _ => true,
            };
            assert!(fits, "{topic:?}: {code:02x?}");
        }
    }
}

// [MQTT5-3.8.4-8] [MQTT3-3.8.4-6]
#[test]
fn a_will_reaches_each_subscriber_at_its_own_qos() {
    for version in BOTH {
        let topic = unique("will");
        let mut watchers: Vec<Client> = (0..=2)
            .map(|qos| {
                let mut watcher = Client::connect(Broker::shared(), version);
                watcher.subscribe(&topic, qos);
                watcher
            })
            .collect();
        willed(version, Will::new(&topic, "gone").qos(1)).abort();
        let qos: Vec<u8> = watchers.iter_mut().map(|watcher| watcher.expect_message().qos).collect();
        assert_eq!(qos, [0, 1, 1]);
    }
}
