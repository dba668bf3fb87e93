//! What a queue promises of each message, and what it can be asked for.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use mainstem_queue::{
    Config, Delivery, Error, Headers, Message, Overflow, Queue, QueueError, Queues, Redriven,
};
use support::{DEADLINE, Directory, becomes, set, take, take_one, text, texts};

/// A lease that ends soon.
const SOON: Duration = Duration::from_millis(50);

fn jobs(queues: &Queues, config: Config) -> Queue {
    queues.queue("jobs", set(config)).unwrap()
}

fn dead_letters(queues: &Queues) -> Queue {
    queues.queue("jobs.dead", set(Config { max_deliveries: 0, ..Config::default() })).unwrap()
}

/// Why a dead letter is one.
fn reason(letter: &Delivery) -> String {
    let mut headers = Headers::parse(letter.headers()).unwrap().map(Result::unwrap);
    let reason = headers.find(|header| header.key == "dead-letter-reason").unwrap();
    String::from_utf8(reason.value.unwrap().to_vec()).unwrap()
}

fn stale() -> Result<(), Error> {
    Err(Error::Refused(QueueError::Stale))
}

#[test]
fn a_message_of_a_live_consumer_comes_back_when_its_lease_ends() {
    let directory = Directory::new();
    let jobs = jobs(&directory.open(), Config { lease_ms: SOON.as_millis() as u64, ..Config::default() });
    jobs.enqueue("a").unwrap();
    let first = take_one(&jobs);
    let again = take_one(&jobs);
    assert!(SystemTime::now() >= first.leased_until());
    assert_eq!((first.count(), again.count()), (1, 2));
    assert_eq!(first.first_delivered_at(), again.first_delivered_at());
    assert!(again.enqueued_at() <= again.first_delivered_at());
    assert_eq!(first.ack(), stale(), "somebody else has it");
    assert_eq!(again.ack(), Ok(()));
}

#[test]
fn a_consumer_may_ask_for_another_lease_time() {
    let directory = Directory::new();
    let jobs = jobs(&directory.open(), Config { lease_ms: 43_200_000, ..Config::default() });
    jobs.enqueue("a").unwrap();
    let first = jobs.receive_for(SOON, 1, DEADLINE).unwrap();
    assert_eq!(take_one(&jobs).count(), 2);
    assert_eq!(jobs.ack_all(first), stale());
}

#[test]
fn a_lease_that_is_extended_does_not_end() {
    let directory = Directory::new();
    let jobs = jobs(&directory.open(), Config { lease_ms: 2_000, ..Config::default() });
    jobs.enqueue("a").unwrap();
    let mine = take_one(&jobs);
    let before = mine.leased_until();
    mine.extend(Duration::from_hours(1)).unwrap();
    assert!(mine.leased_until() > before + Duration::from_mins(50));
    assert!(jobs.receive(1, Duration::from_millis(2_500)).unwrap().is_empty(), "it is longer than that");
    assert_eq!(mine.ack(), Ok(()));
}

#[test]
fn what_is_posted_and_flushed_is_there_when_the_queue_is_opened_again() {
    let directory = Directory::new();
    {
        let jobs = jobs(&directory.open(), Config::default());
        for text in ["a", "b", "c"] {
            jobs.post(text).unwrap();
        }
        assert_eq!(jobs.flush(), Ok(()));
        assert_eq!(texts(&take(&jobs, 9)), ["a", "b", "c"]);
        assert_eq!(jobs.flush(), Ok(()), "there is nothing to wait for");
    }
    assert_eq!(texts(&take(&jobs(&directory.open(), Config::default()), 9)), ["a", "b", "c"]);
}

#[test]
fn what_fails_goes_to_any_consumer() {
    let directory = Directory::new();
    let config = Config { backoff_ms: 1, backoff_max_ms: 1, max_deliveries: 0, ..Config::default() };
    let jobs = jobs(&directory.open(), config);
    jobs.enqueue_batch(["a", "b"]).unwrap();
    let (one, other) = (jobs.clone(), jobs.clone());
    for count in [1, 2, 3] {
        let mine = take_one(&one);
        let theirs = take_one(&other);
        assert_eq!((mine.count(), theirs.count()), (count, count));
        one.nack_all([mine], None).unwrap();
        // Deliveries are settled as what they are, whoever is asked to.
        one.group("other").nack_all([theirs], Some(Duration::ZERO)).unwrap();
    }
    let mut taken = take(&jobs, 9);
    taken.extend(if taken.len() < 2 { jobs.receive(1, DEADLINE).unwrap() } else { Vec::new() });
    assert_eq!(taken.iter().map(Delivery::count).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn what_is_delayed_waits_for_its_time_also_when_the_queue_is_opened_again() {
    const DELAY: Duration = Duration::from_millis(400);
    let directory = Directory::new();
    let (failed, put) = {
        let jobs = jobs(&directory.open(), Config::default());
        jobs.enqueue("failed").unwrap();
        let delivery = take_one(&jobs);
        let failed = SystemTime::now();
        delivery.nack(Some(3 * DELAY)).unwrap();
        let put = SystemTime::now();
        jobs.enqueue(Message::new("delayed").delay(DELAY)).unwrap();
        jobs.enqueue(Message::new("scheduled").deliver_at(put + 2 * DELAY)).unwrap();
        (failed, put)
    };
    let jobs = jobs(&directory.open(), Config::default());
    let due = BTreeMap::from([
        ("failed", (2, failed + 3 * DELAY)),
        ("delayed", (1, put + DELAY)),
        ("scheduled", (1, put + 2 * DELAY)),
    ]);
    // Times are whole milliseconds.
    let slack = Duration::from_millis(1);
    let mut came = BTreeSet::new();
    for _ in 0..3 {
        let delivery = take_one(&jobs);
        let now = SystemTime::now();
        let name = text(&delivery);
        let (count, due) = due[name];
        assert_eq!(delivery.count(), count, "{name}");
        assert!(now + slack >= due, "{name} came early");
        assert!(came.insert(name.to_owned()));
        delivery.ack().unwrap();
    }
}

#[test]
fn what_expires_becomes_a_dead_letter() {
    let directory = Directory::new();
    let queues = directory.open();
    let jobs = jobs(&queues, Config::default());
    jobs.enqueue(Message::new("short").ttl(SOON)).unwrap();
    jobs.enqueue(Message::new("long").ttl(2 * DEADLINE)).unwrap();
    let letter = take_one(&dead_letters(&queues));
    assert_eq!((text(&letter), reason(&letter).as_str()), ("short", "expired"));
    assert_eq!(texts(&take(&jobs, 9)), ["long"]);
}

#[test]
fn what_is_more_urgent_comes_first() {
    let directory = Directory::new();
    let jobs = jobs(&directory.open(), Config::default());
    let with = |text, priority| Message::new(text).priority(priority);
    jobs.enqueue_batch([with("c", 0), with("b", 3), with("a", 200), with("d", 0)]).unwrap();
    assert_eq!(texts(&take(&jobs, 9)), ["a", "b", "c", "d"]);
}

#[test]
fn messages_of_a_key_come_one_after_the_other_whatever_becomes_of_them() {
    let directory = Directory::new();
    let jobs = jobs(&directory.open(), Config::default());
    let of = |key, text| Message::new(text).key(key);
    jobs.enqueue_batch([of("k", "k1"), of("k", "k2"), of("l", "l1")]).unwrap();
    let mut taken = take(&jobs, 9);
    assert_eq!(texts(&taken), ["k1", "l1"]);
    let states: Vec<&str> = jobs.peek(0, 9).unwrap().iter().map(|seen| seen.state).collect();
    assert_eq!(states, ["leased", "blocked", "leased"]);
    taken.remove(0).nack(Some(Duration::ZERO)).unwrap();
    let again = take_one(&jobs);
    assert_eq!((text(&again), again.key()), ("k1", Some(&b"k"[..])));
    assert!(take(&jobs, 9).is_empty());
    again.ack().unwrap();
    assert_eq!(text(&take_one(&jobs)), "k2");
}

#[test]
fn one_consumer_is_the_active_one_until_it_goes() {
    let directory = Directory::new();
    let jobs = jobs(&directory.open(), Config { single_active_consumer: true, ..Config::default() });
    let other = jobs.clone();
    jobs.enqueue_batch(["a", "b"]).unwrap();
    let first = take_one(&jobs);
    assert!(take(&other, 9).is_empty());
    drop(jobs);
    assert_eq!(text(&take_one(&other)), "b", "what the one before has it keeps");
    assert_eq!(first.ack(), Ok(()));
}

#[test]
fn of_two_messages_with_one_identifier_one_is_there() {
    let directory = Directory::new();
    for _ in 0..2 {
        let jobs = jobs(&directory.open(), Config::default());
        for text in ["a", "b"] {
            jobs.enqueue(Message::new(text).dedup_id("17")).unwrap();
        }
        jobs.flush().unwrap();
        assert_eq!(jobs.info().messages, 1);
        assert!(jobs.info().duplicates > 0);
    }
    let long = [b'x'; 256];
    let jobs = jobs(&directory.open(), Config::default());
    let refused = jobs.enqueue_batch([Message::new("c"), Message::new("d").dedup_id(&long)]);
    assert!(matches!(refused, Err(Error::Refused(QueueError::Invalid(_)))));
    assert_eq!(texts(&take(&jobs, 9)), ["a"], "all of a batch or none");
}

#[test]
fn the_oldest_make_way_where_they_are_to() {
    let directory = Directory::new();
    let queues = directory.open();
    let config = Config { length_max: 2, overflow: Overflow::DropOldest, ..Config::default() };
    let jobs = jobs(&queues, config);
    jobs.enqueue_batch(["a", "b", "c"]).unwrap();
    assert_eq!(texts(&take(&jobs, 9)), ["b", "c"]);
    let letter = take_one(&dead_letters(&queues));
    assert_eq!((text(&letter), reason(&letter).as_str()), ("a", "overflow"));
}

#[test]
fn rejected_messages_go_and_can_be_sent_back() {
    let directory = Directory::new();
    let queues = directory.open();
    let jobs = jobs(&queues, Config::default());
    jobs.enqueue_batch(["a", "b"]).unwrap();
    jobs.reject_all(take(&jobs, 9)).unwrap();
    let dead = dead_letters(&queues);
    assert!(becomes(|| dead.info().messages == 2 && jobs.info().messages == 0));
    assert_eq!(queues.names(), ["jobs", "jobs.dead"]);
    let seen = dead.peek(0, 1).unwrap();
    assert_eq!((seen.len(), seen[0].payload.value(), seen[0].count), (1, &b"a"[..], 0));
    assert_eq!(dead.redrive(1), Ok(Redriven { moved: 1, skipped: 0 }));
    let back = take_one(&jobs);
    assert_eq!((text(&back), back.count()), ("a", 1));
    back.ack().unwrap();
    let held = take_one(&dead);
    assert_eq!(dead.redrive(u64::MAX), Ok(Redriven { moved: 0, skipped: 1 }));
    held.nack(Some(Duration::from_hours(1))).unwrap();
    assert_eq!(dead.redrive(u64::MAX), Ok(Redriven { moved: 1, skipped: 0 }));
    assert_eq!(text(&take_one(&jobs)), "b");
    assert!(becomes(|| dead.info().messages == 0));
}
