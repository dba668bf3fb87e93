//! Shared subscriptions (4.8.2).

use std::collections::BTreeMap;

use mainstem_conformance::prelude::*;

fn numbers(messages: &[Message]) -> Vec<u32> {
    messages.iter().map(|message| message.text().parse().expect("a number")).collect()
}

fn member(filter: &str, qos: u8) -> Client {
    let mut client = Client::connect(Broker::shared(), V5);
    client.subscribe(filter, qos);
    client
}

/// What all members got up to now, sorted.
fn all(members: &mut [Client], publisher: &mut Client) -> Vec<u32> {
    let mut got: Vec<u32> = members.iter_mut().flat_map(|member| numbers(&member.drain(publisher))).collect();
    got.sort_unstable();
    got
}

// [MQTT5-4.8.2-1] [MQTT5-4.8.2-2]
#[test]
fn each_message_goes_to_one_member_of_each_group() {
    for qos in 0..=2 {
        let topic = unique("t");
        let mut first: Vec<Client> =
            (0..4).map(|_| member(&format!("$share/first/{topic}/#"), qos)).collect();
        let mut second: Vec<Client> =
            (0..3).map(|_| member(&format!("$share/second/{topic}/+"), qos)).collect();
        let mut plain = member(&format!("{topic}/a"), qos);
        let mut publisher = Client::connect(Broker::shared(), V5);
        for n in 0..120 {
            publisher.publish(&format!("{topic}/a"), n.to_string(), qos);
        }
        let expected: Vec<u32> = (0..120).collect();
        assert_eq!(numbers(&plain.drain(&mut publisher)), expected);
        assert_eq!(all(&mut first, &mut publisher), expected, "QoS {qos}");
        assert_eq!(all(&mut second, &mut publisher), expected, "QoS {qos}");
    }
}

// [MQTT5-4.8.2-1]
#[test]
fn the_load_is_spread_over_the_members() {
    let topic = unique("t");
    let mut members: Vec<Client> = (0..4).map(|_| member(&format!("$share/g/{topic}"), 1)).collect();
    let mut publisher = Client::connect(Broker::shared(), V5);
    for n in 0..200 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    let counts: Vec<usize> = members.iter_mut().map(|member| member.drain(&mut publisher).len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 200);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

// [MQTT5-4.8.2-3]
#[test]
fn each_member_gets_the_qos_granted_to_it() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    let mut members: BTreeMap<u8, Client> = (0..=2).map(|qos| (qos, member(&filter, qos))).collect();
    let mut publisher = Client::connect(Broker::shared(), V5);
    for n in 0..60_u32 {
        publisher.publish(&topic, n.to_string(), u8::try_from(n % 3).expect("small"));
    }
    let mut count = 0;
    for (granted, member) in &mut members {
        for message in member.drain(&mut publisher) {
            let sent = u8::try_from(message.text().parse::<u32>().expect("a number") % 3).expect("small");
            assert_eq!(message.qos, sent.min(*granted));
            count += 1;
        }
    }
    assert_eq!(count, 60);
}

// [MQTT5-4.8.2-1] [MQTT5-4.8.2-2]
#[test]
fn bad_share_names_are_refused() {
    let bad = ["$share/", "$share/g", "$share/g/", "$share//a", "$share/g+/a", "$share/#/a", "$share/+/a"];
    for filter in bad {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&Subscribe::new(1).filter(filter, 0));
        match client.event() {
            Event::Packet(Packet::Answer(answer)) => {
                assert_eq!(answer.reasons, [reason::TOPIC_FILTER_INVALID], "{filter:?}");
            }
            Event::Packet(Packet::Disconnect(disconnect)) => {
                let known = [reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR, reason::TOPIC_FILTER_INVALID];
                assert!(known.contains(&disconnect.reason), "{filter:?}: {disconnect:?}");
                client.expect_closed();
            }
            other => panic!("{filter:?}: {other:?}"),
        }
    }
}

// [MQTT5-4.8.2-2] [MQTT5-3.3.2-3]
#[test]
fn the_filter_behind_the_share_name_may_be_any_filter() {
    let topic = unique("t");
    for filter in [format!("/{topic}"), format!("{topic}/#"), format!("+/{topic}"), topic.clone()] {
        let mut client = member(&format!("$share/group é/{filter}"), 0);
        let name = filter.replace('+', "x").replace('#', "y");
        client.publish(&name, "1", 0);
        assert_eq!(client.expect_message().topic, name);
    }
}

// [MQTT5-4.8.2-1]
#[test]
fn a_client_may_be_in_a_group_and_outside() {
    let topic = unique("t");
    let mut client = member(&topic, 0);
    client.send(
        &Subscribe::new(1)
            .filter(format!("$share/g/{topic}"), 0)
            .filter(format!("$share/h/{topic}"), 0)
            .props(Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, 4)),
    );
    assert_eq!(client.expect_answer(SUBACK).reasons, [0, 0]);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish(&topic, "1", 0);
    let got = client.drain(&mut publisher);
    // The plain subscription has its copy without identifier, each group its own with it.
    let mut ids: Vec<Vec<u32>> =
        got.iter().map(|message| message.props.numbers(property::SUBSCRIPTION_IDENTIFIER)).collect();
    ids.sort_unstable();
    assert_eq!(ids, [vec![], vec![4], vec![4]]);
}

// [MQTT5-4.8.2-1] [MQTT5-3.10.4-1]
#[test]
fn those_who_stay_get_what_the_others_left() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    let mut members: Vec<Client> = (0..3).map(|_| member(&filter, 1)).collect();
    let mut publisher = Client::connect(Broker::shared(), V5);
    let mut leaving = members.pop().expect("three members");
    leaving.unsubscribe(&filter);
    members.pop().expect("two members").disconnect();
    for n in 0..30 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    assert_eq!(all(&mut members, &mut publisher), (0..30).collect::<Vec<_>>());
    assert_eq!(leaving.drain(&mut publisher), []);
    members.pop().expect("the last").disconnect();
    assert_eq!(publisher.publish(&topic, "nobody", 1), reason::NO_MATCHING_SUBSCRIBERS);
}

// [MQTT5-4.8.2-1]
#[test]
fn absent_members_do_not_get_what_present_ones_can_take() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    let durable = Connect::new(unique("c")).durable();
    let (mut absent, _) = Client::connect_with(Broker::shared(), V5, &durable);
    absent.subscribe(&filter, 1);
    absent.abort();
    let mut present = [member(&filter, 1)];
    let mut publisher = Client::connect(Broker::shared(), V5);
    for n in 0..30 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    assert_eq!(all(&mut present, &mut publisher), (0..30).collect::<Vec<_>>());
    let [last] = present;
    last.disconnect();
    // With nobody there the messages wait for the member that has a session.
    for n in 30..40 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    let (mut absent, _) = Client::connect_with(Broker::shared(), V5, &durable);
    assert_eq!(numbers(&absent.drain(&mut publisher)), (30..40).collect::<Vec<_>>());
}

// [MQTT5-4.8.2-4]
#[test]
fn a_qos_2_delivery_is_completed_with_the_member_it_began_with() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    let durable = Connect::new(unique("c")).durable();
    let (mut first, _) = Client::connect_with(Broker::shared(), V5, &durable);
    first.subscribe(&filter, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish(&topic, "1", 2);
    publisher.publish(&topic, "2", 2);
    let (one, two) = (first.expect_publish(), first.expect_publish());
    first.send(&wire::ack(PUBREC, one.id));
    first.expect_ack_of(PUBREL, one.id);
    let mut other = [member(&filter, 2)];
    first.abort();
    assert_eq!(all(&mut other, &mut publisher), []);
    let (mut first, _) = Client::connect_with(Broker::shared(), V5, &durable);
    assert_eq!(first.expect_ack(PUBREL).id, one.id);
    first.send(&wire::ack(PUBCOMP, one.id));
    let again = first.expect_message();
    assert_eq!((again.id, again.dup, again.text()), (two.id, true, two.text()));
    assert_eq!(all(&mut other, &mut publisher), []);
}

// [MQTT5-4.8.2-5]
#[test]
fn a_qos_2_delivery_that_was_begun_goes_to_nobody_else() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    // No session expiry: the session ends with the connection.
    let mut first = member(&filter, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish(&topic, "1", 2);
    first.expect_publish();
    let mut other = [member(&filter, 2)];
    first.abort();
    assert_eq!(all(&mut other, &mut publisher), []);
}

// [MQTT5-4.8.2-6] [MQTT5-4.4.0-2]
#[test]
fn a_message_refused_by_its_member_is_offered_to_nobody_else() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    let mut first = member(&filter, 2);
    let mut publisher = Client::connect(Broker::shared(), V5);
    publisher.publish(&topic, "1", 1);
    publisher.publish(&topic, "2", 2);
    let (one, two) = (first.expect_publish(), first.expect_publish());
    let mut other = [member(&filter, 2)];
    first.send(&wire::ack_with(PUBACK, one.id, reason::UNSPECIFIED_ERROR, &Props::new()));
    first.send(&wire::ack_with(PUBREC, two.id, reason::NOT_AUTHORIZED, &Props::new()));
    first.expect_silence();
    assert_eq!(all(&mut other, &mut publisher), []);
    first.abort();
    assert_eq!(all(&mut other, &mut publisher), []);
}

// [MQTT5-4.8.2-3]
#[test]
fn a_member_with_a_full_quota_keeps_the_group_going() {
    let topic = unique("t");
    let filter = format!("$share/g/{topic}");
    let props = Props::new().two(property::RECEIVE_MAXIMUM, 1);
    let (mut stuck, _) = Client::connect_with(Broker::shared(), V5, &Connect::new(unique("c")).props(props));
    stuck.subscribe(&filter, 1);
    let mut busy = member(&filter, 1);
    let mut publisher = Client::connect(Broker::shared(), V5);
    for n in 0..20 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    let mut got = numbers(&busy.drain(&mut publisher));
    // The rest went to the member that has acknowledged nothing so far; none is lost.
    got.extend(numbers(&stuck.drain(&mut publisher)));
    got.extend(numbers(&busy.drain(&mut publisher)));
    got.sort_unstable();
    assert_eq!(got, (0..20).collect::<Vec<_>>());
}
