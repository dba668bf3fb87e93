//! A log's next segment: created by the committer, written before it has its name, and acknowledged after that. The
//! thread that uses the store makes no slow system call.

mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, Fs, SegmentStore, Settings};
use mainstem_log::contract::batch;
use mainstem_log::{
    BatchBuilder, Cleanup, Completion, Durability, LogAdmin, LogId, LogReader, LogWriter, Options, State,
    Store, batches,
};
use watch::{TIMEOUT, commit, completions, open_watched};

fn open(fs: &FaultFs) -> SegmentStore {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    SegmentStore::open(fs, PathBuf::from("/"), Settings::default(), Committer::Inline).unwrap()
}

fn unnamed(fs: &FaultFs) -> Vec<String> {
    fs.files().into_iter().map(|(path, _)| path).filter(|path| path.ends_with(".creating")).collect()
}

/// Appends until the file system crashes. Returns the end of what was acknowledged.
fn append_until_crash(store: &mut SegmentStore, log: LogId, fs: &FaultFs) -> u64 {
    let (mut acknowledged, mut end) = (0, 0);
    for salt in 0..12 {
        if let Ok(appended) = store.append(log, &batch(salt, 1, 150, salt.cast_signed())) {
            end = appended.base_offset + 1;
        }
        store.commit();
        let mut completions: Vec<Completion> = Vec::new();
        store.completions(&mut completions);
        if completions.iter().any(|completion| completion.outcome.is_ok()) {
            acknowledged = end;
        }
        if fs.has_crashed() {
            break;
        }
    }
    acknowledged
}

/// Every call in turn is the last one, before, at and after the creation and the naming of each segment.
#[test]
fn survives_a_crash_at_any_call_of_a_roll() {
    let mut was_unnamed = 0;
    for durability in [Durability::Fsync, Durability::Os] {
        for (crash_at, seed) in (1..90).flat_map(|crash_at| (0..4).map(move |seed| (crash_at, seed))) {
            let fs = FaultFs::new(seed);
            let mut store = open(&fs);
            let options = Options { durability, segment_bytes: 300, ..Options::default() };
            let log = store.open("plant", &options).unwrap();
            store.commit();
            fs.set(Plan { crash_at: Some(crash_at), ..Plan::default() });
            let acknowledged = append_until_crash(&mut store, log, &fs);
            // A loss of power may take what the operating system alone has.
            let fs = if seed % 2 == 0 || durability == Durability::Os {
                fs.killed(seed)
            } else {
                fs.survivor(seed)
            };
            was_unnamed += unnamed(&fs).len();

            let mut store = open(&fs);
            let log = store.open("plant", &options).unwrap();
            assert_eq!(unnamed(&fs), [""; 0]);
            let status = store.status(log);
            assert!(status.end >= acknowledged, "{durability:?}, call {crash_at}, seed {seed}: {status:?}");
            let mut read = Vec::new();
            store.read(log, 0..status.end, usize::MAX, &mut read).unwrap();
            assert_eq!(batches(&read).count() as u64, status.end);
            drop(store);
            assert_eq!(unnamed(&fs), [""; 0]);
        }
    }
    assert!(was_unnamed > 20, "{was_unnamed} crashes left a file without a name");
}

/// Appends a batch to each log and waits until all are acknowledged.
fn append_to_all(store: &mut SegmentStore, logs: &[LogId], salt: u64) {
    for log in logs {
        store.append(*log, &batch(salt, 1, 900, salt.cast_signed())).unwrap();
    }
    commit(store, logs.len());
}

#[test]
fn the_owner_of_a_store_makes_no_slow_call() {
    let fs = FaultFs::new(7);
    let (mut store, watch) = open_watched(&fs);
    let by_size = Options {
        segment_bytes: 10_000,
        cleanup: Cleanup::Delete,
        retention_bytes: Some(30_000),
        ..Options::default()
    };
    let by_owner = Options { cleanup: Cleanup::Manual, durability: Durability::Os, ..by_size.clone() };
    let by_age = Options { segment_bytes: 1 << 20, segment_ms: Some(10), ..by_owner.clone() };
    let logs: Vec<LogId> = [("size", &by_size), ("owner", &by_owner), ("age", &by_age)]
        .map(|(name, options)| store.open(name, options).unwrap())
        .to_vec();
    append_to_all(&mut store, &logs, 0);

    watch.is_on.store(true, Ordering::Relaxed);
    for salt in 1..200 {
        append_to_all(&mut store, &logs, salt);
        store.maintain(salt);
        for log in &logs[1..] {
            let end = store.status(*log).end;
            store.truncate_prefix(*log, end.saturating_sub(20)).unwrap();
        }
    }
    watch.is_on.store(false, Ordering::Relaxed);
    assert_eq!(*watch.calls.lock().unwrap(), [""; 0]);

    // All logs have rolled, and what is not needed was removed.
    drop(store);
    for name in ["size", "owner", "age"] {
        let is_segment = |path: &str| path.contains(name) && path.ends_with(".segment");
        let segments: Vec<(String, u64)> =
            fs.files().into_iter().filter(|(path, _)| is_segment(path)).collect();
        let bytes: u64 = segments.iter().map(|(_, bytes)| bytes).sum();
        assert!(segments.len() > 1 && bytes < 100_000, "{segments:?}");
    }
}

/// The start of a log moves past a segment before the next one is known to be on disk. Nobody moves it again.
#[test]
fn a_truncated_segment_goes_once_the_next_one_has_its_name() {
    for durability in [Durability::Fsync, Durability::Os] {
        let fs = FaultFs::new(5);
        let (mut store, watch) = open_watched(&fs);
        let options = Options { segment_bytes: 1_000, durability, ..Options::default() };
        let log = store.open("log", &options).unwrap();
        watch.hold(Some("rename"));
        append_to_all(&mut store, &[log], 0);
        let segments = || -> Vec<(String, u64)> {
            fs.files().into_iter().filter(|(path, _)| path.ends_with(".segment")).collect()
        };
        // It goes on in the first segment until there is a file for the next one.
        let start = loop {
            let start = store.status(log).end;
            store.append(log, &batch(start, 1, 900, start.cast_signed())).unwrap();
            store.commit();
            if segments()[0].1 < store.status(log).bytes {
                break start;
            }
            completions(&mut store, 1);
        };
        store.truncate_prefix(log, start).unwrap();
        store.commit();
        watch.hold(None);

        let since = Instant::now();
        while !matches!(&segments()[..], [(path, _)] if path.ends_with(&format!("{start:020}.segment"))) {
            assert!(since.elapsed() < TIMEOUT, "{durability:?}: {:?}", segments());
            store.completions(&mut Vec::new());
            store.maintain(1);
        }
        assert_eq!(store.status(log).start, start);
    }
}

/// Thousands of logs were removed, and the committer is busy with that.
#[test]
fn creating_a_log_does_not_wait_for_removals() {
    let fs = FaultFs::new(11);
    let (mut store, watch) = open_watched(&fs);
    let options = Options::default();
    let other = store.open("other", &options).unwrap();
    append_to_all(&mut store, &[other], 1);
    let gone: Vec<LogId> =
        (0..2500).map(|number| store.open(&format!("gone-{number}"), &options).unwrap()).collect();
    append_to_all(&mut store, &gone, 1);
    watch.hold(Some("remove_dir"));
    for log in gone {
        store.remove(log).unwrap();
    }
    store.commit();

    watch.is_on.store(true, Ordering::Relaxed);
    let since = Instant::now();
    let created = store.open("new", &options).unwrap();
    store.append(created, &batch(1, 1, 100, 1)).unwrap();
    store.commit();
    let took = since.elapsed();
    watch.is_on.store(false, Ordering::Relaxed);
    watch.hold(None);
    assert!(took < TIMEOUT / 2, "{took:?}");
    let calls = std::mem::take(&mut *watch.calls.lock().unwrap());
    assert_eq!(calls, [""; 0]);
    commit(&mut store, 1);

    // What is left is as it should be, also after a loss of power.
    drop(store);
    let mut store = open(&fs.survivor(11));
    let mut names = store.names();
    names.sort();
    assert_eq!(names, ["new", "other"]);
    for name in names {
        let log = store.open(&name, &options).unwrap();
        assert_eq!(store.status(log).end, 1, "{name}");
    }
}

fn compacting() -> Options {
    Options {
        cleanup: Cleanup::Compact,
        segment_bytes: 2_000,
        min_cleanable_dirty_ratio: 0.1,
        ..Options::default()
    }
}

/// Appends a hundred records with seven keys.
fn append_keys(store: &mut SegmentStore, log: LogId) {
    for salt in 0_u8..100 {
        let mut builder = BatchBuilder::default();
        builder.push(i64::from(salt), Some(&[salt % 7]), Some(&[salt; 200]));
        store.append(log, builder.finish()).unwrap();
        commit(store, 1);
    }
}

/// Runs maintenance until most of these records are gone.
fn compact(store: &mut SegmentStore, log: LogId, mut unix_ms: u64) {
    let since = Instant::now();
    while store.status(log).bytes > 8_000 {
        assert!(since.elapsed() < TIMEOUT, "{:?}", store.status(log));
        unix_ms += 1;
        store.maintain(unix_ms);
        store.commit();
        std::thread::yield_now();
    }
}

/// The newest record of each key is there.
fn assert_newest(store: &mut SegmentStore, log: LogId) {
    let (status, mut read) = (store.status(log), Vec::new());
    store.read(log, status.start..status.end, usize::MAX, &mut read).unwrap();
    let mut newest = BTreeMap::new();
    for batch in batches(&read) {
        for record in batch.records().map(Result::unwrap) {
            newest.insert(record.key.unwrap()[0], (record.offset, record.value.unwrap()[0]));
        }
    }
    let end = status.end;
    let expected = (93_u8..100).map(|salt| (salt % 7, (end - 100 + u64::from(salt), salt))).collect();
    assert_eq!(newest, expected);
}

/// The owner of a store reads and writes segments, and opens them. Everything else is done by the committer.
#[test]
fn compaction_makes_no_slow_call() {
    let fs = FaultFs::new(3);
    let (mut store, watch) = open_watched(&fs);
    let options = compacting();
    let log = store.open("keys", &options).unwrap();
    watch.is_on.store(true, Ordering::Relaxed);
    append_keys(&mut store, log);
    compact(&mut store, log, 1_000);
    watch.is_on.store(false, Ordering::Relaxed);
    let is_slow = |call: &&String| !call.starts_with("open ");
    assert_eq!(watch.calls.lock().unwrap().iter().find(is_slow), None);

    // The newest record of each key is there, also after a crash.
    drop(store);
    let mut store = open(&fs.survivor(3));
    let log = store.open("keys", &options).unwrap();
    assert_newest(&mut store, log);
}

/// Segments are being replaced, which takes long: the log is read from the old ones, and what is truncated goes later.
#[test]
fn a_log_is_used_while_its_segments_are_replaced() {
    for (start, is_removed) in [(0, false), (3, false), (50, false), (93, false), (0, true)] {
        let fs = FaultFs::new(6);
        let options = compacting();
        let mut store = open(&fs);
        let log = store.open("keys", &options).unwrap();
        append_keys(&mut store, log);
        drop(store);
        // What was appended before is in no memory.
        let (mut store, watch) = open_watched(&fs);
        let log = store.open("keys", &options).unwrap();
        let read_all = |store: &mut SegmentStore| {
            let (status, mut read) = (store.status(log), Vec::new());
            store.read(log, status.start..status.end, usize::MAX, &mut read).unwrap();
            read
        };
        let before = read_all(&mut store);
        watch.hold(Some("swap"));
        let (since, mut unix_ms) = (Instant::now(), 1_000);
        while !watch.has_waited.load(Ordering::Relaxed) {
            assert!(since.elapsed() < TIMEOUT, "{:?}", store.status(log));
            unix_ms += 1;
            store.maintain(unix_ms);
            std::thread::yield_now();
        }
        assert!(read_all(&mut store) == before, "it is read from the old segments");
        if is_removed {
            store.remove(log).unwrap();
        } else {
            store.truncate_prefix(log, start).unwrap();
        }
        assert!(is_removed || read_all(&mut store).len() <= before.len());
        watch.hold(None);
        if !is_removed {
            append_keys(&mut store, log);
            compact(&mut store, log, unix_ms);
            assert_newest(&mut store, log);
            assert_eq!(store.status(log).start, start);
        }

        drop(store);
        let mut store = open(&fs.survivor(6));
        assert_eq!(store.names().is_empty(), is_removed);
        if !is_removed {
            let log = store.open("keys", &options).unwrap();
            assert_newest(&mut store, log);
        }
    }
}

/// A replacement whose name does not fit into the directory is tried again when there may be space.
#[test]
fn compaction_survives_a_full_directory() {
    let fs = FaultFs::new(4);
    let (mut store, watch) = open_watched(&fs);
    let options = compacting();
    let log = store.open("keys", &options).unwrap();
    append_keys(&mut store, log);
    *watch.refused_swaps.lock().unwrap() = 1;
    let (since, mut unix_ms) = (Instant::now(), 1_000);
    while *watch.refused_swaps.lock().unwrap() > 0 {
        assert!(since.elapsed() < TIMEOUT, "{:?}", store.status(log));
        unix_ms += 1;
        store.maintain(unix_ms);
        store.commit();
        std::thread::yield_now();
    }
    assert_eq!(store.status(log).state, State::Ready);
    assert_newest(&mut store, log);
    compact(&mut store, log, unix_ms + 60_000);
    assert_newest(&mut store, log);
}
