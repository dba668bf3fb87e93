//! Topic aliases (3.3.2.3.4), in both directions.

use mainstem_conformance::prelude::*;

fn alias(alias: u16) -> Props {
    Props::new().two(property::TOPIC_ALIAS, alias)
}

/// The server's Topic Alias Maximum, and a connected client.
fn connect() -> (Client, u16) {
    let (client, connack) = Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")));
    let maximum = connack.props.number(property::TOPIC_ALIAS_MAXIMUM).unwrap_or(0);
    assert!(maximum >= 2, "the default configuration takes aliases");
    (client, u16::try_from(maximum).expect("two bytes"))
}

// [MQTT5-3.3.2-12] [MQTT5-3.2.2-17]
#[test]
fn every_alias_up_to_the_maximum_is_accepted() {
    let (mut client, maximum) = connect();
    let root = unique("t");
    client.subscribe(&format!("{root}/+"), 0);
    for n in 1..=maximum {
        client.send(&Publish::new(format!("{root}/{n}"), "named").props(alias(n)));
        assert_eq!(client.expect_message().topic, format!("{root}/{n}"));
    }
    for n in (1..=maximum).rev() {
        client.send(&Publish::new("", "by alias").props(alias(n)));
        let message = client.expect_message();
        assert_eq!((message.topic, message.props.is_empty()), (format!("{root}/{n}"), true));
    }
}

// [MQTT5-3.3.2-12]
#[test]
fn an_alias_can_be_given_a_new_topic() {
    let (mut client, _) = connect();
    let (one, two) = (unique("t"), unique("t"));
    client.subscribe(&one, 2);
    client.subscribe(&two, 2);
    client.publish_with(Publish::new(&one, "x").props(alias(1)), 1);
    client.publish_with(Publish::new(&two, "x").props(alias(1)), 2);
    client.publish_with(Publish::new("", "x").props(alias(1)), 2);
    let topics: Vec<String> = (0..3).map(|_| client.expect_message().topic).collect();
    assert_eq!(topics, [one, two.clone(), two]);
}

// [MQTT5-3.3.2-9] [MQTT5-3.2.2-17] [MQTT5-3.3.2-8]
#[test]
fn aliases_out_of_range_are_refused() {
    let (_, maximum) = connect();
    for bad in [0, maximum + 1, u16::MAX] {
        let (mut client, _) = connect();
        client.send(&Publish::new(unique("t"), "x").props(alias(bad)));
        client.expect_refused_with(&[reason::TOPIC_ALIAS_INVALID, reason::PROTOCOL_ERROR]);
    }
}

// [MQTT5-3.2.2-18] [MQTT5-3.3.2-9]
#[test]
fn a_server_without_aliases_refuses_them() {
    let broker = Broker::with(&["mqtt.topic_alias_maximum=0"]);
    let (mut client, connack) = Client::connect_with(&broker, V5, &Connect::new(unique("c")));
    assert!(matches!(connack.props.number(property::TOPIC_ALIAS_MAXIMUM), None | Some(0)));
    client.send(&Publish::new(unique("t"), "x").props(alias(1)));
    client.expect_refused_with(&[reason::TOPIC_ALIAS_INVALID, reason::PROTOCOL_ERROR]);
}

// [MQTT5-4.13.1-1]
#[test]
fn an_alias_that_was_never_set_is_an_error() {
    let (mut client, _) = connect();
    client.send(&Publish::new("", "x").props(alias(2)));
    client.expect_refused_with(&[reason::TOPIC_ALIAS_INVALID, reason::PROTOCOL_ERROR]);
}

// [MQTT5-3.3.2-7]
#[test]
fn aliases_end_with_the_connection() {
    let id = unique("c");
    let connect = Connect::new(&id).durable();
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &connect);
    client.publish_with(Publish::new(unique("t"), "x").props(alias(1)), 1);
    client.abort();
    let (mut client, connack) = Client::connect_with(Broker::shared(), V5, &connect);
    assert!(connack.session_present);
    client.send(&Publish::new("", "x").props(alias(1)));
    client.expect_refused_with(&[reason::TOPIC_ALIAS_INVALID, reason::PROTOCOL_ERROR]);
}

// [MQTT5-3.3.2-7]
#[test]
fn aliases_belong_to_one_connection() {
    let (mut one, _) = connect();
    let (mut other, _) = connect();
    let (topic_one, topic_other) = (unique("t"), unique("t"));
    let mut subscriber = Client::connect(Broker::shared(), V5);
    subscriber.subscribe(&topic_one, 1);
    subscriber.subscribe(&topic_other, 1);
    one.publish_with(Publish::new(&topic_one, "x").props(alias(1)), 1);
    other.publish_with(Publish::new(&topic_other, "x").props(alias(1)), 1);
    one.publish_with(Publish::new("", "x").props(alias(1)), 1);
    other.publish_with(Publish::new("", "x").props(alias(1)), 1);
    let mut topics: Vec<String> = (0..4).map(|_| subscriber.expect_message().topic).collect();
    topics.sort_unstable();
    let mut expected = [topic_one.clone(), topic_one, topic_other.clone(), topic_other];
    expected.sort_unstable();
    assert_eq!(topics, expected);
}

// [MQTT5-3.1.2-26] [MQTT5-3.1.2-27] [MQTT5-3.3.2-11]
#[test]
fn the_server_keeps_to_the_client_s_alias_maximum() {
    for maximum in [None, Some(0), Some(1), Some(3)] {
        let mut props = Props::new();
        if let Some(maximum) = maximum {
            props = props.two(property::TOPIC_ALIAS_MAXIMUM, maximum);
        }
        let (mut client, _) =
            Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")).props(props));
        let root = unique("t");
        client.subscribe(&format!("{root}/+"), 1);
        let mut publisher = Client::connect(Broker::shared(), V5);
        let mut names = vec![String::new(); usize::from(maximum.unwrap_or(0)) + 1];
        for n in 0..30 {
            let topic = format!("{root}/{}", n % 5);
            publisher.publish(&topic, "x", n % 2);
            let message = client.expect_message();
            let used = message.props.number(property::TOPIC_ALIAS).unwrap_or(0) as usize;
            assert!(used < names.len(), "alias {used} with a maximum of {maximum:?}");
            if !message.topic.is_empty() {
                names[used] = message.topic;
            }
            assert_eq!(names[used], topic);
        }
    }
}

// [MQTT5-3.3.2-11] [MQTT5-3.1.2-25]
#[test]
fn a_message_that_was_dropped_sets_no_alias() {
    let props = Props::new().two(property::TOPIC_ALIAS_MAXIMUM, 5).four(property::MAXIMUM_PACKET_SIZE, 200);
    let (mut client, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")).props(props));
    let mut publisher = Client::connect(Broker::shared(), V5);
    for qos in 0..=2 {
        let topic = unique("t");
        client.subscribe(&topic, qos);
        publisher.publish(&topic, "x".repeat(300), qos);
        publisher.publish(&topic, "small", qos);
        // The first that arrives must name the topic, for the client has never heard of it.
        let message = client.expect_message();
        assert_eq!((message.topic, message.payload), (topic, b"small".to_vec()));
    }
}
