//! Groups of a queue that are slow, and others that are not.

mod kit;

use kit::Broker;
use kit::queues::{JOBS, Queues as _, message, receive_as, texts};
use mainstem_queue::{DEFAULT_GROUP, Delivery, ReplayFrom, Reply, Request, Settlement, Verdict};

/// Messages that a queue wants to know at once.
const KNOWN: u64 = 20;

fn broker() -> Broker {
    let queue_tuning = mainstem_queue::Tuning { at_once: 10, known_max: KNOWN, ..Default::default() };
    Broker::on_disk(1, mainstem_stream::Config { queue_tuning, ..Default::default() })
}

fn receive(broker: &mut Broker, group: &str, max: u32) -> Vec<Delivery> {
    match broker.ask_queue(0, JOBS, receive_as(group, 1, max, 0)) {
        Reply::Received(deliveries) => deliveries,
        other => panic!("{other:?}"),
    }
}

/// Takes messages as a group and acknowledges them: what they say.
fn take(broker: &mut Broker, group: &str, max: u32) -> Vec<String> {
    let taken = receive(broker, group, max);
    let settlements: Vec<_> =
        taken.iter().map(|taken| Settlement { receipt: taken.receipt, verdict: Verdict::Ack }).collect();
    let reply = broker.ask_queue(0, JOBS, Request::Settle { group: group.into(), settlements });
    assert!(matches!(reply, Reply::Settled(_)), "{reply:?}");
    texts(&taken)
}

/// Lets messages come, and another group than `default` have them.
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
fn a_new_group_is_given_messages_when_it_lasts_and_nobody_else_waits_for_that() {
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
        // Neither of the two waits for messages.
        broker.send_queue(0, JOBS, receive_as("new", 1, 1, 0), 1);
        broker.send_queue(0, JOBS, receive_as(DEFAULT_GROUP, 2, 1, 0), 2);
        broker.turn(5);
        assert_eq!(taken(&broker.queue_replies(0)), [(2, vec!["first".to_owned()])]);
        if is_lost {
            broker.lose_power(1);
            assert_eq!(broker.info(JOBS).groups.len(), 1, "nobody has been told of another one");
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
fn one_slow_group_holds_up_no_other() {
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
fn a_consumer_that_waits_gets_what_its_group_has_just_learnt_of() {
    let mut broker = broker();
    broker.create(JOBS, &[("ttl-ms", "60000")]);
    receive(&mut broker, "fast", 0);
    pass_through(&mut broker, 0..50);
    // All that the slow group knows expires, and what it does not know is not older than that.
    broker.pass(30_000);
    pass_through(&mut broker, 50..60);
    broker.pass(31_000);
    assert_eq!(take(&mut broker, DEFAULT_GROUP, 100), numbers(50..60));
    assert_eq!(broker.info(JOBS).messages, 0);
}

#[test]
fn what_a_slow_group_does_not_know_is_purged_counted_and_replayed_like_the_rest() {
    let mut broker = broker();
    broker.create(JOBS, &[("length-max", "80"), ("retention-ms", "1000000")]);
    receive(&mut broker, "fast", 0);
    pass_through(&mut broker, 0..80);
    let full = broker.ask_queue(0, JOBS, Request::Send(vec![message("x")]));
    assert!(matches!(&full, Reply::Sent(places) if places[0].is_err()), "{full:?}");
    let late = receive(&mut broker, "late", 100);
    assert_eq!(late.len(), 20, "it knows no more than the slow one");
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

/// Lets as many dead letters come to the queue from another one.
fn bury(broker: &mut Broker, count: u32) {
    for number in 0..count {
        broker.put("work", vec![message(&number.to_string())]);
        let taken = broker.get("work", 1);
        assert_eq!(broker.settle("work", taken[0].receipt, Verdict::Reject), Ok(()));
    }
}

#[test]
fn letters_go_back_that_are_not_known_when_somebody_says_so() {
    for has_other_group in [false, true] {
        let mut broker = broker();
        broker.create(JOBS, &[]);
        broker.create("work", &[("dead-letter-queue", JOBS)]);
        if has_other_group {
            receive(&mut broker, "fast", 0);
        }
        bury(&mut broker, 50);
        if has_other_group {
            while !take(&mut broker, "fast", 9).is_empty() {}
        }
        // Three more than it knows, then all the rest.
        let some = broker.ask_queue(0, JOBS, Request::Redrive { max: 23 });
        assert!(matches!(some, Reply::Count(23)), "{some:?}");
        assert_eq!(broker.info("work").messages, 23);
        let all = broker.ask_queue(0, JOBS, Request::Redrive { max: 1_000 });
        assert!(matches!(all, Reply::Count(27)), "{all:?}");
        assert_eq!((broker.info(JOBS).messages, broker.info("work").messages), (0, 50));
    }
}

#[test]
fn letters_that_wait_for_consumers_keep_nobody_from_an_answer() {
    let mut broker = broker();
    broker.create(JOBS, &[]);
    broker.create("work", &[("dead-letter-queue", JOBS)]);
    // Sent here by somebody, these do not go back, and the letters behind them are not known.
    broker.put(JOBS, (0..30).map(|number| message(&number.to_string())).collect());
    bury(&mut broker, 10);
    let none = broker.ask_queue(0, JOBS, Request::Redrive { max: 1_000 });
    assert!(matches!(none, Reply::Count(0)), "{none:?}");
    assert_eq!(take(&mut broker, DEFAULT_GROUP, 30).len(), 30);
    let all = broker.ask_queue(0, JOBS, Request::Redrive { max: 1_000 });
    assert!(matches!(all, Reply::Count(10)), "{all:?}");
}
