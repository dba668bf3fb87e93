//! When maintenance is due: by the records and options of each log, and by nothing else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, File, Fs, Mode, SegmentStore, Settings};
use mainstem_log::{
    BatchBuilder, Cleanup, LogAdmin, LogId, LogReader, LogWriter, Maintained, Options, Records, Store,
    batches,
};

const HOUR_MS: u64 = 60 * 60 * 1000;
/// A time of the wall clock.
const NOW_MS: u64 = 1_700_000_000_000;

fn open_on(fs: &Arc<FaultFs>) -> SegmentStore {
    let fs = Arc::clone(fs);
    // Reads come from files, where compaction has its effect.
    let settings =
        Settings { cache_bytes: 0, tail_bytes: 0, retention_check_ms: HOUR_MS, ..Settings::default() };
    SegmentStore::open(fs, PathBuf::from("/log"), settings, Committer::Inline).unwrap()
}

fn open() -> SegmentStore {
    open_on(&Arc::new(FaultFs::new(1)))
}

fn put(store: &mut SegmentStore, log: LogId, time_ms: u64, key: &str) {
    let mut builder = BatchBuilder::default();
    builder.push(time_ms.cast_signed(), Some(key.as_bytes()), Some(b"value"));
    store.append(log, builder.finish()).unwrap();
    store.commit();
}

/// Runs what is due. Returns when more is, and the most work of a call.
fn run(store: &mut SegmentStore, unix_ms: u64) -> (Option<u64>, u32) {
    let mut units_max = 0;
    for _ in 0..100_000 {
        let Maintained { due_ms, units } = store.maintain(unix_ms);
        store.commit();
        units_max = units_max.max(units);
        if units == 0 && due_ms.is_none_or(|due_ms| due_ms > unix_ms) {
            return (due_ms, units_max);
        }
    }
    panic!("maintenance never finishes");
}

/// The segments of a log.
fn segments(store: &mut SegmentStore, log: LogId) -> usize {
    let status = store.status(log);
    store.ranges(log, status.start..status.end, u64::MAX).unwrap().len()
}

fn offsets(store: &mut SegmentStore, log: LogId) -> Vec<u64> {
    let status = store.status(log);
    let mut bytes = Vec::new();
    store.read(log, status.start..status.end, usize::MAX, &mut bytes).unwrap();
    let records = |batch: mainstem_log::Batch<'_>| {
        let records = Records::of(batch.header, &batch.bytes()[61..]);
        records.map(|record| record.unwrap().offset).collect::<Vec<u64>>()
    };
    batches(&bytes).flat_map(|batch| records(mainstem_log::Batch::parse(batch.bytes()).unwrap())).collect()
}

fn compacted() -> Options {
    Options { cleanup: Cleanup::Compact, min_cleanable_dirty_ratio: 1.0, ..Options::default() }
}

#[test]
fn many_logs_due_at_once_take_one_small_step_per_call() {
    const LOGS: u64 = 2_000;
    let mut store = open();
    let options = Options { segment_ms: Some(HOUR_MS), ..Options::default() };
    let logs: Vec<LogId> = (0..LOGS).map(|log| store.open(&format!("l{log}"), &options).unwrap()).collect();
    for log in &logs {
        put(&mut store, *log, NOW_MS, "key");
    }
    assert_eq!(run(&mut store, NOW_MS).0, Some(NOW_MS + HOUR_MS));
    let before_due = store.maintain(NOW_MS + HOUR_MS - 1);
    assert_eq!(before_due, Maintained { due_ms: Some(NOW_MS + HOUR_MS), units: 0 }, "no log is visited");
    let mut calls = 0;
    loop {
        let Maintained { due_ms, units } = store.maintain(NOW_MS + HOUR_MS);
        assert!(units < 10_000, "{units} units in one call");
        calls += 1;
        if due_ms.is_none() {
            break;
        }
    }
    assert!(calls >= LOGS, "{calls} calls");
    store.commit();
    for log in logs {
        put(&mut store, log, NOW_MS + HOUR_MS, "key");
        assert_eq!(segments(&mut store, log), 2);
    }
}

#[test]
fn old_timestamps_do_not_close_a_segment_per_append() {
    let mut store = open();
    let options = Options {
        cleanup: Cleanup::Delete,
        segment_ms: Some(24 * HOUR_MS),
        retention_ms: Some(48 * HOUR_MS),
        ..Options::default()
    };
    let log = store.open("log", &options).unwrap();
    for minute in 0..60 {
        put(&mut store, log, 1000, "key");
        assert_eq!(run(&mut store, NOW_MS + minute * 60_000).0, Some(NOW_MS + HOUR_MS));
        assert_eq!((segments(&mut store, log), store.status(log).start), (1, 0));
    }
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS).0, None);
    assert_eq!(store.status(log).start, 60);
    // A record of now is not affected by the interval.
    let now_ms = NOW_MS + 2 * HOUR_MS;
    put(&mut store, log, now_ms, "key");
    assert_eq!(run(&mut store, now_ms).0, Some(now_ms + 24 * HOUR_MS));
    assert_eq!(run(&mut store, now_ms + 24 * HOUR_MS).0, Some(now_ms + 48 * HOUR_MS));
    assert_eq!(run(&mut store, now_ms + 48 * HOUR_MS).0, None);
    assert_eq!(store.status(log).start, 61);
}

#[test]
fn a_size_limit_is_due_when_it_is_exceeded() {
    let mut store = open();
    let options = Options {
        cleanup: Cleanup::Delete,
        segment_bytes: 300,
        retention_bytes: Some(1000),
        ..Options::default()
    };
    let log = store.open("log", &options).unwrap();
    let mut most = 0;
    for _ in 0..100 {
        put(&mut store, log, NOW_MS, "key");
        assert_eq!(run(&mut store, NOW_MS).0, None);
        most = most.max(store.status(log).bytes);
    }
    assert!((1000..1300).contains(&most), "{most} bytes");
}

#[test]
fn records_younger_than_the_minimum_lag_stay() {
    let mut store = open();
    let options = Options {
        segment_bytes: 150,
        min_compaction_lag_ms: HOUR_MS,
        min_cleanable_dirty_ratio: 0.0,
        ..compacted()
    };
    let log = store.open("log", &options).unwrap();
    // Each record has its own segment.
    for minute in 0..4 {
        put(&mut store, log, NOW_MS + 30 * 60_000 * minute, "key");
    }
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS - 1).0, Some(NOW_MS + HOUR_MS));
    assert_eq!(offsets(&mut store, log), [0, 1, 2, 3]);
    // The first one alone has no newer record of its key among those that may be compacted.
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS).0, Some(NOW_MS + 3 * HOUR_MS / 2));
    assert_eq!(offsets(&mut store, log), [0, 1, 2, 3]);
    assert_eq!(run(&mut store, NOW_MS + 3 * HOUR_MS / 2).0, Some(NOW_MS + 2 * HOUR_MS));
    assert_eq!(offsets(&mut store, log), [1, 2, 3]);
    assert_eq!(run(&mut store, NOW_MS + 2 * HOUR_MS).0, None);
    assert_eq!(offsets(&mut store, log), [2, 3], "the newest segment is never compacted");
}

#[test]
fn the_maximum_lag_closes_the_newest_segment_and_compacts_it() {
    let mut store = open();
    let lag = Options { max_compaction_lag_ms: Some(HOUR_MS), ..compacted() };
    let log = store.open("log", &lag).unwrap();
    let other = store.open("other", &compacted()).unwrap();
    for minute in 0..3 {
        for log in [log, other] {
            put(&mut store, log, NOW_MS + minute * 60_000, "key");
        }
    }
    assert_eq!(run(&mut store, NOW_MS).0, Some(NOW_MS + HOUR_MS));
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS - 1).0, Some(NOW_MS + HOUR_MS));
    assert_eq!(offsets(&mut store, log), [0, 1, 2]);
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS).0, None);
    assert_eq!(offsets(&mut store, log), [2]);
    assert_eq!(offsets(&mut store, other), [0, 1, 2]);
}

#[test]
fn the_maximum_lag_goes_before_the_ratio() {
    let mut store = open();
    let log = store.open("log", &Options { segment_bytes: 150, ..compacted() }).unwrap();
    let both = |store: &mut SegmentStore, time_ms| {
        put(store, log, time_ms, "key");
        put(store, log, time_ms, "other");
    };
    both(&mut store, NOW_MS);
    both(&mut store, NOW_MS);
    run(&mut store, NOW_MS);
    assert_eq!(offsets(&mut store, log), [1, 2, 3], "everything is uncompacted, which is the ratio");
    both(&mut store, NOW_MS + HOUR_MS);
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS).0, None);
    assert_eq!(offsets(&mut store, log), [1, 2, 3, 4, 5], "a part of it is compacted");
    // New options are due at once.
    let lag = Options { segment_bytes: 150, max_compaction_lag_ms: Some(2 * HOUR_MS), ..compacted() };
    assert_eq!(store.open("log", &lag).unwrap(), log);
    assert_eq!(run(&mut store, NOW_MS + HOUR_MS).0, Some(NOW_MS + 2 * HOUR_MS));
    run(&mut store, NOW_MS + 2 * HOUR_MS);
    assert_eq!(offsets(&mut store, log), [3, 4, 5]);
}

#[test]
fn a_restart_forgets_no_due_time() {
    let fs = Arc::new(FaultFs::new(1));
    let options = Options {
        cleanup: Cleanup::CompactAndDelete,
        min_compaction_lag_ms: HOUR_MS / 2,
        max_compaction_lag_ms: Some(HOUR_MS),
        retention_ms: Some(3 * HOUR_MS),
        ..compacted()
    };
    let mut first = open_on(&fs);
    let log = first.open("log", &options).unwrap();
    put(&mut first, log, NOW_MS, "key");
    put(&mut first, log, NOW_MS + 1, "key");
    drop(first);
    let mut second = open_on(&fs);
    let log = second.open("log", &options).unwrap();
    assert_eq!(run(&mut second, NOW_MS + 1000).0, Some(NOW_MS + HOUR_MS));
    run(&mut second, NOW_MS + HOUR_MS);
    assert_eq!(offsets(&mut second, log), [1]);
    let killed = Arc::new(fs.killed(1));
    drop(second);
    let mut third = open_on(&killed);
    let log = third.open("log", &options).unwrap();
    assert_eq!(run(&mut third, NOW_MS + 2 * HOUR_MS).0, Some(NOW_MS + 3 * HOUR_MS + 1));
    run(&mut third, NOW_MS + 3 * HOUR_MS + 1);
    assert_eq!(third.status(log).start, 2);
}

/// A file system that counts the directory syncs of one thread.
struct WatchedFs {
    fs: FaultFs,
    watched: ThreadId,
    dir_syncs: AtomicU32,
}

impl Fs for WatchedFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir(dir)
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        self.fs.open(path, mode)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if thread::current().id() == self.watched {
            self.dir_syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.fs.sync_dir(dir)
    }
}

/// Removing a segment needs the removal of the one before to be durable. The shard does not wait for that.
#[test]
fn retention_leaves_syncs_to_the_committer() {
    let fs = WatchedFs { fs: FaultFs::new(1), watched: thread::current().id(), dir_syncs: AtomicU32::new(0) };
    let fs = Arc::new(fs);
    let committer = Committer::Thread { wake: Arc::new(|| {}) };
    let dyn_fs: Arc<dyn Fs> = fs.clone();
    let mut store =
        SegmentStore::open(dyn_fs, PathBuf::from("/log"), Settings::default(), committer).unwrap();
    let options = Options {
        cleanup: Cleanup::Delete,
        segment_bytes: 150,
        retention_ms: Some(HOUR_MS),
        ..Options::default()
    };
    let log = store.open("log", &options).unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut completions = Vec::new();
    for end in 1..=20 {
        put(&mut store, log, NOW_MS, "key");
        while store.status(log).committed < end {
            store.completions(&mut completions);
            assert!(Instant::now() < deadline, "a commit does not complete");
            thread::yield_now();
        }
    }
    let before = fs.dir_syncs.load(Ordering::Relaxed);
    let mut unix_ms = NOW_MS + HOUR_MS;
    while store.status(log).start < 20 {
        // The shard looks again after some time while the committer creates a file or appends are in flight.
        unix_ms += 1;
        store.maintain(unix_ms);
        store.commit();
        assert!(Instant::now() < deadline, "{:?}", store.status(log));
        thread::yield_now();
    }
    assert_eq!(fs.dir_syncs.load(Ordering::Relaxed), before);
}
