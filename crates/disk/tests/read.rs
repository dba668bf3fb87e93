//! Zero-copy reads, reads around damage, and reads after failed writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, Fs, Mode, SegmentStore, Settings};
use mainstem_log::{
    BatchBuilder, Completion, Error, LogAdmin, LogId, LogReader, LogWriter, Options, State, Store, batches,
};
use proptest::prelude::*;

fn open(fs: &Arc<FaultFs>, settings: Settings) -> SegmentStore {
    let fs: Arc<dyn Fs> = fs.clone();
    SegmentStore::open(fs, PathBuf::from("/log"), settings, Committer::Inline).unwrap()
}

/// Settings under which every read goes to the files.
fn without_cache() -> Settings {
    Settings { tail_bytes: 0, indexes: 2, open_files: 3, journal_bytes: 0, ..Settings::default() }
}

fn append(store: &mut SegmentStore, log: LogId, records: u32, value_bytes: usize) -> Result<u64, Error> {
    let mut builder = BatchBuilder::default();
    for record in 0..records {
        builder.push(i64::from(record), None, Some(&vec![7; value_bytes]));
    }
    store.append(log, builder.finish()).map(|appended| appended.base_offset)
}

fn commit(store: &mut SegmentStore) -> Vec<Completion> {
    let mut completions = Vec::new();
    store.commit();
    store.completions(&mut completions);
    completions
}

fn offsets(bytes: &[u8]) -> Vec<u64> {
    batches(bytes).map(|batch| batch.header.base_offset).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn file_ranges_match_reads(
        appends in prop::collection::vec((1_u32..4, 1_usize..400, any::<bool>()), 1..60),
        segment_bytes in 200_u64..5000,
        reads in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..60, 0_usize..4000), 1..20),
    ) {
        let mut store = open(&Arc::new(FaultFs::new(1)), without_cache());
        let log = store.open("log", &Options { segment_bytes, ..Options::default() }).unwrap();
        for (records, value_bytes, ends_turn) in appends {
            append(&mut store, log, records, value_bytes).unwrap();
            if ends_turn {
                store.commit();
            }
        }
        let end = store.status(log).end;
        for (start, len, max_bytes) in reads {
            let start = start.index(end as usize + 1) as u64;
            let mut read = Vec::new();
            store.read(log, start..start + len, max_bytes, &mut read).unwrap();
            let mut sent = Vec::new();
            for range in store.ranges(log, start..start + len, max_bytes as u64).unwrap() {
                range.file.read_into(&mut sent, range.len as usize, range.position).unwrap();
            }
            prop_assert_eq!(offsets(&sent), offsets(&read), "{}..{} {}", start, start + len, max_bytes);
            prop_assert!(sent == read);
        }
        prop_assert_eq!(store.ranges(log, end + 1..end + 2, 1).unwrap_err(), Error::OutOfRange);
    }

    #[test]
    fn reports_damage_and_reads_what_follows(
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        was_closed in any::<bool>(),
    ) {
        let fs = Arc::new(FaultFs::new(1));
        let mut store = open(&fs, without_cache());
        let options = Options { segment_bytes: 4000, ..Options::default() };
        let log = store.open("log", &options).unwrap();
        for _ in 0..100 {
            append(&mut store, log, 2, 60).unwrap();
            commit(&mut store);
        }
        let mut all = Vec::new();
        store.read(log, 0..200, usize::MAX >> 1, &mut all).unwrap();
        let fs = if was_closed {
            drop(store);
            fs
        } else {
            let killed = Arc::new(fs.killed(1));
            drop(store);
            killed
        };
        // Spare the last batches: damage at the log end is truncated like a torn write.
        let size = all.len() / 100;
        let batch = at.index(95);
        let in_segment = 4000 / size;
        let (segment, place) = (batch / in_segment, batch % in_segment);
        let byte = at.index(size * 8) % size;
        let path = format!("/log/log.log/{:020}.segment", segment * in_segment * 2);
        // The leader epoch is not covered by the checksum.
        prop_assume!(!(12..16).contains(&byte));
        fs.flip_bit(Path::new(&path), (place * size + byte) as u64, bit).unwrap();

        let mut store = open(&fs, without_cache());
        let log = store.open("log", &options).unwrap();
        prop_assert_eq!(store.status(log).end, 200);
        let damaged = batch as u64 * 2;
        for offset in 0..200 {
            let mut read = Vec::new();
            let outcome = store.read(log, offset..offset + 1, 1, &mut read);
            if (damaged..damaged + 2).contains(&offset) {
                prop_assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{} {:?}", offset, outcome);
            } else {
                prop_assert_eq!(outcome, Ok(()), "{} with damage at {}", offset, damaged);
                prop_assert_eq!(offsets(&read), [offset / 2 * 2]);
                prop_assert!(read == all[offset as usize / 2 * size..][..size]);
            }
        }
        prop_assert_eq!(append(&mut store, log, 1, 1), Ok(200));
    }
}

/// A power failure may undo the truncation of a closed segment, which leaves zeros at its end.
#[test]
fn skips_zeros_at_the_end_of_a_segment() {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs, without_cache());
    let options = Options { segment_bytes: 1000, ..Options::default() };
    let log = store.open("log", &options).unwrap();
    for _ in 0..50 {
        append(&mut store, log, 1, 60).unwrap();
    }
    commit(&mut store);
    let mut all = Vec::new();
    store.read(log, 0..50, usize::MAX >> 1, &mut all).unwrap();
    assert_eq!(offsets(&all).len(), 50);
    // A clean shutdown avoids recovery of these files.
    drop(store);
    for (path, bytes) in fs.files().iter().filter(|(path, _)| path.ends_with(".segment")) {
        fs.open(Path::new(path), Mode::Existing).unwrap().write_at(&[0; 20], *bytes).unwrap();
    }

    let mut store = open(&fs, without_cache());
    let log = store.open("log", &options).unwrap();
    for _ in 0..2 {
        let mut read = Vec::new();
        store.read(log, 0..50, 5000, &mut read).unwrap();
        assert_eq!(offsets(&read).len(), 5000 / (all.len() / 50));
        assert!(all.starts_with(&read));
    }
}

/// A journal of one record, which this turn fills.
#[test]
fn full_disk_refuses_to_truncate_a_suffix() {
    let fs = Arc::new(FaultFs::new(1));
    let settings = Settings { journal_bytes: 16_384, ..Settings::default() };
    let mut store = open(&fs, settings.clone());
    let log = store.open("log", &Options::default()).unwrap();
    let other = store.open("other", &Options::default()).unwrap();
    append(&mut store, log, 1, 10).unwrap();
    store.commit();
    for log in [log, other] {
        append(&mut store, log, 1, 7_950).unwrap();
    }
    commit(&mut store);
    let used: u64 = fs.files().iter().map(|(_, len)| len).sum();
    fs.set(Plan { space_bytes: Some(used + 2_000), ..Plan::default() });
    assert_eq!(store.truncate_suffix(log, 1), Err(Error::Full), "no space for the journal's next file");
    let status = store.status(log);
    assert_eq!((status.committed, status.end, status.state), (2, 2, State::Ready));
    let mut read = Vec::new();
    store.read(log, 0..2, 100_000, &mut read).unwrap();
    assert_eq!(offsets(&read), [0, 1]);

    fs.set(Plan::default());
    assert_eq!(store.truncate_suffix(log, 1), Ok(()));
    assert_eq!(append(&mut store, log, 3, 10), Ok(1));
    assert_eq!(commit(&mut store)[0].outcome, Ok(()));
    std::mem::forget(store);
    let mut store = open(&Arc::new(fs.killed(1)), settings);
    let log = store.open("log", &Options::default()).unwrap();
    assert_eq!(store.status(log).end, 4, "the truncated record does not return from the journal");
}

#[test]
fn full_disk_rolls_back_the_turn_and_recovers() {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs, Settings::default());
    let log = store.open("log", &Options::default()).unwrap();
    append(&mut store, log, 3, 100).unwrap();
    assert_eq!(commit(&mut store)[0].outcome, Ok(()));
    fs.set(Plan { space_bytes: Some(70_000), ..Plan::default() });
    for _ in 0..3 {
        append(&mut store, log, 1, 100_000).unwrap();
        append(&mut store, log, 1, 10).unwrap();
        let completions = commit(&mut store);
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].outcome, Err(Error::Full));
        let status = store.status(log);
        assert_eq!((status.committed, status.end, status.state), (3, 3, State::Full));
        let mut read = Vec::new();
        store.read(log, 0..10, 1000, &mut read).unwrap();
        assert_eq!(offsets(&read), [0]);
    }
    assert_eq!(append(&mut store, log, 1, 10), Ok(3), "a batch that fits is accepted");
    assert_eq!(commit(&mut store)[0].outcome, Ok(()));
    fs.set(Plan::default());
    assert_eq!(append(&mut store, log, 1, 100_000), Ok(4));
    assert_eq!(commit(&mut store)[0].outcome, Ok(()));
    assert_eq!(store.status(log).state, State::Ready);
}

#[test]
fn failed_sync_makes_the_log_read_only() {
    let fs = Arc::new(FaultFs::new(1));
    let mut store = open(&fs, Settings::default());
    let log = store.open("log", &Options::default()).unwrap();
    let other = store.open("other", &Options::default()).unwrap();
    append(&mut store, log, 3, 100).unwrap();
    commit(&mut store);
    fs.set(Plan { failing_sync: Some(1), ..Plan::default() });
    append(&mut store, log, 1, 100).unwrap();
    assert_eq!(commit(&mut store)[0].outcome, Err(Error::Broken));
    let status = store.status(log);
    assert_eq!((status.committed, status.end, status.state), (3, 3, State::Broken));
    assert_eq!(append(&mut store, log, 1, 100), Err(Error::Broken));
    let mut read = Vec::new();
    store.read(log, 0..10, 1000, &mut read).unwrap();
    assert_eq!(offsets(&read), [0]);
    append(&mut store, other, 1, 100).unwrap();
    assert_eq!(commit(&mut store)[0].outcome, Ok(()), "other logs are unaffected");
    drop(store);
    let mut store = open(&fs, Settings::default());
    let log = store.open("log", &Options::default()).unwrap();
    assert_eq!(store.status(log).state, State::Ready);
    assert!(store.status(log).end >= 3);
}
