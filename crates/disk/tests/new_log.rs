//! Creating a log: its file is created by the committer, and what is appended before waits in memory.

mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, SegmentStore, Settings};
use mainstem_log::contract::batch;
use mainstem_log::{
    Completion, Durability, Error, LogAdmin, LogId, LogReader, LogWriter, Options, State, Store, batches,
};
use rustix::io::Errno;
use watch::{TIMEOUT, commit, completions, open_watched};

fn reopen(fs: FaultFs) -> SegmentStore {
    SegmentStore::open(Arc::new(fs), PathBuf::from("/"), Settings::default(), Committer::Inline).unwrap()
}

fn append(store: &mut SegmentStore, log: LogId, salt: u64, bytes: usize) {
    store.append(log, &batch(salt, 1, bytes, salt.cast_signed())).unwrap();
}

/// Number of records that can be read.
fn records(store: &mut SegmentStore, log: LogId) -> u64 {
    let (status, mut read) = (store.status(log), Vec::new());
    store.read(log, status.start..status.end, usize::MAX, &mut read).unwrap();
    batches(&read).count() as u64
}

#[test]
fn the_owner_of_a_store_creates_no_file() {
    let fs = FaultFs::new(5);
    let (mut store, watch) = open_watched(&fs);
    watch.is_on.store(true, Ordering::Relaxed);
    let names: Vec<String> = (0..500).map(|number| format!("log-{number}")).collect();
    for (name, durability) in names.iter().zip([Durability::Fsync, Durability::Os].into_iter().cycle()) {
        let log = store.open(name, &Options { durability, ..Options::default() }).unwrap();
        append(&mut store, log, 1, 100);
    }
    commit(&mut store, names.len());
    watch.is_on.store(false, Ordering::Relaxed);
    assert_eq!(*watch.calls.lock().unwrap(), [""; 0]);
    let killed = fs.killed(5);
    drop(store);
    let mut store = reopen(killed);
    for name in names {
        let log = store.open(&name, &Options::default()).unwrap();
        assert_eq!(records(&mut store, log), 1, "{name}");
    }
}

#[test]
fn a_log_is_usable_before_its_file_exists() {
    for durability in [Durability::Fsync, Durability::Os] {
        let options = Options { durability, segment_bytes: 1000, ..Options::default() };
        let fs = FaultFs::new(6);
        let (mut store, watch) = open_watched(&fs);
        watch.hold(Some("create_dir"));
        let [log, gone] = ["log", "gone"].map(|name| store.open(name, &options).unwrap());
        for salt in 1..=4 {
            append(&mut store, log, salt, 300);
            append(&mut store, gone, salt, 300);
            store.commit();
            store.maintain(salt);
            assert_eq!(records(&mut store, log), salt);
            assert_eq!(store.find_time(log, 2).unwrap().map(|found| found.offset), (salt > 1).then_some(1));
        }
        assert!(!store.note(log, b"note"));
        store.remove(gone).unwrap();
        let mut none = Vec::new();
        store.completions(&mut none);
        assert_eq!((none.len(), store.status(log).committed, store.status(log).end), (0, 0, 4));

        watch.hold(None);
        let mut done: Vec<Completion> = Vec::new();
        while store.status(log).committed < 4 {
            done.extend(completions(&mut store, 1));
        }
        assert!(
            done.iter().all(|completion| completion.log == log && completion.outcome.is_ok()),
            "{done:?}"
        );
        // A new log may have the name of the removed one.
        let again = store.open("gone", &options).unwrap();
        append(&mut store, again, 9, 10);
        commit(&mut store, 1);
        assert_eq!((records(&mut store, log), records(&mut store, again)), (4, 1));
    }
}

#[test]
fn closing_a_store_writes_what_waits() {
    let fs = FaultFs::new(7);
    let (mut store, _) = open_watched(&fs);
    let names: Vec<String> = (0..50).map(|number| format!("log-{number}")).collect();
    for name in &names {
        let log = store.open(name, &Options::default()).unwrap();
        append(&mut store, log, 1, 100);
    }
    drop(store);
    let mut store = reopen(fs.survivor(7));
    for name in names {
        let log = store.open(&name, &Options::default()).unwrap();
        assert_eq!(records(&mut store, log), 1, "{name}");
    }
}

#[test]
fn a_log_that_cannot_be_created_fails_alone() {
    let fs = FaultFs::new(8);
    let (mut store, watch) = open_watched(&fs);
    *watch.refused.lock().unwrap() =
        vec![("full.log", Errno::NOSPC), ("files.log", Errno::MFILE), ("error.log", Errno::IO)];
    let names = ["full", "other", "files", "error"];
    let logs = names.map(|name| store.open(name, &Options::default()).unwrap());
    let [full, other, files, error] = logs;
    watch.hold(Some("create_dir"));
    for salt in 0..3 {
        for log in logs {
            append(&mut store, log, salt, 100);
        }
        store.commit();
    }
    watch.hold(None);
    let outcome = |done: &[Completion], log| {
        let mut of_log = done.iter().filter(|completion| completion.log == log);
        of_log.next_back().map(|completion| completion.outcome.clone())
    };
    let done = completions(&mut store, logs.len());
    assert_eq!(outcome(&done, full), Some(Err(Error::Full)));
    assert_eq!(outcome(&done, files), Some(Err(Error::TooManyFiles)));
    assert!(matches!(outcome(&done, error), Some(Err(Error::System(_)))), "{done:?}");
    assert_eq!(outcome(&done, other), Some(Ok(())));
    for log in [full, files, error] {
        let status = store.status(log);
        assert_eq!((status.state, status.committed, status.end), (State::Full, 0, 0));
    }
    assert_eq!(store.status(other).committed, 3);

    // As soon as there is space, everything is as if nothing had happened.
    watch.refused.lock().unwrap().clear();
    for log in logs {
        append(&mut store, log, 9, 100);
    }
    commit(&mut store, logs.len());
    for (log, end) in [(full, 1), (files, 1), (error, 1), (other, 4)] {
        let status = store.status(log);
        assert_eq!((status.state, status.committed, records(&mut store, log)), (State::Ready, end, end));
    }
}

#[test]
fn appends_that_wait_are_bounded() {
    const LOGS: usize = 40;
    let fs = FaultFs::new(9);
    let (mut store, watch) = open_watched(&fs);
    watch.hold(Some("create_dir"));
    watch.is_on.store(true, Ordering::Relaxed);
    let mut logs = Vec::new();
    for number in 0..LOGS {
        let log = store.open(&format!("log-{number}"), &Options::default()).unwrap();
        append(&mut store, log, 1, 1 << 20);
        store.commit();
        logs.push(log);
    }
    let created = watch.calls.lock().unwrap().iter().filter(|call| call.starts_with("create_dir")).count();
    assert!((LOGS - 16..LOGS - 10).contains(&created), "{created}");
    watch.hold(None);
    commit(&mut store, LOGS);
    for log in logs {
        assert_eq!(records(&mut store, log), 1);
    }
}

const NAMES: [&str; 3] = ["one", "two", "three"];

/// How runs that end at some call of the file system went.
#[derive(Default)]
struct Outcomes {
    /// Logs that do not exist after the crash.
    missing: usize,
    /// Runs in which everything was acknowledged.
    complete: u64,
    /// Logs that have lost acknowledged records.
    broken: Vec<String>,
}

/// Creates logs until the file system crashes at its call `crash_at`. Returns what was acknowledged of each.
fn create_until_crash(fs: &FaultFs, crash_at: u64, skips_dir_syncs: bool) -> [u64; NAMES.len()] {
    let (mut store, watch) = open_watched(fs);
    watch.skips_dir_syncs.store(skips_dir_syncs, Ordering::Relaxed);
    fs.set(Plan { crash_at: Some(crash_at), ..Plan::default() });
    let logs = NAMES.map(|name| store.open(name, &Options::default()));
    for salt in 0..3 {
        for log in logs.iter().flatten() {
            let appended = store.append(*log, &batch(salt, 1, 100, 1));
            assert!(appended.is_ok() || fs.has_crashed(), "{appended:?}");
        }
        store.commit();
    }
    let mut acknowledged = [0; NAMES.len()];
    let (since, mut done) = (Instant::now(), Vec::new());
    while !fs.has_crashed() && acknowledged != [3; NAMES.len()] {
        assert!(since.elapsed() < TIMEOUT, "{acknowledged:?}, call {crash_at}");
        store.completions(&mut done);
        for completion in done.drain(..).filter(|completion| completion.outcome.is_ok()) {
            let at = logs.iter().position(|log| *log == Ok(completion.log)).unwrap();
            acknowledged[at] = store.status(completion.log).committed;
        }
        std::thread::yield_now();
    }
    acknowledged
}

/// Every call in turn is the last one.
fn crash_at_every_call(skips_dir_syncs: bool) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for (crash_at, seed) in (1..40).flat_map(|crash_at| (0..4).map(move |seed| (crash_at, seed))) {
        let fs = FaultFs::new(seed);
        let acknowledged = create_until_crash(&fs, crash_at, skips_dir_syncs);
        outcomes.complete += u64::from(acknowledged == [3; NAMES.len()]);
        let mut store = reopen(if seed % 2 == 0 { fs.killed(seed) } else { fs.survivor(seed) });
        outcomes.missing += NAMES.len() - store.names().len();
        for (name, acknowledged) in NAMES.iter().zip(acknowledged) {
            let log = store.open(name, &Options::default()).unwrap();
            let end = store.status(log).end;
            if end < acknowledged {
                outcomes.broken.push(format!("{name} ends at {end}, call {crash_at}, seed {seed}"));
            }
            assert_eq!(records(&mut store, log), end);
            append(&mut store, log, 7, 10);
            commit(&mut store, 1);
        }
    }
    outcomes
}

#[test]
fn survives_a_crash_at_any_call_of_a_creation() {
    let Outcomes { missing, complete, broken } = crash_at_every_call(false);
    assert_eq!(broken, [""; 0]);
    assert!(missing > 20 && complete > 20, "{missing} logs were missing, {complete} runs were complete");
}

#[test]
fn crashes_find_directories_that_are_not_synced() {
    assert!(!crash_at_every_call(true).broken.is_empty());
}
