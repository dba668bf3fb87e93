//! Where dead letters go, and what keeps them from it.

mod kit;

use kit::Broker;
use kit::queues::{JOBS, Queues as _, message, texts};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_queue::{Refusal, Reply, Request, Verdict};

/// Settings of a queue whose dead letters go to another.
fn to(queue: &str) -> Vec<(String, String)> {
    vec![("dead-letter-queue".to_owned(), queue.to_owned())]
}

#[track_caller]
fn refused(reply: Reply, word: &str) {
    let Reply::Refused(Refusal::Invalid(what)) = reply else { panic!("{reply:?}") };
    assert!(what.contains(word), "{what}");
}

#[track_caller]
fn done(reply: &Reply) {
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

/// Makes topics in one request; what is said of each.
fn create(broker: &mut Broker, topics: Vec<CreatableTopic>) -> Vec<(ErrorCode, String)> {
    let client = broker.connect(0);
    let request = CreateTopicsRequest { topics, ..CreateTopicsRequest::default() };
    let said = broker.ask(client, 7, &request).topics.into_iter();
    said.map(|topic| {
        let code = ErrorCode::from_code(topic.error_code).expect("a code that there is");
        (code, topic.error_message.unwrap_or_default())
    })
    .collect()
}

/// Puts a message into a queue and rejects it.
fn bury(broker: &mut Broker, queue: &str) {
    broker.put(queue, vec![message("bad")]);
    let taken = broker.get(queue, 1);
    assert_eq!(broker.settle(queue, taken[0].receipt, Verdict::Reject), Ok(()));
}

#[test]
fn dead_letters_do_not_come_back_to_where_they_come_from() {
    let mut broker = Broker::new(2);
    refused(broker.create("a", &[("dead-letter-queue", "a")]), "itself");
    refused(broker.create("a", &[("dead-letter-queue", "a/b")]), "invalid");
    assert!(matches!(broker.create("a", &[("dead-letter-queue", "b")]), Reply::Done));
    refused(broker.create("b", &[("dead-letter-queue", "a")]), "by way of a");
    assert!(matches!(broker.create("b", &[("dead-letter-queue", "c")]), Reply::Done));
    assert!(matches!(broker.create("c", &[]), Reply::Done));
    refused(broker.ask_queue(0, "c", Request::Configure { settings: to("a") }), "by way of a, b");
    // Where they end is no circle.
    let mut ends = to("a");
    ends.push(("dead-letters".into(), "false".into()));
    assert!(matches!(broker.ask_queue(0, "c", Request::Configure { settings: ends }), Reply::Done));
    let again = vec![("dead-letters".into(), "true".into())];
    refused(broker.ask_queue(0, "c", Request::Configure { settings: again }), "by way of a, b");
    let long = "x".repeat(246);
    refused(broker.create(&long, &[]), "longer than the max");
    refused(broker.ask_queue(0, &long, Request::Send(vec![message("a")])), "longer than the max");
    assert!(matches!(broker.create(&long, &[("dead-letter-queue", "x.dead")]), Reply::Done | Reply::Info(_)));
    // Of the queues that are made without a name.
    refused(broker.create("x.dead", &[("dead-letter-queue", "x")]), "by way of x");
}

/// What is asked of two queues at once: neither is durable when the other is checked.
fn at_once(broker: &mut Broker, one: (&str, Request), other: (&str, Request)) -> Vec<Reply> {
    broker.send_queue(0, one.0, one.1, 1);
    broker.send_queue(0, other.0, other.1, 2);
    broker.run();
    let mut replies = broker.queue_replies(0);
    replies.sort_by_key(|(token, _)| *token);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

#[test]
fn two_changes_at_once_close_no_circle() {
    let mut broker = Broker::new(2);
    let make = |queue: &str| Request::Create { settings: to(queue) };
    let set = |queue: &str| Request::Configure { settings: to(queue) };
    let mut said = at_once(&mut broker, ("a", make("b")), ("b", make("a")));
    done(&said[0]);
    refused(said.remove(1), "by way of a");
    done(&broker.create("b", &[]));
    done(&broker.create("c", &[]));
    // One is on its way from one place to another: it may be in either.
    let mut said = at_once(&mut broker, ("b", set("c")), ("c", set("a")));
    done(&said[0]);
    refused(said.remove(1), "by way of a, b");
    let mut said = at_once(&mut broker, ("a", set("d")), ("c", set("a")));
    done(&said[0]);
    refused(said.remove(1), "by way of a, b");
    done(&broker.ask_queue(0, "c", set("a")));
    // Through the other door, in one request.
    let queue =
        |name: &str, to: &str| topic(name, &[("queue.enabled", "true"), ("queue.dead-letter-queue", to)]);
    let said = create(&mut broker, vec![queue("e", "f"), queue("f", "e")]);
    assert_eq!((said[0].0, said[1].0), (ErrorCode::None, ErrorCode::InvalidConfig), "{said:?}");
}

#[test]
fn letters_that_would_come_back_stay_where_they_are() {
    let mut broker = Broker::new(1);
    done(&broker.create("b", &[("dead-letters", "false")]));
    done(&broker.create("a", &[("dead-letter-queue", "b")]));
    done(&broker.create("b.dead", &[("dead-letter-queue", "a")]));
    // One that is made anew keeps its dead letters.
    done(&broker.ask_queue(0, "b", Request::Delete));
    bury(&mut broker, "a");
    broker.pass(3_000);
    assert!(matches!(broker.ask_queue(0, "b", Request::Info), Reply::Refused(Refusal::UnknownQueue)));
    assert_eq!(broker.info("a").messages, 1);
    done(&broker.create("b", &[("dead-letters", "false")]));
    broker.pass(3_000);
    assert_eq!(texts(&broker.get("b", 9)), ["bad"]);
}

#[test]
fn a_queue_is_refused_whose_dead_letters_can_have_no_queue() {
    let mut broker = Broker::new(2);
    broker.make_topic("jobs_dead", 1);
    refused(broker.create(JOBS, &[]), "'jobs.dead' collides with existing topic: jobs_dead");
    let sent = broker.ask_queue(0, JOBS, Request::Send(vec![message("a")]));
    refused(sent, "'jobs.dead' collides with existing topic: jobs_dead");
    done(&broker.create(JOBS, &[("dead-letter-queue", "morgue")]));
    let back = vec![("dead-letter-queue".to_owned(), String::new())];
    refused(broker.ask_queue(0, JOBS, Request::Configure { settings: back }), "collides with existing topic");
    // Who keeps none needs none.
    done(&broker.create("none", &[("dead-letters", "false")]));
    refused(broker.create("a.b", &[("dead-letter-queue", "a_b")]), "collides with the queue itself");
    // Those of two queues, of which none is there yet, and of queues that are being made at once.
    done(&broker.create("one", &[("dead-letter-queue", "x.y")]));
    refused(broker.create("two", &[("dead-letter-queue", "x_y")]), "where dead letters of queue 'one' go");
    done(&broker.create("three", &[("dead-letter-queue", "x.y")]));
    let make = |queue: &str| Request::Create { settings: to(queue) };
    let mut said = at_once(&mut broker, ("four", make("v_w")), ("five", make("v.w")));
    done(&said[0]);
    refused(said.remove(1), "where dead letters of queue 'four' go");
}

#[test]
fn names_of_dead_letter_queues_are_not_taken_by_others() {
    let mut broker = Broker::new(2);
    done(&broker.create(JOBS, &[]));
    refused(
        broker.create("jobs_dead", &[]),
        "collides with 'jobs.dead', where dead letters of queue 'jobs' go",
    );
    let said = create(&mut broker, vec![topic("jobs_dead", &[]), topic("other_dead", &[])]);
    assert_eq!((said[0].0, said[1].0), (ErrorCode::InvalidTopicException, ErrorCode::None), "{said:?}");
    assert!(said[0].1.contains("where dead letters of queue 'jobs' go"), "{said:?}");
    bury(&mut broker, JOBS);
    assert_eq!(texts(&broker.get("jobs.dead", 9)), ["bad"]);
    // From here on it collides with what is there.
    refused(broker.create("jobs_dead", &[]), "collides with existing topic: jobs.dead");
    done(&broker.ask_queue(0, "jobs.dead", Request::Delete));
    done(&broker.ask_queue(0, JOBS, Request::Delete));
    done(&broker.create("jobs_dead", &[]));
}

#[test]
fn letters_wait_for_a_queue_that_cannot_be_made() {
    let mut broker = Broker::new(2);
    broker.make_topic("jobs_dead_dead", 1);
    done(&broker.create(JOBS, &[]));
    // The queue of dead letters is made, whatever becomes of its own.
    bury(&mut broker, JOBS);
    bury(&mut broker, "jobs.dead");
    broker.pass(3_000);
    // Two that were sent here, of which one has been rejected once more.
    assert_eq!(broker.info("jobs.dead").messages, 2);
    let other = vec![("lease-ms".to_owned(), "1000".to_owned())];
    done(&broker.ask_queue(0, "jobs.dead", Request::Configure { settings: other }));
    let client = broker.connect(0);
    let topic_names = vec!["jobs_dead_dead".into()];
    let request = DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(client, 5, &request).responses[0].error_code, 0);
    broker.pass(3_000);
    assert_eq!(texts(&broker.get("jobs.dead.dead", 9)), ["bad"]);
}

#[test]
fn a_letter_is_as_safe_as_the_queue_asks_for_that_it_leaves() {
    for lost in 0..20 {
        let mut broker = Broker::on_disk(1, mainstem_stream::Config::default());
        done(&broker.create(JOBS, &[("durability", "fsync"), ("dead-letter-queue", "lax")]));
        done(&broker.create("lax", &[("durability", "os"), ("max-deliveries", "0")]));
        // Whatever is synced besides is there before the letter.
        broker.put("lax", vec![message("x"), message("y")]);
        broker.lose_power(1);
        broker.pass(lost);
        bury(&mut broker, JOBS);
        assert_eq!(broker.info(JOBS).messages, 0, "it has arrived");
        broker.lose_power(1);
        broker.pass(3_000);
        let there = texts(&broker.get("lax", 9));
        assert_eq!(there.last().map(String::as_str), Some("bad"), "{lost}: {there:?}");
    }
}
