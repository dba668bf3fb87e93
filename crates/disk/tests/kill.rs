//! `kill -9` on the real file system: committed data of a log with `Durability::Os` survives, also if it was appended
//! through a mapping.
//!
//! The test starts its own executable as the process to kill, which prints the committed offsets of its logs to
//! standard output.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use mainstem_disk::{Committer, RealFs, SegmentStore, Settings};
use mainstem_log::{
    BatchBuilder, Durability, LogAdmin, LogId, LogReader, LogWriter, Options, Record, Store, batches,
};

/// Environment variable of the process to kill: the directory of its store.
const DIRECTORY: &str = "MAINSTEM_KILLED_IN";
const RESTARTS: u64 = 4;
/// Records to commit before the first kill; multiplied by the restart count for later ones.
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

/// Value of the record at an offset. Lengths vary so that batches end everywhere; some exceed the mapped window.
fn value(offset: u64) -> Vec<u8> {
    let len = if offset.is_multiple_of(97) { 9000 } else { offset * 31 % 301 };
    (0..len).map(|at| (offset + at) as u8).collect()
}

/// Appends until the process is killed.
fn append_until_killed(directory: &Path) -> ! {
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

/// Runs a process until it has committed `least` records and kills it. Returns the last offsets that it printed.
fn kill_at(directory: &Path, least: u64) -> [u64; 2] {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "committed_data_survives_a_kill", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = [0; 2];
    let mut has_killed = false;
    // Output read after the kill counts too.
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some((_, numbers)) = line.split_once("committed ") else { continue };
        let Some((one, two)) = numbers.split_once(' ') else { continue };
        let (Ok(one), Ok(two)) = (one.parse(), two.parse()) else { continue };
        printed = [one, two];
        if one >= least && !has_killed {
            process.kill().unwrap();
            has_killed = true;
        }
    }
    process.wait().unwrap();
    assert!(has_killed, "the process ended by itself");
    printed
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
fn committed_data_survives_a_kill() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        append_until_killed(Path::new(&directory));
    }
    let directory = std::env::temp_dir().join(format!("mainstem-disk-kill-{}", std::process::id()));
    for round in 1..=RESTARTS {
        let committed = kill_at(&directory, round * COMMITTED_MIN);
        // In odd rounds the next process recovers the store instead.
        if round % 2 == 0 {
            let (mut store, logs) = open(&directory);
            for (log, committed) in logs.into_iter().zip(committed) {
                check(&mut store, log, committed);
            }
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
