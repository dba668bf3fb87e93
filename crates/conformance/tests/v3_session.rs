//! What 3.x says of sessions: Clean Session decides both how one begins and whether it ends with its connection.

use mainstem_conformance::prelude::*;

const OLD: [Version; 2] = [V3, V4];

/// Connects with Clean Session 0.
fn kept(version: Version, id: &str) -> (Client, bool) {
    let (client, connack) = Client::connect_with(Broker::shared(), version, &Connect::new(id).resume());
    (client, connack.session_present)
}

/// Session Present is a bit of 3.1.1; 3.1 reserves it.
fn present(version: Version, expected: bool) -> bool {
    version == V4 && expected
}

fn texts(client: &mut Client, count: usize) -> Vec<String> {
    (0..count).map(|_| client.expect_message().text()).collect()
}

// [MQTT3-3.1.2-4] [MQTT3-3.2.2-2] [MQTT3-3.2.2-3] [MQTT3-4.1.0-1] [MQTT3-4.1.0-2]
#[test]
fn clean_session_0_outlives_its_connections() {
    for version in OLD {
        for end in [Client::abort, Client::disconnect] {
            let (id, topic) = (unique("s"), unique("t"));
            let mut publisher = Client::connect(Broker::shared(), version);
            let (mut client, was_there) = kept(version, &id);
            assert!(!was_there);
            client.subscribe(&topic, 1);
            end(client);

            let (mut client, was_there) = kept(version, &id);
            assert_eq!(was_there, present(version, true));
            publisher.publish(&topic, "resumed", 1);
            assert_eq!(client.expect_message().text(), "resumed", "the subscription is still there");
            end(client);
            let (client, was_there) = kept(version, &id);
            assert_eq!(was_there, present(version, true), "a session is resumed more than once");
            client.disconnect();
        }
    }
}

// [MQTT3-3.1.2-5] [MQTT3-4.5.0-1]
#[test]
fn a_kept_session_collects_what_comes_while_the_client_is_away() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let (mut client, _) = kept(version, &id);
        client.subscribe(&topic, 2);
        client.disconnect();

        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "one", 1);
        publisher.publish(&topic, "two", 2);
        publisher.publish(&topic, "three", 1);

        let (mut client, _) = kept(version, &id);
        assert_eq!(texts(&mut client, 3), ["one", "two", "three"]);
        assert_eq!(client.drain(&mut publisher), []);
    }
}

// [MQTT3-3.1.2-6] [MQTT3-3.2.2-1] [MQTT3-3.1.4-3]
#[test]
fn clean_session_1_leaves_nothing_behind() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let mut publisher = Client::connect(Broker::shared(), version);
        let (mut client, connack) = Client::connect_with(Broker::shared(), version, &Connect::new(&id));
        assert!(!connack.session_present);
        client.subscribe(&topic, 1);
        client.abort();
        publisher.publish(&topic, "to nobody", 1);

        let (mut client, was_there) = kept(version, &id);
        assert!(!was_there);
        publisher.publish(&topic, "to nobody either", 1);
        assert_eq!(client.drain(&mut publisher), []);
    }
}

// [MQTT3-3.1.2-6] [MQTT3-3.2.2-1]
#[test]
fn clean_session_1_drops_a_kept_session_and_its_messages() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let mut publisher = Client::connect(Broker::shared(), version);
        let (mut client, _) = kept(version, &id);
        client.subscribe(&topic, 1);
        client.disconnect();
        publisher.publish(&topic, "dropped with the session", 1);

        let (client, connack) = Client::connect_with(Broker::shared(), version, &Connect::new(&id));
        assert!(!connack.session_present);
        client.disconnect();
        let (mut client, was_there) = kept(version, &id);
        assert!(!was_there, "the clean session was not kept either");
        publisher.publish(&topic, "to nobody", 1);
        assert_eq!(client.drain(&mut publisher), []);
    }
}

// [MQTT3-3.1.2-7]
#[test]
fn retained_messages_outlive_the_session_that_sent_them() {
    for version in OLD {
        let topic = unique("t");
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "kept").retain(), 1);
        publisher.disconnect();

        let mut subscriber = Client::connect(Broker::shared(), version);
        subscriber.subscribe(&topic, 1);
        assert_eq!(subscriber.expect_message().text(), "kept");
        subscriber.disconnect();
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish_with(Publish::new(&topic, "").retain(), 1);
    }
}

// [MQTT3-3.1.4-2] [MQTT3-3.1.2-4]
#[test]
fn a_take_over_closes_the_older_connection_without_a_packet_and_keeps_the_session() {
    for version in OLD {
        let (id, topic) = (unique("s"), unique("t"));
        let (mut older, _) = kept(version, &id);
        older.subscribe(&topic, 1);
        let (mut newer, was_there) = kept(version, &id);
        // 3.x has no DISCONNECT from a server.
        older.expect_closed();
        assert_eq!(was_there, present(version, true));
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "to the newer", 1);
        assert_eq!(newer.expect_message().text(), "to the newer");
    }
}

// [MQTT3-3.1.2-4]
#[test]
fn a_session_kept_by_3_1_1_is_resumed_by_5_and_back() {
    let (id, topic) = (unique("s"), unique("t"));
    let mut publisher = Client::connect(Broker::shared(), V4);
    let (mut client, _) = kept(V4, &id);
    client.subscribe(&topic, 1);
    client.disconnect();
    publisher.publish(&topic, "to 5", 1);

    let (mut client, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new(&id).durable());
    assert!(connack.session_present);
    assert_eq!(client.expect_message().text(), "to 5");
    client.disconnect();
    publisher.publish(&topic, "back to 3.1.1", 1);

    let (mut client, was_there) = kept(V4, &id);
    assert!(was_there);
    assert_eq!(client.expect_message().text(), "back to 3.1.1");
}
