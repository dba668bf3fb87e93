//! What the segment log costs beside the bare calls of the system: `cargo xtask bench log`.
//!
//! Each row is measured in rounds, the log and the bare loop in turn, so that what the machine does meanwhile hits
//! both. What is printed are medians: of the rates, and of the ratio within a round; by the clock, and by the CPU time
//! of the thread that does the work.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mainstem_disk::{Committer, RealFs, SegmentStore, Settings};
use mainstem_log::{BatchBuilder, Durability, LogId, Options, Store};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 5;

/// Measures something in a directory of its own, and prints it.
type Row = fn(&Path);

fn main() {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-log-{}", std::process::id()));
    println!("segment log, {} rounds, in {}", ROUNDS, root.display());
    println!("records of 100 bytes, one to a batch of 170, unless said otherwise\n");
    let wanted: Vec<String> =
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
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
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

/// How many a second, by the clock and by the CPU time of the thread.
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

/// Measures the log and the bare loop in turn.
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

/// Appends in turns of `group`, each committed.
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

/// Turns of one batch and of several on a log that asks for the page cache, by way of a mapping and by system calls.
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

/// So many appends wait for their completion at any time; the committer has a thread of its own.
fn in_flight(root: &Path) {
    let batch = batch(100);
    for window in [256, 4096] {
        let count = window * 500;
        compare(
            &format!("synced appends, {window} in flight"),
            || {
                let bell = Arc::new((Mutex::new(false), Condvar::new()));
                let ring = bell.clone();
                let wake = Arc::new(move || {
                    *ring.0.lock().unwrap() = true;
                    ring.1.notify_one();
                });
                let mut store = store(root, Settings::default(), Committer::Thread { wake });
                let log = store.open("log", &Options::default()).unwrap();
                rate(count, || fly(&mut store, log, &batch, count, window, &bell))
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

fn fly(
    store: &mut SegmentStore,
    log: LogId,
    batch: &[u8],
    count: usize,
    window: usize,
    bell: &(Mutex<bool>, Condvar),
) {
    let mut waiting = std::collections::VecDeque::new();
    let (mut sent, mut done) = (0, 0);
    let mut completions = Vec::new();
    while done < count {
        while sent < count && sent - done < window {
            waiting.push_back(store.append(log, batch).unwrap().ticket);
            sent += 1;
        }
        store.commit();
        store.completions(&mut completions);
        if completions.is_empty() {
            let mut has_rung = bell.0.lock().unwrap();
            while !*has_rung {
                has_rung = bell.1.wait(has_rung).unwrap();
            }
            *has_rung = false;
        }
        for completion in completions.drain(..) {
            assert_eq!(completion.outcome, Ok(()));
            while waiting.front().is_some_and(|ticket| *ticket <= completion.ticket) {
                waiting.pop_front();
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
                // The files of the journal are made in the first turn.
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
        // One record to a batch, and all batches of a size.
        next += (into.len() / batch_bytes) as u64;
    }
}

fn read_file(file: &Path, read_bytes: usize) {
    let mut file = fs::File::open(file).unwrap();
    let mut into = vec![0; read_bytes];
    while file.read(&mut into).unwrap() > 0 {}
}
