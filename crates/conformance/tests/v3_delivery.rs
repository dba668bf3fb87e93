//! What 3.x says of delivery: the exchanges of QoS 0, 1 and 2, what is sent again after a reconnection, and order.

use mainstem_conformance::prelude::*;

const OLD: [Version; 2] = [V3, V4];

/// Connects with Clean Session 0.
fn kept(version: Version, id: &str) -> Client {
    Client::connect_with(Broker::shared(), version, &Connect::new(id).resume()).0
}

/// Closes the connection and resumes the session on a new one.
fn reconnect(client: Client, version: Version, id: &str) -> Client {
    client.abort();
    kept(version, id)
}

fn publish_numbered(publisher: &mut Client, topic: &str, count: u32, qos: u8) {
    for number in 1..=count {
        publisher.publish(topic, number.to_string(), qos);
    }
}

fn ids(messages: &[Message]) -> Vec<u16> {
    messages.iter().map(|message| message.id).collect()
}

// [MQTT3-4.3.1-1] [MQTT3-3.3.1-2] [MQTT3-2.3.1-5] [MQTT3-3.3.4-1]
#[test]
fn qos_0_goes_out_once_without_identifier_and_gets_no_answer() {
    for version in OLD {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "x", 0);
        publisher.expect_silence();
        let message = subscriber.expect_publish();
        assert_eq!((message.qos, message.dup, message.id), (0, false, 0));
        assert_eq!(subscriber.drain(&mut publisher), []);
    }
}

// [MQTT3-4.3.2-1] [MQTT3-2.3.1-4] [MQTT3-4.4.0-1] [MQTT3-4.6.0-1] [MQTT3-3.3.1-1]
#[test]
fn qos_1_is_sent_again_after_a_reconnection_until_puback() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let mut client = kept(version, &id);
        client.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        publish_numbered(&mut publisher, &topic, 4, 1);

        let first: Vec<Message> = (0..4).map(|_| client.expect_publish()).collect();
        assert!(first.iter().all(|message| message.qos == 1 && !message.dup && message.id != 0));
        let mut distinct = ids(&first);
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 4, "each unacknowledged message has an identifier of its own");
        client.send(&wire::ack(PUBACK, first[1].id));
        client.ping();

        let mut client = reconnect(client, version, &id);
        let again: Vec<Message> = (0..3).map(|_| client.expect_message()).collect();
        assert_eq!(ids(&again), [first[0].id, first[2].id, first[3].id]);
        assert!(again.iter().all(|message| message.dup && message.qos == 1));
        assert_eq!(again.iter().map(Message::text).collect::<Vec<_>>(), ["1", "3", "4"]);
        client.ping();

        let mut client = reconnect(client, version, &id);
        client.expect_silence();
    }
}

// [MQTT3-4.3.2-2] [MQTT3-3.3.4-1] [MQTT3-2.3.1-6]
#[test]
fn qos_1_after_puback_the_same_identifier_is_a_new_message() {
    for version in OLD {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        for publish in
            [Publish::new(&topic, "new").qos(1).id(7), Publish::new(&topic, "new too").qos(1).id(7).dup()]
        {
            publisher.send(&publish);
            assert_eq!(publisher.expect_ack(PUBACK).id, 7);
        }
        assert_eq!(subscriber.expect_message().text(), "new");
        assert_eq!(subscriber.expect_message().text(), "new too");
    }
}

// [MQTT3-4.3.3-1] [MQTT3-4.4.0-1] [MQTT3-3.3.1-1] [MQTT3-2.3.1-4]
#[test]
fn qos_2_is_publish_until_pubrec_and_pubrel_until_pubcomp() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let mut client = kept(version, &id);
        client.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "x", 2);

        let first = client.expect_publish();
        assert_eq!((first.qos, first.dup), (2, false));
        let mut client = reconnect(client, version, &id);
        let again = client.expect_publish();
        assert_eq!((again.qos, again.dup, again.id), (2, true, first.id));
        client.send(&wire::ack(PUBREC, first.id));
        assert_eq!(client.expect_ack(PUBREL).id, first.id);

        let mut client = reconnect(client, version, &id);
        // The first thing that comes is PUBREL, not PUBLISH.
        match client.recv() {
            Packet::Ack(ack) => assert_eq!((ack.kind, ack.id), (PUBREL, first.id)),
            other => panic!("PUBREL expected, came {other:?}"),
        }
        client.send(&wire::ack(PUBCOMP, first.id));
        client.ping();

        let mut client = reconnect(client, version, &id);
        client.expect_silence();
    }
}

// [MQTT3-4.3.3-2] [MQTT3-3.3.4-1] [MQTT3-2.3.1-6]
#[test]
fn qos_2_is_delivered_once_until_pubrel_and_then_the_identifier_is_free() {
    for version in OLD {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        let publish = Publish::new(&topic, "once").qos(2).id(9);
        for publish in [publish.clone(), publish.clone().dup(), publish.dup()] {
            publisher.send(&publish);
            assert_eq!(publisher.expect_ack(PUBREC).id, 9);
        }
        // A PUBREL sent again, as after a lost PUBCOMP, is answered again.
        for _ in 0..2 {
            publisher.send(&wire::ack(PUBREL, 9));
            assert_eq!(publisher.expect_ack(PUBCOMP).id, 9);
        }
        publisher.send(&Publish::new(&topic, "another").qos(2).id(9));
        assert_eq!(publisher.expect_ack(PUBREC).id, 9);
        publisher.send(&wire::ack(PUBREL, 9));
        assert_eq!(publisher.expect_ack(PUBCOMP).id, 9);

        assert_eq!(subscriber.expect_message().text(), "once");
        assert_eq!(subscriber.expect_message().text(), "another");
        assert_eq!(subscriber.drain(&mut publisher), []);
    }
}

// [MQTT3-4.3.3-2] [MQTT3-4.1.0-1]
#[test]
fn qos_2_is_delivered_once_even_if_the_sender_reconnects_in_between() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = kept(version, &id);
        let publish = Publish::new(&topic, "once").qos(2).id(11);
        publisher.send(&publish);
        assert_eq!(publisher.expect_ack(PUBREC).id, 11);

        let mut publisher = reconnect(publisher, version, &id);
        publisher.send(&publish.dup());
        assert_eq!(publisher.expect_ack(PUBREC).id, 11);
        publisher.send(&wire::ack(PUBREL, 11));
        assert_eq!(publisher.expect_ack(PUBCOMP).id, 11);
        assert_eq!(subscriber.expect_message().text(), "once");
        assert_eq!(subscriber.drain(&mut publisher), []);
    }
}

// [MQTT3-4.6.0-2] [MQTT3-4.6.0-3]
#[test]
fn acknowledgements_come_in_the_order_of_the_publishes() {
    const IDS: [u16; 6] = [5, 3, 900, 1, 65_535, 2];
    for version in OLD {
        let topic = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        for (qos, kind) in [(1, PUBACK), (2, PUBREC)] {
            let burst: Vec<u8> = IDS
                .iter()
                .flat_map(|&id| wire::Wire::bytes(&Publish::new(&topic, "x").qos(qos).id(id), version))
                .collect();
            publisher.send(&burst);
            for id in IDS {
                assert_eq!(publisher.expect_ack(kind).id, id);
            }
        }
    }
}

// [MQTT3-4.6.0-4]
#[test]
fn pubrels_come_in_the_order_of_the_pubrecs() {
    for version in OLD {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publish_numbered(&mut publisher, &topic, 4, 2);
        let ids = ids(&(0..4).map(|_| subscriber.expect_publish()).collect::<Vec<_>>());
        let order = [ids[1], ids[0], ids[3], ids[2]];
        for id in order {
            subscriber.send(&wire::ack(PUBREC, id));
        }
        for id in order {
            assert_eq!(subscriber.expect_ack(PUBREL).id, id);
            subscriber.send(&wire::ack(PUBCOMP, id));
        }
    }
}

// [MQTT3-4.6.0-1] [MQTT3-4.4.0-1]
#[test]
fn what_is_sent_again_comes_first_and_in_its_first_order() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let mut client = kept(version, &id);
        client.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        for (text, qos) in [("1", 1), ("2", 2), ("3", 1), ("4", 2)] {
            publisher.publish(&topic, text, qos);
        }
        let first: Vec<Message> = (0..4).map(|_| client.expect_publish()).collect();
        client.abort();
        publisher.publish(&topic, "5", 1);

        let mut client = kept(version, &id);
        let again: Vec<Message> = (0..5).map(|_| client.expect_publish()).collect();
        assert_eq!(again.iter().map(Message::text).collect::<Vec<_>>(), ["1", "2", "3", "4", "5"]);
        assert_eq!(ids(&again[..4]), ids(&first));
        assert_eq!(
            again.iter().map(|message| message.dup).collect::<Vec<_>>(),
            [true, true, true, true, false]
        );
    }
}

// [MQTT3-4.6.0-5] [MQTT3-4.6.0-6]
#[test]
fn every_topic_is_ordered_for_each_publisher_and_qos() {
    const EACH: u32 = 100;
    for version in OLD {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let senders = (0..3_u8).flat_map(|qos| [0, 1].map(|sender| (qos, sender)));
        let mut threads = Vec::new();
        for (qos, sender) in senders.clone() {
            let topic = topic.clone();
            threads.push(std::thread::spawn(move || {
                let mut publisher = Client::connect(Broker::shared(), version);
                for number in 0..EACH {
                    publisher.publish(&topic, format!("{qos} {sender} {number}"), qos);
                }
                publisher.ping();
            }));
        }
        let mut seen = std::collections::HashMap::new();
        for _ in 0..EACH * 6 {
            let text = subscriber.expect_message().text();
            let (from, number) = text.rsplit_once(' ').expect("three words");
            let next = seen.entry(from.to_owned()).or_insert(0_u32);
            assert_eq!(number, next.to_string(), "from {from}");
            *next += 1;
        }
        assert_eq!(seen.len(), senders.count());
        for thread in threads {
            thread.join().expect("a publisher that ends well");
        }
    }
}

// [MQTT3-4.5.0-1]
#[test]
fn a_message_goes_to_every_session_that_matches_connected_or_not() {
    for version in OLD {
        let (base, away) = (unique("t"), unique("s"));
        let mut absent = kept(version, &away);
        absent.subscribe(&format!("{base}/#"), 1);
        absent.disconnect();
        let mut plain = Client::connect(Broker::shared(), version);
        plain.subscribe(&format!("{base}/a"), 1);
        let mut wild = Client::connect(Broker::shared(), version);
        wild.subscribe(&format!("{base}/+"), 0);
        let mut other = Client::connect(Broker::shared(), version);
        other.subscribe(&format!("{base}/b"), 1);

        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&format!("{base}/a"), "x", 1);
        assert_eq!(plain.expect_message().qos, 1);
        assert_eq!(wild.expect_message().qos, 0);
        assert_eq!(kept(version, &away).expect_message().text(), "x");
        assert_eq!(other.drain(&mut publisher), []);
    }
}

// [MQTT3-3.3.1-3] [MQTT3-3.3.1-2]
#[test]
fn the_incoming_dup_is_not_passed_on() {
    for version in OLD {
        let topic = unique("t");
        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.send(&Publish::new(&topic, "1").qos(1).id(1).dup());
        publisher.send(&Publish::new(&topic, "2").qos(2).id(2).dup());
        publisher.expect_ack(PUBREC);
        publisher.send(&wire::ack(PUBREL, 2));
        for text in ["1", "2"] {
            let message = subscriber.expect_message();
            assert_eq!((message.text().as_str(), message.dup), (text, false));
        }
    }
}
