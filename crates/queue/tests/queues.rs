//! Queues in a directory: restarts, concurrent threads, and every disposition of a message.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mainstem_queue::{Config, Durability, Error, Message, QueueError, Queues, Settings};
use support::{DEADLINE, Directory, becomes, set, take, take_one, text, texts};

#[test]
fn what_is_acknowledged_is_gone_for_good_and_the_rest_is_not() {
    let directory = Directory::new();
    for durability in [Durability::Os, Durability::Fsync] {
        let queues = directory.open();
        let name = format!("{durability:?}");
        let jobs = queues.queue(&name, Settings { durability, ..Settings::default() }).unwrap();
        assert_eq!(jobs.enqueue_batch(["a", "b", "c"]).unwrap(), 0..3);
        let mut taken = take(&jobs, 2);
        assert_eq!(texts(&taken), ["a", "b"]);
        taken.remove(0).ack().unwrap();
        drop((taken, jobs, queues));
        let jobs = directory.open().queue(&name, Settings { durability, ..Settings::default() }).unwrap();
        let again = take(&jobs, 9);
        assert_eq!(texts(&again), ["b", "c"]);
        assert_eq!(again[0].receipt().count, 2, "deliveries are counted");
        jobs.ack_all(again).unwrap();
        assert_eq!(jobs.info().messages, 0);
    }
}

#[test]
fn a_directory_has_one_owner() {
    let directory = Directory::new();
    let _queues = directory.open();
    assert_eq!(Queues::open(&directory.0).unwrap_err(), Error::InUse);
}

#[test]
fn each_disposition_has_its_effect() {
    let directory = Directory::new();
    let queues = directory.open();
    let config = Config { lease_ms: 40, max_deliveries: 3, length_max: 4, ..Config::default() };
    let jobs = queues.queue("jobs", set(config)).unwrap();
    jobs.enqueue_batch(["rejected", "worn", "left"]).unwrap();
    assert_eq!(jobs.enqueue_batch(["x", "y"]), Err(Error::Refused(QueueError::Full)));
    let mut taken = take(&jobs, 3).into_iter();
    taken.next().unwrap().reject().unwrap();
    taken.next().unwrap().nack(Some(Duration::ZERO)).unwrap();
    drop(taken);
    let again = take(&jobs, 3);
    assert_eq!(texts(&again), ["worn", "left"], "what was dropped goes back at once");
    let kept = again.into_iter().map(|delivery| delivery.receipt()).collect::<Vec<_>>();
    assert!(kept.iter().all(|receipt| receipt.count == 2));
    // Their leases end, or they were dropped: the third delivery is the last.
    let last = jobs.receive(3, DEADLINE).unwrap();
    assert_eq!(last.len(), 2);
    for delivery in last {
        delivery.nack(None).unwrap();
    }
    let dead = queues.queue("jobs.dead", set(Config { max_deliveries: 0, ..Config::default() })).unwrap();
    let mut letters = Vec::new();
    while letters.len() < 3 {
        letters.extend(dead.receive(3, DEADLINE).unwrap());
    }
    let mut names = texts(&letters);
    names.sort_unstable();
    assert_eq!(names, ["left", "rejected", "worn"]);
    dead.ack_all(letters).unwrap();
    let until = Instant::now() + DEADLINE;
    while jobs.info().messages > 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(jobs.info().messages, 0, "what has arrived there is settled here");
}

#[test]
fn many_threads_work_each_message_off_once() {
    const MESSAGES: u64 = 4_000;
    let directory = Directory::new();
    let queues = directory.open();
    let jobs = queues.queue("jobs", set(Config::default())).unwrap();
    let done: Arc<Mutex<BTreeMap<u64, u32>>> = Arc::default();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let jobs = jobs.clone();
            scope.spawn(move || {
                for number in (part * MESSAGES / 4)..((part + 1) * MESSAGES / 4) {
                    jobs.enqueue(&number.to_le_bytes()).unwrap();
                }
            });
        }
        for _ in 0..4 {
            let (jobs, done) = (jobs.clone(), Arc::clone(&done));
            scope.spawn(move || {
                while (done.lock().unwrap().len() as u64) < MESSAGES {
                    let taken = jobs.receive(50, Duration::from_millis(50)).unwrap();
                    for delivery in &taken {
                        let number = u64::from_le_bytes(delivery.value().try_into().unwrap());
                        *done.lock().unwrap().entry(number).or_default() += 1;
                    }
                    jobs.ack_all(taken).unwrap();
                }
            });
        }
    });
    let done = done.lock().unwrap();
    assert_eq!(done.len() as u64, MESSAGES);
    assert!(done.values().all(|times| *times == 1), "nobody else gets what somebody has");
}

#[test]
fn a_group_has_every_message_too() {
    let directory = Directory::new();
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    jobs.enqueue("a").unwrap();
    let audit = jobs.group("audit");
    assert_eq!(texts(&take(&jobs, 1)), ["a"]);
    assert_eq!(texts(&take(&audit, 1)), ["a"]);
}

#[test]
fn a_dead_letter_queue_that_has_made_itself_takes_the_settings_given_later() {
    let directory = Directory::new();
    let queues = directory.open();
    let jobs = queues.queue("jobs", set(Config::default())).unwrap();
    jobs.enqueue("a").unwrap();
    take_one(&jobs).reject().unwrap();
    assert!(becomes(|| jobs.info().messages == 0), "it has arrived elsewhere");
    let config = Config { max_deliveries: 1, ttl_ms: 3_600_000, ..Config::default() };
    let dead = queues.queue("jobs.dead", set(config.clone())).unwrap();
    let settings = dead.info().settings;
    let of = |name: &str| settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    assert_eq!((of("max-deliveries"), of("ttl-ms")), (Some("1"), Some("3600000")));
    take_one(&dead).nack(Some(Duration::ZERO)).unwrap();
    let deader = queues.queue("jobs.dead.dead", set(config)).unwrap();
    assert_eq!(text(&take_one(&deader)), "a", "it was delivered as often as it may be");
}

#[test]
fn a_queue_cannot_be_set_to_what_makes_no_sense() {
    let directory = Directory::new();
    let queues = directory.open();
    let jobs = queues.queue("jobs", set(Config::default())).unwrap();
    let odd = Config { backoff_jitter_percent: 255, ..Config::default() };
    let error = queues.queue("jobs", set(odd)).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(error.to_string().contains("backoff-jitter-percent"), "{error}");
    assert!(matches!(queues.queue("no/name", set(Config::default())), Err(Error::Config(_))));
    let settings = jobs.info().settings;
    assert!(settings.contains(&("backoff-jitter-percent".into(), "20".into())), "it is as it was");
}

#[test]
fn what_is_on_its_way_counts_against_the_limit_of_bytes() {
    const KEY: &[u8] = b"key";
    let value = [b'x'; 95];
    let directory = Directory::new();
    // Of a message counts the number of its headers too, a byte.
    let config = Config { bytes_max: 10 * 99, ..Config::default() };
    let jobs = directory.open().queue("jobs", set(config)).unwrap();
    let message = Message { key: Some(KEY), value: &value, ..Message::default() };
    for _ in 0..10 {
        jobs.post(message).unwrap();
    }
    let full = Error::Refused(QueueError::Full);
    assert_eq!(jobs.post(message), Err(full.clone()));
    jobs.flush().unwrap();
    assert_eq!(jobs.post(""), Err(full), "they count as much when they have come");
    assert_eq!(jobs.info().bytes, 990);
    take_one(&jobs).ack().unwrap();
    jobs.post(message).unwrap();
}
