//! Groups, what operators do with them, and what goes from the disk.

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstem_queue::{Config, Error, QueueError, ReplayFrom};
use support::{Directory, becomes, set, take, take_one, text, texts};

#[test]
fn a_purge_throws_away_what_one_group_has() {
    let directory = Directory::new();
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    let audit = jobs.group("audit");
    assert_eq!(audit.purge(), Err(Error::Refused(QueueError::UnknownGroup)), "it has not begun");
    assert!(take(&audit, 1).is_empty());
    let texts: Vec<String> = (0..2_500).map(|number| number.to_string()).collect();
    jobs.enqueue_batch(&texts).unwrap();
    let mine = take_one(&jobs);
    assert_eq!(jobs.purge(), Ok(2_500), "whoever has them");
    assert_eq!(mine.ack(), Err(Error::Refused(QueueError::Stale)));
    assert!(take(&jobs, 1).is_empty());
    let taken = take(&audit, usize::MAX);
    assert_eq!(taken.len(), 2_500);
    audit.ack_all(taken).unwrap();
    assert_eq!(audit.info().messages, 0);
    jobs.enqueue("later").unwrap();
    assert_eq!(text(&take_one(&jobs)), "later");
}

#[test]
fn settled_messages_are_replayed_from_an_offset_or_a_time() {
    let directory = Directory::new();
    let config = Config { retention_ms: 3_600_000, ..Config::default() };
    let jobs = directory.open().queue("jobs", set(config)).unwrap();
    jobs.enqueue_batch(["a", "b"]).unwrap();
    let between = SystemTime::now() + Duration::from_millis(2);
    assert!(becomes(|| SystemTime::now() > between));
    jobs.enqueue("c").unwrap();
    jobs.ack_all(take(&jobs, 9)).unwrap();
    assert_eq!(jobs.replay(ReplayFrom::Offset(1)), Ok(2));
    let again = take(&jobs, 9);
    assert_eq!(texts(&again), ["b", "c"]);
    assert!(again.iter().all(|delivery| delivery.count() == 1), "as if they had never been delivered");
    jobs.ack_all(again).unwrap();
    let between_ms = between.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert_eq!(jobs.replay(ReplayFrom::Time(between_ms)), Ok(1));
    let last = take(&jobs, 9);
    assert_eq!(texts(&last), ["c"]);
    jobs.ack_all(last).unwrap();
    assert_eq!(jobs.replay(ReplayFrom::Time(u64::MAX)), Ok(0));
}

#[test]
fn a_group_is_removed_with_what_it_had() {
    let directory = Directory::new();
    {
        let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
        let audit = jobs.group("audit");
        assert!(take(&audit, 1).is_empty());
        jobs.enqueue("a").unwrap();
        jobs.ack_all(take(&jobs, 1)).unwrap();
        assert_eq!(jobs.info().messages, 1, "the other one wants it");
        audit.remove_group().unwrap();
        assert_eq!(jobs.info().messages, 0);
        let unknown = Err(Error::Refused(QueueError::UnknownGroup));
        assert_eq!(jobs.group("audit").remove_group(), unknown);
        assert!(matches!(jobs.clone().remove_group(), Err(Error::Refused(QueueError::Invalid(_)))));
    }
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    assert_eq!(jobs.info().groups.len(), 1);
}

/// Bytes of all segments of messages.
fn bytes_of_messages(directory: &Directory) -> u64 {
    let log = directory.0.join("log").join("m-jobs.log");
    let files = std::fs::read_dir(log).unwrap().map(Result::unwrap);
    let segments = files.filter(|file| file.file_name().to_str().unwrap().ends_with(".segment"));
    // One may just go.
    segments.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// A segment may grow to twice its 16 MiB while the file of the next one is being created.
const NEWEST_BYTES_MAX: u64 = 33 << 20;

#[test]
fn segments_go_when_all_groups_have_settled_what_is_in_them() {
    const MIB: u64 = 1 << 20;
    let directory = Directory::new();
    let queues = directory.open();
    let jobs = queues.queue("jobs", set(Config::default())).unwrap();
    let slow = jobs.group("slow");
    assert!(take(&slow, 1).is_empty());
    let message = vec![b'x'; MIB as usize];
    for _ in 0..80 {
        jobs.enqueue(&message).unwrap();
        jobs.ack_all(take(&jobs, 1)).unwrap();
    }
    // It is behind: all is kept for it.
    assert_eq!(slow.info().messages, 80);
    let mut taken = take(&slow, 80);
    assert_eq!(taken.len(), 80);
    assert!(bytes_of_messages(&directory) >= 80 * MIB);
    let last = taken.pop();
    slow.ack_all(taken).unwrap();
    assert!(becomes(|| bytes_of_messages(&directory) < NEWEST_BYTES_MAX), "one is left");
    assert_eq!(last.unwrap().value(), message);
    assert_eq!(take_one(&slow).value(), message, "it is there");
}

#[test]
fn a_few_old_messages_do_not_keep_the_rest() {
    const MIB: usize = 1 << 20;
    let directory = Directory::new();
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    jobs.enqueue("old").unwrap();
    let old = take_one(&jobs);
    old.extend(Duration::from_hours(1)).unwrap();
    let message = vec![b'x'; 4 * MIB];
    for _ in 0..20 {
        jobs.enqueue(&message).unwrap();
        jobs.ack_all(take(&jobs, 1)).unwrap();
    }
    assert!(becomes(|| bytes_of_messages(&directory) < NEWEST_BYTES_MAX));
    drop((old, jobs));
    let jobs = directory.open().queue("jobs", set(Config::default())).unwrap();
    let old = take_one(&jobs);
    assert_eq!((text(&old), old.count()), ("old", 2));
}
