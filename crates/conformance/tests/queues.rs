//! Work queues over MQTT: delivery to consumers, the meaning of acknowledgements, redelivery.

use std::time::{Duration, Instant};

use mainstem_conformance::prelude::*;
use mainstem_conformance::{DEADLINE, End};

/// Refuses a delivery, to be tried again after a while that is not worth waiting for.
const NACK: u8 = reason::UNSPECIFIED_ERROR;

fn queue() -> (String, String) {
    let name = unique("jobs");
    let topic = format!("$queue/{name}");
    (name, topic)
}

fn worker(broker: &Broker, version: Version, filter: &str) -> Client {
    let mut client = Client::connect(broker, version);
    client.subscribe(filter, 1);
    client
}

fn user<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.props.user().into_iter().find_map(|(known, value)| (known == name).then_some(value))
}

fn count(message: &Message) -> &str {
    user(message, "delivery-count").expect("a delivery of a queue says the how manieth it is")
}

/// Answers a delivery with this reason, and user properties.
fn answer(worker: &mut Client, message: &Message, reason: u8, props: &Props) {
    worker.send(&wire::ack_with(PUBACK, message.id, reason, props));
}

fn delay(ms: u64) -> Props {
    Props::new().user("delay-ms", ms.to_string())
}

/// Shows that a client has been given nothing: what another publishes now comes first.
fn expect_nothing(client: &mut Client, broker: &Broker) {
    let got = client.drain(&mut Client::connect(broker, V5));
    assert!(got.is_empty(), "{got:?}");
}

#[test]
fn each_message_is_for_one_worker_of_each_group() {
    let broker = Broker::shared();
    let (name, topic) = queue();
    let mut workers: Vec<Client> = (0..3).map(|_| worker(broker, V5, &topic)).collect();
    let mut auditor = worker(broker, V5, &format!("$share/audit/$queue/{name}"));
    let mut bystander = worker(broker, V5, "#");
    let mut publisher = Client::connect(broker, V5);
    for n in 0..60 {
        assert_eq!(publisher.publish(&topic, n.to_string(), 1 + n % 2), 0);
    }
    let mut audited: Vec<u8> = (0..60).map(|_| auditor.expect_message().text().parse().unwrap()).collect();
    audited.sort_unstable();
    assert_eq!(audited, (0..60).collect::<Vec<_>>());
    let mut got = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while got.len() < 60 {
        assert!(Instant::now() < deadline, "{got:?}");
        for worker in &mut workers {
            while let Some(Event::Packet(Packet::Publish(message))) =
                worker.event_within(Duration::from_millis(5))
            {
                assert_eq!((message.topic.as_str(), message.qos, message.dup), (topic.as_str(), 1, false));
                worker.acknowledge(&message);
                got.push(message.text().parse::<u8>().unwrap());
            }
        }
    }
    got.sort_unstable();
    assert_eq!(got, audited);
    let plain = bystander.drain(&mut publisher);
    assert!(plain.is_empty(), "what is for a queue is for nobody else: {plain:?}");
}

#[test]
fn a_delivery_tells_what_the_queue_knows() {
    let broker = Broker::shared();
    let (name, topic) = queue();
    let props = Props::new().data(property::CONTENT_TYPE, "text/plain").user("site", "north");
    let mut publisher = Client::connect(broker, V5);
    let publish = Publish::new(format!("{topic}/press/7"), "open").props(props).retain();
    assert_eq!(publisher.publish_with(publish, 1), 0);
    let mut client = Client::connect(broker, V5);
    let identified = Props::new().varint(property::SUBSCRIPTION_IDENTIFIER, 77);
    client.send(&Subscribe::new(1).filter(&topic, 2).props(identified));
    assert_eq!(client.expect_answer(SUBACK).reasons, [1], "at QoS 1, whatever is asked for");
    let message = client.expect_message();
    assert_eq!((message.topic.as_str(), message.text().as_str()), (topic.as_str(), "open"));
    assert!(!message.retain);
    assert_eq!(message.props.numbers(property::SUBSCRIPTION_IDENTIFIER), [77]);
    assert_eq!(message.props.text(property::CONTENT_TYPE), Some("text/plain"));
    let known = [("queue", name.as_str()), ("group", "default"), ("offset", "0"), ("key", "press/7")];
    for (property, value) in known.into_iter().chain([("delivery-count", "1"), ("site", "north")]) {
        assert_eq!(user(&message, property), Some(value), "{property}");
    }
    let time = |property| user(&message, property).and_then(|ms| ms.parse::<u64>().ok()).expect(property);
    assert!(time("first-delivered-at") >= time("enqueued-at"));
    assert_eq!(user(&message, "topic"), None);
}

#[test]
fn what_is_acknowledged_does_not_come_back() {
    for version in BOTH {
        for end in [End::Kill, End::Term] {
            let mut broker = Broker::with(&[]);
            let (_, topic) = queue();
            let mut worker = worker(&broker, version, &topic);
            let mut publisher = Client::connect(&broker, version);
            for n in 0..4 {
                publisher.publish(&topic, n.to_string(), 1);
            }
            // The last one is left open.
            for n in 0..3 {
                assert_eq!(worker.expect_message().text(), n.to_string());
            }
            assert_eq!(worker.expect_publish().text(), "3");
            // What is acknowledged behind them says that they are on disk.
            for n in 4..6 {
                worker.publish(&topic, n.to_string(), 1);
            }
            worker.disconnect();
            broker.restart(end);
            let mut worker = self::worker(&broker, version, &topic);
            let mut got: Vec<String> = (0..3).map(|_| worker.expect_message().text()).collect();
            got.sort_unstable();
            assert_eq!(got, ["3", "4", "5"], "MQTT {version:?}, {end:?}");
            expect_nothing(&mut worker, &broker);
        }
    }
}

#[test]
fn a_nack_brings_a_message_back_when_it_says() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let mut worker = worker(broker, V5, &topic);
    Client::connect(broker, V5).publish(&topic, "x", 1);
    let first = worker.expect_publish();
    assert_eq!(count(&first), "1");
    let begin = Instant::now();
    answer(&mut worker, &first, NACK, &delay(300));
    let second = worker.expect_publish();
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    assert_eq!((second.text().as_str(), count(&second)), ("x", "2"));
    assert_eq!(user(&first, "first-delivered-at"), user(&second, "first-delivered-at"));
    // Without a time of its own it waits for the queue's backoff.
    answer(&mut worker, &second, NACK, &Props::new());
    assert_eq!(count(&worker.expect_message()), "3");
}

#[test]
fn a_rejected_message_becomes_a_dead_letter() {
    let broker = Broker::shared();
    for reason in [reason::PAYLOAD_FORMAT_INVALID, reason::IMPLEMENTATION_SPECIFIC_ERROR] {
        let (name, topic) = queue();
        let mut worker = worker(broker, V5, &topic);
        let props = Props::new().user("site", "north");
        Client::connect(broker, V5).publish_with(Publish::new(&topic, "poison").props(props), 1);
        let message = worker.expect_publish();
        answer(&mut worker, &message, reason, &Props::new());
        let mut undertaker = self::worker(broker, V5, &format!("$queue/{name}.dead"));
        let dead = undertaker.expect_message();
        assert_eq!(dead.text(), "poison");
        let known = [
            ("dead-letter-reason", "rejected"),
            ("dead-letter-queue", name.as_str()),
            ("delivery-count", "1"),
            ("site", "north"),
        ];
        for (property, value) in known {
            assert_eq!(user(&dead, property), Some(value), "{property}");
        }
        assert!(user(&dead, "dead-letter-time").is_some());
        expect_nothing(&mut worker, broker);
    }
}

/// The slow worker stays connected. Its window is full until it acknowledges, so the message goes to another worker.
#[test]
fn a_lease_that_ends_gives_the_message_to_others_and_what_is_said_late_settles_nothing() {
    for reason in [reason::SUCCESS, NACK, reason::PAYLOAD_FORMAT_INVALID] {
        let broker = Broker::configured("[[queue]]\nname = \"jobs\"\nlease_ms = 400\nmax_deliveries = 0\n");
        let narrow = Connect::new(unique("c")).props(Props::new().two(property::RECEIVE_MAXIMUM, 1));
        let (mut slow, _) = Client::connect_with(&broker, V5, &narrow);
        slow.subscribe("$queue/jobs", 1);
        let begin = Instant::now();
        Client::connect(&broker, V5).publish("$queue/jobs", "x", 1);
        let first = slow.expect_publish();
        let mut other = worker(&broker, V5, "$queue/jobs");
        let second = other.expect_publish();
        assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
        assert_eq!((second.text().as_str(), second.dup), ("x", false));
        assert_eq!((count(&first), count(&second)), ("1", "2"));
        answer(&mut slow, &first, reason, &Props::new());
        // It is no dead letter and not done: when the other is gone, somebody gets it again.
        other.abort();
        let third = slow.expect_publish();
        assert_eq!((third.text().as_str(), count(&third)), ("x", "3"), "after {reason:#x}");
        slow.acknowledge(&third);
        expect_nothing(&mut slow, &broker);
    }
}

/// An MQTT 3.1.1 client cannot reject a message, only leave it unacknowledged until the lease ends. Each such lease
/// counts as a failed delivery, up to the limit.
#[test]
fn an_unacknowledged_message_of_a_v3_worker_comes_back_until_it_is_a_dead_letter() {
    let lease = Duration::from_millis(300);
    let settings = "[[queue]]\nname = \"jobs\"\nlease_ms = 300\nmax_deliveries = 3\n";
    let broker = Broker::configured(settings);
    let mut silent = worker(&broker, V4, "$queue/jobs");
    let mut publisher = Client::connect(&broker, V4);
    let begin = Instant::now();
    publisher.publish("$queue/jobs", "x", 1);
    for times in 0..3 {
        let message = silent.expect_publish();
        assert_eq!((message.text().as_str(), message.dup), ("x", false));
        assert!(begin.elapsed() >= times * lease, "delivery {times} after {:?}", begin.elapsed());
    }
    let mut undertaker = worker(&broker, V5, "$queue/jobs.dead");
    let letter = undertaker.expect_message();
    assert!(begin.elapsed() >= 3 * lease, "{:?}", begin.elapsed());
    assert_eq!(letter.text(), "x");
    assert_eq!(user(&letter, "dead-letter-reason"), Some("max-deliveries"));
    assert_eq!(user(&letter, "dead-letter-count"), Some("3"));
    // It goes on with the next one.
    publisher.publish("$queue/jobs", "y", 1);
    let message = silent.expect_message();
    assert_eq!(message.text(), "y");
    expect_nothing(&mut silent, &broker);
}

#[test]
fn a_lost_connection_gives_its_messages_to_others() {
    let broker = Broker::shared();
    for version in BOTH {
        let (_, topic) = queue();
        let mut first = worker(broker, version, &topic);
        Client::connect(broker, V5).publish(&topic, "x", 1);
        assert_eq!(first.expect_publish().text(), "x");
        let mut second = worker(broker, V5, &topic);
        expect_nothing(&mut second, broker);
        first.abort();
        let message = second.expect_message();
        assert_eq!((message.text().as_str(), count(&message), message.dup), ("x", "2", false));
    }
}

#[test]
fn a_session_that_comes_back_gets_its_message_anew() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let durable = Connect::new(unique("c")).durable();
    let (mut client, _) = Client::connect_with(broker, V5, &durable);
    client.subscribe(&topic, 1);
    Client::connect(broker, V5).publish(&topic, "x", 1);
    assert_eq!(count(&client.expect_publish()), "1");
    client.abort();
    let (mut client, connack) = Client::connect_with(broker, V5, &durable.resume());
    assert!(connack.session_present);
    let message = client.expect_message();
    assert_eq!((message.text().as_str(), count(&message), message.dup), ("x", "2", false));
    expect_nothing(&mut client, broker);
}

#[test]
fn a_session_keeps_its_subscription_over_a_restart() {
    for version in BOTH {
        for end in [End::Kill, End::Term] {
            let mut broker = Broker::with(&[]);
            let (name, topic) = queue();
            let durable = Connect::new(unique("c")).durable();
            let (mut client, _) = Client::connect_with(&broker, version, &durable);
            client.subscribe(&topic, 1);
            client.subscribe(&format!("$share/other/$queue/{name}"), 1);
            assert_eq!(
                client.unsubscribe(&format!("$share/other/$queue/{name}")).len(),
                usize::from(version == V5)
            );
            broker.restart(end);
            let (mut client, connack) = Client::connect_with(&broker, version, &durable.clone().resume());
            assert!(connack.session_present);
            Client::connect(&broker, V5).publish(&topic, "x", 1);
            assert_eq!(client.expect_message().text(), "x", "MQTT {version:?}, {end:?}");
            expect_nothing(&mut client, &broker);
        }
    }
}

#[test]
fn messages_with_one_key_come_one_after_the_other() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let mut workers: Vec<Client> = (0..2).map(|_| worker(broker, V5, &topic)).collect();
    let mut publisher = Client::connect(broker, V5);
    for n in 0..3 {
        publisher.publish(&format!("{topic}/press-7"), n.to_string(), 1);
    }
    let mut seen = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    let mut has_failed = false;
    while seen.len() < 4 {
        assert!(Instant::now() < deadline, "{seen:?}");
        for worker in &mut workers {
            let Some(event) = worker.event_within(Duration::from_millis(20)) else { continue };
            let Event::Packet(Packet::Publish(message)) = event else { panic!("{event:?}") };
            seen.push(message.text());
            if message.text() == "1" && !std::mem::replace(&mut has_failed, true) {
                answer(worker, &message, NACK, &delay(50));
            } else {
                worker.acknowledge(&message);
            }
        }
    }
    assert_eq!(seen, ["0", "1", "1", "2"], "one that failed holds back those behind it");
}

#[test]
fn a_window_bounds_what_a_worker_has() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let narrow = Connect::new(unique("c")).props(Props::new().two(property::RECEIVE_MAXIMUM, 2));
    let (mut client, _) = Client::connect_with(broker, V5, &narrow);
    client.subscribe(&topic, 1);
    let mut publisher = Client::connect(broker, V5);
    for n in 0..6 {
        publisher.publish(&topic, n.to_string(), 1);
    }
    let (first, second) = (client.expect_publish(), client.expect_publish());
    assert_eq!((first.text().as_str(), second.text().as_str()), ("0", "1"));
    client.expect_silence();
    client.acknowledge(&second);
    let third = client.expect_publish();
    assert_eq!(third.text(), "2");
    client.expect_silence();
    for message in [first, third] {
        client.acknowledge(&message);
    }
    for n in 3..6 {
        assert_eq!(client.expect_message().text(), n.to_string());
    }
}

#[test]
fn a_delay_and_a_priority_are_heeded() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let mut publisher = Client::connect(broker, V5);
    let begin = Instant::now();
    publisher.publish_with(Publish::new(&topic, "late").props(delay(400)), 1);
    publisher.publish(&topic, "plain", 1);
    let urgent = Props::new().user("priority", "9");
    publisher.publish_with(Publish::new(&topic, "urgent").props(urgent), 1);
    let mut worker = worker(broker, V5, &topic);
    assert_eq!(worker.expect_message().text(), "urgent");
    assert_eq!(worker.expect_message().text(), "plain");
    assert_eq!(worker.expect_message().text(), "late");
    assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
}

#[test]
fn a_message_that_comes_again_is_thrown_away() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let mut publisher = Client::connect(broker, V5);
    let named = || Publish::new(&topic, "x").props(Props::new().user("dedup-id", "invoice-7"));
    for qos in [1, 1, 2] {
        assert_eq!(publisher.publish_with(named(), qos), 0);
    }
    publisher.publish(&topic, "y", 1);
    let mut worker = worker(broker, V5, &topic);
    assert_eq!(worker.expect_message().text(), "x");
    assert_eq!(worker.expect_message().text(), "y");
}

#[test]
fn a_qos_2_publish_sent_again_is_enqueued_once() {
    let broker = Broker::shared();
    for connect in [Connect::new(unique("c")), Connect::new(unique("c")).durable()] {
        let (_, topic) = queue();
        let (mut publisher, _) = Client::connect_with(broker, V5, &connect);
        let publish = Publish::new(&topic, "once").qos(2).id(3);
        for publish in [publish.clone(), publish.dup()] {
            publisher.send(&publish);
            assert_eq!(publisher.expect_ack_of(PUBREC, 3).reason, 0);
        }
        publisher.send(&wire::ack(PUBREL, 3));
        publisher.expect_ack_of(PUBCOMP, 3);
        publisher.publish(&topic, "next", 1);
        let mut worker = worker(broker, V5, &topic);
        assert_eq!(worker.expect_message().text(), "once");
        assert_eq!(worker.expect_message().text(), "next");
    }
}

#[test]
fn names_that_no_queue_has_are_refused() {
    let broker = Broker::shared();
    let mut client = Client::connect(broker, V5);
    let too_long = format!("$queue/{}", "x".repeat(250));
    for topic in ["$queue/", "$queue//key", "$queue/größe", "$queue/..", &too_long] {
        for qos in [1, 2] {
            assert_eq!(client.publish(topic, "x", qos), reason::TOPIC_NAME_INVALID, "{topic}");
        }
        assert_eq!(client.try_subscribe(topic, 1), [reason::TOPIC_FILTER_INVALID], "{topic}");
        let mut older = Client::connect(broker, V4);
        older.send(&Publish::new(topic, "x").qos(1).id(1));
        older.expect_closed();
    }
    for filter in ["$queue/+", "$queue/#", "$queue/a/b", "$share/g/$queue/#"] {
        assert_eq!(client.try_subscribe(filter, 1), [reason::TOPIC_FILTER_INVALID], "{filter}");
        assert_eq!(Client::connect(broker, V4).try_subscribe(filter, 1), [0x80], "{filter}");
    }
}

#[test]
fn a_subscription_at_qos_0_is_refused() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    for (version, code) in [(V5, reason::IMPLEMENTATION_SPECIFIC_ERROR), (V4, 0x80), (V3, 0x80)] {
        let mut client = Client::connect(broker, version);
        assert_eq!(client.try_subscribe(&topic, 0), [code]);
        client.subscribe(&topic, 1);
        client.publish(&topic, "x", 0);
        assert_eq!(client.expect_message().text(), "x");
    }
}

#[test]
fn an_unsubscribed_worker_may_settle_what_it_has() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let mut first = worker(broker, V5, &topic);
    let mut publisher = Client::connect(broker, V5);
    publisher.publish(&topic, "a", 1);
    let message = first.expect_publish();
    assert_eq!(first.unsubscribe(&topic), [0]);
    assert_eq!(first.unsubscribe(&topic), [0x11]);
    publisher.publish(&topic, "b", 1);
    first.acknowledge(&message);
    first.expect_silence();
    let mut second = worker(broker, V5, &topic);
    assert_eq!(second.expect_message().text(), "b");
    first.abort();
    expect_nothing(&mut second, broker);
}

#[test]
fn a_will_becomes_work() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let will = Will::new(&topic, "press 7 is gone").qos(1);
    let (client, _) = Client::connect_with(broker, V5, &Connect::new(unique("c")).will(will));
    client.abort();
    let mut worker = worker(broker, V5, &topic);
    assert_eq!(worker.expect_message().text(), "press 7 is gone");
}

#[test]
fn a_message_that_the_queue_does_not_take_is_refused() {
    let broker = Broker::shared();
    let (_, topic) = queue();
    let large = vec![b'x'; 2 * 1024 * 1024];
    let mut worker = worker(broker, V5, &topic);
    for connect in [Connect::new(unique("c")), Connect::new(unique("c")).durable()] {
        let (mut publisher, _) = Client::connect_with(broker, V5, &connect);
        for qos in [1, 2] {
            assert_eq!(publisher.publish(&topic, &large, qos), reason::QUOTA_EXCEEDED, "QoS {qos}");
            assert_eq!(publisher.publish(&topic, "small", qos), 0, "QoS {qos}");
            assert_eq!(worker.expect_message().text(), "small");
        }
        publisher.publish(&topic, &large, 0);
        publisher.publish(&topic, "behind it", 0);
        assert_eq!(worker.expect_message().text(), "behind it");
    }
    // Without a way to say so, the connection ends rather than take it for accepted.
    let mut older = Client::connect(broker, V4);
    older.send(&Publish::new(&topic, &large).qos(1).id(1));
    older.expect_closed();
    expect_nothing(&mut worker, broker);
}

#[test]
fn a_queue_that_is_not_there_is_not_made_where_that_is_off() {
    let broker = Broker::with(&["queues.auto_create=false"]);
    let (_, topic) = queue();
    let (mut client, _) = Client::connect_with(&broker, V5, &Connect::new(unique("c")).durable());
    for _ in 0..2 {
        assert_eq!(client.try_subscribe(&topic, 1), [reason::TOPIC_FILTER_INVALID]);
        for qos in [1, 2] {
            assert_eq!(client.publish(&topic, "x", qos), reason::TOPIC_NAME_INVALID, "QoS {qos}");
        }
    }
    assert_eq!(client.unsubscribe(&topic), [0x11], "what was refused is no subscription");
    let mut older = Client::connect(&broker, V4);
    assert_eq!(older.try_subscribe(&topic, 1), [0x80]);
    older.send(&Publish::new(&topic, "x").qos(1).id(1));
    older.expect_closed();
}
