//! A log's next segment: created by the committer, written before it has its name, and acknowledged after that. The
//! thread that uses the store makes no slow system call.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, File, Fs, Mode, SegmentStore, Settings};
use mainstem_log::contract::batch;
use mainstem_log::{
    BatchBuilder, Cleanup, Completion, Durability, LogAdmin, LogId, LogReader, LogWriter, Options, State,
    Store, batches,
};

/// Longest wait for a completion.
const TIMEOUT: Duration = Duration::from_secs(20);

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

/// Slow calls that a thread made.
struct Watch {
    thread: ThreadId,
    is_on: AtomicBool,
    calls: Mutex<Vec<String>>,
    /// Whether other threads have to wait before they remove a directory.
    is_held: Mutex<bool>,
    released: Condvar,
    /// How many files get the name of a replacement before there is space for it.
    refused_swaps: Mutex<u32>,
}

impl Watch {
    fn note(&self, call: &str, path: &Path) {
        if self.is_on.load(Ordering::Relaxed) && std::thread::current().id() == self.thread {
            self.calls.lock().unwrap().push(format!("{call} {}", path.display()));
        }
    }

    fn hold_removals(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.released.notify_all();
    }

    /// Waits while removals are held. Gives up in the end, so that a test fails instead of hanging.
    fn wait_for_release(&self) {
        if std::thread::current().id() != self.thread {
            let is_held = self.is_held.lock().unwrap();
            drop(self.released.wait_timeout_while(is_held, TIMEOUT, |is_held| *is_held).unwrap());
        }
    }
}

/// Notes the slow calls of one thread.
struct WatchedFs {
    fs: FaultFs,
    watch: Arc<Watch>,
}

struct WatchedFile {
    file: Arc<dyn File>,
    path: PathBuf,
    watch: Arc<Watch>,
}

impl Fs for WatchedFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.watch.note("list", dir);
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.watch.note("create_dir", dir);
        self.fs.create_dir(dir)
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        self.watch.note("open", path);
        let file = self.fs.open(path, mode)?;
        Ok(Arc::new(WatchedFile { file, path: path.to_owned(), watch: Arc::clone(&self.watch) }))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.watch.note("remove_file", path);
        self.fs.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.watch.note("remove_dir", dir);
        self.watch.wait_for_release();
        self.fs.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watch.note("rename", from);
        let is_swap = to.extension().is_some_and(|extension| extension == "swap");
        let mut refused = self.watch.refused_swaps.lock().unwrap();
        if is_swap && *refused > 0 {
            *refused -= 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.fs.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.watch.note("sync_dir", dir);
        self.fs.sync_dir(dir)
    }
}

impl File for WatchedFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.watch.note("sync_data", &self.path);
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.watch.note("set_len", &self.path);
        self.file.set_len(len)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.watch.note("allocate", &self.path);
        self.file.allocate(at, len)
    }

    fn as_std(&self) -> Option<&fs::File> {
        None
    }
}

/// Opens a store with a committer thread, whose calls by this thread can be watched.
fn open_watched(fs: &FaultFs) -> (SegmentStore, Arc<Watch>) {
    let thread = std::thread::current().id();
    let watch = Arc::new(Watch {
        thread,
        is_on: AtomicBool::new(false),
        calls: Mutex::default(),
        is_held: Mutex::default(),
        released: Condvar::new(),
        refused_swaps: Mutex::default(),
    });
    let watched = WatchedFs { fs: fs.clone(), watch: Arc::clone(&watch) };
    let committer = Committer::Thread { wake: Arc::new(|| {}) };
    let settings = Settings { checkpoint_bytes: 20_000, ..Settings::default() };
    let store = SegmentStore::open(Arc::new(watched), PathBuf::from("/"), settings, committer);
    (store.unwrap(), watch)
}

/// Appends a batch to each log and waits until all are acknowledged.
fn append_to_all(store: &mut SegmentStore, logs: &[LogId], salt: u64) {
    for log in logs {
        store.append(*log, &batch(salt, 1, 900, salt.cast_signed())).unwrap();
    }
    commit(store, logs.len());
}

/// Commits and waits for that many completions.
fn commit(store: &mut SegmentStore, count: usize) {
    store.commit();
    let (since, mut completions) = (Instant::now(), Vec::new());
    while completions.len() < count {
        store.completions(&mut completions);
        assert!(since.elapsed() < TIMEOUT, "{} of {count}", completions.len());
        std::thread::yield_now();
    }
    assert!(completions.iter().all(|completion| completion.outcome.is_ok()), "{completions:?}");
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
    watch.hold_removals(true);
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
    watch.hold_removals(false);
    assert!(took < TIMEOUT / 2, "{took:?}");
    let calls = std::mem::take(&mut *watch.calls.lock().unwrap());
    assert_eq!(calls, ["create_dir /new.log", "open /new.log/00000000000000000000.segment"]);
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
    let expected = (93_u8..100).map(|salt| (salt % 7, (u64::from(salt), salt))).collect();
    assert_eq!(newest, expected);
}

/// Replacing segments by compacted ones still renames and removes files here, but syncs no content.
#[test]
fn the_committer_syncs_compacted_segments() {
    let fs = FaultFs::new(3);
    let (mut store, watch) = open_watched(&fs);
    let options = compacting();
    let log = store.open("keys", &options).unwrap();
    watch.is_on.store(true, Ordering::Relaxed);
    append_keys(&mut store, log);
    compact(&mut store, log, 1_000);
    watch.is_on.store(false, Ordering::Relaxed);
    let is_slow = |call: &&String| {
        call.contains(".log/")
            && ["sync_data", "set_len", "allocate"].iter().any(|slow| call.starts_with(slow))
    };
    assert_eq!(watch.calls.lock().unwrap().iter().find(is_slow), None);

    // The newest record of each key is there, also after a crash.
    drop(store);
    let mut store = open(&fs.survivor(3));
    let log = store.open("keys", &options).unwrap();
    assert_newest(&mut store, log);
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
