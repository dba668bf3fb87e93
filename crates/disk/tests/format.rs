//! On-disk format tests: reads a fixture of each released version, and compares today's output with it byte for byte.
//!
//! `docs/formats` specifies the format. A format change requires a new version and an additional fixture;
//! `MAINSTEM_WRITE_FIXTURE=1` writes the fixtures of the current version.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, Fs, Mode, SegmentStore, Settings};
use mainstem_log::{
    BatchBuilder, Cleanup, Completion, LogAdmin, LogId, LogReader, LogWriter, Options, Store,
    TimestampOffset, batches,
};

/// Unix time in ms.
const BEGIN_MS: u64 = 1_700_000_000_000;

/// Stores of every version, with the version in the name.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn options() -> Options {
    Options { segment_bytes: 400, ..Options::default() }
}

fn compacted() -> Options {
    Options { cleanup: Cleanup::Compact, min_cleanable_dirty_ratio: 0.0, ..options() }
}

fn open(fs: &Arc<FaultFs>) -> SegmentStore {
    let settings = Settings { journal_bytes: 2048, checkpoint_bytes: 1500, ..Settings::default() };
    let fs: Arc<dyn Fs> = fs.clone();
    SegmentStore::open(fs, PathBuf::from("/store"), settings, Committer::Inline).unwrap()
}

/// Appends a batch of one record. Keys cycle, the value contains the offset, timestamps are one second apart.
fn append(store: &mut SegmentStore, log: LogId) {
    let offset = store.status(log).end;
    let mut builder = BatchBuilder::default();
    let time_ms = (BEGIN_MS + 1000 * offset).cast_signed();
    let value = format!("value {offset}");
    builder.push(time_ms, Some(format!("key {}", offset % 3).as_bytes()), Some(value.as_bytes()));
    store.append(log, builder.finish()).unwrap();
}

/// Writes a store with every feature of the format: closed and open segments, indexes, journaled writes, forgotten
/// writes, a checkpoint, a compacted log and a truncated log.
fn write() -> (Arc<FaultFs>, SegmentStore) {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs);
    let plain = store.open("plain", &options()).unwrap();
    let clean = store.open("compacted", &compacted()).unwrap();
    let gone = store.open("gone", &options()).unwrap();
    for _ in 0..10 {
        for log in [plain, clean, gone] {
            append(&mut store, log);
        }
        store.commit();
    }
    for _ in 0..100 {
        store.maintain(BEGIN_MS);
    }
    store.remove(gone).unwrap();
    store.commit();
    store.truncate_prefix(plain, 5).unwrap();
    for _ in 0..2 {
        for log in [plain, clean] {
            append(&mut store, log);
        }
        store.commit();
    }
    let mut completions: Vec<Completion> = Vec::new();
    store.completions(&mut completions);
    assert!(completions.iter().all(|completion| completion.outcome.is_ok()));
    (fs, store)
}

fn killed() -> Arc<FaultFs> {
    let (fs, store) = write();
    let left = fs.killed(1);
    drop(store);
    Arc::new(left)
}

fn closed() -> Arc<FaultFs> {
    let (fs, store) = write();
    drop(store);
    fs
}

/// All files with their contents.
fn contents(fs: &FaultFs) -> Vec<(String, Vec<u8>)> {
    let read = |(path, len): (String, u64)| {
        let file = fs.open(Path::new(&path), Mode::Existing).unwrap();
        let mut bytes = Vec::new();
        file.read_into(&mut bytes, len as usize, 0).unwrap();
        (path, bytes)
    };
    fs.files().into_iter().map(read).collect()
}

/// Loads a fixture into a file system.
fn load(name: &str) -> Arc<FaultFs> {
    let fs = Arc::new(FaultFs::new(1));
    let mut dirs = vec![(fixture(name).join("store"), PathBuf::from("/store"))];
    while let Some((from, to)) = dirs.pop() {
        fs.create_dir(&to).unwrap();
        for entry in fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                dirs.push((entry.path(), to));
            } else {
                let file = fs.open(&to, Mode::New).unwrap();
                file.write_at(&fs::read(entry.path()).unwrap(), 0).unwrap();
            }
        }
    }
    fs
}

fn check(fs: &Arc<FaultFs>, start: u64) {
    let mut store = open(fs);
    assert_eq!(store.names(), ["compacted", "plain"]);
    let plain = store.open("plain", &options()).unwrap();
    let clean = store.open("compacted", &compacted()).unwrap();
    let status = store.status(plain);
    assert_eq!((status.start, status.committed, status.end), (start, 12, 12));
    assert_eq!(store.status(clean).end, 12);
    for (log, first) in [(plain, start), (clean, 2)] {
        let mut bytes = Vec::new();
        store.read(log, store.status(log).start..12, 1 << 20, &mut bytes).unwrap();
        let mut offsets = Vec::new();
        for batch in batches(&bytes) {
            for record in batch.records() {
                let record = record.unwrap();
                assert_eq!(record.key, Some(format!("key {}", record.offset % 3).as_bytes()));
                assert_eq!(record.value, Some(format!("value {}", record.offset).as_bytes()));
                offsets.push(record.offset);
            }
        }
        assert!(offsets.into_iter().eq(first..12));
    }
    let time = (BEGIN_MS + 7500).cast_signed();
    let found = Some(TimestampOffset { offset: 8, timestamp_ms: time + 500 });
    assert_eq!(store.find_time(plain, time), Ok(found));
    append(&mut store, plain);
    store.commit();
    assert_eq!(store.status(plain).committed, 13);
}

fn compare(name: &str, fs: &FaultFs) {
    let written = contents(fs);
    if std::env::var_os("MAINSTEM_WRITE_FIXTURE").is_some() {
        for (path, bytes) in &written {
            let path = fixture(name).join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    let expected = contents(&load(name));
    let paths = |all: &[(String, Vec<u8>)]| all.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(&written), paths(&expected));
    for ((path, written), (_, expected)) in written.iter().zip(&expected) {
        assert!(written == expected, "{path} differs from the fixture");
    }
}

#[test]
fn reads_closed_stores() {
    for version in ["v1", "v2"] {
        check(&load(&format!("{version}/closed")), 5);
    }
}

#[test]
fn reads_killed_stores() {
    for version in ["v1", "v2"] {
        check(&load(&format!("{version}/killed")), 5);
    }
}

#[test]
fn output_matches_the_fixtures() {
    compare("v2/closed", &closed());
    compare("v2/killed", &killed());
}
