//! Processes that end in the middle of something. Each test runs itself once more as the process that ends.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use mainstem_queue::{Config, Durability, Headers, Queue, Queues, Settings};
use support::{DEADLINE, Directory, again, becomes, set, take, texts};

/// Tells a process that it is to end, and what with.
const TASK: &str = "MAINSTEM_QUEUES_TASK";
/// What an aborted process has ended by.
const SIGABRT: i32 = 6;

const DELIVERIES: u32 = 3;

fn worn(queues: &Queues, durability: Durability) -> Queue {
    let config = Config { max_deliveries: DELIVERIES, ..Config::default() };
    queues.queue("jobs", Settings { config, durability }).unwrap()
}

fn durability(name: &str) -> Durability {
    if name == "os" { Durability::Os } else { Durability::Fsync }
}

/// What a process does that a message ends: takes it, says how often that was done, and aborts.
fn be_aborted(task: &str) {
    let (name, directory) = task.split_once(' ').unwrap();
    let jobs = worn(&Queues::open(directory).unwrap(), durability(name));
    let taken = take(&jobs, 9);
    let counts: Vec<u32> = taken.iter().map(|delivery| delivery.receipt().count).collect();
    println!("counted {counts:?}");
    std::process::abort();
}

#[test]
fn a_message_that_ends_its_process_is_counted_and_becomes_a_dead_letter() {
    const TEST: &str = "a_message_that_ends_its_process_is_counted_and_becomes_a_dead_letter";
    if let Ok(task) = std::env::var(TASK) {
        return be_aborted(&task);
    }
    for name in ["os", "fsync"] {
        let directory = Directory::new();
        worn(&directory.open(), durability(name)).enqueue_batch(["one", "two"]).unwrap();
        for life in 1..=DELIVERIES {
            let task = format!("{name} {}", directory.path());
            let ended = again(TEST, TASK, &task).wait_with_output().unwrap();
            assert_eq!(ended.status.signal(), Some(SIGABRT));
            let said = String::from_utf8(ended.stdout).unwrap();
            assert!(said.contains(&format!("counted [{life}, {life}]")), "{name}, life {life}: {said}");
        }
        let queues = directory.open();
        let jobs = worn(&queues, durability(name));
        assert!(take(&jobs, 9).is_empty(), "they were delivered as often as they may be");
        let config = Config { max_deliveries: 0, ..Config::default() };
        let dead = queues.queue("jobs.dead", Settings { config, durability: durability(name) }).unwrap();
        let mut letters = dead.receive(9, DEADLINE).unwrap();
        letters.extend(dead.receive(1, if letters.len() < 2 { DEADLINE } else { Duration::ZERO }).unwrap());
        assert_eq!(texts(&letters), ["one", "two"]);
    }
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
    const TEST: &str = "a_killed_process_has_lost_nothing_that_was_confirmed";
    if let Ok(directory) = std::env::var(TASK) {
        return be_killed(&directory);
    }
    let directory = Directory::new();
    let (mut sent, mut done) = (Vec::new(), Vec::new());
    let mut child = again(TEST, TASK, directory.path());
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

/// What the process does that is killed while messages leave: puts numbers in and says so, and rejects them.
fn be_killed_while_messages_leave(directory: &str) {
    let jobs = Queues::open(directory).unwrap().queue("jobs", set(Config::default())).unwrap();
    for number in 0_u64.. {
        let offset = jobs.enqueue(&number.to_le_bytes()).unwrap();
        println!("sent {offset}");
        jobs.reject_all(take(&jobs, 1)).unwrap();
    }
}

#[test]
fn a_message_on_its_way_to_the_dead_letters_is_in_one_of_the_two() {
    const TEST: &str = "a_message_on_its_way_to_the_dead_letters_is_in_one_of_the_two";
    const LIVES: usize = 5;
    if let Ok(directory) = std::env::var(TASK) {
        return be_killed_while_messages_leave(&directory);
    }
    let directory = Directory::new();
    let (mut sent, mut arrived) = (0, 0);
    for life in 1..=LIVES {
        let mut child = again(TEST, TASK, directory.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let says = |line: &str| line.split_once("sent ").and_then(|(_, number)| number.parse::<u64>().ok());
        let mut confirmed = 0;
        while confirmed < life * 97 {
            confirmed += usize::from(says(&lines.next().unwrap().unwrap()).is_some());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        confirmed += lines.map_while(Result::ok).filter(|line| says(line).is_some()).count();
        sent += confirmed;

        let queues = directory.open();
        let jobs = queues.queue("jobs", set(Config::default())).unwrap();
        let dead = queues.queue("jobs.dead", set(Config { max_deliveries: 0, ..Config::default() })).unwrap();
        let is_leaving = |queue: &Queue| queue.info().groups.iter().any(|group| group.leaving > 0);
        assert!(becomes(|| !is_leaving(&jobs)));
        let left = jobs.info().messages;
        arrived = dead.info().messages;
        // Of those that were put in when the process was killed, one may be there that nobody has heard of.
        let all = usize::try_from(left + arrived).unwrap();
        assert!((sent..=sent + 1).contains(&all), "life {life}: {left} and {arrived} of {sent}");
        sent = all;
        let mut offsets = dead_letter_offsets(&dead);
        offsets.extend(jobs.peek(0, usize::MAX).unwrap().iter().map(|seen| seen.offset));
        offsets.sort_unstable();
        assert!(offsets.iter().copied().eq(0..all as u64), "life {life}: each is there once");
    }
    assert!(arrived > 0, "some have left");
}

/// Where dead letters were before.
fn dead_letter_offsets(dead: &Queue) -> Vec<u64> {
    let offset = |letter: &mainstem_queue::PeekedMessage| {
        let mut headers = Headers::parse(letter.payload.record().headers).unwrap().map(Result::unwrap);
        let offset = headers.find(|header| header.key == "dead-letter-offset").unwrap();
        str::from_utf8(offset.value.unwrap()).unwrap().parse().unwrap()
    };
    dead.peek(0, usize::MAX).unwrap().iter().map(offset).collect()
}

const TURNS: u64 = 6;
const EACH: u64 = 2_000;

/// What a process does that changes its mind: puts numbers in, now with one durability and then with the other, and
/// aborts.
fn be_aborted_of_two_minds(directory: &str) {
    let queues = Queues::open(directory).unwrap();
    for turn in 0..TURNS {
        let durability = if turn % 2 == 0 { Durability::Os } else { Durability::Fsync };
        let jobs = queues.queue("jobs", Settings { durability, ..Settings::default() }).unwrap();
        for number in (turn * EACH)..((turn + 1) * EACH) {
            jobs.post(&number.to_le_bytes()).unwrap();
            if number % 50 == 0 {
                jobs.flush().unwrap();
                jobs.ack_all(take(&jobs, 1)).unwrap();
            }
        }
        jobs.flush().unwrap();
    }
    std::process::abort();
}

#[test]
fn durability_may_change_while_messages_come() {
    const TEST: &str = "durability_may_change_while_messages_come";
    if let Ok(directory) = std::env::var(TASK) {
        return be_aborted_of_two_minds(&directory);
    }
    let directory = Directory::new();
    let ended = again(TEST, TASK, directory.path()).wait().unwrap();
    assert_eq!(ended.signal(), Some(SIGABRT));
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    let left = take(&jobs, usize::MAX);
    let numbers = left.iter().map(|delivery| u64::from_le_bytes(delivery.value().try_into().unwrap()));
    assert!(numbers.eq(TURNS * EACH / 50..TURNS * EACH), "the first ones are done");
}
