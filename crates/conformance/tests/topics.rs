//! Topic names and topic filters (4.7).

use mainstem_conformance::prelude::*;

// [MQTT5-4.7.1-1] [MQTT3-4.7.1-2] [MQTT5-4.7.1-2] [MQTT3-4.7.1-3]
#[test]
fn filters_match_as_the_specification_says() {
    // Filter, then the topics that it matches, then those that it does not; `@` stands for a unique level.
    let table: [(&str, &[&str], &[&str]); 16] = [
        (
            "@/tennis/#",
            &["@/tennis", "@/tennis/p1", "@/tennis/p1/rank", "@/tennis/"],
            &["@", "@/tenni", "@/tennis2"],
        ),
        ("@/#", &["@", "@/a", "@/a/b/c", "@/", "@//"], &["x/@", "@a"]),
        ("@/+", &["@/a", "@/"], &["@", "@/a/b", "@//"]),
        ("+/@", &["x/@", "/@"], &["@", "x/y/@", "x/@/"]),
        ("+/@/+", &["x/@/y", "/@/"], &["@/y", "x/@", "x/@/y/z"]),
        ("+/+/@", &["a/b/@", "//@"], &["a/@", "/@"]),
        ("@/+/c", &["@/b/c", "@//c"], &["@/c", "@/b/b/c", "@/b/c/"]),
        ("@/+/#", &["@/b", "@/b/c", "@/", "@//"], &["@"]),
        ("@//+", &["@//a", "@//"], &["@/a", "@/a/b"]),
        ("/@", &["/@"], &["@", "//@", "/@/"]),
        ("@", &["@"], &["@/", "/@", "@ "]),
        ("@/", &["@/"], &["@", "@//", "@/a"]),
        ("@/+/+/#", &["@/a/b", "@/a/b/c", "@//"], &["@/a", "@"]),
        ("@/a b/é", &["@/a b/é"], &["@/a  b/é", "@/a b/e"]),
        ("@/$SYS", &["@/$SYS"], &["@/$sys"]),
        ("@/Case", &["@/Case"], &["@/case", "@/CASE"]),
    ];
    for version in BOTH {
        for (filter, matches, others) in table {
            let level = unique("t");
            let named = |pattern: &str| pattern.replace('@', &level);
            let mut subscriber = Client::connect(Broker::shared(), version);
            subscriber.subscribe(&named(filter), 1);
            let mut publisher = Client::connect(Broker::shared(), version);
            for topic in matches.iter().chain(others) {
                publisher.publish(&named(topic), *topic, 1);
            }
            let got: Vec<String> = subscriber.drain(&mut publisher).iter().map(Message::text).collect();
            assert_eq!(got, matches, "{version:?}: {filter}");
        }
    }
}

/// Filters that break the rules; none may be granted.
const BAD: [&str; 12] =
    ["a/#/b", "#/a", "a#", "a/b#", "##", "a/##", "a+", "+a", "a/+b", "a/b+/c", "++", "a/#b"];

// [MQTT5-4.7.1-1] [MQTT3-4.7.1-2] [MQTT5-4.7.1-2] [MQTT3-4.7.1-3] [MQTT5-4.7.3-1] [MQTT3-4.7.3-1]
#[test]
fn filters_with_misplaced_wildcards_are_refused() {
    for version in BOTH {
        for filter in BAD.into_iter().chain([""]) {
            let mut client = Client::connect(Broker::shared(), version);
            client.send(&Subscribe::new(1).filter(filter, 0));
            match client.event() {
                Event::Packet(Packet::Answer(answer)) => {
                    let failed = if version == V5 { reason::TOPIC_FILTER_INVALID } else { 0x80 };
                    assert_eq!(answer.reasons, [failed], "{filter:?}");
                }
                Event::Packet(Packet::Disconnect(disconnect)) => {
                    let known =
                        [reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR, reason::TOPIC_FILTER_INVALID];
                    assert!(known.contains(&disconnect.reason), "{filter:?}: {disconnect:?}");
                    client.expect_closed();
                }
                Event::Closed => assert_ne!(version, V5, "{filter:?}: closed without a DISCONNECT"),
                other @ Event::Packet(_) => panic!("{filter:?}: {other:?}"),
            }
        }
    }
}

// [MQTT5-4.7.2-1] [MQTT3-4.7.2-1]
#[test]
fn a_leading_wildcard_does_not_match_a_leading_dollar() {
    let broker = Broker::with(&["mqtt.sys_interval_s=1"]);
    for version in BOTH {
        let mut wild = Client::connect(&broker, version);
        for filter in ["#", "+/#", "+/monitor/+", "+/broker/#"] {
            wild.subscribe(filter, 1);
        }
        let mut direct = Client::connect(&broker, version);
        direct.subscribe("$SYS/#", 0);
        // Something has come under $SYS, so it would have come to the wildcards too.
        assert!(direct.expect_message().topic.starts_with("$SYS/"));
        direct.expect_message();
        let topic = format!("${}/x", unique("t"));
        let mut publisher = Client::connect(&broker, version);
        let mut named = Client::connect(&broker, version);
        named.subscribe(&topic, 1);
        publisher.publish(&topic, "x", 1);
        assert_eq!(named.expect_message().topic, topic);
        let topics: Vec<String> =
            wild.drain(&mut publisher).into_iter().map(|message| message.topic).collect();
        assert!(topics.iter().all(|topic| !topic.starts_with('$')), "{topics:?}");
    }
}

// [MQTT5-4.7.2-1] [MQTT5-3.3.1-9]
#[test]
fn retained_dollar_topics_are_found_by_name_only() {
    for version in BOTH {
        let topic = format!("${}/x", unique("t"));
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "x").retain(), 1);
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe("+/x", 0);
        let root = topic.split_once('/').expect("two levels").0;
        client.subscribe(&format!("{root}/#"), 0);
        let got: Vec<String> =
            client.drain(&mut publisher).into_iter().map(|message| message.topic).collect();
        assert_eq!(got, std::slice::from_ref(&topic));
        publisher.publish_with(Publish::new(&topic, "").retain(), 1);
    }
}

// [MQTT5-4.7.3-3] [MQTT3-4.7.3-3]
#[test]
fn topics_of_65_535_bytes_are_handled() {
    for version in BOTH {
        let mut topic = unique("t");
        topic.push_str(&"x".repeat(65_535 - topic.len()));
        let mut client = Client::connect(Broker::shared(), version);
        client.subscribe(&topic, 1);
        client.publish(&topic, "long", 1);
        let message = client.expect_message();
        assert!(message.topic == topic && message.text() == "long");
        client.unsubscribe(&topic);
    }
}

// [MQTT5-4.7.3-4] [MQTT3-4.7.3-4]
#[test]
fn topics_are_not_normalised() {
    for version in BOTH {
        let root = unique("t");
        // The same to the eye: composed and decomposed, Kelvin sign and K, full-width and ASCII, spaces, case.
        let names =
            ["é", "e\u{301}", "\u{212A}", "K", "k", "\u{FF41}", "a", "a ", " a", "ß", "ss", "\u{200B}a"];
        let mut clients: Vec<Client> = names
            .iter()
            .map(|name| {
                let mut client = Client::connect(Broker::shared(), version);
                client.subscribe(&format!("{root}/{name}"), 1);
                client
            })
            .collect();
        let mut publisher = Client::connect(Broker::shared(), version);
        for name in names {
            publisher.publish(&format!("{root}/{name}"), name, 1);
        }
        for (client, name) in clients.iter_mut().zip(names) {
            let got: Vec<String> = client.drain(&mut publisher).iter().map(Message::text).collect();
            assert_eq!(got, [name]);
        }
    }
}

// [MQTT5-4.7.1-1] [MQTT5-4.7.1-2]
#[test]
fn wildcards_match_every_topic_of_other_clients() {
    for version in BOTH {
        let mut all = Client::connect(Broker::shared(), version);
        all.subscribe("#", 0);
        let topic = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        for tail in ["", "/", "/a/b/c/d/e/f", "//////"] {
            publisher.publish(&format!("{topic}{tail}"), "x", 1);
        }
        let got = all.drain(&mut publisher);
        let own = got.iter().filter(|message| message.topic.starts_with(&topic)).count();
        assert_eq!(own, 4);
    }
}
