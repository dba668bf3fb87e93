//! Lagging groups of a queue beside groups that keep up.

mod kit;

use kit::Broker;
use kit::queues::{JOBS, Queues as _, message, receive_as, texts};
use mainstem_queue_core::{
    DEFAULT_GROUP, Delivery, Disposition, Redriven, ReplayFrom, Reply, Request, Settlement,
};

/// Unsettled messages that the queue keeps in memory.
const IN_MEMORY_MAX: u64 = 20;

fn broker() -> Broker {
    let queue_tuning =
        mainstem_queue_core::Tuning { at_once: 10, known_max: IN_MEMORY_MAX, ..Default::default() };
    Broker::on_disk(1, mainstem_kafka_server::Config { queue_tuning, ..Default::default() })
}

fn receive(broker: &mut Broker, group: &str, max: u32) -> Vec<Delivery> {
    match broker.ask_queue(0, JOBS, receive_as(group, 1, max, 0)) {
        Reply::Received(deliveries) => deliveries,
        other => panic!("{other:?}"),
    }
}

/// Receives messages as a group and acknowledges them. Returns their texts.
fn take(broker: &mut Broker, group: &str, max: u32) -> Vec<String> {
    let taken = receive(broker, group, max);
    let settlements: Vec<_> = taken
        .iter()
        .map(|taken| Settlement { receipt: taken.receipt, disposition: Disposition::Ack })
        .collect();
    let reply = broker.ask_queue(0, JOBS, Request::Settle { group: group.into(), settlements });
    assert!(matches!(reply, Reply::Settled(_)), "{reply:?}");
    texts(&taken)
}

/// Sends messages and settles them in the group `fast`.
fn pass_through(broker: &mut Broker, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let text = number.to_string();
        broker.put(JOBS, vec![message(&text)]);
        assert_eq!(take(broker, "fast", 9), [text]);
    }
}

fn numbers(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

#[test]
fn a_new_group_receives_messages_once_durable_and_delays_no_other_group() {
    let mut broker = broker();
    broker.create(JOBS, &[]);
    broker.put(JOBS, vec![message("first"), message("second")]);
    let taken = |replies: &[(u64, Reply)]| -> Vec<(u64, Vec<String>)> {
        let texts_of = |reply: &Reply| match reply {
            Reply::Received(deliveries) => texts(deliveries),
            other => panic!("{other:?}"),
        };
        replies.iter().map(|(token, reply)| (*token, texts_of(reply))).collect()
    };
    for is_lost in [true, false] {
        broker.set_stuck(true);
        // `wait_ms` is 0: neither consumer waits for messages.
        broker.send_queue(0, JOBS, receive_as("new", 1, 1, 0), 1);
        broker.send_queue(0, JOBS, receive_as(DEFAULT_GROUP, 2, 1, 0), 2);
        broker.turn(5);
        assert_eq!(taken(&broker.queue_replies(0)), [(2, vec!["first".to_owned()])]);
        if is_lost {
            broker.lose_power(1);
            assert_eq!(broker.info(JOBS).groups.len(), 1, "the new group was not durable");
        }
    }
    broker.set_stuck(false);
    broker.run();
    assert_eq!(taken(&broker.queue_replies(0)), [(1, vec!["first".to_owned()])]);
    broker.lose_power(1);
    assert_eq!(broker.info(JOBS).groups.len(), 2);
    assert_eq!(take(&mut broker, "new", 9), ["first", "second"]);
}

#[test]
fn a_lagging_group_delays_no_other_group() {
    let mut broker = broker();
    broker.create(JOBS, &[]);
    receive(&mut broker, "fast", 0);
    pass_through(&mut broker, 0..100);
    broker.restart(1);
    pass_through(&mut broker, 100..150);
    let info = broker.info(JOBS);
    let ready: Vec<_> = info.groups.iter().map(|group| (group.name.as_str(), group.ready)).collect();
    assert_eq!((info.messages, ready), (150, vec![("default", 150), ("fast", 0)]));
    let mut taken = Vec::new();
    while taken.len() < 150 {
        let texts = take(&mut broker, DEFAULT_GROUP, 7);
        assert!(!texts.is_empty(), "{taken:?}");
        taken.extend(texts);
        if taken.len() == 70 {
            broker.restart(1);
        }
    }
    assert_eq!(taken, numbers(0..150));
    assert_eq!(broker.info(JOBS).messages, 0);
}

#[test]
fn a_consumer_receives_messages_that_its_group_has_just_read() {
    let mut broker = broker();
    broker.create(JOBS, &[("ttl-ms", "60000")]);
    receive(&mut broker, "fast", 0);
    pass_through(&mut broker, 0..50);
    // All messages in memory of the lagging group expire; the unread ones are not older.
    broker.pass(30_000);
    pass_through(&mut broker, 50..60);
    broker.pass(31_000);
    assert_eq!(take(&mut broker, DEFAULT_GROUP, 100), numbers(50..60));
    assert_eq!(broker.info(JOBS).messages, 0);
}

#[test]
fn unread_messages_of_a_lagging_group_are_counted_purged_and_replayed() {
    let mut broker = broker();
    broker.create(JOBS, &[("length-max", "80"), ("retention-ms", "1000000")]);
    receive(&mut broker, "fast", 0);
    pass_through(&mut broker, 0..80);
    let full = broker.ask_queue(0, JOBS, Request::Send(vec![message("x")]));
    assert!(matches!(&full, Reply::Sent(places) if places[0].is_err()), "{full:?}");
    let late = receive(&mut broker, "late", 100);
    assert_eq!(late.len(), 20, "it has read no further than the lagging group");
    let purged = broker.ask_queue(0, JOBS, Request::Purge { group: Some(DEFAULT_GROUP.into()) });
    assert!(matches!(purged, Reply::Count(80)), "{purged:?}");
    assert!(matches!(broker.ask_queue(0, JOBS, Request::RemoveGroup { group: "late".into() }), Reply::Done));
    assert_eq!(broker.info(JOBS).messages, 0);
    pass_through(&mut broker, 80..90);
    assert_eq!(take(&mut broker, DEFAULT_GROUP, 100), numbers(80..90));
    let from = ReplayFrom::Offset(60);
    let replayed = broker.ask_queue(0, JOBS, Request::Replay { group: DEFAULT_GROUP.into(), from });
    assert!(matches!(replayed, Reply::Count(30)), "{replayed:?}");
    assert_eq!(take(&mut broker, DEFAULT_GROUP, 100), numbers(60..90));
}

/// Moves `count` dead letters to the queue from the queue `work`.
fn dead_letter(broker: &mut Broker, count: u32) {
    for number in 0..count {
        broker.put("work", vec![message(&number.to_string())]);
        let taken = broker.get("work", 1);
        assert_eq!(broker.settle("work", taken[0].receipt, Disposition::Reject), Ok(()));
    }
}

#[test]
fn redrive_reads_dead_letters_that_are_not_in_memory() {
    for has_other_group in [false, true] {
        let mut broker = broker();
        broker.create(JOBS, &[]);
        broker.create("work", &[("dead-letter-queue", JOBS)]);
        if has_other_group {
            receive(&mut broker, "fast", 0);
        }
        dead_letter(&mut broker, 50);
        if has_other_group {
            while !take(&mut broker, "fast", 9).is_empty() {}
        }
        // Three more than are in memory, then all the rest.
        let some = broker.ask_queue(0, JOBS, Request::Redrive { max: 23 });
        assert!(matches!(some, Reply::Redriven(Redriven { moved: 23, .. })), "{some:?}");
        assert_eq!(broker.info("work").messages, 23);
        let all = broker.ask_queue(0, JOBS, Request::Redrive { max: 1_000 });
        assert!(matches!(all, Reply::Redriven(Redriven { moved: 27, .. })), "{all:?}");
        assert_eq!((broker.info(JOBS).messages, broker.info("work").messages), (0, 50));
    }
}

#[test]
fn redrive_is_answered_although_unread_dead_letters_wait_for_consumers() {
    let mut broker = broker();
    broker.create(JOBS, &[]);
    broker.create("work", &[("dead-letter-queue", JOBS)]);
    // These were sent directly, so redrive skips them; the dead letters behind them are not in memory.
    broker.put(JOBS, (0..30).map(|number| message(&number.to_string())).collect());
    dead_letter(&mut broker, 10);
    let none = broker.ask_queue(0, JOBS, Request::Redrive { max: 1_000 });
    assert!(matches!(none, Reply::Redriven(Redriven { moved: 0, .. })), "{none:?}");
    assert_eq!(take(&mut broker, DEFAULT_GROUP, 30).len(), 30);
    let all = broker.ask_queue(0, JOBS, Request::Redrive { max: 1_000 });
    assert!(matches!(all, Reply::Redriven(Redriven { moved: 10, .. })), "{all:?}");
}
