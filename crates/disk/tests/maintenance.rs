//! Maintenance: rolling by age, retention and compaction, checked against a model.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, Decompress, Fs, SegmentStore, Settings};
use mainstem_log::{
    Batch, BatchBuilder, BatchHeader, Cleanup, Compression, Error, LogAdmin, LogId, LogReader, LogWriter,
    Options, Record, State, Status, Store, batches, rebuild,
};
use proptest::prelude::*;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn open(fs: &Arc<FaultFs>, decompress: Option<Decompress>) -> SegmentStore {
    let settings = Settings {
        open_files: 4,
        cache_bytes: 8192,
        tail_bytes: 1024,
        journal_bytes: 16384,
        checkpoint_bytes: 20_000,
        indexes: 2,
        retention_check_ms: 0,
        mapped_writes: true,
        decompress,
        ..Settings::default()
    };
    let fs: Arc<dyn Fs> = fs.clone();
    SegmentStore::open(fs, PathBuf::from("/log"), settings, Committer::Inline).unwrap()
}

fn compacted() -> Options {
    Options {
        cleanup: Cleanup::Compact,
        segment_bytes: 1000,
        min_cleanable_dirty_ratio: 0.1,
        delete_retention_ms: DAY_MS,
        ..Options::default()
    }
}

fn append(store: &mut SegmentStore, log: LogId, batch: &[u8]) -> u64 {
    store.append(log, batch).unwrap().base_offset
}

/// Appends a batch of one record.
fn put(store: &mut SegmentStore, log: LogId, time: u64, key: &str, value: Option<&str>) -> u64 {
    let mut builder = BatchBuilder::default();
    builder.push(time.cast_signed(), Some(key.as_bytes()), value.map(str::as_bytes));
    append(store, log, builder.finish())
}

/// Appends enough records to close some segments.
fn fill(store: &mut SegmentStore, log: LogId, name: &str) {
    for round in 0..30 {
        put(store, log, 0, &format!("{name}{round}"), Some("a value that takes its place"));
    }
}

/// Runs maintenance until nothing is due at that time.
fn maintain(store: &mut SegmentStore, unix_ms: u64) -> Option<u64> {
    store.commit();
    for _ in 0..100_000 {
        match store.maintain(unix_ms).due_ms {
            Some(due) if due <= unix_ms + 1 => store.commit(),
            due => return due,
        }
    }
    panic!("maintenance never finishes");
}

fn read_all(store: &mut SegmentStore, log: LogId) -> Vec<u8> {
    try_read_all(store, log).unwrap()
}

fn try_read_all(store: &mut SegmentStore, log: LogId) -> Result<Vec<u8>, Error> {
    let status = store.status(log);
    let mut bytes = Vec::new();
    let mut next = status.start;
    while next < status.end {
        let before = bytes.len();
        store.read(log, next..status.end, 700, &mut bytes)?;
        let Some(last) = batches(&bytes[before..]).last() else { break };
        next = last.header.end_offset();
    }
    Ok(bytes)
}

type Stored = (u64, Option<Vec<u8>>, Option<Vec<u8>>);

fn records(bytes: &[u8]) -> Vec<Stored> {
    let owned = |record: Record<'_>| {
        (record.offset, record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec))
    };
    let mut all = Vec::new();
    for batch in batches(bytes) {
        let batch = Batch::parse(batch.bytes()).unwrap();
        all.extend(batch.records().map(|record| owned(record.unwrap())));
    }
    all
}

fn keys(bytes: &[u8]) -> Vec<(u64, String)> {
    let text = |key: Option<Vec<u8>>| String::from_utf8_lossy(&key.unwrap_or_default()).into_owned();
    records(bytes).into_iter().map(|(offset, key, _)| (offset, text(key))).collect()
}

#[test]
fn rolls_a_segment_by_age() {
    let mut store = open(&Arc::new(FaultFs::new(1)), None);
    let options = Options { segment_ms: Some(1000), ..Options::default() };
    let log = store.open("log", &options).unwrap();
    assert_eq!(maintain(&mut store, 5000), None, "an empty segment is not rolled");
    put(&mut store, log, 5000, "key", None);
    assert_eq!(maintain(&mut store, 5000), Some(6000));
    assert_eq!(maintain(&mut store, 5500), Some(6000));
    put(&mut store, log, 5900, "key", None);
    assert_eq!(maintain(&mut store, 6000), None, "rolled; the new segment is empty");
    put(&mut store, log, 6000, "key", None);
    store.commit();
    // Only closed segments can be removed.
    let bytes = store.status(log).bytes;
    store.truncate_prefix(log, 3).unwrap();
    assert_eq!(store.status(log).bytes, bytes / 3);
}

#[test]
fn retention_by_age_removes_segments() {
    let mut store = open(&Arc::new(FaultFs::new(1)), None);
    let options = Options {
        cleanup: Cleanup::Delete,
        segment_bytes: 150,
        retention_ms: Some(1000),
        ..Options::default()
    };
    let log = store.open("log", &options).unwrap();
    for time in 0..30 {
        put(&mut store, log, 10_000 + 100 * time, "key", Some("value"));
    }
    // A batch takes 76 bytes, so each segment holds one.
    assert_eq!(maintain(&mut store, 10_500), Some(11_000));
    assert_eq!(store.status(log).start, 0);
    assert_eq!(maintain(&mut store, 11_250), Some(11_300));
    assert_eq!(store.status(log).start, 3);
    assert_eq!(keys(&read_all(&mut store, log)).len(), 27);
    assert_eq!(maintain(&mut store, 20_000), None);
    let status = store.status(log);
    assert_eq!((status.start, status.committed, status.end, status.bytes), (30, 30, 30, 0));
    assert_eq!(put(&mut store, log, 20_000, "key", None), 30);
}

/// Otherwise their offsets could be reused after a crash.
#[test]
fn retention_never_removes_uncommitted_records() {
    let mut store = open(&Arc::new(FaultFs::new(1)), None);
    let options = Options { cleanup: Cleanup::Delete, retention_ms: Some(1000), ..Options::default() };
    let log = store.open("log", &options).unwrap();
    put(&mut store, log, 10, "key", Some("value"));
    let mut builder = BatchBuilder::default();
    builder.push(10, None, Some(b"value"));
    store.append(log, builder.finish()).unwrap();
    for _ in 0..4 {
        assert!(store.maintain(20_000).due_ms.is_some());
    }
    let status = store.status(log);
    assert_eq!((status.start, status.committed, status.end), (0, 0, 2));
    store.commit();
    maintain(&mut store, 20_001);
    let status = store.status(log);
    assert_eq!((status.start, status.committed, status.end), (2, 2, 2));
}

#[test]
fn retention_by_size_removes_segments() {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs, None);
    let options = Options {
        cleanup: Cleanup::Delete,
        segment_bytes: 800,
        retention_bytes: Some(3000),
        ..Options::default()
    };
    let log = store.open("log", &options).unwrap();
    for time in 0..200 {
        put(&mut store, log, time, "key", Some("value"));
    }
    assert_eq!(maintain(&mut store, 0), None);
    let status = store.status(log);
    assert!((3000..3800).contains(&status.bytes), "{status:?}");
    let stored = keys(&read_all(&mut store, log));
    assert_eq!(stored.first().unwrap().0, status.start);
    assert_eq!(stored.last().unwrap().0, 199);
    drop(store);
    let mut store = open(&fs, None);
    let log = store.open("log", &options).unwrap();
    // No removed segment can reappear, with or without a clean shutdown.
    assert_eq!(status.start_after_crash, status.start);
    assert_eq!(store.status(log), status);
}

#[test]
fn tombstones_expire() {
    let mut store = open(&Arc::new(FaultFs::new(1)), None);
    let log = store.open("log", &compacted()).unwrap();
    put(&mut store, log, 0, "gone", Some("value"));
    put(&mut store, log, 0, "gone", None);
    fill(&mut store, log, "a");
    maintain(&mut store, 1000);
    let find = |store: &mut SegmentStore| -> Vec<u64> {
        let all = keys(&read_all(store, log));
        all.into_iter().filter(|(_, key)| key == "gone").map(|(offset, _)| offset).collect()
    };
    assert_eq!(find(&mut store), [1], "the value is gone and the tombstone remains");
    fill(&mut store, log, "b");
    maintain(&mut store, 999 + DAY_MS);
    assert_eq!(find(&mut store), [1]);
    fill(&mut store, log, "c");
    maintain(&mut store, 1000 + DAY_MS);
    assert_eq!(find(&mut store), [0; 0]);
}

/// Rebuilds a batch with a modified header.
fn altered(bytes: &[u8], alter: impl FnOnce(&mut BatchHeader)) -> Vec<u8> {
    let batch = Batch::parse(bytes).unwrap();
    let mut header = batch.header;
    alter(&mut header);
    let mut altered = Vec::new();
    rebuild(&header, batch.records().map(Result::unwrap), &mut altered);
    altered
}

fn of_transaction(producer_id: i64, key: &[u8], value: Option<&[u8]>, attributes: i16) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(0, Some(key), value);
    altered(builder.finish(), |header| {
        header.producer_id = producer_id;
        header.attributes = attributes;
    })
}

#[test]
fn transactional_records_count_once_committed() {
    const WRITTEN: i16 = 0x10;
    const CONTROL: i16 = 0x30;
    let mut store = open(&Arc::new(FaultFs::new(1)), None);
    let log = store.open("log", &compacted()).unwrap();
    let (commit, abort) = (&[0, 0, 0, 1], &[0, 0, 0, 0]);
    for key in ["stored", "replaced", "open"] {
        put(&mut store, log, 0, key, Some("old"));
    }
    append(&mut store, log, &of_transaction(1, b"stored", Some(b"new"), WRITTEN));
    append(&mut store, log, &of_transaction(2, b"replaced", Some(b"new"), WRITTEN));
    append(&mut store, log, &of_transaction(1, abort, None, CONTROL));
    append(&mut store, log, &of_transaction(2, commit, None, CONTROL));
    fill(&mut store, log, "a");
    let begin = append(&mut store, log, &of_transaction(3, b"open", Some(b"new"), WRITTEN));
    fill(&mut store, log, "b");
    maintain(&mut store, 0);
    let offsets = |store: &mut SegmentStore| -> Vec<u64> {
        let all = keys(&read_all(store, log));
        let is_filling = |key: &str| key.starts_with(['a', 'b', 'c']);
        all.into_iter().filter(|(_, key)| !is_filling(key)).map(|(offset, _)| offset).collect()
    };
    assert_eq!(offsets(&mut store), [0, 2, 3, 4, 5, 6, begin], "1 is replaced; markers are retained");
    let end = append(&mut store, log, &of_transaction(3, commit, None, CONTROL));
    fill(&mut store, log, "c");
    maintain(&mut store, 0);
    assert_eq!(offsets(&mut store), [0, 3, 4, 5, 6, begin, end], "2 is replaced too");
}

/// The codec of this test inverts all bits.
fn inverted(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

fn compressed(key: &str) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(0, Some(key.as_bytes()), Some(b"value"));
    let mut bytes = builder.finish().to_vec();
    let records = bytes.split_off(61);
    bytes.extend_from_slice(&inverted(&records));
    bytes[22] |= 4;
    let checksum = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

#[test]
fn compacts_compressed_batches_only_with_a_decompressor() {
    let decompress: Decompress =
        Arc::new(|compression, bytes| (compression == Compression::Zstd).then(|| inverted(bytes)));
    for (decompress, can_read) in [(None, false), (Some(decompress), true)] {
        let mut store = open(&Arc::new(FaultFs::new(1)), decompress);
        let log = store.open("log", &compacted()).unwrap();
        for round in 0..40 {
            append(&mut store, log, &compressed(["one", "two", "three"][round % 3]));
        }
        maintain(&mut store, 0);
        let all = read_all(&mut store, log);
        let old = batches(&all).filter(|batch| batch.header.base_offset < 26).count();
        assert!(if can_read { old <= 3 } else { old == 26 }, "{old}");
    }
}

#[test]
fn readers_see_what_compaction_has_left_also_of_entries_in_memory() {
    let fs: Arc<dyn Fs> = Arc::new(FaultFs::new(1));
    let settings = Settings::default();
    let mut store = SegmentStore::open(fs, PathBuf::from("/log"), settings, Committer::Inline).unwrap();
    let log = store.open("log", &Options { segment_ms: Some(1000), ..compacted() }).unwrap();
    for value in ["1", "2", "3"] {
        put(&mut store, log, 5000, "key", Some(value));
    }
    maintain(&mut store, 5000);
    assert_eq!(keys(&read_all(&mut store, log)).len(), 3);
    maintain(&mut store, 7000);
    let last = (2, "key".to_owned());
    assert_eq!(keys(&read_all(&mut store, log)), std::slice::from_ref(&last));
    put(&mut store, log, 7000, "other", Some("4"));
    assert_eq!(keys(&read_all(&mut store, log)), [last, (3, "other".to_owned())]);
}

#[test]
fn merges_small_segments() {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs, None);
    let log = store.open("log", &compacted()).unwrap();
    for round in 0..3000 {
        put(&mut store, log, 0, ["one", "two"][round % 2], Some("value"));
        if round % 100 == 99 {
            maintain(&mut store, 0);
        }
    }
    let files = fs.list(&PathBuf::from("/log/log.log")).unwrap();
    let segments = files.iter().filter(|file| file.ends_with(".segment")).count();
    assert!(segments < 12, "{files:?}");
    assert_eq!(store.status(log).end, 3000);
    drop(store);
    let mut store = open(&fs, None);
    let log = store.open("log", &compacted()).unwrap();
    assert_eq!(keys(&read_all(&mut store, log)).last(), Some(&(2999, "two".to_owned())));
}

type Put = (u8, Option<u8>);

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Put>),
    Maintain,
    Reopen,
    Prefix(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let record = || (0_u8..12, prop::option::weighted(0.8, any::<u8>()));
    let step = prop_oneof![
        20 => record().prop_map(|put| Step::Append(vec![put])),
        6 => prop::collection::vec(record(), 1..12).prop_map(Step::Append),
        2 => Just(Step::Maintain),
        1 => Just(Step::Reopen),
        1 => any::<u8>().prop_map(Step::Prefix),
    ];
    prop::collection::vec(step, 0..300)
}

/// All appended records: offset, key and value.
type Model = Vec<(u64, u8, Option<u8>)>;

/// Checks a compacted log against the model: the newest record of each key is retained, and below offset `cleaned`
/// no key occurs twice.
fn check(all: &Model, start: u64, cleaned: u64, read: &[Stored]) {
    let stored: BTreeMap<u64, &Stored> = read.iter().map(|stored| (stored.0, stored)).collect();
    assert_eq!(stored.len(), read.len());
    assert!(read.is_sorted_by_key(|stored| stored.0));
    let newest: BTreeMap<u8, u64> = all.iter().map(|(offset, key, _)| (*key, *offset)).collect();
    for (offset, key, value) in all.iter().filter(|(offset, ..)| *offset >= start) {
        let found = stored.get(offset);
        let expected = (*offset, Some(vec![*key; 10]), value.map(|value| vec![value; 40]));
        assert!(found.is_none_or(|found| **found == expected));
        let must_stay = newest[key] == *offset && value.is_some();
        assert!(found.is_some() || !must_stay, "the newest {key} is at {offset}");
    }
    let mut seen = BTreeMap::new();
    for (offset, key, _) in read.iter().filter(|(offset, ..)| (start..cleaned).contains(offset)) {
        assert_eq!(seen.insert(key, offset), None, "{key:?} is there twice");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn retains_the_newest_record_of_each_key(steps in steps()) {
        let fs = Arc::new(FaultFs::new(1));
        let mut store = open(&fs, None);
        let options = Options { min_cleanable_dirty_ratio: 0.0, ..compacted() };
        let mut log = store.open("log", &options).unwrap();
        let mut all = Model::new();
        let mut now = 0_u64;
        for step in steps {
            let next = all.len() as u64;
            match step {
                Step::Append(puts) => {
                    let mut builder = BatchBuilder::default();
                    for (key, value) in puts {
                        let bytes = value.map(|value| [value; 40]);
                        builder.push(now.cast_signed(), Some(&[key; 10]), bytes.as_ref().map(<[u8; 40]>::as_slice));
                        all.push((all.len() as u64, key, value));
                    }
                    prop_assert_eq!(append(&mut store, log, builder.finish()), next);
                }
                Step::Maintain => {
                    now += DAY_MS / 3;
                    maintain(&mut store, now);
                    let start = store.status(log).start;
                    let read = records(&read_all(&mut store, log));
                    // At most 70 records fit into the newest segment.
                    check(&all, start, next.saturating_sub(70), &read);
                }
                Step::Reopen => {
                    drop(store);
                    store = open(&fs, None);
                    log = store.open("log", &options).unwrap();
                }
                Step::Prefix(part) => store.truncate_prefix(log, next * u64::from(part) / 1024).unwrap(),
            }
            prop_assert_eq!(store.status(log).end, all.len() as u64);
        }
    }
}

#[test]
fn full_disk_delays_a_compaction() {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs, None);
    let log = store.open("log", &compacted()).unwrap();
    let other = store.open("other", &Options::default()).unwrap();
    // Together they fill the first file of the journal.
    let value = "v".repeat(7_950);
    for log in [log, other] {
        put(&mut store, log, 0, "key", Some(&value));
    }
    store.commit();
    fill(&mut store, log, "key");
    for _ in 0..30 {
        put(&mut store, log, 0, "key", Some("a value that takes its place"));
    }
    store.commit();
    let before = store.status(log).bytes;
    let used: u64 = fs.files().iter().map(|(_, len)| len).sum();
    fs.set(Plan { space_bytes: Some(used + 8_000), ..Plan::default() });
    let due_ms = maintain(&mut store, 0).expect("it is tried again");
    let status = store.status(log);
    assert_eq!((status.bytes, status.state), (before, State::Ready), "no space for the journal's next file");

    fs.set(Plan::default());
    maintain(&mut store, due_ms);
    assert!(store.status(log).bytes < before - 7_950);
    let newest = keys(&read_all(&mut store, log));
    assert_eq!(newest.last(), Some(&(60, "key".to_owned())));
    put(&mut store, log, 0, "key", None);
}

/// Opens the store, checks that all acknowledged records exist, then appends, commits and runs maintenance until the
/// crash.
fn run_until_crash(fs: &Arc<FaultFs>, acknowledged: &mut u64) -> Result<(), Error> {
    let settings = Settings { journal_bytes: 4096, checkpoint_bytes: 3000, ..Settings::default() };
    let dyn_fs: Arc<dyn Fs> = fs.clone();
    let mut store = SegmentStore::open(dyn_fs, PathBuf::from("/log"), settings, Committer::Inline)?;
    let options = Options {
        segment_bytes: 400,
        min_cleanable_dirty_ratio: 0.0,
        segment_ms: Some(20),
        max_compaction_lag_ms: Some(10),
        min_compaction_lag_ms: 3,
        ..compacted()
    };
    let logs = [store.open("log", &options)?, store.open("other", &options)?];
    let value_of = |offset: u64| offset.to_string().into_bytes();
    let end = store.status(logs[0]).end;
    assert!(end >= *acknowledged, "{end} is less than {acknowledged}, which was acknowledged");
    let found = records(&try_read_all(&mut store, logs[0])?);
    assert!(found.is_sorted_by_key(|(offset, ..)| *offset));
    for key in 0..3 {
        let newest = (0..end).rev().find(|offset| offset % 3 == key);
        let stored = found.iter().rev().find(|(offset, ..)| offset % 3 == key);
        assert_eq!(stored.map(|(offset, ..)| *offset), newest);
        assert_eq!(stored.and_then(|(.., value)| value.clone()), newest.map(value_of));
    }
    let mut completions = Vec::new();
    for offset in end..end + 150 {
        let mut builder = BatchBuilder::default();
        builder.push(0, Some(&[b'a' + (offset % 3) as u8]), Some(&value_of(offset)));
        for log in logs {
            store.append(log, builder.finish())?;
            builder.push(0, Some(b"key"), None);
        }
        store.commit();
        store.completions(&mut completions);
        let is_done = completions.iter().any(|done| done.log == logs[0] && done.outcome.is_ok());
        if is_done && !fs.has_crashed() {
            *acknowledged = offset + 1;
        }
        completions.clear();
        // Some segments are closed and compacted for the age of their records, which is that of the epoch.
        store.maintain(offset - end);
    }
    Ok(())
}

/// Opens the store, checks that the log is without holes, then appends, commits and removes old segments until the
/// crash. `first` is the lowest offset at which the log may start.
fn retain_until_crash(fs: &Arc<FaultFs>, first: &mut u64, acknowledged: &mut u64) -> Result<(), Error> {
    let dyn_fs: Arc<dyn Fs> = fs.clone();
    let settings = Settings { journal_bytes: 4096, checkpoint_bytes: 3000, ..Settings::default() };
    let mut store = SegmentStore::open(dyn_fs, PathBuf::from("/log"), settings, Committer::Inline)?;
    let options = Options {
        cleanup: Cleanup::Delete,
        segment_bytes: 300,
        retention_bytes: Some(1500),
        retention_ms: Some(40),
        ..Options::default()
    };
    let log = store.open("log", &options)?;
    let Status { start, end, .. } = store.status(log);
    assert!(
        (*first..=end).contains(&start) && end >= *acknowledged,
        "{start}..{end}: {first} {acknowledged}"
    );
    let found: Vec<u64> =
        records(&try_read_all(&mut store, log)?).iter().map(|(offset, ..)| *offset).collect();
    assert_eq!(found, (start..end).collect::<Vec<u64>>());
    let mut completions = Vec::new();
    for offset in end..end + 100 {
        let mut builder = BatchBuilder::default();
        builder.push(offset.cast_signed(), None, Some(b"value"));
        store.append(log, builder.finish())?;
        store.commit();
        store.completions(&mut completions);
        if completions.drain(..).any(|done| done.outcome.is_ok()) && !fs.has_crashed() {
            *acknowledged = offset + 1;
        }
        for _ in 0..3 {
            store.maintain(offset);
            if !fs.has_crashed() {
                *first = store.status(log).start_after_crash;
            }
        }
    }
    assert!(store.status(log).start > end, "{:?}", store.status(log));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn crash_during_retention_leaves_no_hole(
        seed in any::<u64>(),
        crashes in prop::collection::vec((1_u64..700, any::<bool>()), 1..6),
    ) {
        let mut fs = Arc::new(FaultFs::new(seed));
        let (mut first, mut acknowledged) = (0, 0);
        for (crash_at, is_power) in crashes {
            fs.set(Plan { crash_at: Some(crash_at), ..Plan::default() });
            let ended = retain_until_crash(&fs, &mut first, &mut acknowledged);
            prop_assert!(ended.is_ok() || fs.has_crashed(), "{:?}", ended);
            fs = Arc::new(if is_power { fs.survivor(crash_at) } else { fs.killed(crash_at) });
        }
        fs.set(Plan::default());
        prop_assert_eq!(retain_until_crash(&fs, &mut first, &mut acknowledged), Ok(()));
    }

    #[test]
    fn crash_during_compaction_loses_nothing(
        seed in any::<u64>(),
        crashes in prop::collection::vec((1_u64..1500, any::<bool>()), 1..6),
    ) {
        let mut fs = Arc::new(FaultFs::new(seed));
        let mut acknowledged = 0;
        for (crash_at, is_power) in crashes {
            fs.set(Plan { crash_at: Some(crash_at), ..Plan::default() });
            // Only the crash may cause an error.
            let ended = run_until_crash(&fs, &mut acknowledged);
            prop_assert!(ended.is_ok() || fs.has_crashed(), "{:?}", ended);
            fs = Arc::new(if is_power { fs.survivor(crash_at) } else { fs.killed(crash_at) });
        }
        fs.set(Plan::default());
        prop_assert_eq!(run_until_crash(&fs, &mut acknowledged), Ok(()));
    }
}
