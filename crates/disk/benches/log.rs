//! Overhead of the segment log over the bare system calls: `cargo xtask bench log`.
//!
//! Each row runs in rounds that alternate between the log and the bare loop, so that background load affects both. It
//! prints medians of the rates and of the per-round ratio, by wall clock and by CPU time of the working thread.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mainstem_disk::{Committer, RealFs, SegmentStore, Settings};
use mainstem_log::{BatchBuilder, Durability, LogAdmin, LogId, LogReader, LogWriter, Options, Store};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 5;

/// Measures one row in its own directory and prints it.
type Row = fn(&Path);

fn main() {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-log-{}", std::process::id()));
    println!("segment log, {} rounds, in {}", ROUNDS, root.display());
    println!("records of 100 bytes, one to a batch of 170, unless said otherwise\n");
    let selected: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let rows: [(&str, Row); 6] = [
        ("buffered", buffered),
        ("mapped", mapped),
        ("synced", synced),
        ("in-flight", in_flight),
        ("many-logs", many_logs),
        ("read", sequential_read),
    ];
    for (name, row) in rows {
        if selected.is_empty() || selected.iter().any(|selected| selected == name) {
            row(&root);
        }
    }
    remove(&root);
}

fn remove(root: &Path) {
    match fs::remove_dir_all(root) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", root.display()),
        _ => {}
    }
}

fn store(root: &Path, settings: Settings, committer: Committer) -> SegmentStore {
    remove(root);
    SegmentStore::open(Arc::new(RealFs), root.join("log"), settings, committer).unwrap()
}

fn batch(value_bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(1_700_000_000_000, None, Some(&vec![b'x'; value_bytes]));
    builder.finish().to_vec()
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.cast_unsigned() as u32)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Operations per second by wall clock and by CPU time of the thread.
struct Rate {
    wall: f64,
    cpu: f64,
}

#[expect(clippy::cast_precision_loss, reason = "no count is that large")]
fn rate(count: usize, work: impl FnOnce()) -> Rate {
    let (start, start_cpu) = (Instant::now(), cpu());
    work();
    let per_s = |time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
    Rate { wall: per_s(start.elapsed()), cpu: per_s(cpu().saturating_sub(start_cpu)) }
}

/// Measures the log and the bare loop alternately.
fn compare(name: &str, mut log: impl FnMut() -> Rate, mut bare: impl FnMut() -> Rate) {
    let mut columns = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        let (log, bare) = (log(), bare());
        let row = [log.wall, bare.wall, log.wall / bare.wall, log.cpu, bare.cpu, log.cpu / bare.cpu];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    let [log, bare, ratio, log_cpu, bare_cpu, ratio_cpu] = columns.each_mut().map(|column| median(column));
    println!(
        "{name:<56} {log:>11.0}/s bare {bare:>11.0}/s ratio {ratio:.2}, by CPU {log_cpu:>11.0}/s bare \
         {bare_cpu:>11.0}/s ratio {ratio_cpu:.2}",
    );
}

/// Appends in groups of `group` batches with one commit each.
fn append(store: &mut SegmentStore, log: LogId, batch: &[u8], count: usize, group: usize) {
    let mut completions = Vec::new();
    for _ in 0..count / group {
        for _ in 0..group {
            store.append(log, batch).unwrap();
        }
        store.commit();
        store.completions(&mut completions);
        completions.clear();
    }
}

fn buffered(root: &Path) {
    let batch = batch(100);
    let count = 2_000_000;
    for group in [100, 1000] {
        compare(
            &format!("buffered appends, {group} a turn"),
            || {
                let mut store = store(root, Settings::default(), Committer::Inline);
                let options = Options { durability: Durability::Os, ..Options::default() };
                let log = store.open("log", &options).unwrap();
                rate(count, || append(&mut store, log, &batch, count, group))
            },
            || {
                let mut file = bare_file(root);
                let bytes = batch.repeat(group);
                rate(count, || (0..count / group).for_each(|_| file.write_all(&bytes).unwrap()))
            },
        );
    }
}

/// Compares mapped writes with system calls on a log with `Durability::Os`, with one or several batches per commit.
fn mapped(root: &Path) {
    for (value_bytes, group) in [(100, 1), (100, 10), (100, 100), (1000, 1), (10_000, 1)] {
        let batch = batch(value_bytes);
        let count = (200_000_000 / batch.len()).min(1_000_000);
        let run = |mapped_writes: bool| {
            let settings = Settings { mapped_writes, ..Settings::default() };
            let mut store = store(root, settings, Committer::Thread { wake: Arc::new(|| {}) });
            let options =
                Options { durability: Durability::Os, segment_bytes: 16 << 20, ..Options::default() };
            let log = store.open("log", &options).unwrap();
            rate(count, || append(&mut store, log, &batch, count, group))
        };
        compare(
            &format!("mapped appends, {value_bytes} bytes, {group} a turn; bare: written"),
            || run(true),
            || run(false),
        );
    }
}

fn bare_file(root: &Path) -> fs::File {
    remove(root);
    fs::create_dir_all(root).unwrap();
    fs::File::create(root.join("bare")).unwrap()
}

fn synced(root: &Path) {
    let batch = batch(100);
    for (group, turns) in [(1, 1000), (32, 1000), (256, 1000), (1000, 500)] {
        let count = group * turns;
        compare(
            &format!("synced appends, {group} a turn"),
            || {
                let mut store = store(root, Settings::default(), Committer::Inline);
                let log = store.open("log", &Options::default()).unwrap();
                rate(count, || append(&mut store, log, &batch, count, group))
            },
            || {
                let mut file = bare_file(root);
                let bytes = batch.repeat(group);
                rate(count, || {
                    for _ in 0..turns {
                        file.write_all(&bytes).unwrap();
                        file.sync_data().unwrap();
                    }
                })
            },
        );
    }
}

/// Keeps a fixed number of appends in flight with a committer thread.
fn in_flight(root: &Path) {
    let batch = batch(100);
    for window in [256, 4096] {
        let count = window * 500;
        compare(
            &format!("synced appends, {window} in flight"),
            || {
                let signal = Arc::new((Mutex::new(false), Condvar::new()));
                let set_signal = signal.clone();
                let wake = Arc::new(move || {
                    *set_signal.0.lock().unwrap() = true;
                    set_signal.1.notify_one();
                });
                let mut store = store(root, Settings::default(), Committer::Thread { wake });
                let log = store.open("log", &Options::default()).unwrap();
                rate(count, || run_in_flight(&mut store, log, &batch, count, window, &signal))
            },
            || {
                let mut file = bare_file(root);
                let bytes = batch.repeat(window);
                rate(count, || {
                    for _ in 0..count / window {
                        file.write_all(&bytes).unwrap();
                        file.sync_data().unwrap();
                    }
                })
            },
        );
    }
}

fn run_in_flight(
    store: &mut SegmentStore,
    log: LogId,
    batch: &[u8],
    count: usize,
    window: usize,
    signal: &(Mutex<bool>, Condvar),
) {
    let mut pending = std::collections::VecDeque::new();
    let (mut sent, mut done) = (0, 0);
    let mut completions = Vec::new();
    while done < count {
        while sent < count && sent - done < window {
            pending.push_back(store.append(log, batch).unwrap().ticket);
            sent += 1;
        }
        store.commit();
        store.completions(&mut completions);
        if completions.is_empty() {
            let mut is_set = signal.0.lock().unwrap();
            while !*is_set {
                is_set = signal.1.wait(is_set).unwrap();
            }
            *is_set = false;
        }
        for completion in completions.drain(..) {
            assert_eq!(completion.outcome, Ok(()));
            while pending.front().is_some_and(|ticket| *ticket <= completion.ticket) {
                pending.pop_front();
                done += 1;
            }
        }
    }
}

fn many_logs(root: &Path) {
    for value_bytes in [100, 4096] {
        let batch = batch(value_bytes);
        for logs in [10, 100, 1000] {
            let turns = if logs == 1000 { 4 } else { 40 };
            let run = |journal_bytes: u64, turns: usize| {
                let settings = Settings { journal_bytes, open_files: 2048, ..Settings::default() };
                let mut store = store(root, settings, Committer::Inline);
                let ids: Vec<LogId> = (0..logs)
                    .map(|id| store.open(&format!("log-{id}"), &Options::default()).unwrap())
                    .collect();
                let mut turn = || {
                    for log in &ids {
                        store.append(*log, &batch).unwrap();
                    }
                    store.commit();
                };
                // The first turn creates the journal files.
                turn();
                rate(turns, || (0..turns).for_each(|_| turn()))
            };
            compare(
                &format!("turns of {logs} logs, {value_bytes} bytes each; bare: no journal"),
                || run(Settings::default().journal_bytes, 200),
                || run(0, turns),
            );
        }
    }
}

fn sequential_read(root: &Path) {
    const READ_BYTES: usize = 1 << 20;
    const TOTAL_BYTES: usize = 400 << 20;
    for value_bytes in [100, 1000, 16_000] {
        let batch = batch(value_bytes);
        let settings = Settings { cache_bytes: 0, tail_bytes: 0, ..Settings::default() };
        let mut store = store(root, settings, Committer::Inline);
        let options = Options { durability: Durability::Os, ..Options::default() };
        let log = store.open("log", &options).unwrap();
        append(&mut store, log, &batch, TOTAL_BYTES / batch.len(), 100);
        let bytes = store.status(log).bytes as usize;
        let mut files: Vec<PathBuf> =
            fs::read_dir(root.join("log/log.log")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "segment"));
        files.sort();
        compare(
            &format!("bytes read in order, batches of {}", batch.len()),
            || rate(bytes, || read_log(&mut store, log, READ_BYTES, batch.len())),
            || rate(bytes, || files.iter().for_each(|file| read_file(file, READ_BYTES))),
        );
    }
}

fn read_log(store: &mut SegmentStore, log: LogId, read_bytes: usize, batch_bytes: usize) {
    let end = store.status(log).end;
    let mut into = Vec::new();
    let mut next = 0;
    while next < end {
        into.clear();
        store.read(log, next..end, read_bytes, &mut into).unwrap();
        // Every batch has one record and the same size.
        next += (into.len() / batch_bytes) as u64;
    }
}

fn read_file(file: &Path, read_bytes: usize) {
    let mut file = fs::File::open(file).unwrap();
    let mut into = vec![0; read_bytes];
    while file.read(&mut into).unwrap() > 0 {}
}
