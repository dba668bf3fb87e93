//! Queues on a file system with injected faults.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_log::Durability;
use mainstem_queue_core::{Config, QueueError, Redriven, Tuning};

use crate::common::Queues;
use crate::error::Error;
use crate::queue::Queue;
use crate::settings::Settings;

const SEEDS: u64 = 20;

fn open(fs: &FaultFs) -> Queues {
    Queues::on(Arc::new(fs.clone()), PathBuf::from("/log"), None).unwrap()
}

fn jobs(queues: &Queues, durability: Durability) -> Queue {
    queues.queue("jobs", Settings { config: Config::default(), durability }).unwrap()
}

fn values(queue: &Queue) -> Vec<Vec<u8>> {
    let taken = queue.receive(99, Duration::ZERO).unwrap();
    taken.iter().map(|delivery| delivery.value().to_vec()).collect()
}

#[test]
fn a_new_durability_applies_to_messages_and_settlements() {
    for seed in 0..SEEDS {
        let fs = FaultFs::new(seed);
        let queues = open(&fs);
        let lax = jobs(&queues, Durability::Os);
        lax.enqueue("lax").unwrap();
        let strict = jobs(&queues, Durability::Fsync);
        strict.enqueue_batch(["done", "kept"]).unwrap();
        let taken = lax.receive(9, Duration::ZERO).unwrap();
        strict.ack_all(taken.into_iter().filter(|delivery| delivery.value() != b"kept")).unwrap();
        let found = fs.survivor(seed);
        assert_eq!(values(&jobs(&open(&found), Durability::Fsync)), [b"kept"], "seed {seed}");
    }
}

/// A disk without any room.
fn full() -> Plan {
    Plan { space_bytes: Some(0), ..Plan::default() }
}

/// A value with a number in it, so large that soon more space is needed than is reserved.
fn numbered(at: u64) -> Vec<u8> {
    let mut value = vec![0; 20_000];
    value[..8].copy_from_slice(&at.to_be_bytes());
    value
}

#[test]
fn a_flush_tells_of_what_the_disk_has_refused_and_then_no_more() {
    for durability in [Durability::Os, Durability::Fsync] {
        let fs = FaultFs::new(1);
        let jobs = jobs(&open(&fs), durability);
        jobs.enqueue("first").unwrap();
        let other = jobs.clone();
        fs.set(full());
        let large = vec![b'x'; 2 << 20];
        jobs.post(&large).unwrap();
        let refused = Err(Error::Refused(QueueError::Storage));
        assert_eq!(jobs.flush(), refused);
        assert_eq!(jobs.enqueue(&large).map(drop), refused, "whoever waits is told at once");
        fs.set(Plan::default());
        jobs.post("last").unwrap();
        assert_eq!(jobs.flush(), Ok(()));
        assert_eq!(other.flush(), refused, "this one has not been told");
        assert_eq!(other.flush(), Ok(()));
        assert_eq!(values(&jobs), [b"first".as_slice(), b"last"]);
    }
}

#[test]
fn what_is_confirmed_is_there_and_what_is_refused_is_not() {
    const EACH: u64 = 40;
    for durability in [Durability::Os, Durability::Fsync] {
        let fs = FaultFs::new(2);
        let queues = open(&fs);
        let all = jobs(&queues, durability);
        let confirmed: Vec<u64> = std::thread::scope(|scope| {
            let send = |at: &u64| {
                match at % 16 {
                    0 => fs.set(full()),
                    8 => fs.set(Plan::default()),
                    _ => {}
                }
                all.enqueue(&numbered(*at)).is_ok()
            };
            let senders: Vec<_> = (0..3)
                .map(|sender| {
                    let numbers = (sender * EACH)..((sender + 1) * EACH);
                    scope.spawn(move || numbers.filter(send).collect::<Vec<_>>())
                })
                .collect();
            senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
        });
        // Whether the disk was full when somebody needed it is a matter of time; now it is, once the space is used up
        // that was reserved before.
        fs.set(full());
        let large = vec![0; 2 << 20];
        let refused = (0..64).position(|_| match all.enqueue(&large) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error, Error::Refused(QueueError::Storage));
                true
            }
        });
        let accepted = refused.expect("the disk is full");
        fs.set(Plan::default());
        all.enqueue("last").unwrap();
        let mut found = Vec::new();
        while found.last().is_none_or(|value| value != b"last") {
            let taken = all.receive(99, Duration::from_secs(1)).unwrap();
            found.extend(taken.iter().map(|delivery| delivery.value().to_vec()));
            all.ack_all(taken).unwrap();
        }
        found.pop();
        found.sort_unstable();
        let mut expected: Vec<Vec<u8>> = confirmed.into_iter().map(numbered).collect();
        expected.extend(vec![large; accepted]);
        expected.sort_unstable();
        assert_eq!(found, expected, "{durability:?}");
    }
}

#[test]
fn whenever_the_power_goes_a_new_group_is_there_that_has_given_a_message() {
    let (mut given, mut lost) = (0, 0);
    for seed in 0..12 {
        let fs = FaultFs::new(seed);
        let values = {
            let queues = open(&fs);
            let jobs = jobs(&queues, Durability::Fsync);
            jobs.enqueue("a").unwrap();
            fs.set(Plan { crash_at: Some(1 + seed), ..Plan::default() });
            // Whether that succeeds is not known.
            let taken = jobs.group("new").receive(9, Duration::ZERO);
            taken.map_or(0, |taken| taken.len())
        };
        let jobs = jobs(&open(&fs.survivor(seed)), Durability::Fsync);
        let is_there = jobs.info().groups.iter().any(|group| group.name == "new");
        assert!(is_there || values == 0, "seed {seed}");
        given += values;
        lost += usize::from(!is_there);
    }
    assert!(given > 0 && lost > 0, "the power goes before and behind: {given}, {lost}");
}

#[test]
fn a_dead_letter_is_as_safe_as_the_queue_asks_for_that_it_leaves() {
    for seed in 0..SEEDS {
        let fs = FaultFs::new(seed);
        let found = {
            let queues = open(&fs);
            let settings = Settings { durability: Durability::Os, ..Settings::default() };
            let lax = queues.queue("jobs.dead", settings).unwrap();
            lax.enqueue("before").unwrap();
            let jobs = jobs(&queues, Durability::Fsync);
            jobs.enqueue("bad").unwrap();
            jobs.reject_all(jobs.receive(1, Duration::ZERO).unwrap()).unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            while jobs.info().messages > 0 && Instant::now() < until {
                std::thread::yield_now();
            }
            // Until that is durable, which the queue it leaves may have waited for.
            jobs.enqueue("last").unwrap();
            fs.survivor(seed)
        };
        let queues = open(&found);
        let is_here = left(&queues, "jobs").contains(&b"bad".to_vec());
        assert!(is_here || left(&queues, "jobs.dead").contains(&b"bad".to_vec()), "seed {seed}");
    }
}

#[test]
fn dead_letters_go_back_that_the_queue_does_not_know_yet() {
    const LETTERS: u64 = 60;
    let fs = FaultFs::new(1);
    let queues = open(&fs);
    let jobs = jobs(&queues, Durability::Os);
    let dead = queues.queue("jobs.dead", Settings::default()).unwrap();
    let tuning = Tuning { at_once: 10, known_max: 20, ..Tuning::default() };
    queues.common.lock().queues[dead.handle().at].engine.queue_mut().tune(tuning);
    for _ in 0..LETTERS {
        jobs.enqueue("bad").unwrap();
        jobs.reject_all(jobs.receive(1, Duration::ZERO).unwrap()).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    while jobs.info().messages > 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(dead.redrive(5), Ok(Redriven { moved: 5, skipped: 0 }));
    assert_eq!(dead.redrive(u64::MAX), Ok(Redriven { moved: LETTERS - 5, skipped: 0 }));
    while (jobs.info().messages < LETTERS || dead.info().messages > 0) && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!((jobs.info().messages, dead.info().messages), (LETTERS, 0));
}

/// Values of all messages that nobody has settled in the queue of this name.
fn left(queues: &Queues, name: &str) -> Vec<Vec<u8>> {
    let queue = queues.queue(name, Settings::default()).unwrap();
    queue.peek(0, usize::MAX).unwrap().iter().map(|seen| seen.payload.value().to_vec()).collect()
}

#[test]
fn whenever_the_power_goes_a_dead_letter_is_in_one_of_the_two() {
    let sent = [b"a", b"b", b"c"];
    let mut moved = 0;
    for seed in 0..60 {
        let fs = FaultFs::new(seed);
        {
            let queues = open(&fs);
            let jobs = jobs(&queues, Durability::Fsync);
            jobs.enqueue_batch(sent).unwrap();
            fs.set(Plan { crash_at: Some(1 + seed), ..Plan::default() });
            // Whether that succeeds is not known.
            drop(jobs.receive(9, Duration::ZERO).and_then(|taken| jobs.reject_all(taken)));
            while !fs.has_crashed() && jobs.info().messages > 0 {
                std::thread::yield_now();
            }
        }
        let queues = open(&fs.survivor(seed));
        let jobs = jobs(&queues, Durability::Fsync);
        let until = Instant::now() + Duration::from_secs(20);
        while jobs.info().groups[0].leaving > 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        let (here, there) = (left(&queues, "jobs"), left(&queues, "jobs.dead"));
        moved += there.len();
        let mut all = [here, there].concat();
        all.sort_unstable();
        assert_eq!(all, sent, "seed {seed}");
    }
    assert!((1..180).contains(&moved), "the power goes before and behind: {moved}");
}
