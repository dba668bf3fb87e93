//! A log whose next segment cannot get its name, because the directory is full, refuses appends and goes on once there
//! is space. Nothing is acknowledged before the segment has its name, and nothing that was appended is lost then.

mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, Fs, SegmentStore, Settings};
use mainstem_log::contract::batch;
use mainstem_log::{
    Cleanup, Completion, Durability, Error, LogAdmin, LogId, LogReader, LogWriter, Options, State, Store,
    batches,
};
use watch::{TIMEOUT, commit, completions, open_watched};

const FULL: Plan = Plan {
    crash_at: None,
    failing_write: None,
    failing_sync: None,
    failing_read: None,
    failing_name: None,
    full_renames: u64::MAX,
    space_bytes: None,
};

fn open(fs: &FaultFs) -> SegmentStore {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    SegmentStore::open(fs, PathBuf::from("/"), Settings::default(), Committer::Inline).unwrap()
}

fn options(durability: Durability) -> Options {
    Options { durability, segment_bytes: 300, ..Options::default() }
}

fn append(store: &mut SegmentStore, log: LogId, bytes: usize) -> Result<u64, Error> {
    let salt = store.status(log).end;
    store.append(log, &batch(salt, 1, bytes, salt.cast_signed())).map(|appended| appended.base_offset)
}

/// Number of records of a log, all of which can be read.
fn records(store: &mut SegmentStore, log: LogId) -> u64 {
    let (status, mut read) = (store.status(log), Vec::new());
    store.read(log, status.start..status.end, usize::MAX, &mut read).unwrap();
    assert!(batches(&read).map(|batch| batch.header.base_offset).eq(status.start..status.end));
    status.end - status.start
}

/// Appends and commits until an append is refused. Returns the number of appends that were not.
fn append_until_refused(store: &mut SegmentStore, log: LogId) -> u64 {
    let since = Instant::now();
    let mut count = 0;
    loop {
        assert!(since.elapsed() < TIMEOUT, "{count}: {:?}", store.status(log));
        match append(store, log, 100) {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error, Error::Full);
                return count;
            }
        }
        store.commit();
        // Without this the next append may come before the attempt to name the segment.
        store.completions(&mut Vec::new());
    }
}

/// Runs maintenance until everything is acknowledged.
fn heal(store: &mut SegmentStore, log: LogId, mut unix_ms: u64) {
    let since = Instant::now();
    while store.status(log).committed < store.status(log).end {
        assert!(since.elapsed() < TIMEOUT, "{:?}", store.status(log));
        unix_ms += 1_000;
        store.maintain(unix_ms);
        std::thread::yield_now();
    }
}

#[test]
fn a_log_without_space_for_a_name_heals() {
    for durability in [Durability::Fsync, Durability::Os] {
        let fs = FaultFs::new(5);
        let (mut store, _watch) = open_watched(&fs);
        let log = store.open("log", &options(durability)).unwrap();
        let other = store.open("other", &Options::default()).unwrap();
        append(&mut store, log, 100).unwrap();
        append(&mut store, other, 100).unwrap();
        commit(&mut store, 2);

        fs.set(FULL);
        let end = 1 + append_until_refused(&mut store, log);
        let status = store.status(log);
        assert_eq!((status.state, status.end), (State::Full, end));
        assert!(status.committed < end, "{status:?}");
        // Attempts that fail change nothing, and other logs do not wait.
        for unix_ms in 1..20 {
            store.maintain(unix_ms * 1_000);
            append(&mut store, other, 100).unwrap();
            commit(&mut store, 1);
        }
        assert_eq!((store.status(log), append(&mut store, log, 100)), (status, Err(Error::Full)));
        assert_eq!(records(&mut store, log), end);

        fs.set(Plan::default());
        heal(&mut store, log, 20_000);
        assert_eq!(store.status(log).state, State::Ready);
        append(&mut store, log, 100).unwrap();
        commit(&mut store, 1);
        drop(store);
        let mut store = open(&fs.survivor(5));
        let log = store.open("log", &options(durability)).unwrap();
        assert_eq!(records(&mut store, log), end + 1);
    }
}

/// Attempts are a second apart, however often maintenance is called.
#[test]
fn attempts_are_rare() {
    let fs = FaultFs::new(6);
    let mut store = open(&fs);
    let log = store.open("log", &options(Durability::Fsync)).unwrap();
    store.commit();
    fs.set(FULL);
    append_until_refused(&mut store, log);
    let before = fs.renames();
    for unix_ms in 0..10_000 {
        store.maintain(unix_ms);
    }
    let attempts = fs.renames() - before;
    assert!((9..=12).contains(&attempts), "{attempts} attempts in 10 s");
}

/// The disk is full as well, which rolls back appends to a segment that has no name yet.
#[test]
fn a_rollback_keeps_what_waits_for_a_name() {
    // The second one needs another segment, the first one does not.
    for bytes in [200, 5_000] {
        let fs = FaultFs::new(7);
        let (mut store, watch) = open_watched(&fs);
        let log = store.open("log", &options(Durability::Fsync)).unwrap();
        append(&mut store, log, 500).unwrap();
        commit(&mut store, 1);

        watch.hold(Some("rename"));
        fs.set(FULL);
        append(&mut store, log, 100).unwrap();
        store.commit();
        watch.hold(None);
        let since = Instant::now();
        while fs.renames() == 0 {
            assert!(since.elapsed() < TIMEOUT, "no attempt to name a segment");
            std::thread::yield_now();
        }
        // The refusal is not processed before the next commit, so this append is accepted.
        if bytes < 300 {
            fs.set(Plan { space_bytes: Some(0), ..FULL });
        }
        append(&mut store, log, bytes).unwrap();
        fs.set(Plan { space_bytes: Some(0), ..FULL });
        store.commit();
        assert_eq!((store.status(log).state, store.status(log).end), (State::Full, 2));
        assert_eq!(records(&mut store, log), 2);

        fs.set(Plan::default());
        store.commit();
        heal(&mut store, log, 1_000);
        append(&mut store, log, 100).unwrap();
        store.commit();
        heal(&mut store, log, 10_000);
        let mut done = completions(&mut store, 3);
        store.completions(&mut done);
        let failed = done.iter().filter(|completion| completion.outcome == Err(Error::Full)).count();
        assert_eq!((failed, store.status(log).end), (1, 3), "{done:?}");
        drop(store);
        let mut store = open(&fs.survivor(7));
        let log = store.open("log", &options(Durability::Fsync)).unwrap();
        assert_eq!(store.status(log).end, 3);
        records(&mut store, log);
    }
}

/// What waits for a name is not acknowledged, so closing the store or removing the log may drop it.
#[test]
fn closing_and_removing_end_the_wait() {
    let fs = FaultFs::new(8);
    let mut store = open(&fs);
    let [kept, removed] =
        ["kept", "removed"].map(|name| store.open(name, &options(Durability::Fsync)).unwrap());
    fs.set(FULL);
    for log in [kept, removed] {
        append_until_refused(&mut store, log);
    }
    assert_eq!(store.truncate_suffix(kept, 0), Err(Error::Full));
    let committed = store.status(kept).committed;
    assert_eq!(store.truncate_prefix(kept, committed + 1), Err(Error::Full));
    store.remove(removed).unwrap();
    store.commit();
    // There is space for the checkpoint, but not yet for the name.
    fs.set(Plan { full_renames: 1, ..Plan::default() });
    drop(store);

    let fs = fs.survivor(8);
    let mut store = open(&fs);
    let kept = store.open("kept", &options(Durability::Fsync)).unwrap();
    assert!(store.status(kept).end >= committed, "{:?}", store.status(kept));
    records(&mut store, kept);
}

/// Retention makes space while the newest segment has no name.
#[test]
fn retention_goes_on() {
    let fs = FaultFs::new(9);
    let mut store = open(&fs);
    let mut options = Options { cleanup: Cleanup::Delete, ..options(Durability::Fsync) };
    let log = store.open("log", &options).unwrap();
    for _ in 0..20 {
        append(&mut store, log, 100).unwrap();
        store.commit();
    }
    fs.set(FULL);
    append_until_refused(&mut store, log);
    options.retention_bytes = Some(600);
    store.open("log", &options).unwrap();
    for unix_ms in 0..100 {
        store.maintain(unix_ms);
    }
    let status = store.status(log);
    assert_eq!(status.state, State::Full);
    assert!(status.start > 10 && status.bytes < 1_500, "{status:?}");
}

/// A crash at any call, while names are refused and after that.
#[test]
fn survives_a_crash_at_any_call() {
    for (crash_at, seed) in (1..70).flat_map(|crash_at| (0..6).map(move |seed| (crash_at, seed))) {
        let durability = if seed % 3 == 0 { Durability::Os } else { Durability::Fsync };
        let fs = FaultFs::new(seed);
        let mut store = open(&fs);
        let log = store.open("log", &options(durability)).unwrap();
        store.commit();
        fs.set(Plan { crash_at: Some(crash_at), full_renames: 1 + seed % 3, ..Plan::default() });
        let (mut acknowledged, mut unix_ms) = (0, 0);
        for _ in 0..40 {
            let end = append(&mut store, log, 100).map_or(0, |offset| offset + 1);
            store.commit();
            unix_ms += 300;
            store.maintain(unix_ms);
            let mut done: Vec<Completion> = Vec::new();
            store.completions(&mut done);
            if store.status(log).state != State::Broken {
                acknowledged = store.status(log).committed;
            } else if done.iter().any(|completion| completion.outcome.is_ok()) {
                acknowledged = acknowledged.max(end);
            }
            if fs.has_crashed() {
                break;
            }
        }
        let fs = if durability == Durability::Os { fs.killed(seed) } else { fs.survivor(seed) };
        let mut store = open(&fs);
        let log = store.open("log", &options(durability)).unwrap();
        let status = store.status(log);
        assert!(status.end >= acknowledged, "{crash_at}, {seed}: {status:?}, not {acknowledged}");
        records(&mut store, log);
    }
}
