//! Session state (4.1), Clean Start and Session Expiry (3.1.2.4, 3.1.2.11.2), take-over (3.1.4).

use mainstem_conformance::Witnesses;
use mainstem_conformance::prelude::*;
use wire::Wire;

fn connect(version: Version, connect: &Connect) -> (Client, bool) {
    let (client, connack) = Client::connect_with(Broker::shared(), version, connect);
    (client, connack.session_present)
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

// [MQTT5-4.1.0-1] [MQTT3-4.1.0-1] [MQTT5-3.1.2-5] [MQTT3-3.1.2-4] [MQTT3-3.1.2-5] [MQTT5-3.1.2-23] [MQTT5-4.5.0-1]
// [MQTT3-4.5.0-1] [MQTT5-3.2.2-3] [MQTT3-3.2.2-2]
#[test]
fn a_kept_session_keeps_subscriptions_and_messages() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut client, _) = connect(version, &durable);
        client.subscribe(&topic, 2);
        client.disconnect();
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "1", 1);
        publisher.publish(&topic, "2", 2);
        let (mut client, present) = connect(version, &durable);
        assert!(present);
        let (one, two) = (client.expect_message(), client.expect_message());
        assert_eq!((one.text().as_str(), one.qos, one.dup), ("1", 1, false));
        assert_eq!((two.text().as_str(), two.qos, two.dup), ("2", 2, false));
        publisher.publish(&topic, "live", 0);
        assert_eq!(client.expect_message().text(), "live");
    }
}

// [MQTT5-3.1.2-4] [MQTT3-3.1.2-6] [MQTT5-3.2.2-2] [MQTT3-3.2.2-1]
#[test]
fn a_clean_start_discards_the_session() {
    for version in BOTH {
        let (topic, id) = (unique("t"), unique("c"));
        let (mut client, _) = connect(version, &Connect::new(&id).durable());
        client.subscribe(&topic, 1);
        client.abort();
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "queued", 1);
        let (mut client, present) = connect(version, &Connect::new(&id).session_expiry(600));
        assert!(!present);
        publisher.publish(&topic, "live", 1);
        assert_eq!(client.drain(&mut publisher), []);
        client.disconnect();
        let (mut client, _) = connect(version, &Connect::new(&id).durable());
        assert_eq!(client.drain(&mut publisher), []);
    }
}

// [MQTT5-3.1.2-6] [MQTT3-3.1.2-4] [MQTT5-3.2.2-3] [MQTT3-3.2.2-3]
#[test]
fn resuming_nothing_makes_a_new_session() {
    for version in BOTH {
        let (mut client, present) = connect(version, &Connect::new(unique("c")).durable());
        assert!(!present);
        let topic = unique("t");
        client.subscribe(&topic, 0);
        client.publish(&topic, "x", 0);
        assert_eq!(client.expect_message().text(), "x");
    }
}

// [MQTT5-4.1.0-2] [MQTT3-3.1.2-6]
#[test]
fn without_expiry_the_session_ends_with_the_connection() {
    for version in BOTH {
        let (topic, id) = (unique("t"), unique("c"));
        let zero = Connect::new(&id).session_expiry(0);
        for first in [Connect::new(&id), zero] {
            let (mut client, _) = connect(version, &first);
            client.subscribe(&topic, 1);
            client.abort();
            let mut publisher = Client::connect(Broker::shared(), version);
            publisher.publish(&topic, "lost", 1);
            let (mut client, present) = connect(version, &Connect::new(&id).durable());
            assert!(!present);
            assert_eq!(client.drain(&mut publisher), []);
            client.disconnect();
            connect(version, &Connect::new(&id)).0.disconnect();
        }
    }
}

// [MQTT5-4.1.0-2] [MQTT5-3.1.2-23]
#[test]
fn the_session_ends_when_its_expiry_has_passed() {
    // A will with a longer delay is published at the end of the session: it tells when that is.
    let (topic, id) = (unique("t"), unique("c"));
    let mut watcher = Client::connect(Broker::shared(), V5);
    watcher.subscribe(&topic, 0);
    let will = Will::new(&topic, "ended").props(Props::new().four(property::WILL_DELAY_INTERVAL, 600));
    let (mut client, _) = connect(V5, &Connect::new(&id).session_expiry(1).will(will));
    client.subscribe(&topic, 1);
    client.abort();
    assert_eq!(watcher.expect_message().text(), "ended");
    let (_, present) = connect(V5, &Connect::new(&id).durable());
    assert!(!present);
}

// [MQTT5-4.1.0-1] [MQTT5-3.1.2-23]
#[test]
fn the_expiry_does_not_run_while_the_client_is_connected() {
    let id = unique("c");
    let topic = unique("t");
    let (mut client, _) = connect(V5, &Connect::new(&id).session_expiry(1));
    client.subscribe(&topic, 0);
    client.pass(std::time::Duration::from_millis(2500));
    client.publish(&topic, "x", 0);
    assert_eq!(client.expect_message().text(), "x");
    client.abort();
    let (client, present) = connect(V5, &Connect::new(&id).durable());
    assert!(present);
    client.abort();
    // The last CONNECT set a new expiry; the old one is forgotten.
    watch_for_end(&id, false);
}

/// Lets two seconds pass, then looks whether the session of `id` has ended.
fn watch_for_end(id: &str, ended: bool) {
    Client::connect(Broker::shared(), V5).pass(std::time::Duration::from_millis(2500));
    let (_, present) = connect(V5, &Connect::new(id).durable());
    assert_eq!(present, !ended);
}

// [MQTT5-3.1.2-23] [MQTT5-4.1.0-2]
#[test]
fn disconnect_can_change_the_expiry() {
    let id = unique("c");
    let expiry =
        |seconds| wire::disconnect_with(0, &Props::new().four(property::SESSION_EXPIRY_INTERVAL, seconds));
    let (client, _) = connect(V5, &Connect::new(&id).session_expiry(600));
    client.disconnect_with(&expiry(0));
    let (client, present) = connect(V5, &Connect::new(&id).resume().session_expiry(1));
    assert!(!present);
    client.disconnect_with(&expiry(600));
    watch_for_end(&id, false);
}

// [MQTT5-3.1.2-23]
#[test]
fn disconnect_cannot_give_a_session_a_life_it_never_had() {
    let id = unique("c");
    let (mut client, _) = connect(V5, &Connect::new(&id));
    client.send(&wire::disconnect_with(0, &Props::new().four(property::SESSION_EXPIRY_INTERVAL, 600)));
    client.expect_refused(reason::PROTOCOL_ERROR);
    assert!(!connect(V5, &Connect::new(&id).durable()).1);
}

// [MQTT5-3.1.2-23]
#[test]
fn an_expiry_of_all_ones_never_ends() {
    let id = unique("c");
    connect(V5, &Connect::new(&id).session_expiry(u32::MAX)).0.abort();
    watch_for_end(&id, false);
    connect(V5, &Connect::new(&id)).0.disconnect();
}

// [MQTT5-3.1.4-3] [MQTT3-3.1.4-2]
#[test]
fn a_second_connection_takes_the_session_over() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut old, _) = connect(version, &durable);
        old.subscribe(&topic, 1);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "in flight", 1);
        let first = old.expect_publish();
        let (mut new, present) = connect(version, &durable);
        assert!(present);
        old.expect_refused(reason::SESSION_TAKEN_OVER);
        let again = new.expect_message();
        assert_eq!((again.text().as_str(), again.id, again.dup), ("in flight", first.id, true));
        publisher.publish(&topic, "live", 1);
        assert_eq!(new.expect_message().text(), "live");
    }
}

// [MQTT5-3.1.4-3] [MQTT3-3.1.4-2] [MQTT5-3.1.2-4] [MQTT3-3.1.2-6]
#[test]
fn a_takeover_with_clean_start_ends_the_old_session() {
    for version in BOTH {
        let (topic, id) = (unique("t"), unique("c"));
        let (mut old, _) = connect(version, &Connect::new(&id).durable());
        old.subscribe(&topic, 1);
        let (mut new, present) = connect(version, &Connect::new(&id));
        assert!(!present);
        old.expect_refused(reason::SESSION_TAKEN_OVER);
        let mut publisher = Client::connect(Broker::shared(), version);
        publisher.publish(&topic, "x", 1);
        assert_eq!(new.drain(&mut publisher), []);
    }
}

// [MQTT5-3.1.4-3] [MQTT3-3.1.4-2]
#[test]
fn many_takeovers_at_once_leave_one_connection() {
    for version in BOTH {
        let durable = Connect::new(unique("c")).durable();
        let topic = unique("t");
        // All CONNECTs are on their way before any is answered; they land on different shards.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::open(Broker::shared(), version)).collect();
        for client in &mut clients {
            let subscribe = Subscribe::new(1).filter(&topic, 1);
            client.send(&[durable.bytes(version), subscribe.bytes(version)].concat());
        }
        let mut alive = Vec::new();
        for mut client in clients {
            client.try_send(&wire::PINGREQ).ok();
            let ended = loop {
                match client.event() {
                    Event::Packet(Packet::PingResp) => break false,
                    Event::Packet(Packet::Disconnect(disconnect)) => {
                        assert_eq!(disconnect.reason, reason::SESSION_TAKEN_OVER);
                    }
                    Event::Packet(_) => {}
                    Event::Closed => break true,
                }
            };
            if !ended {
                alive.push(client);
            }
        }
        // Some may have answered the ping before they were taken over; one stays.
        let mut publisher = Client::connect(Broker::shared(), version);
        let (mut last, present) = connect(version, &durable);
        assert!(present);
        for mut client in alive {
            while let Event::Packet(_) = client.event() {}
        }
        publisher.publish(&topic, "x", 1);
        assert_eq!(texts(&last.drain(&mut publisher)), ["x"]);
    }
}

// [MQTT5-3.1.2-5] [MQTT3-3.1.2-4] [MQTT5-4.1.0-1]
#[test]
fn a_session_may_be_resumed_in_another_version() {
    let topic = unique("t");
    let id = unique("c");
    let (mut client, _) = connect(V5, &Connect::new(&id).session_expiry(u32::MAX));
    client.send(&Subscribe::new(1).filter(&topic, 1).props(Props::new().varint(0x0B, 5)));
    client.expect_answer(SUBACK);
    client.abort();
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish_with(Publish::new(&topic, "queued").props(Props::new().user("a", "b")), 1);
    let (mut client, present) = connect(V4, &Connect::new(&id).durable());
    if present {
        assert_eq!(client.expect_message().text(), "queued");
        client.abort();
        let (mut client, present) = connect(V5, &Connect::new(&id).durable());
        assert!(present);
        publisher.publish(&topic, "live", 1);
        assert_eq!(client.expect_message().props.numbers(property::SUBSCRIPTION_IDENTIFIER), [5]);
    }
}

// [MQTT5-4.5.0-1] [MQTT3-4.5.0-1] [MQTT3-3.1.2-5]
#[test]
fn qos_0_messages_are_not_kept_by_default() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut client, _) = connect(version, &durable);
        client.subscribe(&topic, 1);
        client.abort();
        let mut publisher = Client::connect(Broker::shared(), version);
        let witnesses = Witnesses::of(Broker::shared(), &topic);
        publisher.publish(&topic, "0", 0);
        publisher.publish(&topic, "1", 1);
        witnesses.wait_for("1");
        let (mut client, _) = connect(version, &durable);
        assert_eq!(texts(&client.drain(&mut publisher)), ["1"]);
    }
}

// [MQTT5-4.5.0-1] [MQTT5-4.6.0-5] [MQTT3-4.6.0-5]
#[test]
fn a_long_queue_is_delivered_in_full_and_in_order() {
    for version in BOTH {
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut client, _) = connect(version, &durable);
        client.subscribe(&topic, 2);
        client.abort();
        let mut publisher = Client::connect(Broker::shared(), version);
        for n in 0..500_u32 {
            publisher.publish(&topic, n.to_string(), 1);
        }
        let (mut client, _) = connect(version, &durable);
        let got = texts(&client.drain(&mut publisher));
        assert!(got == (0..500).map(|n| n.to_string()).collect::<Vec<_>>(), "{got:?}");
    }
}

// [MQTT5-4.5.0-1]
#[test]
fn the_queue_of_an_absent_client_is_bounded() {
    for (overflow, kept) in [("drop-newest", 0..10), ("drop-oldest", 10..20)] {
        let setting = format!("mqtt.queue_overflow={overflow}");
        let broker = Broker::with(&["mqtt.max_queued_messages=10", &setting]);
        let topic = unique("t");
        let durable = Connect::new(unique("c")).durable();
        let (mut client, _) = Client::connect_with(&broker, V5, &durable);
        client.subscribe(&topic, 1);
        client.abort();
        let mut publisher = Client::connect(&broker, V5);
        let witnesses = Witnesses::of(&broker, &topic);
        for n in 0..20 {
            publisher.publish(&topic, n.to_string(), 1);
        }
        witnesses.wait_for("19");
        let (mut client, _) = Client::connect_with(&broker, V5, &durable);
        let got = texts(&client.drain(&mut publisher));
        assert_eq!(got, kept.map(|n| n.to_string()).collect::<Vec<_>>(), "{overflow}");
    }
}

// [MQTT5-4.5.0-1]
#[test]
fn qos_0_can_be_kept_as_well() {
    let broker = Broker::with(&["mqtt.queue_qos0=true"]);
    let topic = unique("t");
    let durable = Connect::new(unique("c")).durable();
    let (mut client, _) = Client::connect_with(&broker, V5, &durable);
    client.subscribe(&topic, 1);
    client.abort();
    let mut publisher = Client::connect(&broker, V5);
    let witnesses = Witnesses::of(&broker, &topic);
    publisher.publish(&topic, "0", 0);
    publisher.publish(&topic, "1", 1);
    witnesses.wait_for("1");
    let (mut client, _) = Client::connect_with(&broker, V5, &durable);
    assert_eq!(texts(&client.drain(&mut publisher)), ["0", "1"]);
}

// [MQTT5-4.6.0-5] [MQTT5-4.6.0-6]
#[test]
fn kept_qos_0_messages_are_not_overtaken_by_live_ones() {
    let broker = Broker::with(&["mqtt.queue_qos0=true"]);
    let (topic, id) = (unique("t"), unique("c"));
    let props = Props::new().two(property::RECEIVE_MAXIMUM, 1);
    let durable = Connect::new(&id).props(props).durable();
    let (mut client, _) = Client::connect_with(&broker, V5, &durable);
    client.subscribe(&topic, 1);
    client.abort();
    let mut publisher = Client::connect(&broker, V5);
    let witnesses = Witnesses::of(&broker, &topic);
    for (payload, qos) in [("1", 1), ("2", 1), ("kept", 0)] {
        publisher.publish(&topic, payload, qos);
    }
    witnesses.wait_for("kept");
    let (mut client, _) = Client::connect_with(&broker, V5, &durable);
    let first = client.expect_publish();
    publisher.publish(&topic, "live", 0);
    publisher.ping();
    client.ping();
    client.acknowledge(&first);
    let got = texts(&client.drain(&mut publisher));
    let qos_0: Vec<&str> = got.iter().map(String::as_str).filter(|text| *text != "2").collect();
    assert_eq!(qos_0, ["kept", "live"]);
}

// [MQTT5-3.1.4-3] [MQTT5-3.2.0-1] [MQTT3-3.2.0-1] [MQTT5-4.2.0-1]
#[test]
fn packets_behind_a_connect_that_resumes_are_handled() {
    // The session lives on one shard and the connection may arrive on another; nothing is lost on the way.
    for version in BOTH {
        let durable = Connect::new(unique("c")).durable();
        let topic = unique("t");
        let payload = "x".repeat(300_000);
        let mut kept = Vec::new();
        for round in 0..12_u16 {
            let bytes = [
                durable.bytes(version),
                Subscribe::new(1).filter(&topic, 1).bytes(version),
                Publish::new(&topic, &payload).qos(1).id(round + 1).bytes(version),
                wire::PINGREQ.to_vec(),
            ];
            let mut client = Client::open(Broker::shared(), version);
            client.send(&bytes.concat());
            let connack = client.recv();
            assert!(
                matches!(&connack, Packet::ConnAck(c) if c.reason == 0 && c.session_present == (round > 0)),
                "{connack:?}"
            );
            assert_eq!(client.expect_answer(SUBACK).reasons, [1]);
            assert_eq!(client.expect_ack(PUBACK).id, round + 1);
            assert_eq!(client.expect_message().payload.len(), payload.len());
            client.recv_where(|packet| (*packet == Packet::PingResp).then_some(()));
            // Every second connection is left open and taken over by the next.
            if round % 2 == 0 { kept.push(client) } else { client.abort() }
        }
    }
}
