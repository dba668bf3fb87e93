//! The guarantees of a store, one test case each.
//!
//! Protocols are tested against the store in memory, and run on the one in files: both must keep the same promises. A
//! case uses the interface only, and runs against every store that has a factory.

use super::StoreFactory;
use super::harness::Harness;
use super::reference::{ReferenceLog, batch};
use crate::{Batch, Durability, Error, Malformed, Options, State, batches};

/// Test of one guarantee against any store.
type Case = fn(&mut dyn StoreFactory);

/// All cases: name and test.
pub const CASES: &[(&str, Case)] = &[
    ("offsets have no gaps and batches are unchanged", offsets_have_no_gaps),
    ("nothing completes before its commit", nothing_completes_before_its_commit),
    ("completions of each log arrive in order", completions_arrive_in_order),
    ("appends are readable before they are committed", appends_are_readable_immediately),
    ("reads return whole batches within their bounds", reads_return_whole_batches),
    ("reads outside the log are rejected", rejects_reads_outside_the_log),
    ("malformed batches are rejected without side effects", rejects_malformed_batches),
    ("batches of every kind are stored", stores_every_kind_of_batch),
    ("large and small batches mix", mixes_large_and_small_batches),
    ("many logs share a commit", many_logs_share_a_commit),
    ("prefix truncation retains offsets", prefix_truncation_retains_offsets),
    ("appends continue after suffix truncation", appends_continue_after_suffix_truncation),
    ("invalid truncations are rejected", rejects_invalid_truncations),
    ("tickets complete after truncation", tickets_complete_after_truncation),
    ("records are found by timestamp", finds_records_by_timestamp),
    ("log names are checked and listed in order", checks_and_lists_names),
    ("opening twice returns the same log", opening_twice_returns_the_same_log),
    ("removing a log leaves nothing of it", removal_deletes_everything),
    ("removing a log does not affect other commits", removal_does_not_affect_other_logs),
    ("maintenance without retention loses nothing", maintenance_loses_nothing),
    ("committed data survives a restart", committed_data_survives_a_restart),
    ("an emptied log continues at its offset", emptied_log_continues_at_its_offset),
    ("notes last until the next append", notes_last_until_the_next_append),
    ("suffix truncation removes notes", suffix_truncation_removes_notes),
];

fn offsets_have_no_gaps(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut reference = ReferenceLog::default();
    for round in 0..40 {
        let mut bytes = batch(round, 1 + round as u32 % 5, 50, 7);
        // The store ignores the base offset and leader epoch that the producer sent.
        Batch::place(&mut bytes, round * 1000, 9);
        assert_eq!(harness.append(log, &bytes), reference.append(&bytes));
        assert_eq!(harness.store.status(log).end, reference.end);
        if round % 7 == 0 {
            harness.settle();
        }
    }
    harness.settle();
    assert_eq!(harness.read_all(log), reference.bytes());
    assert!(harness.store.status(log).bytes >= reference.bytes().len() as u64);
    assert_eq!(harness.store.status(log).state, State::Ready);
}

fn nothing_completes_before_its_commit(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let other = harness.open("two");
    harness.append(log, &batch(1, 3, 10, 7));
    assert_eq!(harness.take(), 0);
    let status = harness.store.status(log);
    assert_eq!((status.start, status.committed, status.end), (0, 0, 3));
    harness.settle();
    assert_eq!(harness.store.status(log).committed, 3);
    for _ in 0..3 {
        harness.store.commit();
        assert_eq!(harness.take(), 0, "nothing to commit");
    }
    harness.append(other, &batch(2, 1, 10, 7));
    harness.settle();
    assert_eq!(harness.store.status(log).committed, 3);
}

fn completions_arrive_in_order(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let logs = ["a", "b", "c"].map(|name| harness.open(name));
    for turn in 0..60 {
        for (index, log) in logs.iter().enumerate() {
            for extra in 0..(turn + index as u64) % 4 {
                harness.append(*log, &batch(turn, 1 + extra as u32, 30, 7));
            }
        }
        harness.store.commit();
        if turn % 3 == 0 {
            harness.take();
        }
    }
    harness.settle();
}

fn appends_are_readable_immediately(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut reference = ReferenceLog::default();
    for round in 0..20 {
        let bytes = batch(round, 2, 100, 7);
        harness.append(log, &bytes);
        reference.append(&bytes);
        assert_eq!(harness.read_all(log), reference.bytes());
        if round % 3 == 0 {
            harness.store.commit();
            assert_eq!(harness.read_all(log), reference.bytes());
        }
    }
}

fn reads_return_whole_batches(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut reference = ReferenceLog::default();
    // Committed and uncommitted batches over several segments.
    for round in 0..24 {
        let bytes = batch(round, 1 + round as u32 % 4, 60, 7);
        harness.append(log, &bytes);
        reference.append(&bytes);
        if round == 15 {
            harness.settle();
        }
    }
    for start in 0..=reference.end {
        for len in [0, 1, 2, 5, reference.end] {
            for max_bytes in [0, 1, 300, 1000, usize::MAX] {
                let range = start..start + len;
                let mut read = b"before".to_vec();
                harness.store.read(log, range.clone(), max_bytes, &mut read).unwrap();
                let expected = reference.read(range.clone(), max_bytes).unwrap();
                assert_eq!(read.strip_prefix(b"before"), Some(expected.as_slice()), "{range:?} {max_bytes}");
            }
        }
    }
}

fn rejects_reads_outside_the_log(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut read = Vec::new();
    assert_eq!(harness.store.read(log, 0..10, 100, &mut read), Ok(()), "offset 0 is the end of an empty log");
    assert_eq!(harness.store.read(log, 1..10, 100, &mut read), Err(Error::OutOfRange));
    harness.append(log, &batch(1, 4, 10, 7));
    harness.settle();
    harness.append(log, &batch(2, 4, 10, 7));
    assert_eq!(harness.store.read(log, 8..9, 100, &mut read), Ok(()));
    assert_eq!(harness.store.read(log, 9..9, 100, &mut read), Err(Error::OutOfRange));
    assert_eq!(harness.store.read(log, u64::MAX..u64::MAX, 100, &mut read), Err(Error::OutOfRange));
    harness.store.truncate_prefix(log, 2).unwrap();
    assert_eq!(harness.store.read(log, 1..9, 100, &mut read), Err(Error::OutOfRange));
    assert!(read.is_empty());
}

fn rejects_malformed_batches(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let good = batch(1, 3, 40, 7);
    harness.append(log, &good);
    harness.settle();
    let before = harness.store.status(log);

    let mut refuse = |bytes: &[u8], expected: Malformed| {
        assert_eq!(harness.store.append(log, bytes), Err(Error::Malformed(expected)));
        assert_eq!(harness.store.status(log), before);
    };
    for len in 0..good.len() {
        refuse(&good[..len], Malformed::Length);
    }
    for (at, expected) in [(16, Malformed::Magic(3)), (17, Malformed::Checksum), (70, Malformed::Checksum)] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        refuse(&bytes, expected);
    }
    // A negative length and negative counts.
    for (at, expected) in
        [(8, Malformed::Length), (23, Malformed::Inconsistent), (57, Malformed::Inconsistent)]
    {
        let mut bytes = good.clone();
        bytes[at] |= 0x80;
        refuse(&bytes, expected);
    }
    refuse(&[good.as_slice(), &good].concat(), Malformed::Length);

    harness.store.commit();
    assert_eq!(harness.take(), 0);
    assert_eq!(harness.append(log, &good), 3);
    harness.settle();
    assert_eq!(batches(&harness.read_all(log)).count(), 2);
}

/// Modifies a batch and recomputes its checksum.
fn altered(mut bytes: Vec<u8>, alter: impl FnOnce(&mut [u8])) -> Vec<u8> {
    alter(&mut bytes);
    let checksum = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn stores_every_kind_of_batch(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut reference = ReferenceLog::default();
    let compressed = altered(batch(1, 3, 40, 7), |bytes| bytes[22] |= 4);
    let control = altered(batch(2, 1, 6, 7), |bytes| bytes[22] |= 0x30);
    let log_append_time = altered(batch(3, 2, 6, 7), |bytes| bytes[22] |= 8);
    let produced = altered(batch(4, 2, 6, 7), |bytes| {
        bytes[43..51].copy_from_slice(&77_i64.to_be_bytes());
        bytes[51..53].copy_from_slice(&3_i16.to_be_bytes());
        bytes[53..57].copy_from_slice(&1000_i32.to_be_bytes());
    });
    // As compaction leaves them: a batch without its last records, and a batch without any record.
    let compacted = altered(batch(5, 2, 6, 7), |bytes| bytes[23..27].copy_from_slice(&9_i32.to_be_bytes()));
    let emptied = altered(batch(6, 1, 6, 7)[..61].to_vec(), |bytes| {
        bytes[8..12].copy_from_slice(&49_i32.to_be_bytes());
        bytes[57..61].fill(0);
    });
    for bytes in [compressed, control, log_append_time, produced, compacted, emptied] {
        assert_eq!(harness.append(log, &bytes), reference.append(&bytes));
        assert_eq!(harness.store.status(log).end, reference.end);
        harness.settle();
    }
    assert_eq!(harness.read_all(log), reference.bytes());
    if let Some(mut harness) = harness.reopen() {
        let log = harness.open("one");
        assert_eq!(harness.store.status(log).end, reference.end);
        assert_eq!(harness.read_all(log), reference.bytes());
    }
}

fn mixes_large_and_small_batches(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut reference = ReferenceLog::default();
    let mut put = |harness: &mut Harness, bytes: &[u8]| {
        harness.append(log, bytes);
        reference.append(bytes);
    };
    put(&mut harness, &batch(1, 1, 10, 7));
    put(&mut harness, &batch(2, 3, 700_000, 7));
    harness.settle();
    put(&mut harness, &batch(3, 1, 900_000, 7));
    put(&mut harness, &batch(4, 1, 10, 7));
    harness.settle();
    assert!(harness.read_all(log) == reference.bytes());
    let mut read = Vec::new();
    harness.store.read(log, 2..reference.end, 1, &mut read).unwrap();
    assert!(read == reference.batches[1], "the first batch is returned whatever its size");
    let Some(mut harness) = harness.reopen() else { return };
    let log = harness.open("one");
    assert!(harness.read_all(log) == reference.bytes());
}

fn many_logs_share_a_commit(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let mut logs: Vec<_> =
        (0..200).map(|index| (harness.open(&format!("log-{index:03}")), ReferenceLog::default())).collect();
    for turn in 0..3 {
        for (index, (log, reference)) in logs.iter_mut().enumerate() {
            if index % (turn + 1) == 0 {
                let bytes = batch(index as u64, 2, 40, 7);
                assert_eq!(harness.append(*log, &bytes), reference.append(&bytes));
            }
        }
        harness.settle();
    }
    for (log, reference) in &logs {
        assert_eq!(harness.read_all(*log), reference.bytes());
    }
    let Some(mut harness) = harness.reopen() else { return };
    for (index, (_, reference)) in logs.iter().enumerate() {
        let log = harness.open(&format!("log-{index:03}"));
        assert_eq!(harness.read_all(log), reference.bytes());
    }
}

/// Creates a log of ten batches with three records each; the last three batches are uncommitted.
fn ten_batches(harness: &mut Harness, name: &str) -> (crate::LogId, ReferenceLog) {
    let log = harness.open(name);
    let mut reference = ReferenceLog::default();
    for round in 0..10 {
        let bytes = batch(round, 3, 60, 1000 + round.cast_signed() * 10);
        harness.append(log, &bytes);
        reference.append(&bytes);
        if round == 6 {
            harness.settle();
        }
    }
    (log, reference)
}

fn prefix_truncation_retains_offsets(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let (log, mut reference) = ten_batches(&mut harness, "one");
    for offset in [0, 1, 4, 9, 5, 22, 30, 12, 99] {
        harness.store.truncate_prefix(log, offset).unwrap();
        reference.truncate_prefix(offset);
        let status = harness.store.status(log);
        assert_eq!((status.start, status.end), (reference.start, reference.end), "{offset}");
        assert!(status.committed >= status.start && status.start_after_crash <= status.start);
        assert_eq!(harness.read_all(log), reference.bytes(), "{offset}");
    }
    let bytes = batch(11, 2, 10, 7);
    assert_eq!(harness.append(log, &bytes), 30);
    reference.append(&bytes);
    harness.settle();
    assert_eq!(harness.read_all(log), reference.bytes());
    let Some(mut harness) = harness.reopen() else { return };
    let log = harness.open("one");
    assert_eq!(harness.store.status(log).start, 30);
    assert_eq!(harness.read_all(log), reference.bytes());
}

fn appends_continue_after_suffix_truncation(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    for offset in [30, 27, 24, 21, 18, 3, 0] {
        let name = format!("to-{offset}");
        let (log, mut reference) = ten_batches(&mut harness, &name);
        harness.store.truncate_suffix(log, offset).unwrap();
        reference.truncate_suffix(offset);
        let status = harness.store.status(log);
        assert_eq!((status.start, status.end), (0, offset));
        assert!(status.committed <= offset);
        assert_eq!(harness.read_all(log), reference.bytes());
        let bytes = batch(100 + offset, 2, 200, 7);
        assert_eq!(harness.append(log, &bytes), reference.append(&bytes));
        harness.settle();
        assert_eq!(harness.read_all(log), reference.bytes());
        let Some(again) = harness.reopen() else { return };
        harness = again;
        let log = harness.open(&name);
        assert_eq!(harness.read_all(log), reference.bytes());
    }
}

fn rejects_invalid_truncations(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let (log, mut reference) = ten_batches(&mut harness, "one");
    harness.store.truncate_prefix(log, 4).unwrap();
    reference.truncate_prefix(4);
    for offset in [0, 3, 4, 5, 7, 20, 25, 29, 31, u64::MAX] {
        assert_eq!(harness.store.truncate_suffix(log, offset), Err(Error::OutOfRange), "{offset}");
        let status = harness.store.status(log);
        assert_eq!((status.start, status.end), (4, 30));
    }
    assert_eq!(harness.read_all(log), reference.bytes());
    harness.settle();
}

fn tickets_complete_after_truncation(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    for (name, is_submitted) in [("pending", false), ("submitted", true)] {
        let (log, _) = ten_batches(&mut harness, &name.replace(' ', "-"));
        if is_submitted {
            harness.store.commit();
        }
        harness.store.truncate_suffix(log, 24).unwrap();
        harness.settle();
        let (log, _) = ten_batches(&mut harness, &format!("{}-prefix", name.replace(' ', "-")));
        if is_submitted {
            harness.store.commit();
        }
        harness.store.truncate_prefix(log, 30).unwrap();
        harness.settle();
    }
}

fn finds_records_by_timestamp(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let mut reference = ReferenceLog::default();
    assert_eq!(harness.store.find_time(log, 0), Ok(None));
    // Timestamps are not monotonic.
    for round in 0..30 {
        let bytes = batch(round, 3, 60, 1000 + (round * 7 % 11).cast_signed() * 10);
        harness.append(log, &bytes);
        reference.append(&bytes);
        if round % 8 == 0 {
            harness.settle();
        }
    }
    let compare = |harness: &mut Harness, log, reference: &ReferenceLog| {
        for time in (980..1130).chain([i64::MIN, -1, 0, i64::MAX]) {
            assert_eq!(harness.store.find_time(log, time), Ok(reference.find_time(time)), "{time}");
        }
    };
    compare(&mut harness, log, &reference);
    harness.store.truncate_prefix(log, 10).unwrap();
    reference.truncate_prefix(10);
    compare(&mut harness, log, &reference);
    harness.store.truncate_suffix(log, 51).unwrap();
    reference.truncate_suffix(51);
    compare(&mut harness, log, &reference);
    harness.settle();
    let Some(mut harness) = harness.reopen() else { return };
    let log = harness.open("one");
    compare(&mut harness, log, &reference);
}

fn checks_and_lists_names(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let longest = "x".repeat(249);
    for bad in ["", ".", "..", "a/b", "a b", "ä", "a\0", "/", "../a", &"x".repeat(250)] {
        let refused = harness.store.open(bad, &Options::default());
        assert!(matches!(refused, Err(Error::System(_))), "{bad:?}: {refused:?}");
    }
    assert!(harness.store.names().is_empty());
    let mut good = [
        "b",
        "a",
        "A",
        "...",
        "a.b_c-D.9",
        "-",
        "_",
        "journal",
        "lock",
        "checkpoint",
        "0",
        "tmp",
        "a.log",
        &longest,
    ];
    for name in good {
        let log = harness.open(name);
        harness.append(log, &batch(name.len() as u64, 1, 10, 7));
    }
    harness.settle();
    good.sort_unstable();
    assert_eq!(harness.store.names(), good);
    let Some(mut harness) = harness.reopen() else { return };
    assert_eq!(harness.store.names(), good, "open or not");
    for name in good {
        let log = harness.open(name);
        assert_eq!(harness.store.status(log).end, 1);
    }
    assert_eq!(harness.store.names(), good);
}

fn opening_twice_returns_the_same_log(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("one");
    let other = harness.open("two");
    assert_ne!(log, other);
    harness.append(log, &batch(1, 2, 10, 7));
    let options = Options { durability: Durability::Os, ..Options::default() };
    assert_eq!(harness.store.open("one", &options), Ok(log));
    assert_eq!(harness.store.status(log).end, 2);
    harness.append(log, &batch(2, 2, 10, 7));
    harness.settle();
    assert_eq!(harness.store.open("one", &Options::default()), Ok(log));
    assert_eq!(harness.store.status(log).committed, 4);
}

fn removal_deletes_everything(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let (log, _) = ten_batches(&mut harness, "one");
    harness.settle();
    harness.store.truncate_prefix(log, 12).unwrap();
    harness.remove(log);
    assert!(harness.store.names().is_empty());
    let log = harness.open("one");
    let status = harness.store.status(log);
    assert_eq!((status.start, status.committed, status.end), (0, 0, 0));
    let bytes = batch(50, 1, 10, 7);
    assert_eq!(harness.append(log, &bytes), 0);
    harness.settle();
    harness.remove(log);
    let Some(mut harness) = harness.reopen() else { return };
    assert!(harness.store.names().is_empty());
    let log = harness.open("one");
    assert!(harness.read_all(log).is_empty());
}

fn removal_does_not_affect_other_logs(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    for is_submitted in [false, true] {
        let (kept, gone) = (harness.open("kept"), harness.open("gone"));
        let end = harness.store.status(kept).end;
        harness.append(gone, &batch(1, 1, 10, 7));
        harness.append(kept, &batch(2, 1, 10, 7));
        if is_submitted {
            harness.store.commit();
        }
        harness.remove(gone);
        // Tickets of the removed log need not complete.
        harness.store.commit();
        harness.settle_one(kept);
        assert_eq!(harness.store.status(kept).committed, end + 1);
        assert_eq!(harness.store.names(), ["kept"]);
    }
}

fn maintenance_loses_nothing(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let options = Options { segment_bytes: 512, segment_ms: Some(1000), ..Options::default() };
    let log = harness.store.open("one", &options).unwrap();
    let mut reference = ReferenceLog::default();
    let mut now = 1_000_000_u64;
    for round in 0..30 {
        let bytes = batch(round, 2, 50, now.cast_signed());
        harness.append(log, &bytes);
        reference.append(&bytes);
        if round % 3 == 0 {
            harness.settle();
        }
        if let Some(next) = harness.store.maintain(now).due_ms {
            now = now.max(next);
        }
        now += 700;
    }
    harness.settle();
    assert_eq!(harness.read_all(log), reference.bytes());
}

fn committed_data_survives_a_restart(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let mut references = [ReferenceLog::default(), ReferenceLog::default()];
    for restart in 0..6 {
        let logs = ["fsync", "os"].map(|name| {
            let durability = if name == "os" { Durability::Os } else { Durability::Fsync };
            let options = Options { durability, segment_bytes: 1024, ..Options::default() };
            harness.store.open(name, &options).unwrap()
        });
        for (log, reference) in logs.iter().zip(&mut references) {
            assert_eq!(harness.read_all(*log), reference.bytes(), "restart {restart}");
            let status = harness.store.status(*log);
            assert_eq!((status.committed, status.end), (reference.end, reference.end));
            for round in 0..restart * 3 {
                let bytes = batch(restart * 100 + round, 2, 80, 7);
                assert_eq!(harness.append(*log, &bytes), reference.append(&bytes));
            }
        }
        harness.settle();
        let Some(again) = harness.reopen() else { return };
        harness = again;
    }
}

fn emptied_log_continues_at_its_offset(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let (log, _) = ten_batches(&mut harness, "prefix");
    harness.settle();
    harness.store.truncate_prefix(log, 30).unwrap();
    let (log, _) = ten_batches(&mut harness, "both");
    harness.settle();
    harness.store.truncate_prefix(log, 12).unwrap();
    harness.store.truncate_suffix(log, 12).unwrap();
    for (name, end) in [("prefix", 30), ("both", 12)] {
        let Some(again) = harness.reopen() else { return };
        harness = again;
        let log = harness.open(name);
        let status = harness.store.status(log);
        assert_eq!((status.start, status.committed, status.end), (end, end, end), "{name}");
        assert_eq!(harness.append(log, &batch(1, 1, 10, 7)), end);
        harness.settle();
    }
}

fn notes_last_until_the_next_append(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    for restart in 0..4 {
        let log = harness.open("noted");
        harness.append(log, &batch(restart, 1, 10, 7));
        harness.settle();
        // Before this append, a note may or may not be accepted.
        let is_stored = harness.store.note(log, b"of before");
        harness.append(log, &batch(restart, 1, 10, 7));
        assert!(
            !is_stored || !harness.store.note(log, b"too early"),
            "an uncommitted append must block notes"
        );
        harness.settle();
        let notes = [b"one".as_slice(), b"", b"and another"];
        let stored: Vec<_> = notes.into_iter().filter(|note| harness.store.note(log, note)).collect();
        let Some(again) = harness.reopen() else { return };
        harness = again;
        let log = harness.open("noted");
        assert_eq!(harness.store.notes(log), Ok(stored.concat()), "restart {restart}");
        harness.append(log, &batch(restart, 1, 10, 7));
        harness.settle();
        let Some(again) = harness.reopen() else { return };
        harness = again;
        let log = harness.open("noted");
        assert_eq!(harness.store.notes(log), Ok(Vec::new()), "restart {restart}");
    }
}

fn suffix_truncation_removes_notes(factory: &mut dyn StoreFactory) {
    let mut harness = Harness::new(factory);
    let log = harness.open("noted");
    for round in 0..3 {
        harness.append(log, &batch(round, 1, 10, 7));
    }
    harness.settle();
    harness.store.note(log, b"of the third");
    harness.store.truncate_suffix(log, 2).unwrap();
    harness.append(log, &batch(9, 1, 10, 7));
    harness.settle();
    let Some(mut again) = harness.reopen() else { return };
    let log = again.open("noted");
    assert_eq!(again.store.notes(log), Ok(Vec::new()));
}
