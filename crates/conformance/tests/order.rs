//! Message ordering (4.6) and message receipt (4.5).

use mainstem_conformance::prelude::*;

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

// [MQTT5-4.6.0-5] [MQTT3-4.6.0-5] [MQTT5-4.6.0-6] [MQTT3-4.6.0-6]
#[test]
fn each_publisher_s_messages_arrive_in_order() {
    for version in BOTH {
        for qos in 0..=2 {
            let topic = unique("t");
            let mut subscribers: Vec<Client> =
                (0..4).map(|_| Client::connect(Broker::shared(), version)).collect();
            for subscriber in &mut subscribers {
                subscriber.subscribe(&topic, qos);
            }
            let mut publishers: Vec<Client> =
                (0..4).map(|_| Client::connect(Broker::shared(), version)).collect();
            for n in 0..50 {
                for (p, publisher) in publishers.iter_mut().enumerate() {
                    let publish = Publish::new(&topic, format!("{p} {n}")).qos(qos);
                    publisher.send(&if qos > 0 { publish.id(n + 1) } else { publish });
                }
            }
            // A server may hold a QoS 2 message back until its PUBREL.
            for publisher in publishers.iter_mut().filter(|_| qos == 2) {
                for n in 0..50 {
                    publisher.expect_ack_of(PUBREC, n + 1);
                    publisher.send(&wire::ack(PUBREL, n + 1));
                }
            }
            for subscriber in &mut subscribers {
                let got: Vec<String> = (0..200).map(|_| subscriber.expect_message().text()).collect();
                for p in 0..4 {
                    let prefix = format!("{p} ");
                    let own = got.iter().filter_map(|text| text.strip_prefix(&prefix));
                    assert!(
                        own.eq((0..50).map(|n| n.to_string()).collect::<Vec<_>>()),
                        "{version:?} {qos}: {got:?}"
                    );
                }
            }
        }
    }
}

// [MQTT5-4.6.0-5] [MQTT3-4.6.0-5] [MQTT5-4.6.0-6] [MQTT3-4.6.0-6]
#[test]
fn order_holds_through_wildcards_and_topics_too() {
    for version in BOTH {
        let root = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&format!("{root}/#"), 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..300 {
            publisher.send(&Publish::new(format!("{root}/{}", n % 3), n.to_string()).qos(1).id(n + 1));
        }
        let got: Vec<Message> = (0..300).map(|_| subscriber.expect_message()).collect();
        for tail in 0..3 {
            let own = got.iter().filter(|message| message.topic == format!("{root}/{tail}"));
            let own: Vec<usize> = own.map(|message| message.text().parse().expect("a number")).collect();
            assert!(own.len() == 100 && own.is_sorted(), "{own:?}");
        }
    }
}

// [MQTT5-4.6.0-2] [MQTT3-4.6.0-2] [MQTT5-4.6.0-3] [MQTT3-4.6.0-3]
#[test]
fn pubacks_and_pubrecs_come_in_the_order_of_the_publishes() {
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(Broker::shared(), version);
        for (qos, kind) in [(1, PUBACK), (2, PUBREC)] {
            // Half of them have subscribers elsewhere, half have none.
            let mut other = Client::connect(Broker::shared(), version);
            other.subscribe(&format!("{topic}/0"), 0);
            let ids: Vec<u16> = (0..100).map(|n| 1 + (n * 37) % 199).collect();
            for id in &ids {
                client.send(&Publish::new(format!("{topic}/{}", id % 2), "x").qos(qos).id(*id));
            }
            let got: Vec<u16> = (0..100).map(|_| client.expect_ack(kind).id).collect();
            assert_eq!(got, ids);
        }
    }
}

// [MQTT5-4.6.0-4] [MQTT3-4.6.0-4]
#[test]
fn pubrels_come_in_the_order_of_the_pubrecs() {
    for version in BOTH {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..20 {
            publisher.publish(&topic, n.to_string(), 2);
        }
        let mut ids: Vec<u16> = (0..20).map(|_| subscriber.expect_publish().id).collect();
        // The receiver should keep to the order; the sender follows it whatever it is.
        ids.reverse();
        for id in &ids {
            subscriber.send(&wire::ack(PUBREC, *id));
        }
        let got: Vec<u16> = (0..20).map(|_| subscriber.expect_ack(PUBREL).id).collect();
        assert_eq!(got, ids);
    }
}

// [MQTT5-4.6.0-1] [MQTT3-4.6.0-1] [MQTT5-4.4.0-1] [MQTT3-4.4.0-1]
#[test]
fn messages_sent_again_keep_their_order_and_come_before_new_ones() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut subscriber, _) = Client::connect_with(Broker::shared(), version, &durable);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..10 {
            publisher.publish(&topic, n.to_string(), 1);
        }
        (0..10).for_each(|n| assert_eq!(subscriber.expect_publish().text(), n.to_string()));
        subscriber.abort();
        for n in 10..20 {
            publisher.publish(&topic, n.to_string(), 1);
        }
        let (mut subscriber, _) = Client::connect_with(Broker::shared(), version, &durable);
        let got = texts(&subscriber.drain(&mut publisher));
        assert_eq!(got, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}

// [MQTT5-4.6.0-1] [MQTT3-4.6.0-1] [MQTT5-4.4.0-1]
#[test]
fn acknowledging_out_of_order_resends_the_rest_in_order() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut subscriber, _) = Client::connect_with(Broker::shared(), version, &durable);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..8 {
            publisher.publish(&topic, n.to_string(), 1);
        }
        let sent: Vec<Message> = (0..8).map(|_| subscriber.expect_publish()).collect();
        for n in [6, 1, 3] {
            subscriber.acknowledge(&sent[n]);
        }
        subscriber.ping();
        subscriber.abort();
        let (mut subscriber, _) = Client::connect_with(Broker::shared(), version, &durable);
        assert_eq!(texts(&subscriber.drain(&mut publisher)), ["0", "2", "4", "5", "7"]);
    }
}

// [MQTT5-4.6.0-5] [MQTT3-4.6.0-5] [MQTT5-4.9.0-2]
#[test]
fn order_holds_where_the_quota_holds_messages_back() {
    let topic = unique("t");
    let props = Props::new().two(property::RECEIVE_MAXIMUM, 2);
    let connect = Connect::new(unique("c")).props(props);
    let (mut subscriber, _) = Client::connect_with(Broker::shared(), V5, &connect);
    subscriber.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for n in 0..60 {
        publisher.publish(&topic, n.to_string(), 1 + u8::from(n % 3 == 0));
    }
    let got = texts(&subscriber.drain(&mut publisher));
    assert_eq!(got, (0..60).map(|n| n.to_string()).collect::<Vec<_>>());
}

// [MQTT5-4.5.0-1] [MQTT3-4.5.0-1] [MQTT5-4.3.3-8]
#[test]
fn every_matching_client_gets_every_message() {
    for version in BOTH {
        let root = unique("t");
        let filters = [
            format!("{root}/a"),
            format!("{root}/+"),
            format!("{root}/#"),
            format!("+/{root}"),
            root.clone(),
        ];
        let mut clients: Vec<Client> = (0..filters.len() * 8)
            .map(|n| {
                let mut client = Client::connect(Broker::shared(), version);
                client.subscribe(&filters[n % filters.len()], 2);
                client
            })
            .collect();
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..30 {
            publisher.publish(&format!("{root}/a"), n.to_string(), n % 3);
        }
        for (n, client) in clients.iter_mut().enumerate() {
            let expected: Vec<String> =
                if n % filters.len() < 3 { (0..30).map(|n| n.to_string()).collect() } else { Vec::new() };
            assert_eq!(texts(&client.drain(&mut publisher)), expected);
        }
    }
}
