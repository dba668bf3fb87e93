//! What else survives the end of the broker: retained messages, expiries, wills, limits, shared subscriptions.

use mainstem_conformance::prelude::*;
use mainstem_conformance::{End, Witnesses};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const ENDS: [End; 2] = [End::Kill, End::Term];

fn resume(broker: &Broker, version: Version, connect: &Connect) -> Client {
    let (client, connack) = Client::connect_with(broker, version, connect);
    assert!(connack.session_present, "MQTT {version:?}: the session is there");
    client
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

/// Lets time pass that an expiry or a delay needs.
fn let_pass(broker: &Broker, time: Duration) {
    Client::connect(broker, V5).pass(time);
}

/// The retained messages below a topic, by the rest of their topics.
fn retained(broker: &Broker, version: Version, root: &str) -> BTreeMap<String, Message> {
    let mut client = Client::connect(broker, version);
    client.subscribe(&format!("{root}/#"), 2);
    let mut publisher = Client::connect(broker, version);
    let rest = |message: Message| (message.topic[root.len() + 1..].to_owned(), message);
    client.drain(&mut publisher).into_iter().map(rest).collect()
}

// [MQTT5-3.3.1-5] [MQTT3-3.3.1-5] [MQTT5-3.3.1-6] [MQTT3-3.3.1-10]
#[test]
fn retained_messages_survive_as_they_were_left() {
    for version in BOTH {
        for end in ENDS {
            let mut broker = Broker::with(&[]);
            let root = unique("r");
            let mut publisher = Client::connect(&broker, version);
            let mut set = |rest: &str, payload: &str, qos| {
                publisher.publish_with(Publish::new(format!("{root}/{rest}"), payload).retain(), qos);
            };
            set("set", "1", 1);
            set("replaced", "old", 2);
            set("replaced", "new", 1);
            set("cleared", "x", 1);
            set("cleared", "", 1);
            set("set again", "x", 2);
            set("set again", "", 2);
            set("set again", "again", 2);
            for _ in 0..2 {
                broker.restart(end);
                let found = retained(&broker, version, &root);
                let shown: Vec<_> = found.iter().map(|(rest, m)| (rest.as_str(), m.text(), m.qos)).collect();
                let expected = [("replaced", "new", 1), ("set", "1", 1), ("set again", "again", 2)];
                let expected = expected.map(|(rest, text, qos)| (rest, text.to_owned(), qos));
                assert_eq!(shown, expected, "MQTT {version:?}, {end:?}");
                assert!(found.values().all(|message| message.retain));
            }
            // What came back can be replaced and cleared like any other.
            let mut publisher = Client::connect(&broker, version);
            publisher.publish_with(Publish::new(format!("{root}/set"), "").retain(), 1);
            publisher.publish_with(Publish::new(format!("{root}/replaced"), "newer").retain(), 1);
            broker.restart(end);
            let found = retained(&broker, version, &root);
            let shown: Vec<_> = found.iter().map(|(rest, m)| (rest.as_str(), m.text())).collect();
            let expected = [("replaced", "newer".to_owned()), ("set again", "again".to_owned())];
            assert_eq!(shown, expected, "MQTT {version:?}, {end:?}");
        }
    }
}

// [MQTT5-3.3.1-5] [MQTT5-3.3.2-17]
#[test]
fn retained_messages_survive_whole() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let root = unique("r");
        let mut publisher = Client::connect(&broker, V5);
        let props = Props::new().data(property::CONTENT_TYPE, "t").user("a", "b").user("a", "c");
        publisher.publish_with(Publish::new(format!("{root}/p"), "x").retain().props(props), 1);
        let large: Vec<u8> = (0..300_000_u32).map(|n| (n % 241) as u8).collect();
        publisher.publish_with(Publish::new(format!("{root}/large"), &large).retain(), 1);
        broker.restart(end);
        let found = retained(&broker, V5, &root);
        assert_eq!(found["p"].props.text(property::CONTENT_TYPE), Some("t"));
        assert_eq!(found["p"].props.user(), [("a", "b"), ("a", "c")]);
        assert!(found["large"].payload == large, "{end:?}");
    }
}

// [MQTT5-3.3.1-5]
#[test]
fn many_retained_messages_survive() {
    let mut broker = Broker::with(&[]);
    let root = unique("r");
    let mut publisher = Client::connect(&broker, V5);
    for n in 0..2000_u16 {
        publisher.send(&Publish::new(format!("{root}/{n:04}"), n.to_string()).retain().qos(1).id(n + 1));
    }
    for n in 0..2000 {
        publisher.expect_ack_of(PUBACK, n + 1);
    }
    broker.restart_with(End::Kill, 3);
    let found = retained(&broker, V5, &root);
    assert!(found.values().map(Message::text).eq((0..2000).map(|n| n.to_string())), "{}", found.len());
}

// [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]
#[test]
fn message_expiry_goes_on_while_the_broker_is_down() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let (topic, root, durable) = (unique("t"), unique("r"), Connect::new(unique("c")).durable());
        let (mut client, _) = Client::connect_with(&broker, V5, &durable);
        client.subscribe(&topic, 2);
        client.abort();
        let mut publisher = Client::connect(&broker, V5);
        let expiring = |topic: &str, text: &str, seconds| {
            Publish::new(topic, text).props(Props::new().four(property::MESSAGE_EXPIRY_INTERVAL, seconds))
        };
        for (text, seconds) in [("short", 1), ("long", 100)] {
            publisher.publish_with(expiring(&topic, text, seconds), 2);
            publisher.publish_with(expiring(&format!("{root}/{text}"), text, seconds).retain(), 1);
        }
        publisher.publish(&topic, "for ever", 2);
        publisher.pass(Duration::from_millis(1200));
        broker.end(end);
        std::thread::sleep(Duration::from_secs(1));
        broker.start(2);
        let mut client = resume(&broker, V5, &durable);
        let mut publisher = Client::connect(&broker, V5);
        let got = client.drain(&mut publisher);
        assert_eq!(texts(&got), ["long", "for ever"], "{end:?}");
        let left = |message: &Message| message.props.number(property::MESSAGE_EXPIRY_INTERVAL);
        assert!(left(&got[0]).is_some_and(|left| (90..=98).contains(&left)), "{:?}", left(&got[0]));
        assert_eq!(left(&got[1]), None);
        let found = retained(&broker, V5, &root);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["long"], "{end:?}");
        assert!(left(&found["long"]).is_some_and(|left| (90..=98).contains(&left)), "{end:?}");
    }
}

// [MQTT5-4.1.0-2] [MQTT5-3.1.2-23]
#[test]
fn session_expiry_goes_on_while_the_broker_is_down() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let topic = unique("t");
        let leave = |id: &str, seconds| {
            let connect = Connect::new(id).resume().session_expiry(seconds);
            let (mut client, _) = Client::connect_with(&broker, V5, &connect);
            client.subscribe(&topic, 1);
            client
        };
        // One leaves before the broker does, one is there when it ends, one has ample time, one for ever.
        leave("gone", 2).abort();
        let _connected = leave("connected", 2);
        leave("ample", 600).abort();
        leave("for ever", u32::MAX).abort();
        let_pass(&broker, Duration::from_millis(1200));
        broker.end(end);
        std::thread::sleep(Duration::from_millis(1200));
        broker.start(2);
        let present = |id: &str| {
            let (client, connack) = Client::connect_with(&broker, V5, &Connect::new(id).durable());
            drop(client);
            connack.session_present
        };
        assert!(!present("gone"), "{end:?}: its time ran out while the broker was down");
        assert!(present("ample") && present("for ever"), "{end:?}");
        let_pass(&broker, Duration::from_millis(2500));
        assert!(!present("connected"), "{end:?}: its time ran out after the broker came back");
    }
}

/// A client with a will, and a session that outlives its connection.
fn with_will(id: &str, topic: &str, payload: &str, delay_s: u32) -> Connect {
    let delay = Props::new().four(property::WILL_DELAY_INTERVAL, delay_s);
    Connect::new(id).resume().session_expiry(600).will(Will::new(topic, payload).qos(1).props(delay))
}

// [MQTT5-3.1.2-8] [MQTT5-3.1.3-9]
#[test]
fn a_will_that_waits_survives() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let (topic, watcher) = (unique("w"), Connect::new(unique("s")).durable());
        let (mut watch, _) = Client::connect_with(&broker, V5, &watcher);
        watch.subscribe(&topic, 1);
        let connect = |id: &str, delay_s| {
            Client::connect_with(&broker, V5, &with_will(&unique(id), &topic, id, delay_s)).0
        };
        // One has lost its connection before, one loses it with the broker.
        connect("lost", 2).abort();
        let _connected = connect("connected", 1);
        let _later = connect("later", 600);
        broker.restart(end);
        let mut watch = resume(&broker, V5, &watcher);
        let mut got = [watch.expect_message().text(), watch.expect_message().text()];
        got.sort();
        assert_eq!(got, ["connected", "lost"], "{end:?}");
        let mut publisher = Client::connect(&broker, V5);
        assert_eq!(watch.drain(&mut publisher), [], "{end:?}");
    }
}

// [MQTT5-3.1.3-9]
/// Or a broker that ends again and again would keep a will back for ever.
#[test]
fn a_wills_delay_goes_on_when_the_broker_ends_again() {
    let mut broker = Broker::with(&[]);
    let (topic, watcher) = (unique("w"), Connect::new(unique("s")).durable());
    let (mut watch, _) = Client::connect_with(&broker, V5, &watcher);
    watch.subscribe(&topic, 1);
    let _connected = Client::connect_with(&broker, V5, &with_will(&unique("c"), &topic, "x", 8));
    broker.restart(End::Kill);
    let_pass(&broker, Duration::from_secs(6));
    broker.end(End::Kill);
    let begin = Instant::now();
    broker.start(2);
    assert_eq!(resume(&broker, V5, &watcher).expect_message().text(), "x");
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

// [MQTT5-3.1.3-9] [MQTT5-3.1.2-10]
#[test]
fn a_will_is_not_published_if_its_client_is_back_in_time() {
    for end in ENDS {
        let mut broker = Broker::with(&[]);
        let (topic, watcher) = (unique("w"), Connect::new(unique("s")).durable());
        let (mut watch, _) = Client::connect_with(&broker, V5, &watcher);
        watch.subscribe(&topic, 1);
        let back = with_will(&unique("c"), &topic, "of the first life", 5);
        Client::connect_with(&broker, V5, &back).0.abort();
        // A connection that nobody closes would hold up the end by two seconds.
        drop(watch);
        broker.restart(end);
        let client = resume(&broker, V5, &back);
        let mut watch = resume(&broker, V5, &watcher);
        let mut publisher = Client::connect(&broker, V5);
        publisher.pass(Duration::from_secs(6));
        client.disconnect();
        assert_eq!(watch.drain(&mut publisher), [], "{end:?}");
    }
}

// [MQTT5-3.1.2-10] [MQTT3-3.1.2-10]
#[test]
fn a_will_that_was_taken_back_does_not_come_after_a_polite_end() {
    for version in BOTH {
        let mut broker = Broker::with(&[]);
        let (topic, watcher) = (unique("w"), Connect::new(unique("s")).durable());
        let (mut watch, _) = Client::connect_with(&broker, version, &watcher);
        watch.subscribe(&topic, 1);
        Client::connect_with(&broker, version, &with_will(&unique("c"), &topic, "no", 1)).0.disconnect();
        broker.restart(End::Term);
        let_pass(&broker, Duration::from_millis(1500));
        let mut watch = resume(&broker, version, &watcher);
        let mut publisher = Client::connect(&broker, version);
        assert_eq!(watch.drain(&mut publisher), [], "MQTT {version:?}");
    }
}

// [MQTT5-4.5.0-1]
#[test]
fn the_limit_of_a_queue_holds_for_what_was_queued_before() {
    for end in ENDS {
        for (overflow, kept) in [("drop-newest", 0..10), ("drop-oldest", 15..25)] {
            let mut broker =
                Broker::with(&["mqtt.max_queued_messages=10", &format!("mqtt.queue_overflow={overflow}")]);
            let (topic, durable) = (unique("t"), Connect::new(unique("c")).durable());
            let (mut client, _) = Client::connect_with(&broker, V5, &durable);
            client.subscribe(&topic, 1);
            client.abort();
            for (range, last) in [(0..15, "14"), (15..25, "24")] {
                let mut publisher = Client::connect(&broker, V5);
                let witnesses = Witnesses::of(&broker, &topic);
                for n in range {
                    publisher.publish(&topic, n.to_string(), 1);
                }
                witnesses.wait_for(last);
                broker.restart(end);
            }
            let mut client = resume(&broker, V5, &durable);
            let mut publisher = Client::connect(&broker, V5);
            let got = texts(&client.drain(&mut publisher));
            assert_eq!(got, kept.map(|n| n.to_string()).collect::<Vec<_>>(), "{overflow}, {end:?}");
        }
    }
}

// [MQTT5-4.8.2-4]
#[test]
fn a_shared_subscription_survives_with_what_waits_for_it() {
    for version in BOTH {
        for end in ENDS {
            let mut broker = Broker::with(&[]);
            let topic = unique("t");
            let filter = format!("$share/g/{topic}");
            let members: Vec<Connect> = (0..3).map(|_| Connect::new(unique("m")).durable()).collect();
            for member in &members {
                let (mut client, _) = Client::connect_with(&broker, version, member);
                client.subscribe(&filter, 2);
                client.abort();
            }
            let mut publisher = Client::connect(&broker, version);
            for n in 0..60_u32 {
                publisher.publish(&topic, n.to_string(), 1 + (n % 2) as u8);
            }
            broker.restart(end);
            let mut publisher = Client::connect(&broker, version);
            for n in 60..90_u32 {
                publisher.publish(&topic, n.to_string(), 1 + (n % 2) as u8);
            }
            let mut clients: Vec<Client> = members.iter().map(|m| resume(&broker, version, m)).collect();
            publisher.publish(&topic, "90", 1);
            let got: Vec<String> = clients.iter_mut().flat_map(|c| texts(&c.drain(&mut publisher))).collect();
            let mut numbers: Vec<u32> = got.iter().map(|text| text.parse().expect("a number")).collect();
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..=90), "MQTT {version:?}, {end:?}: {numbers:?}");
        }
    }
}
