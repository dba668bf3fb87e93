//! Queues in a directory: over the end of a process, with many threads, and with everything that may become of a message.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mainstem_queues::{Config, Durability, Error, Queue, Queues, Refusal, Settings};

/// Time for which a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(20);

/// A directory that goes with its test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("queues-{}-{number}", std::process::id());
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    fn open(&self) -> Queues {
        Queues::open(&self.0).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

fn set(config: Config) -> Settings {
    Settings { config, durability: Durability::Os }
}

fn take(queue: &Queue, max: usize) -> Vec<mainstem_queues::Delivery> {
    queue.receive(max, Duration::ZERO).unwrap()
}

fn texts(deliveries: &[mainstem_queues::Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| String::from_utf8(delivery.value().to_vec()).unwrap()).collect()
}

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
fn verdicts_do_what_they_say() {
    let directory = Directory::new();
    let queues = directory.open();
    let config = Config { lease_ms: 40, max_deliveries: 3, length_max: 4, ..Config::default() };
    let jobs = queues.queue("jobs", set(config)).unwrap();
    jobs.enqueue_batch(["rejected", "worn", "left"]).unwrap();
    assert_eq!(jobs.enqueue_batch(["x", "y"]), Err(Error::Refused(Refusal::Full)));
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

/// What the process does that is killed: puts numbers in, says which are confirmed, works some off and says so.
fn be_killed(directory: &str) {
    let jobs = Queues::open(directory).unwrap().queue("jobs", set(Config::default())).unwrap();
    for number in 0_u64.. {
        jobs.enqueue(&number.to_le_bytes()).unwrap();
        println!("sent {number}");
        if number % 3 == 0 {
            for delivery in take(&jobs, 1) {
                let taken = u64::from_le_bytes(delivery.value().try_into().unwrap());
                delivery.ack().unwrap();
                println!("done {taken}");
            }
        }
    }
}

#[test]
fn a_killed_process_has_lost_nothing_that_was_confirmed() {
    const DIRECTORY: &str = "MAINSTEM_QUEUES_KILLED";
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return be_killed(&directory);
    }
    let directory = Directory::new();
    let (mut sent, mut done) = (Vec::new(), Vec::new());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["a_killed_process_has_lost_nothing_that_was_confirmed", "--exact", "--nocapture"])
        .env(DIRECTORY, &directory.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let note = |line: &str, sent: &mut Vec<u64>, done: &mut Vec<u64>| match line.split_once(' ') {
        Some(("sent", number)) => sent.extend(number.parse::<u64>().ok()),
        Some(("done", number)) => done.extend(number.parse::<u64>().ok()),
        _ => {}
    };
    while sent.len() < 2_000 {
        note(&lines.next().unwrap().unwrap(), &mut sent, &mut done);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The last line may be torn.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    for line in rest.iter().rev().skip(1) {
        note(line, &mut sent, &mut done);
    }
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    let left = take(&jobs, usize::MAX);
    let left: Vec<u64> =
        left.iter().map(|delivery| u64::from_le_bytes(delivery.value().try_into().unwrap())).collect();
    assert!(!done.is_empty());
    for number in &done {
        assert!(!left.contains(number), "{number} was acknowledged and came back");
    }
    let last_done = done.iter().max().unwrap();
    for number in sent.iter().filter(|number| *number > last_done) {
        // One more may have been acknowledged and not said so.
        assert!(left.contains(number) || *number == last_done + 1, "{number} was confirmed and is lost");
    }
}
