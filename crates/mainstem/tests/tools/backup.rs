//! `mainstem backup` and `mainstem restore`, beside a broker at work.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::{Broker, mainstem};

/// Records of one call of `mainstem produce` in the background.
const LOAD: usize = 200;

/// A directory that is removed with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mainstem-backup-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Sets a flag when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn numbers(range: std::ops::Range<usize>) -> String {
    range.flat_map(|number| [number.to_string(), "\n".to_owned()]).collect()
}

/// Gives the broker sessions, retained messages, records, a group's offsets, and queued jobs.
fn fill(broker: &Broker) {
    broker.run("sub", &["-c", "-i", "plant", "-q", "1", "-t", "line/#", "-E"]).succeeds();
    broker.run_with_input("pub", &["-q", "1", "-t", "line/1", "-l"], b"one\ntwo\nthree\n").succeeds();
    broker.run("pub", &["-q", "1", "-r", "-t", "state", "-m", "running"]).succeeds();
    broker.kafka("topic", &["create", "orders", "-p", "1"]).succeeds();
    broker.kafka("topic", &["create", "load", "-p", "1", "-c", "segment.bytes=1048576"]).succeeds();
    broker.kafka_with_input("produce", &["-t", "orders"], numbers(0..100).as_bytes()).succeeds();
    broker.kafka("consume", &["-G", "billing", "-c", "40", "-t", "orders"]).succeeds();
    broker.queue(&["create", "jobs"]).succeeds();
    broker.queue_with_input(&["send", "jobs"], b"first\nsecond\n").succeeds();
}

/// Checks what [`fill`] has stored.
fn check(broker: &Broker) {
    let received = broker.run("sub", &["-c", "-i", "plant", "-q", "1", "-t", "line/#", "-C", "3"]).succeeds();
    received.prints("one\ntwo\nthree\n");
    broker.run("sub", &["-t", "state", "-C", "1"]).succeeds().prints("running\n");
    broker.kafka("consume", &["-t", "orders", "-o", "beginning", "-e"]).succeeds().prints(&numbers(0..100));
    broker
        .kafka("consume", &["-G", "billing", "-c", "60", "-t", "orders"])
        .succeeds()
        .prints(&numbers(40..100));
    broker.queue(&["receive", "jobs", "-c", "2"]).succeeds().prints("first\nsecond\n");
}

fn json_of(args: &[&str]) -> Value {
    let ended = mainstem(args, b"").succeeds();
    serde_json::from_str(ended.text()).unwrap()
}

#[test]
fn what_a_busy_broker_had_is_restored() {
    let dir = Directory::new("busy");
    let (target, restored) = (dir.path("backups"), dir.path("restored"));
    let broker = Broker::start(&[]);
    fill(&broker);
    let (produced, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let before = std::thread::scope(|scope| {
        // Also if an assertion fails.
        let _done = Done(&is_done);
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let from = produced.load(Ordering::Relaxed);
                let lines = numbers(from..from + LOAD);
                broker.kafka_with_input("produce", &["-t", "load"], lines.as_bytes()).succeeds();
                produced.store(from + LOAD, Ordering::Relaxed);
            }
        });
        let backup = |target: &str| json_of(&["backup", target, "--http", broker.http(), "--json"]);
        let first = backup(&target);
        let before = produced.load(Ordering::Relaxed);
        let second = backup(&target);
        assert!(second["uploaded_bytes"].as_u64() < second["bytes"].as_u64(), "{first} {second}");
        before
    });
    let list = mainstem(&["backup", "list", &target], b"").succeeds();
    assert_eq!(list.text().lines().count(), 2, "{}", list.text());
    mainstem(&["backup", "check", &target], b"").succeeds();
    // No snapshot is left, so no removed record takes space.
    assert_eq!(std::fs::read_dir(broker.dir().join("data/snapshot")).unwrap().count(), 0);

    let data = Path::new(&restored).join("data");
    mainstem(&["restore", &target, "--data", data.to_str().unwrap()], b"").succeeds();
    let again = mainstem(&["restore", &target, "--data", data.to_str().unwrap()], b"").fails_with(1);
    assert!(again.errors().contains("empty"), "{}", again.errors());
    mainstem(&["verify", "--data", data.to_str().unwrap()], b"").succeeds();
    let copy = Broker::start_on(restored.into());
    check(&copy);
    let consumed = copy.kafka("consume", &["-t", "load", "-o", "beginning", "-e"]).succeeds();
    let count = consumed.text().lines().count();
    assert!((before..=produced.load(Ordering::Relaxed)).contains(&count), "{before} {count}");
    consumed.prints(&numbers(0..count));
    // The broker itself goes on.
    check(&broker);
}

#[test]
fn a_stopped_broker_is_backed_up_and_old_backups_go() {
    let dir = Directory::new("stopped");
    let (target, restored) = (dir.path("backups"), dir.path("restored"));
    let broker = Broker::start(&[]);
    fill(&broker);
    let data = broker.dir().join("data");
    let data = data.to_str().unwrap();
    let busy = mainstem(&["backup", &target, "--data", data], b"").fails_with(1);
    assert!(busy.errors().contains("stop the broker first"), "{}", busy.errors());
    let stopped = broker.stop();
    let ids: Vec<String> = (0..3)
        .map(|_| json_of(&["backup", &target, "--data", data, "-J"])["id"].as_str().unwrap().to_owned())
        .collect();
    mainstem(&["backup", "prune", &target, "--keep", "1", "--grace", "0s"], b"").succeeds();
    let list = mainstem(&["backup", "list", &target], b"").succeeds();
    assert!(list.text().starts_with(&ids[2]) && list.text().lines().count() == 1, "{}", list.text());
    let gone = mainstem(&["restore", &target, "--data", &restored, "--id", &ids[0]], b"").fails_with(1);
    assert!(gone.errors().contains(&ids[0]), "{}", gone.errors());
    let early = mainstem(&["restore", &target, "--data", &restored, "--at", "2020-01-01T00:00:00Z"], b"");
    early.fails_with(1);
    let data = Path::new(&restored).join("data");
    mainstem(&["restore", &target, "--data", data.to_str().unwrap(), "--at", "2099-01-01T00:00:00Z"], b"")
        .succeeds();
    let copy = Broker::start_on(restored.into());
    check(&copy);
    drop(stopped);
}

#[test]
fn an_incomplete_restore_is_no_data_directory() {
    let dir = Directory::new("incomplete");
    std::fs::write(dir.path("restore-incomplete"), b"").unwrap();
    let refused =
        mainstem(&["--data", dir.0.to_str().unwrap(), "--listen", "127.0.0.1:0"], b"").fails_with(1);
    assert!(refused.errors().contains("a restore into it was interrupted"), "{}", refused.errors());
    // Nor is a part of the data taken for all of it.
    std::fs::create_dir(dir.path("log")).unwrap();
    let (data, target) = (dir.0.to_str().unwrap(), dir.path("target"));
    for (args, status) in [(&["backup", &target, "--data", data][..], 1), (&["verify", "--data", data], 2)] {
        let refused = mainstem(args, b"").fails_with(status);
        assert!(refused.errors().contains("a restore into it was interrupted"), "{}", refused.errors());
    }
}
