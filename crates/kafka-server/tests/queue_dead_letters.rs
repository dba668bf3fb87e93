//! Destinations of dead letters: cycles, name collisions, missing queues, durability.

mod kit;

use kit::Broker;
use kit::queues::{JOBS, Queues as _, message, texts};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_queue_core::{Disposition, QueueError, Reply, Request};

/// Settings of a queue with this dead-letter queue.
fn to(queue: &str) -> Vec<(String, String)> {
    vec![("dead-letter-queue".to_owned(), queue.to_owned())]
}

#[track_caller]
fn assert_invalid(reply: Reply, word: &str) {
    let Reply::Refused(QueueError::Invalid(what)) = reply else { panic!("{reply:?}") };
    assert!(what.contains(word), "{what}");
}

#[track_caller]
fn assert_done(reply: &Reply) {
    assert!(matches!(reply, Reply::Done), "{reply:?}");
}

fn topic(name: &str, configs: &[(&str, &str)]) -> CreatableTopic {
    let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
        name: (*name).into(),
        value: Some((*value).into()),
    };
    CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: -1,
        configs: configs.iter().map(config).collect(),
        ..CreatableTopic::default()
    }
}

/// Creates topics in one request. Returns the error code and message of each.
fn create(broker: &mut Broker, topics: Vec<CreatableTopic>) -> Vec<(ErrorCode, String)> {
    let client = broker.connect(0);
    let request = CreateTopicsRequest { topics, ..CreateTopicsRequest::default() };
    let results = broker.ask(client, 7, &request).topics.into_iter();
    results
        .map(|topic| {
            let code = ErrorCode::from_code(topic.error_code).expect("a known error code");
            (code, topic.error_message.unwrap_or_default())
        })
        .collect()
}

/// Sends a message to a queue and rejects it.
fn dead_letter(broker: &mut Broker, queue: &str) {
    broker.put(queue, vec![message("bad")]);
    let taken = broker.get(queue, 1);
    assert_eq!(broker.settle(queue, taken[0].receipt, Disposition::Reject), Ok(()));
}

#[test]
fn cycles_of_dead_letter_queues_are_rejected() {
    let mut broker = Broker::new(2);
    assert_invalid(broker.create("a", &[("dead-letter-queue", "a")]), "itself");
    assert_invalid(broker.create("a", &[("dead-letter-queue", "a/b")]), "invalid");
    assert!(matches!(broker.create("a", &[("dead-letter-queue", "b")]), Reply::Done));
    assert_invalid(broker.create("b", &[("dead-letter-queue", "a")]), "by way of a");
    assert!(matches!(broker.create("b", &[("dead-letter-queue", "c")]), Reply::Done));
    assert!(matches!(broker.create("c", &[]), Reply::Done));
    assert_invalid(broker.ask_queue(0, "c", Request::Configure { settings: to("a") }), "by way of a, b");
    // A queue that stores no dead letters ends the chain.
    let mut ends = to("a");
    ends.push(("dead-letters".into(), "false".into()));
    assert!(matches!(broker.ask_queue(0, "c", Request::Configure { settings: ends }), Reply::Done));
    let again = vec![("dead-letters".into(), "true".into())];
    assert_invalid(broker.ask_queue(0, "c", Request::Configure { settings: again }), "by way of a, b");
    let long = "x".repeat(246);
    assert_invalid(broker.create(&long, &[]), "longer than the max");
    assert_invalid(broker.ask_queue(0, &long, Request::Send(vec![message("a")])), "longer than the max");
    assert!(matches!(broker.create(&long, &[("dead-letter-queue", "x.dead")]), Reply::Done | Reply::Info(_)));
    // `x` has the default dead-letter queue `x.dead`.
    assert_invalid(broker.create("x.dead", &[("dead-letter-queue", "x")]), "by way of x");
}

/// Sends two requests at once: each is checked before the other is durable.
fn ask_concurrently(broker: &mut Broker, one: (&str, Request), other: (&str, Request)) -> Vec<Reply> {
    broker.send_queue(0, one.0, one.1, 1);
    broker.send_queue(0, other.0, other.1, 2);
    broker.run();
    let mut replies = broker.queue_replies(0);
    replies.sort_by_key(|(token, _)| *token);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

#[test]
fn two_concurrent_changes_form_no_cycle() {
    let mut broker = Broker::new(2);
    let make = |queue: &str| Request::Create { settings: to(queue) };
    let set = |queue: &str| Request::Configure { settings: to(queue) };
    let mut results = ask_concurrently(&mut broker, ("a", make("b")), ("b", make("a")));
    assert_done(&results[0]);
    assert_invalid(results.remove(1), "by way of a");
    assert_done(&broker.create("b", &[]));
    assert_done(&broker.create("c", &[]));
    // A destination that is being changed counts as both the old and the new one.
    let mut results = ask_concurrently(&mut broker, ("b", set("c")), ("c", set("a")));
    assert_done(&results[0]);
    assert_invalid(results.remove(1), "by way of a, b");
    let mut results = ask_concurrently(&mut broker, ("a", set("d")), ("c", set("a")));
    assert_done(&results[0]);
    assert_invalid(results.remove(1), "by way of a, b");
    assert_done(&broker.ask_queue(0, "c", set("a")));
    // Over the Kafka protocol, in one request.
    let queue =
        |name: &str, to: &str| topic(name, &[("queue.enabled", "true"), ("queue.dead-letter-queue", to)]);
    let results = create(&mut broker, vec![queue("e", "f"), queue("f", "e")]);
    assert_eq!((results[0].0, results[1].0), (ErrorCode::None, ErrorCode::InvalidConfig), "{results:?}");
}

#[test]
fn a_dead_letter_stays_if_its_move_would_form_a_cycle() {
    let mut broker = Broker::new(1);
    assert_done(&broker.create("b", &[("dead-letters", "false")]));
    assert_done(&broker.create("a", &[("dead-letter-queue", "b")]));
    assert_done(&broker.create("b.dead", &[("dead-letter-queue", "a")]));
    // Created again with the defaults, `b` would store dead letters in `b.dead`, which leads back to `a`.
    assert_done(&broker.ask_queue(0, "b", Request::Delete));
    dead_letter(&mut broker, "a");
    broker.pass(3_000);
    assert!(matches!(broker.ask_queue(0, "b", Request::Info), Reply::Refused(QueueError::UnknownQueue)));
    assert_eq!(broker.info("a").messages, 1);
    assert_done(&broker.create("b", &[("dead-letters", "false")]));
    broker.pass(3_000);
    assert_eq!(texts(&broker.get("b", 9)), ["bad"]);
}

#[test]
fn a_queue_without_a_possible_dead_letter_queue_is_rejected() {
    let mut broker = Broker::new(2);
    broker.create_topic("jobs_dead", 1);
    assert_invalid(broker.create(JOBS, &[]), "'jobs.dead' collides with existing topic: jobs_dead");
    let sent = broker.ask_queue(0, JOBS, Request::Send(vec![message("a")]));
    assert_invalid(sent, "'jobs.dead' collides with existing topic: jobs_dead");
    assert_done(&broker.create(JOBS, &[("dead-letter-queue", "morgue")]));
    let back = vec![("dead-letter-queue".to_owned(), String::new())];
    assert_invalid(
        broker.ask_queue(0, JOBS, Request::Configure { settings: back }),
        "collides with existing topic",
    );
    // A queue that stores no dead letters needs no dead-letter queue.
    assert_done(&broker.create("none", &[("dead-letters", "false")]));
    assert_invalid(broker.create("a.b", &[("dead-letter-queue", "a_b")]), "collides with the queue itself");
    // Dead-letter queues that do not exist yet, and those of queues that are being created, collide too.
    assert_done(&broker.create("one", &[("dead-letter-queue", "x.y")]));
    assert_invalid(
        broker.create("two", &[("dead-letter-queue", "x_y")]),
        "where dead letters of queue 'one' go",
    );
    assert_done(&broker.create("three", &[("dead-letter-queue", "x.y")]));
    let make = |queue: &str| Request::Create { settings: to(queue) };
    let mut results = ask_concurrently(&mut broker, ("four", make("v_w")), ("five", make("v.w")));
    assert_done(&results[0]);
    assert_invalid(results.remove(1), "where dead letters of queue 'four' go");
}

#[test]
fn names_of_dead_letter_queues_are_reserved() {
    let mut broker = Broker::new(2);
    assert_done(&broker.create(JOBS, &[]));
    assert_invalid(
        broker.create("jobs_dead", &[]),
        "collides with 'jobs.dead', where dead letters of queue 'jobs' go",
    );
    let results = create(&mut broker, vec![topic("jobs_dead", &[]), topic("other_dead", &[])]);
    assert_eq!(
        (results[0].0, results[1].0),
        (ErrorCode::InvalidTopicException, ErrorCode::None),
        "{results:?}"
    );
    assert!(results[0].1.contains("where dead letters of queue 'jobs' go"), "{results:?}");
    dead_letter(&mut broker, JOBS);
    assert_eq!(texts(&broker.get("jobs.dead", 9)), ["bad"]);
    // The dead-letter queue exists now, so the name collides with a topic.
    assert_invalid(broker.create("jobs_dead", &[]), "collides with existing topic: jobs.dead");
    assert_done(&broker.ask_queue(0, "jobs.dead", Request::Delete));
    assert_done(&broker.ask_queue(0, JOBS, Request::Delete));
    assert_done(&broker.create("jobs_dead", &[]));
}

#[test]
fn dead_letters_wait_for_a_queue_that_cannot_be_created() {
    let mut broker = Broker::new(2);
    broker.create_topic("jobs_dead_dead", 1);
    assert_done(&broker.create(JOBS, &[]));
    // `jobs.dead` is created although its own dead-letter queue cannot be.
    dead_letter(&mut broker, JOBS);
    dead_letter(&mut broker, "jobs.dead");
    broker.pass(3_000);
    // The dead letter of `jobs`, and the message that was rejected here.
    assert_eq!(broker.info("jobs.dead").messages, 2);
    let other = vec![("lease-ms".to_owned(), "1000".to_owned())];
    assert_done(&broker.ask_queue(0, "jobs.dead", Request::Configure { settings: other }));
    let client = broker.connect(0);
    let topic_names = vec!["jobs_dead_dead".into()];
    let request = DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(client, 5, &request).responses[0].error_code, 0);
    broker.pass(3_000);
    assert_eq!(texts(&broker.get("jobs.dead.dead", 9)), ["bad"]);
}

#[test]
fn a_dead_letter_is_as_durable_as_its_source_queue_requires() {
    for lost in 0..20 {
        let mut broker = Broker::on_disk(1, mainstem_kafka_server::Config::default());
        assert_done(&broker.create(JOBS, &[("durability", "fsync"), ("dead-letter-queue", "lax")]));
        assert_done(&broker.create("lax", &[("durability", "os"), ("max-deliveries", "0")]));
        // All other syncs happen before the dead letter, so that only its own sync can preserve it.
        broker.put("lax", vec![message("x"), message("y")]);
        broker.lose_power(1);
        broker.pass(lost);
        dead_letter(&mut broker, JOBS);
        assert_eq!(broker.info(JOBS).messages, 0, "the dead letter has arrived");
        broker.lose_power(1);
        broker.pass(3_000);
        let there = texts(&broker.get("lax", 9));
        assert_eq!(there.last().map(String::as_str), Some("bad"), "{lost}: {there:?}");
    }
}
