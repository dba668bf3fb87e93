//! `kill -9` on the machine's file system: what a log that asks for the page cache has committed is there when it is opened
//! again, also if it was appended by way of a mapping.
//!
//! The test runs itself once more as the process that is to be killed. That one says how far its logs are committed, on
//! its standard output.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use mainstem_disk::{Committer, RealFs, SegmentStore, Settings};
use mainstem_log::{BatchBuilder, Durability, LogId, Options, Record, Store, batches};

/// Tells a process that it is to be killed, and where its store is.
const DIRECTORY: &str = "MAINSTEM_KILLED_IN";
const LIVES: u64 = 4;
/// So much is committed before a process is killed, times the number of its life.
const COMMITTED_MIN: u64 = 1500;
const LOGS: [&str; 2] = ["one", "two"];

fn open(directory: &Path) -> (SegmentStore, [LogId; 2]) {
    let settings = Settings { mapped_writes: true, checkpoint_bytes: 200_000, ..Settings::default() };
    let committer = Committer::Thread { wake: Arc::new(|| {}) };
    let mut store = SegmentStore::open(Arc::new(RealFs), directory.to_owned(), settings, committer).unwrap();
    let options = Options { durability: Durability::Os, segment_bytes: 500_000, ..Options::default() };
    let logs = LOGS.map(|name| store.open(name, &options).unwrap());
    (store, logs)
}

/// What the record at an offset says: of all lengths, so that ends fall everywhere, now and then longer than a window takes.
fn value(offset: u64) -> Vec<u8> {
    let len = if offset.is_multiple_of(97) { 9000 } else { offset * 31 % 301 };
    (0..len).map(|at| (offset + at) as u8).collect()
}

/// Appends until it is killed.
fn live(directory: &Path) -> ! {
    let (mut store, logs) = open(directory);
    let mut builder = BatchBuilder::default();
    let mut out = std::io::stdout().lock();
    loop {
        for log in logs {
            let offset = store.status(log).end;
            for offset in offset..offset + 1 + offset % 3 {
                builder.push(1, None, Some(&value(offset)));
            }
            store.append(log, builder.finish()).unwrap();
        }
        store.commit();
        let [one, two] = logs.map(|log| store.status(log).committed);
        writeln!(out, "committed {one} {two}").unwrap();
    }
}

/// Lets a process live until it has committed so much, and kills it. Returns how far it says that it came.
fn kill_at(directory: &Path, least: u64) -> [u64; 2] {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_was_committed_survives_the_process", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 2];
    let mut has_killed = false;
    // All that it has said counts, also what is read after the kill.
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some((_, numbers)) = line.split_once("committed ") else { continue };
        let Some((one, two)) = numbers.split_once(' ') else { continue };
        let (Ok(one), Ok(two)) = (one.parse(), two.parse()) else { continue };
        said = [one, two];
        if one >= least && !has_killed {
            process.kill().unwrap();
            has_killed = true;
        }
    }
    process.wait().unwrap();
    assert!(has_killed, "it has ended by itself");
    said
}

fn check(store: &mut SegmentStore, log: LogId, committed: u64) {
    let status = store.status(log);
    assert!(status.end >= committed, "{} of {committed} are left", status.end);
    let mut next = 0;
    let mut bytes = Vec::new();
    while next < status.end {
        bytes.clear();
        store.read(log, next..status.end, 1 << 20, &mut bytes).unwrap();
        for batch in batches(&bytes) {
            for record in batch.records() {
                let Record { value: read, .. } = record.unwrap();
                assert_eq!(read, Some(&value(next)[..]), "offset {next}");
                next += 1;
            }
        }
    }
}

#[test]
fn what_was_committed_survives_the_process() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        live(Path::new(&directory));
    }
    let directory = std::env::temp_dir().join(format!("mainstem-disk-kill-{}", std::process::id()));
    for life in 1..=LIVES {
        let committed = kill_at(&directory, life * COMMITTED_MIN);
        // Every other time the next process is the one that finds what this one has left.
        if life % 2 == 0 {
            let (mut store, logs) = open(&directory);
            for (log, committed) in logs.into_iter().zip(committed) {
                check(&mut store, log, committed);
            }
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
