//! Flow control (4.9), receive maximum (3.1.2.11.3, 3.3.4), maximum packet size (3.1.2.11.4).

use mainstem_conformance::prelude::*;

fn limited(version: Version, id: u8, value: u32) -> Client {
    let props = match id {
        property::RECEIVE_MAXIMUM => Props::new().two(id, u16::try_from(value).expect("two bytes")),
        _ => Props::new().four(id, value),
    };
    let mut client = Client::open(Broker::shared(), version);
    if id == property::MAXIMUM_PACKET_SIZE {
        client.limit_packets(value as usize);
    }
    client.send(&Connect::new(unique("c")).props(props));
    assert!(matches!(client.recv(), Packet::ConnAck(connack) if connack.reason == 0));
    client
}

/// Publishes `count` messages, QoS 1 and 2 in turn, with their number as payload.
fn publish(publisher: &mut Client, topic: &str, count: u8) {
    for n in 0..count {
        publisher.publish(topic, n.to_string(), 1 + n % 2);
    }
}

// [MQTT5-3.3.4-9] [MQTT5-4.9.0-1] [MQTT5-4.9.0-2]
#[test]
fn the_server_sends_no_more_than_the_receive_maximum() {
    for maximum in [1, 2, 3, 10] {
        let topic = unique("t");
        let mut subscriber = limited(V5, property::RECEIVE_MAXIMUM, maximum);
        subscriber.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), V5);
        publish(&mut publisher, &topic, 24);
        let mut open = Vec::new();
        for n in 0..24 {
            open.push(subscriber.expect_publish());
            assert_eq!(open.last().expect("one").text(), n.to_string());
            if open.len() < maximum as usize {
                continue;
            }
            // The quota is used up: nothing comes, not even after a PUBREC.
            subscriber.expect_silence();
            let oldest = open.remove(0);
            if oldest.qos == 2 {
                subscriber.send(&wire::ack(PUBREC, oldest.id));
                subscriber.expect_ack_of(PUBREL, oldest.id);
                subscriber.expect_silence();
                subscriber.send(&wire::ack(PUBCOMP, oldest.id));
            } else {
                subscriber.send(&wire::ack(PUBACK, oldest.id));
            }
        }
    }
}

// [MQTT5-3.3.4-10] [MQTT5-4.9.0-3]
#[test]
fn a_quota_of_0_stops_nothing_but_qos_1_and_2() {
    let (topic, other) = (unique("t"), unique("t"));
    let mut subscriber = limited(V5, property::RECEIVE_MAXIMUM, 1);
    subscriber.subscribe(&topic, 2);
    subscriber.subscribe(&other, 0);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publish(&mut publisher, &topic, 3);
    let first = subscriber.expect_publish();
    subscriber.expect_silence();
    publisher.publish(&other, "QoS 0", 1);
    assert_eq!(subscriber.expect_publish().text(), "QoS 0");
    assert_eq!(subscriber.try_subscribe(&unique("f"), 1), [1]);
    assert_eq!(subscriber.unsubscribe(&unique("f")), [reason::NO_SUBSCRIPTION_EXISTED]);
    for qos in 0..=2 {
        subscriber.publish(&unique("t"), "x", qos);
    }
    subscriber.acknowledge(&first);
    assert_eq!(subscriber.expect_message().text(), "1");
    assert_eq!(subscriber.expect_message().text(), "2");
}

// [MQTT5-4.9.0-2] [MQTT5-4.4.0-2]
#[test]
fn an_error_code_gives_the_quota_back() {
    let topic = unique("t");
    let mut subscriber = limited(V5, property::RECEIVE_MAXIMUM, 1);
    subscriber.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publish(&mut publisher, &topic, 6);
    for n in 0..6 {
        let message = subscriber.expect_publish();
        assert_eq!(message.text(), n.to_string());
        subscriber.expect_silence();
        let kind = if message.qos == 1 { PUBACK } else { PUBREC };
        subscriber.send(&wire::ack_with(kind, message.id, reason::QUOTA_EXCEEDED, &Props::new()));
    }
    subscriber.expect_silence();
}

// [MQTT5-4.9.0-1] [MQTT5-4.9.0-2]
#[test]
fn acknowledgements_of_nothing_do_not_raise_the_quota() {
    let topic = unique("t");
    let mut subscriber = limited(V5, property::RECEIVE_MAXIMUM, 2);
    subscriber.subscribe(&topic, 1);
    for id in 500..520 {
        subscriber.send(&wire::ack(PUBACK, id));
        subscriber.send(&wire::ack(PUBCOMP, id));
    }
    subscriber.ping();
    let mut publisher = Client::connect(Broker::shared(), V5);
    publish(&mut publisher, &topic, 4);
    subscriber.expect_publish();
    subscriber.expect_publish();
    subscriber.expect_silence();
}

// [MQTT5-3.3.4-9] [MQTT5-4.9.0-1] [MQTT5-4.4.0-1]
#[test]
fn a_resumed_session_starts_with_the_new_quota() {
    let (topic, id) = (unique("t"), unique("c"));
    let connect = |maximum| {
        let props = Props::new().two(property::RECEIVE_MAXIMUM, maximum);
        let connect = Connect::new(&id).props(props).durable();
        Client::connect_with(Broker::shared(), V5, &connect).0
    };
    let mut subscriber = connect(10);
    subscriber.subscribe(&topic, 1);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publish(&mut publisher, &topic, 5);
    let first: Vec<u16> = (0..5).map(|_| subscriber.expect_publish().id).collect();
    subscriber.abort();
    let mut subscriber = connect(2);
    for (n, id) in first.iter().enumerate() {
        let message = subscriber.expect_publish();
        assert_eq!((message.id, message.dup, message.text()), (*id, true, n.to_string()));
        if n >= 1 {
            subscriber.expect_silence();
            subscriber.send(&wire::ack(PUBACK, first[n - 1]));
        }
    }
}

// [MQTT5-3.3.4-7] [MQTT5-4.9.0-1]
#[test]
fn a_client_over_the_server_s_receive_maximum_is_disconnected() {
    let broker = Broker::with(&["mqtt.receive_maximum=3"]);
    let (mut client, connack) = Client::connect_with(&broker, V5, &Connect::new(unique("c")));
    assert_eq!(connack.props.number(property::RECEIVE_MAXIMUM), Some(3));
    let topic = unique("t");
    for id in 1..=3 {
        client.send(&Publish::new(&topic, "x").qos(2).id(id));
        client.expect_ack_of(PUBREC, id);
    }
    // The quota counts exchanges that are not complete; QoS 0 is free.
    client.send(&Publish::new(&topic, "x"));
    client.send(&wire::ack(PUBREL, 1));
    client.expect_ack_of(PUBCOMP, 1);
    client.send(&Publish::new(&topic, "x").qos(2).id(4));
    client.expect_ack_of(PUBREC, 4);
    client.send(&Publish::new(&topic, "x").qos(2).id(5));
    client.expect_refused(reason::RECEIVE_MAXIMUM_EXCEEDED);
}

// [MQTT5-4.9.0-2]
#[test]
fn older_clients_have_a_bounded_number_in_flight() {
    let topic = unique("t");
    let broker = Broker::with(&["mqtt.max_inflight_messages=5"]);
    let mut subscriber = Client::connect(&broker, V4);
    subscriber.subscribe(&topic, 1);
    let mut publisher = Client::connect(&broker, V4);
    for n in 0..20 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    let open: Vec<Message> = (0..5).map(|_| subscriber.expect_publish()).collect();
    subscriber.expect_silence();
    for message in &open {
        subscriber.acknowledge(message);
    }
    let rest: Vec<String> = (5..20).map(|_| subscriber.expect_message().text()).collect();
    assert_eq!(rest, (5..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

// [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
#[test]
fn a_message_too_large_for_a_client_is_dropped_for_it_alone() {
    let topic = unique("t");
    let mut small = limited(V5, property::MAXIMUM_PACKET_SIZE, 200);
    small.subscribe(&topic, 2);
    let mut large = Client::connect(Broker::shared(), V5);
    large.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for qos in 0..=2 {
        publisher.publish(&topic, "x".repeat(300), qos);
        publisher.publish(&topic, "small", qos);
        assert_eq!(large.expect_message().payload.len(), 300);
        assert_eq!(large.expect_message().text(), "small");
        assert_eq!(small.expect_message().text(), "small");
    }
    assert_eq!(small.drain(&mut publisher), []);
}

// [MQTT5-3.1.2-24]
#[test]
fn the_maximum_packet_size_holds_to_the_byte() {
    let topic = unique("t");
    // Large ones not at QoS 0: those may be dropped while nobody reads.
    for (maximum, qos) in [(150, 0), (150, 1), (150, 2), (20_000, 1), (20_000, 2)] {
        let mut small = limited(V5, property::MAXIMUM_PACKET_SIZE, maximum);
        small.subscribe(&topic, 2);
        let mut publisher = Client::connect(Broker::shared(), V5);
        let maximum = maximum as usize;
        for length in maximum - 60..=maximum {
            publisher.publish(&topic, "x".repeat(length), qos);
        }
        let got = small.drain(&mut publisher);
        let largest = got.iter().map(|message| message.packet_len).max().expect("some fit");
        assert_eq!(largest, maximum, "QoS {qos}");
        let lengths: Vec<usize> = got.iter().map(|message| message.payload.len()).collect();
        assert!(lengths.iter().copied().eq(maximum - 60..maximum - 60 + got.len()), "QoS {qos}: {lengths:?}");
    }
}

// [MQTT5-3.1.2-24]
#[test]
fn a_request_whose_answer_would_be_too_large_ends_the_connection() {
    // Fixed header of 2 bytes, packet identifier, no properties.
    const HEAD: usize = 2 + 2 + 1;
    let filters = || (0..100 - HEAD).map(|n| format!("too/large/{n}"));
    let subscribe = || filters().fold(Subscribe::new(1), |subscribe, filter| subscribe.filter(filter, 0));
    let unsubscribe = || filters().fold(Unsubscribe::new(2), Unsubscribe::filter);
    let limited = || {
        let mut client = limited(V5, property::MAXIMUM_PACKET_SIZE, 100);
        client.limit_packets(100);
        client
    };
    let mut client = limited();
    client.send(&subscribe());
    assert_eq!(client.expect_answer(SUBACK).reasons.len(), 100 - HEAD);
    client.send(&unsubscribe());
    assert_eq!(client.expect_answer(UNSUBACK).reasons.len(), 100 - HEAD);
    client.send(&subscribe().filter("too/large/more", 0));
    client.expect_refused(reason::PACKET_TOO_LARGE);
    let mut client = limited();
    client.send(&unsubscribe().filter("too/large/more"));
    client.expect_refused(reason::PACKET_TOO_LARGE);
}

// [MQTT5-3.1.2-25]
#[test]
fn a_dropped_message_does_not_use_up_the_quota() {
    let topic = unique("t");
    let props = Props::new().two(property::RECEIVE_MAXIMUM, 1).four(property::MAXIMUM_PACKET_SIZE, 200);
    let (mut small, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")).props(props));
    small.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for qos in [1, 2, 1, 2] {
        publisher.publish(&topic, "x".repeat(300), qos);
    }
    publisher.publish(&topic, "small", 1);
    assert_eq!(small.expect_message().text(), "small");
}

// [MQTT5-3.1.2-25] [MQTT5-3.1.2-24] [MQTT5-3.3.1-9]
#[test]
fn a_retained_message_too_large_is_left_out() {
    let root = unique("t");
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish_with(Publish::new(format!("{root}/large"), "x".repeat(300)).retain(), 1);
    publisher.publish_with(Publish::new(format!("{root}/small"), "small").retain(), 1);
    let mut small = limited(V5, property::MAXIMUM_PACKET_SIZE, 200);
    small.subscribe(&format!("{root}/+"), 1);
    assert_eq!(small.drain(&mut publisher).iter().map(Message::text).collect::<Vec<_>>(), ["small"]);
    publisher.publish_with(Publish::new(format!("{root}/large"), "").retain(), 1);
    publisher.publish_with(Publish::new(format!("{root}/small"), "").retain(), 1);
}

// [MQTT5-3.3.4-10] [MQTT5-4.4.0-1] [MQTT5-4.9.0-3]
#[test]
fn a_pubrel_sent_again_does_not_wait_for_the_quota() {
    let (topic, id) = (unique("t"), unique("c"));
    let connect = |maximum| {
        let props = Props::new().two(property::RECEIVE_MAXIMUM, maximum);
        Client::connect_with(Broker::shared(), V5, &Connect::new(&id).props(props).durable()).0
    };
    let mut subscriber = connect(10);
    subscriber.subscribe(&topic, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish(&topic, "one", 1);
    publisher.publish(&topic, "two", 2);
    let (one, two) = (subscriber.expect_publish().id, subscriber.expect_publish().id);
    subscriber.send(&wire::ack(PUBREC, two));
    subscriber.expect_ack_of(PUBREL, two);
    subscriber.abort();
    let mut subscriber = connect(1);
    assert_eq!(subscriber.expect_publish().id, one);
    assert_eq!(subscriber.expect_ack(PUBREL).id, two);
}

// [MQTT5-3.1.2-24] [MQTT5-3.2.0-1]
#[test]
fn a_client_with_no_room_for_a_connack_is_refused_in_the_room_it_has() {
    for size in [1, 4, 5, 8, 12, 16, 20] {
        let mut client = Client::open(Broker::shared(), V5);
        client.limit_packets(size);
        let props = Props::new().four(property::MAXIMUM_PACKET_SIZE, u32::try_from(size).expect("small"));
        client.send(&Connect::new(unique("c")).props(props));
        client.try_send(&wire::PINGREQ).ok();
        match client.event() {
            Event::Closed | Event::Packet(Packet::ConnAck(_)) => {}
            other @ Event::Packet(_) => panic!("with a maximum of {size}: {other:?}"),
        }
    }
}

// [MQTT5-3.2.2-15] [MQTT5-4.13.1-1]
#[test]
fn a_packet_over_the_server_s_maximum_is_refused() {
    let broker = Broker::with(&["mqtt.max_packet_size_bytes=2000"]);
    for version in BOTH {
        let topic = unique("t");
        let mut client = Client::connect(&broker, version);
        client.subscribe(&topic, 0);
        let overhead = 1 + 2 + 2 + topic.len() + usize::from(version == V5);
        client.publish(&topic, "x".repeat(2000 - overhead), 0);
        assert_eq!(client.expect_message().packet_len, 2000);
        client.send(&Publish::new(&topic, "x".repeat(2001 - overhead)));
        client.expect_refused(reason::PACKET_TOO_LARGE);
        // The length alone is enough: the rest of the packet is not waited for.
        let mut client = Client::connect(&broker, version);
        client.send(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
        client.expect_refused(reason::PACKET_TOO_LARGE);
        let code = Client::refused(&broker, version, &Connect::new("x".repeat(2000)));
        assert!(code.is_none_or(|code| version != V5 || code == reason::PACKET_TOO_LARGE), "{code:02x?}");
    }
}

// [MQTT5-3.4.2-2] [MQTT5-3.4.2-3] [MQTT5-3.5.2-2] [MQTT5-3.5.2-3] [MQTT5-3.6.2-2] [MQTT5-3.6.2-3] [MQTT5-3.7.2-2]
// [MQTT5-3.7.2-3] [MQTT5-3.9.2-1] [MQTT5-3.9.2-2] [MQTT5-3.11.2-1] [MQTT5-3.11.2-2] [MQTT5-3.14.2-3]
// [MQTT5-3.14.2-4] [MQTT5-3.1.2-24]
#[test]
fn answers_leave_out_what_the_client_has_no_room_for() {
    // Room for the shortest answer of each kind; the answers below would like to explain themselves.
    let mut client = limited(V5, property::MAXIMUM_PACKET_SIZE, 35);
    client.send(&Publish::new(unique("nobody"), "x").qos(1).id(1));
    assert_eq!(client.expect_ack(PUBACK).id, 1);
    client.send(&Publish::new("$SYS/nothing", "x").qos(2).id(2));
    assert_eq!(client.expect_ack(PUBREC).id, 2);
    client.send(&wire::ack(PUBREC, 3));
    assert_eq!(client.expect_ack(PUBREL).id, 3);
    client.send(&wire::ack(PUBREL, 4));
    assert_eq!(client.expect_ack(PUBCOMP).id, 4);
    client.send(&Subscribe::new(5).filter(unique("f"), 0));
    assert_eq!(client.expect_answer(SUBACK).id, 5);
    client.send(&Unsubscribe::new(6).filter(unique("f")));
    assert_eq!(client.expect_answer(UNSUBACK).id, 6);
    client.send(&[0x00, 0x00]);
    client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
}
