//! Limits of queues: capacity, message size, bytes per response.

mod kit;

use kit::queues::{JOBS, Queues as _, message, text, texts};
use kit::{Broker, batch, produce_request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_kafka_server::{BoundTopic, Config, SinkResult};
use mainstem_queue_core::{Disposition, NewMessage, QueueError, Redriven, Reply, Request};

/// A few bytes below the default of `max.message.bytes`.
const NEARLY_MAX: usize = 1024 * 1024 - 100;

fn large(first: &str, bytes: usize) -> NewMessage {
    message(&format!("{first}{}", "x".repeat(bytes - first.len())))
}

/// The first characters of messages.
fn prefixes(deliveries: &[mainstem_queue_core::Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| text(delivery)[..1].to_owned()).collect()
}

#[test]
fn large_messages_become_dead_letters_and_come_back() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[]);
    for (first, bytes) in [("a", 500_000), ("b", 600_000), ("c", NEARLY_MAX), ("d", 10)] {
        broker.put(JOBS, vec![large(first, bytes)]);
    }
    let taken = broker.get(JOBS, 9);
    assert_eq!(taken.len(), 4);
    for delivery in taken {
        assert_eq!(broker.settle(JOBS, delivery.receipt, Disposition::Reject), Ok(()));
    }
    broker.pass(5_000);
    assert_eq!(broker.info(JOBS).messages, 0, "all have moved");
    let dead = broker.get("jobs.dead", 9);
    assert_eq!(prefixes(&dead), ["a", "b", "c", "d"]);
    for delivery in dead {
        assert_eq!(broker.settle("jobs.dead", delivery.receipt, Disposition::Release), Ok(()));
    }
    let redriven = broker.ask_queue(0, "jobs.dead", Request::Redrive { max: 100 });
    assert!(matches!(redriven, Reply::Redriven(Redriven { moved: 4, .. })), "{redriven:?}");
    broker.pass(5_000);
    assert_eq!(prefixes(&broker.get(JOBS, 9)), ["a", "b", "c", "d"]);
}

#[test]
fn messages_sent_together_may_be_larger_than_a_batch() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[]);
    let messages: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|first| large(first, 300_000)).into();
    assert_eq!(broker.put(JOBS, messages), [0, 1, 2, 3, 4, 5]);
    assert_eq!(prefixes(&broker.get(JOBS, 9)), ["a", "b", "c", "d", "e", "f"]);
}

#[test]
fn a_message_that_is_too_large_does_not_fail_the_others() {
    let mut broker = Broker::new(1);
    broker.create(JOBS, &[]);
    broker.send_queue(0, JOBS, Request::Send(vec![large("a", 200_000)]), 1);
    let second = vec![large("b", 900_000), large("c", 2 * NEARLY_MAX), message("d")];
    broker.send_queue(0, JOBS, Request::Send(second), 2);
    broker.run();
    let mut replies = broker.queue_replies(0);
    replies.sort_by_key(|(token, _)| *token);
    let places: Vec<_> = replies
        .into_iter()
        .map(|(_, reply)| match reply {
            Reply::Sent(places) => places,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places[0], [Ok(0)]);
    assert_eq!((&places[1][0], &places[1][2]), (&Ok(1), &Ok(2)));
    assert!(matches!(places[1][1], Err(QueueError::TooLarge { .. })));
}

#[test]
fn messages_in_progress_count_towards_the_limits() {
    for settings in [("length-max", "3"), ("bytes-max", "300")] {
        let mut broker = Broker::new(1);
        broker.create(JOBS, &[settings]);
        let client = broker.connect(0);
        broker.set_stuck(true);
        let records = batch(broker.unix_ms(), &[&"k".repeat(60), &"l".repeat(60)]);
        broker.send(client, 9, &produce_request(JOBS, 0, records.clone()));
        broker.turn(3);
        broker.send(client, 9, &produce_request(JOBS, 0, records));
        broker.send_queue(0, JOBS, Request::Send(vec![message(&"m".repeat(60)); 2]), 1);
        broker.turn(3);
        broker.set_stuck(false);
        broker.run();
        let code = |broker: &mut Broker| {
            let response = broker.take::<ProduceRequest>(client, 9).expect("a response");
            response.responses[0].partition_responses[0].error_code
        };
        let (first, second) = (code(&mut broker), code(&mut broker));
        assert_eq!((first, second), (0, ErrorCode::PolicyViolation as i16), "{settings:?}");
        let there = broker.info(JOBS).messages;
        assert!((2..=3).contains(&there), "{settings:?}: {there} messages");
    }
}

#[test]
fn failed_appends_of_producers_take_no_room() {
    for settings in [("length-max", "3"), ("bytes-max", "300")] {
        let mut broker = Broker::on_disk(1, Config::default());
        broker.create(JOBS, &[settings]);
        let client = broker.connect(0);
        let records = batch(broker.unix_ms(), &[&"k".repeat(60)]);
        let produce = |broker: &mut Broker| {
            let produced =
                broker.ask::<ProduceRequest>(client, 9, &produce_request(JOBS, 0, records.clone()));
            produced.responses[0].partition_responses[0].error_code
        };
        broker.set_space(0, Some(0));
        for _ in 0..5 {
            assert_eq!(produce(&mut broker), ErrorCode::KafkaStorageError as i16, "{settings:?}");
        }
        broker.set_space(0, None);
        broker.pass(5_000);
        assert_eq!(produce(&mut broker), 0, "{settings:?}");
    }
}

#[test]
fn a_full_queue_is_full_after_a_restart() {
    let mut broker = Broker::on_disk(1, Config::default());
    broker.create(JOBS, &[("length-max", "2")]);
    broker.put(JOBS, vec![message("a"), message("b")]);
    broker.restart(1);
    match broker.ask_queue(0, JOBS, Request::Send(vec![message("c")])) {
        Reply::Sent(places) => assert_eq!(places, [Err(QueueError::Full)]),
        other => panic!("{other:?}"),
    }
    let taken = broker.get(JOBS, 9);
    assert_eq!(texts(&taken), ["a", "b"]);
    assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Ack), Ok(()));
    broker.put(JOBS, vec![message("c")]);
}

#[test]
fn a_response_respects_bytes_max() {
    let mut broker = Broker::new(1);
    broker.create(JOBS, &[]);
    for first in ["a", "b", "c", "d"] {
        broker.put(JOBS, vec![large(first, 100)]);
    }
    let mut receive = |bytes_max: usize| {
        let group = mainstem_queue_core::DEFAULT_GROUP.into();
        let request = Request::Receive { group, consumer: 1, max: 9, bytes_max, lease_ms: None, wait_ms: 0 };
        match broker.ask_queue(0, JOBS, request) {
            Reply::Received(deliveries) => deliveries,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(prefixes(&receive(1)), ["a"]);
    assert_eq!(prefixes(&receive(150)), ["b", "c"]);
    let last = receive(150);
    assert_eq!(prefixes(&last), ["d"]);
    assert_eq!(last[0].receipt.count, 1, "a message beyond the limit does not count as delivered");
}

#[test]
fn bytes_max_limits_a_queue() {
    let mut broker = Broker::new(1);
    broker.create(JOBS, &[("bytes-max", "100")]);
    let messages = (0..60).map(|_| message("x")).collect();
    let Reply::Sent(outcomes) = broker.ask_queue(0, JOBS, Request::Send(messages)) else { panic!("sent") };
    let taken = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let info = broker.info(JOBS);
    assert!(info.messages == taken as u64 && info.bytes <= 100 && info.bytes > 90, "{info:?}");
}

#[test]
fn messages_of_a_binding_fill_the_queue_before_the_rest_is_rejected() {
    let settings = [("queue.enabled", "true"), ("queue.length-max", "3")];
    let config = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let jobs = BoundTopic { name: JOBS.into(), partitions: 1, config };
    for shards in [1, 2] {
        let config = Config { bound_topics: vec![jobs.clone()], ..Config::default() };
        let mut broker = Broker::with(shards, config);
        broker.run();
        for shard in 0..shards {
            let values = ["a", "b", "c", "d", "e"];
            let results = broker.bring(shard, &values);
            let is_stored = |(_, result): &&(u64, SinkResult)| *result == SinkResult::Durable;
            let stored = results.iter().filter(is_stored).count();
            assert_eq!(stored, if shard == 0 { 3 } else { 0 }, "{results:?}");
            let refused = results.iter().filter(|(_, result)| *result == SinkResult::NoRoom).count();
            assert_eq!(stored + refused, values.len(), "{results:?}");
        }
        assert_eq!(texts(&broker.get(JOBS, 9)), ["a", "b", "c"]);
    }
}
