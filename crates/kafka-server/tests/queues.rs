//! Work queues on several shards, over restarts and power losses.

mod kit;

use kit::queues::{JOBS, Queues as _, header, keyed, message, receive_as, texts, with_headers};
use kit::{Broker, batch, fetch_request, produce_request, values};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_queue_core::{
    DEFAULT_GROUP, Disposition, QueueError, Redriven, ReplayFrom, Reply, Request, Settlement,
};

#[test]
fn each_message_is_delivered_to_one_consumer_until_acknowledged() {
    for shards in [1, 2, 3] {
        let mut broker = Broker::on_disk(shards, mainstem_kafka_server::Config::default());
        assert_eq!(broker.put(JOBS, vec![message("a"), message("b"), message("c")]), [0, 1, 2]);
        let taken = broker.get(JOBS, 2);
        assert_eq!(texts(&taken), ["a", "b"]);
        assert_eq!(texts(&broker.get(JOBS, 10)), ["c"], "leased messages are not delivered again");
        assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Ack), Ok(()));
        assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Ack), Err(QueueError::Stale));
        broker.restart(shards);
        let again = broker.get(JOBS, 10);
        assert_eq!(texts(&again), ["b", "c"]);
        assert!(
            again.iter().all(|delivery| delivery.receipt.count == 2),
            "deliveries are counted over a restart"
        );
        for delivery in &again {
            assert_eq!(broker.settle(JOBS, delivery.receipt, Disposition::Ack), Ok(()));
        }
        broker.restart(shards);
        assert!(broker.get(JOBS, 10).is_empty());
        assert_eq!(broker.info(JOBS).messages, 0);
    }
}

#[test]
fn waiting_consumers_receive_new_messages() {
    let mut broker = Broker::new(2);
    assert!(matches!(broker.create(JOBS, &[]), Reply::Done));
    broker.send_queue(1, JOBS, receive_as("workers", 7, 1, u64::MAX), 70);
    broker.send_queue(0, JOBS, receive_as("workers", 8, 1, 5_000), 80);
    broker.run();
    assert!(broker.queue_replies(0).is_empty() && broker.queue_replies(1).is_empty());
    broker.put(JOBS, vec![message("a")]);
    let first: Vec<(u64, Reply)> =
        broker.queue_replies(1).into_iter().chain(broker.queue_replies(0)).collect();
    assert_eq!(first.len(), 1, "one message is one consumer's");
    broker.pass(6_000);
    let rest: Vec<(u64, Reply)> =
        broker.queue_replies(1).into_iter().chain(broker.queue_replies(0)).collect();
    if first[0].0 == 70 {
        assert!(matches!(rest.as_slice(), [(80, Reply::Received(none))] if none.is_empty()), "{rest:?}");
    } else {
        let leave = Request::Leave { group: "workers".into(), consumer: 7 };
        assert!(rest.is_empty());
        assert!(matches!(broker.ask_queue(1, JOBS, leave), Reply::Done | Reply::Received(_)));
    }
    // The other group receives it too.
    assert_eq!(texts(&broker.get(JOBS, 9)), ["a"]);
}

#[test]
fn leases_expire_and_failures_are_retried_after_the_backoff() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[("lease-ms", "1000"), ("backoff-ms", "2000"), ("backoff-jitter-percent", "0")]);
    broker.put(JOBS, vec![message("a")]);
    let first = broker.get(JOBS, 1);
    broker.pass(1_100);
    let second = broker.get(JOBS, 1);
    assert_eq!(second[0].receipt.count, 2);
    assert_eq!(second[0].first_delivered_ms, first[0].first_delivered_ms);
    assert_eq!(broker.settle(JOBS, first[0].receipt, Disposition::Ack), Err(QueueError::Stale));
    assert_eq!(broker.settle(JOBS, second[0].receipt, Disposition::Extend(3_000)), Ok(()));
    broker.pass(1_500);
    assert!(broker.get(JOBS, 1).is_empty(), "the lease was extended");
    assert_eq!(broker.settle(JOBS, second[0].receipt, Disposition::Nack(None)), Ok(()));
    broker.pass(1_000);
    broker.restart(2);
    assert!(broker.get(JOBS, 1).is_empty(), "the delay survives a restart");
    // The second failure doubles the backoff.
    broker.pass(3_100);
    assert_eq!(broker.get(JOBS, 1)[0].receipt.count, 3);
}

#[test]
fn rejected_and_exhausted_messages_become_dead_letters_once_and_can_be_redriven() {
    for shards in [1, 3] {
        let mut broker = Broker::on_disk(shards, mainstem_kafka_server::Config::default());
        broker.create(JOBS, &[("max-deliveries", "2"), ("backoff-ms", "0")]);
        broker
            .put(JOBS, vec![with_headers("bad", &[("site", "north")]), keyed("k", "worn"), message("good")]);
        let taken = broker.get(JOBS, 3);
        assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Reject), Ok(()));
        assert_eq!(broker.settle(JOBS, taken[1].receipt, Disposition::Nack(None)), Ok(()));
        let worn = broker.get(JOBS, 3);
        assert_eq!(texts(&worn), ["worn"]);
        assert_eq!(broker.settle(JOBS, worn[0].receipt, Disposition::Nack(None)), Ok(()));
        broker.restart(shards);
        let dead = broker.get("jobs.dead", 9);
        assert_eq!(texts(&dead), ["bad", "worn"]);
        let header_of = |at: usize, name: &str| header(&dead[at], name);
        assert_eq!(header_of(0, "dead-letter-reason").as_deref(), Some("rejected"));
        assert_eq!(header_of(1, "dead-letter-reason").as_deref(), Some("max-deliveries"));
        assert_eq!(header_of(1, "dead-letter-count").as_deref(), Some("2"));
        assert_eq!(header_of(0, "dead-letter-queue").as_deref(), Some(JOBS));
        assert_eq!(header_of(0, "site").as_deref(), Some("north"));
        assert_eq!(dead[1].payload.record().key, Some(b"k".as_slice()));
        for delivery in &dead {
            assert_eq!(broker.settle("jobs.dead", delivery.receipt, Disposition::Release), Ok(()));
        }
        let good = broker.get(JOBS, 9);
        assert_eq!(texts(&good), ["good"]);
        assert_eq!(broker.settle(JOBS, good[0].receipt, Disposition::Ack), Ok(()));
        let redriven = broker.ask_queue(0, "jobs.dead", Request::Redrive { max: 100 });
        assert!(matches!(redriven, Reply::Redriven(Redriven { moved: 2, .. })), "{redriven:?}");
        assert!(broker.get("jobs.dead", 9).is_empty());
        let back = broker.get(JOBS, 9);
        assert_eq!(texts(&back), ["bad", "worn"]);
        assert_eq!(header(&back[0], "dead-letter-reason"), None);
        assert_eq!(back[0].receipt.count, 1);
    }
}

#[test]
fn messages_of_a_key_are_delivered_one_by_one_and_higher_priorities_first() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[("backoff-ms", "5000")]);
    let urgent = with_headers("urgent", &[("priority", "9")]);
    broker.put(JOBS, vec![keyed("k", "k1"), keyed("k", "k2"), message("x"), urgent]);
    let taken = broker.get(JOBS, 9);
    assert_eq!(texts(&taken), ["urgent", "k1", "x"]);
    assert_eq!(broker.settle(JOBS, taken[1].receipt, Disposition::Nack(Some(1_000))), Ok(()));
    assert!(broker.get(JOBS, 9).is_empty(), "the second message of the key waits for the first");
    broker.pass(1_100);
    let again = broker.get(JOBS, 9);
    assert_eq!(texts(&again), ["k1"]);
    assert_eq!(broker.settle(JOBS, again[0].receipt, Disposition::Ack), Ok(()));
    assert_eq!(texts(&broker.get(JOBS, 9)), ["k2"]);
}

#[test]
fn delays_expiry_and_deduplication_survive_a_restart() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[]);
    broker.put(
        JOBS,
        vec![
            with_headers("later", &[("delay-ms", "3000")]),
            with_headers("short", &[("ttl-ms", "1000")]),
            with_headers("one", &[("dedup-id", "1")]),
            with_headers("two", &[("dedup-id", "1")]),
        ],
    );
    broker.restart(2);
    broker.put(JOBS, vec![with_headers("three", &[("dedup-id", "1")])]);
    broker.pass(1_500);
    assert_eq!(texts(&broker.get(JOBS, 9)), ["one"]);
    broker.pass(2_000);
    assert_eq!(texts(&broker.get(JOBS, 9)), ["later"]);
    let dead = broker.get("jobs.dead", 9);
    assert_eq!(texts(&dead), ["short"]);
    assert_eq!(header(&dead[0], "dead-letter-reason").as_deref(), Some("expired"));
}

#[test]
fn a_full_queue_rejects_messages_of_queue_and_kafka_clients() {
    let mut broker = Broker::new(1);
    broker.create(JOBS, &[("length-max", "2")]);
    broker.put(JOBS, vec![message("a")]);
    match broker.ask_queue(0, JOBS, Request::Send(vec![message("b"), message("c")])) {
        Reply::Sent(places) => assert_eq!(places, [Ok(1), Err(QueueError::Full)]),
        other => panic!("{other:?}"),
    }
    let client = broker.connect(0);
    let records = batch(broker.unix_ms(), &["d"]);
    let produced = broker.ask::<ProduceRequest>(client, 9, &produce_request(JOBS, 0, records));
    assert_eq!(produced.responses[0].partition_responses[0].error_code, ErrorCode::PolicyViolation as i16);
    let taken = broker.get(JOBS, 1);
    assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Ack), Ok(()));
    broker.put(JOBS, vec![message("e")]);
}

#[test]
fn kafka_clients_and_queue_consumers_share_the_topic() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[]);
    broker.put(JOBS, vec![message("by queue")]);
    let client = broker.connect(1);
    let records = batch(broker.unix_ms(), &["by kafka"]);
    let produced = broker.ask::<ProduceRequest>(client, 9, &produce_request(JOBS, 0, records));
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    assert_eq!(texts(&broker.get(JOBS, 9)), ["by queue", "by kafka"]);
    let read = broker.ask::<FetchRequest>(client, 12, &fetch_request(JOBS, 0, 0, 0));
    assert_eq!(values(&read), ["by queue", "by kafka"]);
}

#[test]
fn a_power_loss_loses_nothing_acknowledged() {
    for shards in [1, 2] {
        let mut broker = Broker::new(shards);
        broker.create(JOBS, &[("backoff-ms", "0")]);
        broker.put(JOBS, (0..100).map(|number| message(&number.to_string())).collect());
        let taken = broker.get(JOBS, 50);
        for delivery in &taken {
            let disposition =
                if delivery.receipt.offset % 5 == 0 { Disposition::Reject } else { Disposition::Ack };
            assert_eq!(broker.settle(JOBS, delivery.receipt, disposition), Ok(()));
        }
        broker.crash(shards);
        let rest = broker.get(JOBS, 200);
        assert_eq!(
            rest.iter().map(|delivery| delivery.receipt.offset).collect::<Vec<_>>(),
            (50..100).collect::<Vec<_>>()
        );
        assert_eq!(broker.get("jobs.dead", 200).len(), 10);
    }
}

#[test]
fn replay_reaches_back_to_the_oldest_retained_message() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[("retention-ms", "3600000")]);
    broker.put(JOBS, vec![message("a"), message("b"), message("c")]);
    for delivery in broker.get(JOBS, 9) {
        assert_eq!(broker.settle(JOBS, delivery.receipt, Disposition::Ack), Ok(()));
    }
    let replay = Request::Replay { group: DEFAULT_GROUP.into(), from: ReplayFrom::Offset(1) };
    assert!(matches!(broker.ask_queue(0, JOBS, replay), Reply::Count(2)));
    broker.restart(2);
    assert_eq!(texts(&broker.get(JOBS, 9)), ["b", "c"]);
}

#[test]
fn queues_are_configured_inspected_purged_and_deleted() {
    let mut broker = Broker::new(2);
    assert!(matches!(broker.create(JOBS, &[("lease-ms", "5")]), Reply::Refused(QueueError::Invalid(_))));
    assert!(matches!(broker.create("a/b", &[]), Reply::Refused(QueueError::Invalid(_))));
    assert!(matches!(broker.create(JOBS, &[("lease-ms", "500")]), Reply::Done));
    assert!(matches!(broker.create(JOBS, &[("lease-ms", "500")]), Reply::Done), "the same settings");
    assert!(matches!(broker.create(JOBS, &[]), Reply::Refused(QueueError::Exists)));
    broker.create_topic("plain", 1);
    assert!(matches!(broker.ask_queue(1, "plain", Request::Info), Reply::Refused(QueueError::NotAQueue)));
    broker.put(JOBS, vec![message("a"), message("b")]);
    let peek = Request::Peek { group: DEFAULT_GROUP.into(), from: 1, max: 9 };
    match broker.ask_queue(1, JOBS, peek) {
        Reply::Peeked(messages) => {
            assert_eq!(messages.iter().map(|message| message.offset).collect::<Vec<_>>(), [1]);
            assert_eq!(messages[0].state, "ready");
        }
        other => panic!("{other:?}"),
    }
    let settings = vec![("max-deliveries".to_owned(), "9".to_owned())];
    assert!(matches!(broker.ask_queue(1, JOBS, Request::Configure { settings }), Reply::Done));
    let info = broker.info(JOBS);
    let set = |name: &str| info.settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    assert_eq!((set("max-deliveries").as_deref(), set("lease-ms").as_deref()), (Some("9"), Some("500")));
    assert_eq!((info.messages, info.groups[0].ready), (2, 2));
    assert!(matches!(broker.ask_queue(0, JOBS, Request::Purge { group: None }), Reply::Count(2)));
    assert!(broker.get(JOBS, 9).is_empty());
    assert!(matches!(broker.ask_queue(1, JOBS, Request::Delete), Reply::Done));
    assert!(matches!(broker.ask_queue(0, JOBS, Request::Info), Reply::Refused(QueueError::UnknownQueue)));
    broker.pass(1_000);
    assert_eq!(broker.put(JOBS, vec![message("new")]), [0], "a new queue of the same name");
}

#[test]
fn settled_messages_are_removed_although_an_older_one_is_unsettled() {
    let mut broker = Broker::on_disk(
        1,
        mainstem_kafka_server::Config { segment_bytes: 1024 * 1024, ..Default::default() },
    );
    broker.create(JOBS, &[("lease-ms", "43200000")]);
    broker.put(JOBS, vec![message("the old one")]);
    let old = broker.get(JOBS, 1);
    let large = "x".repeat(500_000);
    for _ in 0..200 {
        broker.put(JOBS, vec![message(&large)]);
        let taken = broker.get(JOBS, 9);
        assert_eq!(taken.len(), 1);
        assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Ack), Ok(()));
    }
    for _ in 0..5 {
        broker.pass(2_000);
    }
    let client = broker.connect(0);
    let read = broker.ask::<FetchRequest>(client, 12, &fetch_request(JOBS, 0, 0, 0));
    let partition = &read.responses[0].partitions[0];
    assert_eq!(partition.error_code, ErrorCode::OffsetOutOfRange as i16, "the log begins later");
    broker.restart(1);
    let again = broker.get(JOBS, 9);
    assert_eq!(texts(&again), ["the old one"]);
    assert_eq!(again[0].receipt.offset, old[0].receipt.offset);
}

#[test]
fn messages_settled_during_a_removal_are_removed_too() {
    let mut broker = Broker::on_disk(
        1,
        mainstem_kafka_server::Config { segment_bytes: 1024 * 1024, ..Default::default() },
    );
    broker.create(JOBS, &[]);
    let large = "x".repeat(500_000);
    (0..40).for_each(|_| drop(broker.put(JOBS, vec![message(&large)])));
    let client = broker.connect(0);
    for _ in 0..2 {
        for _ in 0..20 {
            let taken = broker.get(JOBS, 1);
            assert_eq!(broker.settle(JOBS, taken[0].receipt, Disposition::Ack), Ok(()));
        }
        // Time for one removal. No request reaches the queue before the next one.
        broker.pass(1_000);
    }
    broker.pass(5_000);
    let read = broker.ask::<FetchRequest>(client, 12, &fetch_request(JOBS, 0, 35, 0));
    let code = read.responses[0].partitions[0].error_code;
    assert_eq!(code, ErrorCode::OffsetOutOfRange as i16, "the log begins later");
}

#[test]
fn waiting_consumers_share_a_batch() {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[]);
    for consumer in 1..=3 {
        broker.send_queue(0, JOBS, receive_as(DEFAULT_GROUP, consumer, 64, u64::MAX), consumer);
    }
    broker.run();
    broker.put(JOBS, (0..60).map(|number| message(&number.to_string())).collect());
    let shares: Vec<usize> = broker
        .queue_replies(0)
        .iter()
        .map(|(_, reply)| if let Reply::Received(taken) = reply { taken.len() } else { 0 })
        .collect();
    assert_eq!(shares, [20, 20, 20]);
}

/// A queue with one active consumer: connection 0, token 10. The consumer of connection 1, token 20, waits too. Both
/// have waited much longer than a silent consumer stays active.
fn broker_with_two_waiting_consumers() -> Broker {
    let mut broker = Broker::new(2);
    broker.create(JOBS, &[("single-active-consumer", "true"), ("lease-ms", "1000")]);
    broker.send_queue(0, JOBS, receive_as(DEFAULT_GROUP, 1, 1, u64::MAX), 10);
    broker.run();
    broker.send_queue(1, JOBS, receive_as(DEFAULT_GROUP, 2, 1, u64::MAX), 20);
    broker.pass(5_000);
    broker
}

#[test]
fn the_active_consumer_stays_active_while_it_waits() {
    let mut broker = broker_with_two_waiting_consumers();
    broker.put(JOBS, vec![message("a"), message("b")]);
    let replies = broker.queue_replies(0);
    assert!(matches!(&replies[..], [(10, Reply::Received(taken))] if texts(taken) == ["a"]), "{replies:?}");
    assert!(broker.queue_replies(1).is_empty());
    let leave = Request::Leave { group: DEFAULT_GROUP.into(), consumer: 1 };
    assert!(matches!(broker.ask_queue(0, JOBS, leave), Reply::Done));
    let replies = broker.queue_replies(1);
    assert!(matches!(&replies[..], [(20, Reply::Received(taken))] if texts(taken) == ["b"]), "{replies:?}");
}

#[test]
fn a_consumer_that_stops_waiting_stays_active_for_one_lease() {
    let mut broker = broker_with_two_waiting_consumers();
    broker.send_queue(0, JOBS, Request::StopWaiting { group: DEFAULT_GROUP.into(), consumer: 1 }, 30);
    broker.run();
    let replies = broker.queue_replies(0);
    let is_answered = |token| replies.iter().any(|(answered, _)| *answered == token);
    assert!(replies.len() == 2 && is_answered(10) && is_answered(30), "{replies:?}");
    broker.put(JOBS, vec![message("a")]);
    broker.pass(900);
    assert!(broker.queue_replies(1).is_empty(), "another consumer became active too early");
    broker.pass(200);
    let replies = broker.queue_replies(1);
    assert!(matches!(&replies[..], [(20, Reply::Received(taken))] if texts(taken) == ["a"]), "{replies:?}");
}

/// Appends so much that earlier messages are no longer in memory and must be read from the log.
fn evict_from_memory(broker: &mut Broker) {
    for _ in 0..6 {
        broker.put(JOBS, vec![message(&"x".repeat(900_000))]);
    }
}

fn assert_read_fails(broker: &mut Broker, max: u32) {
    broker.fail_read(0);
    let reply = broker.ask_queue(0, JOBS, receive_as(DEFAULT_GROUP, 1, max, 0));
    assert!(matches!(reply, Reply::Refused(QueueError::Storage)), "{reply:?}");
}

#[test]
fn unreadable_messages_stay_in_place_and_do_not_count_as_delivered() {
    let mut broker = Broker::on_disk(1, mainstem_kafka_server::Config::default());
    broker.create(JOBS, &[("max-deliveries", "2")]);
    broker.put(JOBS, vec![message("a"), message("b")]);
    evict_from_memory(&mut broker);
    for _ in 0..3 {
        assert_read_fails(&mut broker, 2);
    }
    let before = broker.info(JOBS).groups;
    assert_eq!((before[0].ready, before[0].leased), (8, 0));
    assert_eq!((before[0].delivered, before[0].redelivered), (0, 0));
    broker.restart(1);
    evict_from_memory(&mut broker);
    let first = broker.get(JOBS, 1);
    assert_eq!((texts(&first), first[0].receipt.count), (vec!["a".to_owned()], 1));
    assert_eq!(broker.settle(JOBS, first[0].receipt, Disposition::Release), Ok(()));
    evict_from_memory(&mut broker);
    // One of two deliveries is left.
    for _ in 0..3 {
        assert_read_fails(&mut broker, 1);
    }
    let again = broker.get(JOBS, 2);
    assert_eq!(texts(&again), ["a", "b"]);
    assert_eq!((again[0].receipt.count, again[1].receipt.count), (2, 1));
    assert_eq!(again[0].first_delivered_ms, first[0].first_delivered_ms);
    assert_eq!(broker.settle(JOBS, again[0].receipt, Disposition::Ack), Ok(()));
    assert_eq!(broker.info(JOBS).groups[0].dead, 0);
}

#[test]
fn readable_messages_are_delivered_and_the_rest_remains() {
    let mut broker = Broker::on_disk(1, mainstem_kafka_server::Config::default());
    broker.put(JOBS, vec![message("a")]);
    evict_from_memory(&mut broker);
    let first = broker.get(JOBS, 1);
    assert_eq!(broker.settle(JOBS, first[0].receipt, Disposition::Release), Ok(()));
    // The first message is in memory now, the second is not.
    broker.fail_read(0);
    let readable = broker.get(JOBS, 3);
    assert_eq!(texts(&readable), ["a"]);
    let rest = broker.get(JOBS, 2);
    assert!(rest.iter().map(|delivery| delivery.receipt.offset).eq([1, 2]));
    assert!(rest.iter().all(|delivery| delivery.receipt.count == 1));
}

#[test]
fn an_unreadable_dead_letter_moves_later() {
    let mut broker = Broker::on_disk(1, mainstem_kafka_server::Config::default());
    broker.put(JOBS, vec![message("bad"), message("worse")]);
    broker.put("jobs.dead", Vec::new());
    let taken = broker.get(JOBS, 2);
    evict_from_memory(&mut broker);
    broker.fail_read(0);
    for delivery in &taken {
        assert_eq!(broker.settle(JOBS, delivery.receipt, Disposition::Reject), Ok(()));
    }
    assert!(broker.get("jobs.dead", 9).is_empty());
    assert_eq!(broker.info(JOBS).groups[0].leaving, 2);
    broker.pass(1_500);
    assert_eq!(texts(&broker.get("jobs.dead", 9)), ["bad", "worse"]);
    assert_eq!(broker.info(JOBS).groups[0].leaving, 0);
}

/// Otherwise a producer could make a queue discard transfers of another.
#[test]
fn producers_cannot_send_batches_marked_as_moved() {
    let mut broker = Broker::new(1);
    broker.create(JOBS, &[]);
    let mut builder = mainstem_log::BatchBuilder::default();
    builder.push(broker.unix_ms(), None, Some(b"x"));
    let kind = mainstem_log::BatchKind::Internal(mainstem_queue_core::TRANSFERRED);
    let origin = mainstem_log::Origin { kind, ..Default::default() };
    let records = builder.finish_as(&origin).bytes().to_vec();
    let client = broker.connect(0);
    let produced = broker.ask::<ProduceRequest>(client, 9, &produce_request(JOBS, 0, records));
    assert_eq!(produced.responses[0].partition_responses[0].error_code, ErrorCode::InvalidRecord as i16);
}

fn slowly(at_once: usize) -> mainstem_kafka_server::Config {
    let queue_tuning = mainstem_queue_core::Tuning { at_once, ..Default::default() };
    mainstem_kafka_server::Config { queue_tuning, ..Default::default() }
}

#[test]
fn a_purge_in_steps_serves_other_requests_and_keeps_later_messages() {
    let mut broker = Broker::on_disk(2, slowly(10));
    broker.create(JOBS, &[]);
    let many = |from: u32| (from..from + 100).map(|n| message(&n.to_string())).collect::<Vec<_>>();
    broker.put(JOBS, many(0));
    broker.send_queue(0, JOBS, Request::Purge { group: None }, 1);
    broker.send_queue(0, JOBS, Request::Info, 2);
    broker.send_queue(0, JOBS, Request::Send(many(100)), 3);
    broker.run();
    let replies = broker.queue_replies(0);
    let at = |token: u64| replies.iter().position(|(of, _)| *of == token).unwrap();
    assert!(matches!(replies[at(1)].1, Reply::Count(100)), "{replies:?}");
    assert!(at(2) < at(1), "the other request did not wait for the purge");
    broker.restart(2);
    let left = broker.get(JOBS, 1_000);
    assert_eq!((left.len(), texts(&left)[0].as_str()), (100, "100"));
    let settlements: Vec<_> =
        left.iter().map(|left| Settlement { receipt: left.receipt, disposition: Disposition::Ack }).collect();
    let reply = broker.ask_queue(0, JOBS, Request::Settle { group: DEFAULT_GROUP.into(), settlements });
    let Reply::Settled(outcomes) = reply else { panic!("{reply:?}") };
    assert_eq!(outcomes, vec![Ok(()); 100]);
    assert_eq!(broker.info(JOBS).messages, 0);
}

#[test]
fn an_unanswered_purge_may_be_partial() {
    let mut broker = Broker::on_disk(1, slowly(10));
    broker.create(JOBS, &[]);
    broker.put(JOBS, (0..100).map(|n| message(&n.to_string())).collect());
    broker.send_queue(0, JOBS, Request::Purge { group: None }, 1);
    broker.restart(1);
    let left = broker.get(JOBS, 1_000);
    assert!((1..=100).contains(&left.len()));
    assert_eq!(texts(&left).last().unwrap(), "99");
}

#[test]
fn purge_redrive_and_removal_run_in_steps() {
    let mut broker = Broker::on_disk(1, slowly(10));
    broker.create(JOBS, &[]);
    broker.put(JOBS, (0..50).map(|n| message(&n.to_string())).collect());
    let late = broker.ask_queue(0, JOBS, receive_as("late", 1, 1_000, 1_000));
    assert!(matches!(late, Reply::Received(_)), "{late:?}");
    let receipts: Vec<_> = broker.get(JOBS, 1_000).iter().map(|delivery| delivery.receipt).collect();
    assert_eq!(receipts.len(), 50);
    let settlements =
        receipts.iter().map(|&receipt| Settlement { receipt, disposition: Disposition::Reject }).collect();
    broker.ask_queue(0, JOBS, Request::Settle { group: DEFAULT_GROUP.into(), settlements });
    assert_eq!(broker.info("jobs.dead").messages, 50);
    let redriven = broker.ask_queue(0, "jobs.dead", Request::Redrive { max: 45 });
    assert!(matches!(redriven, Reply::Redriven(Redriven { moved: 45, .. })), "{redriven:?}");
    assert_eq!((broker.info("jobs.dead").messages, broker.info(JOBS).messages), (5, 95));
    assert!(matches!(broker.ask_queue(0, JOBS, Request::RemoveGroup { group: "late".into() }), Reply::Done));
    assert_eq!(broker.info(JOBS).messages, 45);
    assert!(matches!(broker.ask_queue(0, JOBS, Request::Delete), Reply::Done));
}

/// Acknowledges all messages, loses power, and counts the messages that are delivered again.
fn lost_acknowledgements(broker: &mut Broker) -> usize {
    broker.put(JOBS, (0..20).map(|n| message(&n.to_string())).collect());
    let taken = broker.get(JOBS, 100);
    assert_eq!(taken.len(), 20);
    for delivery in &taken {
        assert_eq!(broker.settle(JOBS, delivery.receipt, Disposition::Ack), Ok(()));
    }
    broker.lose_power(1);
    broker.get(JOBS, 100).len()
}

#[test]
fn a_settlement_is_as_durable_as_the_queue_is_configured() {
    let mut lost = [0, 0];
    for (to, lost) in ["fsync", "os"].into_iter().zip(&mut lost) {
        for seed in 1..40 {
            let mut broker = Broker::on_disk(1, mainstem_kafka_server::Config::default());
            broker.pass(seed);
            // The queue is open when its durability changes.
            broker.create(JOBS, &[("durability", if to == "os" { "fsync" } else { "os" })]);
            assert!(broker.get(JOBS, 1).is_empty());
            let settings = vec![("durability".into(), to.into())];
            assert!(matches!(broker.ask_queue(0, JOBS, Request::Configure { settings }), Reply::Done));
            *lost += lost_acknowledgements(&mut broker);
        }
    }
    assert_eq!(lost[0], 0, "acknowledgements that were confirmed and lost");
    assert!(lost[1] > 0, "durability \"os\" loses none: the test would find nothing");
}

#[test]
fn durability_is_part_of_the_configuration_of_a_queue() {
    let mut broker = Broker::new(2);
    let durability = |broker: &mut Broker| {
        let settings = broker.info(JOBS).settings;
        settings.into_iter().find(|(name, _)| name == "durability").unwrap().1
    };
    assert!(matches!(broker.create(JOBS, &[("durability", "os")]), Reply::Done));
    assert!(matches!(broker.create(JOBS, &[("durability", "os")]), Reply::Done));
    for other in [&[("durability", "fsync")][..], &[]] {
        let reply = broker.create(JOBS, other);
        assert!(matches!(reply, Reply::Refused(QueueError::Exists)), "{other:?}: {reply:?}");
        assert_eq!(durability(&mut broker), "os");
    }
    let settings = vec![("durability".into(), "fsync".into())];
    assert!(matches!(broker.ask_queue(0, JOBS, Request::Configure { settings }), Reply::Done));
    assert!(matches!(broker.create(JOBS, &[]), Reply::Done));
    assert_eq!(durability(&mut broker), "fsync");
}

#[test]
fn a_created_dead_letter_queue_has_the_durability_of_its_source() {
    let config = mainstem_kafka_server::Config {
        durability: mainstem_log::Durability::Os,
        ..mainstem_kafka_server::Config::default()
    };
    let is = |broker: &mut Broker, queue: &str| {
        let settings = broker.info(queue).settings;
        settings.into_iter().find(|(name, _)| name == "durability").unwrap().1
    };
    let evict_from_memory = |broker: &mut Broker, queue: &str| {
        broker.put(queue, vec![message("bad")]);
        let taken = broker.get(queue, 1);
        assert_eq!(broker.settle(queue, taken[0].receipt, Disposition::Reject), Ok(()));
    };
    for shards in [1, 2] {
        let mut broker = Broker::with(shards, config.clone());
        broker.create("safe", &[("durability", "fsync")]);
        broker.create("quick", &[]);
        broker.create("named", &[("durability", "fsync"), ("dead-letter-queue", "morgue")]);
        for queue in ["safe", "quick", "named"] {
            evict_from_memory(&mut broker, queue);
        }
        assert_eq!(is(&mut broker, "safe.dead"), "fsync");
        assert_eq!(is(&mut broker, "quick.dead"), "os");
        assert_eq!(is(&mut broker, "morgue"), "fsync");
        // Also if a consumer creates it before the first dead letter, or if several queues share it.
        broker.create("first", &[("durability", "fsync")]);
        assert!(broker.get("first.dead", 1).is_empty());
        assert_eq!(is(&mut broker, "first.dead"), "fsync");
        broker.create("one", &[("dead-letter-queue", "both")]);
        broker.create("other", &[("durability", "fsync"), ("dead-letter-queue", "both")]);
        evict_from_memory(&mut broker, "one");
        assert_eq!(is(&mut broker, "both"), "fsync");
        // A durability set by hand stays.
        broker.create("safe-too", &[("durability", "fsync")]);
        broker.create("safe-too.dead", &[("durability", "os")]);
        evict_from_memory(&mut broker, "safe-too");
        assert_eq!(
            (is(&mut broker, "safe-too.dead").as_str(), broker.get("safe-too.dead", 9).len()),
            ("os", 1)
        );
    }
}

#[test]
fn a_replay_beyond_the_memory_limit_continues_as_messages_are_settled() {
    // The limit of unsettled messages in memory, and some more.
    let (known, more, batch_of) = (1_000_000, 40_000, 20_000);
    let mut broker = Broker::new(1);
    broker.create(JOBS, &[("retention-ms", "3600000"), ("lease-ms", "3600000")]);
    broker.ask_queue(0, JOBS, receive_as("others", 1, 1, 0));
    let client = broker.connect(0);
    let values = vec!["x"; batch_of];
    for _ in 0..(known + more) / batch_of {
        assert_eq!(broker.produce(client, JOBS, 0, &values).error_code, 0);
        let purged = broker.ask_queue(0, JOBS, Request::Purge { group: None });
        assert!(matches!(purged, Reply::Count(count) if count == batch_of as u64), "{purged:?}");
    }
    let replay = Request::Replay { group: DEFAULT_GROUP.into(), from: ReplayFrom::Offset(0) };
    broker.send_queue(0, JOBS, replay, 1);
    broker.run();
    assert!(broker.queue_replies(0).is_empty(), "the replay waits");
    let there = broker.info(JOBS).messages as usize;
    assert!((known..known + batch_of).contains(&there), "{there}");
    // The other group still receives new messages.
    assert_eq!(broker.produce(client, JOBS, 0, &values).error_code, 0);
    let purged = broker.ask_queue(0, JOBS, Request::Purge { group: Some("others".into()) });
    assert!(matches!(purged, Reply::Count(count) if count == batch_of as u64), "{purged:?}");
    // The group is served meanwhile, and its settlements make room.
    let mut settled = 0;
    while settled < more + 2 * batch_of {
        let taken = broker.get(JOBS, 1_000);
        settled += taken.len();
        let settle = |taken: &mainstem_queue_core::Delivery| Settlement {
            receipt: taken.receipt,
            disposition: Disposition::Ack,
        };
        let settlements = taken.iter().map(settle).collect();
        let outcome = broker.ask_queue(0, JOBS, Request::Settle { group: DEFAULT_GROUP.into(), settlements });
        assert!(matches!(outcome, Reply::Settled(_)), "{outcome:?}");
    }
    let replies = broker.queue_replies(0);
    let [(1, Reply::Count(replayed))] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!(*replayed, (known + more) as u64);
}
