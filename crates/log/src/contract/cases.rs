//! What a store promises, one promise after the other.

use super::Subject;
use super::bench::Bench;
use super::plain::{Plain, batch};
use crate::{Batch, Durability, Error, Malformed, Options, State, batches};

/// One promise, as a test of any store.
type Case = fn(&mut dyn Subject);

/// All that can be said in a few lines each.
pub const CASES: &[(&str, Case)] = &[
    ("offsets have no gaps and batches stay as they came", offsets_have_no_gaps),
    ("nothing completes before its commit", nothing_completes_before_its_commit),
    ("completions come in order, for each log its own", completions_come_in_order),
    ("appends are read before they are committed", appends_are_read_at_once),
    ("reads give whole batches, within their bounds", reads_give_whole_batches),
    ("reads outside of the log are refused", reads_outside_are_refused),
    ("what is no batch is refused and changes nothing", what_is_no_batch_is_refused),
    ("batches of all kinds are kept", batches_of_all_kinds_are_kept),
    ("a large batch fits among small ones", a_large_batch_fits),
    ("many logs share a commit", many_logs_share_a_commit),
    ("a log that starts later keeps its offsets", a_log_that_starts_later),
    ("a log that ends earlier goes on from there", a_log_that_ends_earlier),
    ("no truncation can go wrong unseen", truncations_out_of_range),
    ("truncation leaves no ticket behind", truncation_leaves_no_ticket_behind),
    ("records are found by their time", records_are_found_by_time),
    ("names are checked, and listed in order", names_are_checked_and_listed),
    ("opening twice opens the same", opening_twice_opens_the_same),
    ("a removed log leaves nothing", a_removed_log_leaves_nothing),
    ("removing a log leaves the others' commits alone", removing_leaves_others_alone),
    ("tending loses nothing of what its owner keeps", tending_loses_nothing),
    ("what was committed is there again", what_was_committed_is_there_again),
    ("an emptied log goes on at its offset", an_emptied_log_goes_on),
    ("what is noted counts until the next append", what_is_noted_counts_until_the_next_append),
    ("what is noted does not outlive the end of its log", what_is_noted_ends_with_what_it_stands_behind),
];

fn offsets_have_no_gaps(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut plain = Plain::default();
    for round in 0..40 {
        let mut bytes = batch(round, 1 + round as u32 % 5, 50, 7);
        // Where the producer says that it stands, and under which leader, does not matter.
        Batch::place(&mut bytes, round * 1000, 9);
        assert_eq!(bench.append(log, &bytes), plain.append(&bytes));
        assert_eq!(bench.store.status(log).end, plain.end);
        if round % 7 == 0 {
            bench.settle();
        }
    }
    bench.settle();
    assert_eq!(bench.read_all(log), plain.bytes());
    assert!(bench.store.status(log).bytes >= plain.bytes().len() as u64);
    assert_eq!(bench.store.status(log).state, State::Ready);
}

fn nothing_completes_before_its_commit(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let other = bench.open("two");
    bench.append(log, &batch(1, 3, 10, 7));
    assert_eq!(bench.take(), 0);
    let status = bench.store.status(log);
    assert_eq!((status.start, status.committed, status.end), (0, 0, 3));
    bench.settle();
    assert_eq!(bench.store.status(log).committed, 3);
    for _ in 0..3 {
        bench.store.commit();
        assert_eq!(bench.take(), 0, "there was nothing to commit");
    }
    bench.append(other, &batch(2, 1, 10, 7));
    bench.settle();
    assert_eq!(bench.store.status(log).committed, 3);
}

fn completions_come_in_order(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let logs = ["a", "b", "c"].map(|name| bench.open(name));
    for turn in 0..60 {
        for (index, log) in logs.iter().enumerate() {
            for extra in 0..(turn + index as u64) % 4 {
                bench.append(*log, &batch(turn, 1 + extra as u32, 30, 7));
            }
        }
        bench.store.commit();
        if turn % 3 == 0 {
            bench.take();
        }
    }
    bench.settle();
}

fn appends_are_read_at_once(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut plain = Plain::default();
    for round in 0..20 {
        let bytes = batch(round, 2, 100, 7);
        bench.append(log, &bytes);
        plain.append(&bytes);
        assert_eq!(bench.read_all(log), plain.bytes());
        if round % 3 == 0 {
            bench.store.commit();
            assert_eq!(bench.read_all(log), plain.bytes());
        }
    }
}

fn reads_give_whole_batches(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut plain = Plain::default();
    // Some committed and some not, over several segments.
    for round in 0..24 {
        let bytes = batch(round, 1 + round as u32 % 4, 60, 7);
        bench.append(log, &bytes);
        plain.append(&bytes);
        if round == 15 {
            bench.settle();
        }
    }
    for start in 0..=plain.end {
        for len in [0, 1, 2, 5, plain.end] {
            for max_bytes in [0, 1, 300, 1000, usize::MAX] {
                let range = start..start + len;
                let mut read = b"before".to_vec();
                bench.store.read(log, range.clone(), max_bytes, &mut read).unwrap();
                let expected = plain.read(range.clone(), max_bytes).unwrap();
                assert_eq!(read.strip_prefix(b"before"), Some(expected.as_slice()), "{range:?} {max_bytes}");
            }
        }
    }
}

fn reads_outside_are_refused(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut read = Vec::new();
    assert_eq!(bench.store.read(log, 0..10, 100, &mut read), Ok(()), "an empty log has an end");
    assert_eq!(bench.store.read(log, 1..10, 100, &mut read), Err(Error::OutOfRange));
    bench.append(log, &batch(1, 4, 10, 7));
    bench.settle();
    bench.append(log, &batch(2, 4, 10, 7));
    assert_eq!(bench.store.read(log, 8..9, 100, &mut read), Ok(()));
    assert_eq!(bench.store.read(log, 9..9, 100, &mut read), Err(Error::OutOfRange));
    assert_eq!(bench.store.read(log, u64::MAX..u64::MAX, 100, &mut read), Err(Error::OutOfRange));
    bench.store.truncate_prefix(log, 2).unwrap();
    assert_eq!(bench.store.read(log, 1..9, 100, &mut read), Err(Error::OutOfRange));
    assert!(read.is_empty());
}

fn what_is_no_batch_is_refused(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let good = batch(1, 3, 40, 7);
    bench.append(log, &good);
    bench.settle();
    let before = bench.store.status(log);

    let mut refuse = |bytes: &[u8], expected: Malformed| {
        assert_eq!(bench.store.append(log, bytes), Err(Error::Malformed(expected)));
        assert_eq!(bench.store.status(log), before);
    };
    for len in 0..good.len() {
        refuse(&good[..len], Malformed::Length);
    }
    for (at, expected) in [(16, Malformed::Magic(3)), (17, Malformed::Checksum), (70, Malformed::Checksum)] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        refuse(&bytes, expected);
    }
    // A length that is no length, and counts below zero.
    for (at, expected) in
        [(8, Malformed::Length), (23, Malformed::Inconsistent), (57, Malformed::Inconsistent)]
    {
        let mut bytes = good.clone();
        bytes[at] |= 0x80;
        refuse(&bytes, expected);
    }
    refuse(&[good.as_slice(), &good].concat(), Malformed::Length);

    bench.store.commit();
    assert_eq!(bench.take(), 0);
    assert_eq!(bench.append(log, &good), 3);
    bench.settle();
    assert_eq!(batches(&bench.read_all(log)).count(), 2);
}

/// Changes a batch and makes its checksum right again.
fn altered(mut bytes: Vec<u8>, alter: impl FnOnce(&mut [u8])) -> Vec<u8> {
    alter(&mut bytes);
    let checksum = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn batches_of_all_kinds_are_kept(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut plain = Plain::default();
    let compressed = altered(batch(1, 3, 40, 7), |bytes| bytes[22] |= 4);
    let control = altered(batch(2, 1, 6, 7), |bytes| bytes[22] |= 0x30);
    let log_append_time = altered(batch(3, 2, 6, 7), |bytes| bytes[22] |= 8);
    let produced = altered(batch(4, 2, 6, 7), |bytes| {
        bytes[43..51].copy_from_slice(&77_i64.to_be_bytes());
        bytes[51..53].copy_from_slice(&3_i16.to_be_bytes());
        bytes[53..57].copy_from_slice(&1000_i32.to_be_bytes());
    });
    // As compaction leaves it: offsets that no record has any more, at the end or altogether.
    let compacted = altered(batch(5, 2, 6, 7), |bytes| bytes[23..27].copy_from_slice(&9_i32.to_be_bytes()));
    let emptied = altered(batch(6, 1, 6, 7)[..61].to_vec(), |bytes| {
        bytes[8..12].copy_from_slice(&49_i32.to_be_bytes());
        bytes[57..61].fill(0);
    });
    for bytes in [compressed, control, log_append_time, produced, compacted, emptied] {
        assert_eq!(bench.append(log, &bytes), plain.append(&bytes));
        assert_eq!(bench.store.status(log).end, plain.end);
        bench.settle();
    }
    assert_eq!(bench.read_all(log), plain.bytes());
    if let Some(mut bench) = bench.reopen() {
        let log = bench.open("one");
        assert_eq!(bench.store.status(log).end, plain.end);
        assert_eq!(bench.read_all(log), plain.bytes());
    }
}

fn a_large_batch_fits(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut plain = Plain::default();
    let mut put = |bench: &mut Bench, bytes: &[u8]| {
        bench.append(log, bytes);
        plain.append(bytes);
    };
    put(&mut bench, &batch(1, 1, 10, 7));
    put(&mut bench, &batch(2, 3, 700_000, 7));
    bench.settle();
    put(&mut bench, &batch(3, 1, 900_000, 7));
    put(&mut bench, &batch(4, 1, 10, 7));
    bench.settle();
    assert!(bench.read_all(log) == plain.bytes());
    let mut read = Vec::new();
    bench.store.read(log, 2..plain.end, 1, &mut read).unwrap();
    assert!(read == plain.batches[1], "the first batch comes whatever its size");
    let Some(mut bench) = bench.reopen() else { return };
    let log = bench.open("one");
    assert!(bench.read_all(log) == plain.bytes());
}

fn many_logs_share_a_commit(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let mut logs: Vec<_> =
        (0..200).map(|index| (bench.open(&format!("log-{index:03}")), Plain::default())).collect();
    for turn in 0..3 {
        for (index, (log, plain)) in logs.iter_mut().enumerate() {
            if index % (turn + 1) == 0 {
                let bytes = batch(index as u64, 2, 40, 7);
                assert_eq!(bench.append(*log, &bytes), plain.append(&bytes));
            }
        }
        bench.settle();
    }
    for (log, plain) in &logs {
        assert_eq!(bench.read_all(*log), plain.bytes());
    }
    let Some(mut bench) = bench.reopen() else { return };
    for (index, (_, plain)) in logs.iter().enumerate() {
        let log = bench.open(&format!("log-{index:03}"));
        assert_eq!(bench.read_all(log), plain.bytes());
    }
}

/// A log of ten batches with three records each, all but the last three batches committed.
fn ten_batches(bench: &mut Bench, name: &str) -> (crate::LogId, Plain) {
    let log = bench.open(name);
    let mut plain = Plain::default();
    for round in 0..10 {
        let bytes = batch(round, 3, 60, 1000 + round.cast_signed() * 10);
        bench.append(log, &bytes);
        plain.append(&bytes);
        if round == 6 {
            bench.settle();
        }
    }
    (log, plain)
}

fn a_log_that_starts_later(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let (log, mut plain) = ten_batches(&mut bench, "one");
    for offset in [0, 1, 4, 9, 5, 22, 30, 12, 99] {
        bench.store.truncate_prefix(log, offset).unwrap();
        plain.truncate_prefix(offset);
        let status = bench.store.status(log);
        assert_eq!((status.start, status.end), (plain.start, plain.end), "{offset}");
        assert!(status.committed >= status.start && status.start_after_crash <= status.start);
        assert_eq!(bench.read_all(log), plain.bytes(), "{offset}");
    }
    let bytes = batch(11, 2, 10, 7);
    assert_eq!(bench.append(log, &bytes), 30);
    plain.append(&bytes);
    bench.settle();
    assert_eq!(bench.read_all(log), plain.bytes());
    let Some(mut bench) = bench.reopen() else { return };
    let log = bench.open("one");
    assert_eq!(bench.store.status(log).start, 30);
    assert_eq!(bench.read_all(log), plain.bytes());
}

fn a_log_that_ends_earlier(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    for offset in [30, 27, 24, 21, 18, 3, 0] {
        let name = format!("to-{offset}");
        let (log, mut plain) = ten_batches(&mut bench, &name);
        bench.store.truncate_suffix(log, offset).unwrap();
        plain.truncate_suffix(offset);
        let status = bench.store.status(log);
        assert_eq!((status.start, status.end), (0, offset));
        assert!(status.committed <= offset);
        assert_eq!(bench.read_all(log), plain.bytes());
        let bytes = batch(100 + offset, 2, 200, 7);
        assert_eq!(bench.append(log, &bytes), plain.append(&bytes));
        bench.settle();
        assert_eq!(bench.read_all(log), plain.bytes());
        let Some(again) = bench.reopen() else { return };
        bench = again;
        let log = bench.open(&name);
        assert_eq!(bench.read_all(log), plain.bytes());
    }
}

fn truncations_out_of_range(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let (log, mut plain) = ten_batches(&mut bench, "one");
    bench.store.truncate_prefix(log, 4).unwrap();
    plain.truncate_prefix(4);
    for offset in [0, 3, 4, 5, 7, 20, 25, 29, 31, u64::MAX] {
        assert_eq!(bench.store.truncate_suffix(log, offset), Err(Error::OutOfRange), "{offset}");
        let status = bench.store.status(log);
        assert_eq!((status.start, status.end), (4, 30));
    }
    assert_eq!(bench.read_all(log), plain.bytes());
    bench.settle();
}

fn truncation_leaves_no_ticket_behind(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    for (name, is_on_its_way) in [("gathered", false), ("on its way", true)] {
        let (log, _) = ten_batches(&mut bench, &name.replace(' ', "-"));
        if is_on_its_way {
            bench.store.commit();
        }
        bench.store.truncate_suffix(log, 24).unwrap();
        bench.settle();
        let (log, _) = ten_batches(&mut bench, &format!("{}-prefix", name.replace(' ', "-")));
        if is_on_its_way {
            bench.store.commit();
        }
        bench.store.truncate_prefix(log, 30).unwrap();
        bench.settle();
    }
}

fn records_are_found_by_time(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let mut plain = Plain::default();
    assert_eq!(bench.store.find_time(log, 0), Ok(None));
    // Times go back and forth.
    for round in 0..30 {
        let bytes = batch(round, 3, 60, 1000 + (round * 7 % 11).cast_signed() * 10);
        bench.append(log, &bytes);
        plain.append(&bytes);
        if round % 8 == 0 {
            bench.settle();
        }
    }
    let compare = |bench: &mut Bench, log, plain: &Plain| {
        for time in (980..1130).chain([i64::MIN, -1, 0, i64::MAX]) {
            assert_eq!(bench.store.find_time(log, time), Ok(plain.find_time(time)), "{time}");
        }
    };
    compare(&mut bench, log, &plain);
    bench.store.truncate_prefix(log, 10).unwrap();
    plain.truncate_prefix(10);
    compare(&mut bench, log, &plain);
    bench.store.truncate_suffix(log, 51).unwrap();
    plain.truncate_suffix(51);
    compare(&mut bench, log, &plain);
    bench.settle();
    let Some(mut bench) = bench.reopen() else { return };
    let log = bench.open("one");
    compare(&mut bench, log, &plain);
}

fn names_are_checked_and_listed(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let longest = "x".repeat(249);
    for bad in ["", ".", "..", "a/b", "a b", "ä", "a\0", "/", "../a", &"x".repeat(250)] {
        let refused = bench.store.open(bad, &Options::default());
        assert!(matches!(refused, Err(Error::System(_))), "{bad:?}: {refused:?}");
    }
    assert!(bench.store.names().is_empty());
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
        let log = bench.open(name);
        bench.append(log, &batch(name.len() as u64, 1, 10, 7));
    }
    bench.settle();
    good.sort_unstable();
    assert_eq!(bench.store.names(), good);
    let Some(mut bench) = bench.reopen() else { return };
    assert_eq!(bench.store.names(), good, "open or not");
    for name in good {
        let log = bench.open(name);
        assert_eq!(bench.store.status(log).end, 1);
    }
    assert_eq!(bench.store.names(), good);
}

fn opening_twice_opens_the_same(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("one");
    let other = bench.open("two");
    assert_ne!(log, other);
    bench.append(log, &batch(1, 2, 10, 7));
    let options = Options { durability: Durability::Os, ..Options::default() };
    assert_eq!(bench.store.open("one", &options), Ok(log));
    assert_eq!(bench.store.status(log).end, 2);
    bench.append(log, &batch(2, 2, 10, 7));
    bench.settle();
    assert_eq!(bench.store.open("one", &Options::default()), Ok(log));
    assert_eq!(bench.store.status(log).committed, 4);
}

fn a_removed_log_leaves_nothing(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let (log, _) = ten_batches(&mut bench, "one");
    bench.settle();
    bench.store.truncate_prefix(log, 12).unwrap();
    bench.remove(log);
    assert!(bench.store.names().is_empty());
    let log = bench.open("one");
    let status = bench.store.status(log);
    assert_eq!((status.start, status.committed, status.end), (0, 0, 0));
    let bytes = batch(50, 1, 10, 7);
    assert_eq!(bench.append(log, &bytes), 0);
    bench.settle();
    bench.remove(log);
    let Some(mut bench) = bench.reopen() else { return };
    assert!(bench.store.names().is_empty());
    let log = bench.open("one");
    assert!(bench.read_all(log).is_empty());
}

fn removing_leaves_others_alone(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    for is_on_its_way in [false, true] {
        let (kept, gone) = (bench.open("kept"), bench.open("gone"));
        let end = bench.store.status(kept).end;
        bench.append(gone, &batch(1, 1, 10, 7));
        bench.append(kept, &batch(2, 1, 10, 7));
        if is_on_its_way {
            bench.store.commit();
        }
        bench.remove(gone);
        // What becomes of the removed log's own tickets is nobody's business any more.
        bench.store.commit();
        bench.settle_one(kept);
        assert_eq!(bench.store.status(kept).committed, end + 1);
        assert_eq!(bench.store.names(), ["kept"]);
    }
}

fn tending_loses_nothing(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let options = Options { segment_bytes: 512, segment_ms: Some(1000), ..Options::default() };
    let log = bench.store.open("one", &options).unwrap();
    let mut plain = Plain::default();
    let mut now = 1_000_000_u64;
    for round in 0..30 {
        let bytes = batch(round, 2, 50, now.cast_signed());
        bench.append(log, &bytes);
        plain.append(&bytes);
        if round % 3 == 0 {
            bench.settle();
        }
        if let Some(next) = bench.store.tend(now) {
            now = now.max(next);
        }
        now += 700;
    }
    bench.settle();
    assert_eq!(bench.read_all(log), plain.bytes());
}

fn what_was_committed_is_there_again(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let mut plains = [Plain::default(), Plain::default()];
    for life in 0..6 {
        let logs = ["fsync", "os"].map(|name| {
            let durability = if name == "os" { Durability::Os } else { Durability::Fsync };
            let options = Options { durability, segment_bytes: 1024, ..Options::default() };
            bench.store.open(name, &options).unwrap()
        });
        for (log, plain) in logs.iter().zip(&mut plains) {
            assert_eq!(bench.read_all(*log), plain.bytes(), "life {life}");
            let status = bench.store.status(*log);
            assert_eq!((status.committed, status.end), (plain.end, plain.end));
            for round in 0..life * 3 {
                let bytes = batch(life * 100 + round, 2, 80, 7);
                assert_eq!(bench.append(*log, &bytes), plain.append(&bytes));
            }
        }
        bench.settle();
        let Some(again) = bench.reopen() else { return };
        bench = again;
    }
}

fn an_emptied_log_goes_on(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let (log, _) = ten_batches(&mut bench, "prefix");
    bench.settle();
    bench.store.truncate_prefix(log, 30).unwrap();
    let (log, _) = ten_batches(&mut bench, "both");
    bench.settle();
    bench.store.truncate_prefix(log, 12).unwrap();
    bench.store.truncate_suffix(log, 12).unwrap();
    for (name, end) in [("prefix", 30), ("both", 12)] {
        let Some(again) = bench.reopen() else { return };
        bench = again;
        let log = bench.open(name);
        let status = bench.store.status(log);
        assert_eq!((status.start, status.committed, status.end), (end, end, end), "{name}");
        assert_eq!(bench.append(log, &batch(1, 1, 10, 7)), end);
        bench.settle();
    }
}

fn what_is_noted_counts_until_the_next_append(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    for life in 0..4 {
        let log = bench.open("noted");
        bench.append(log, &batch(life, 1, 10, 7));
        bench.settle();
        // Nothing is promised to those who note what has to be appended.
        let is_kept = bench.store.note(log, b"of before");
        bench.append(log, &batch(life, 1, 10, 7));
        assert!(!is_kept || !bench.store.note(log, b"too early"), "the append may come to nothing");
        bench.settle();
        let notes = [b"one".as_slice(), b"", b"and another"];
        let kept: Vec<_> = notes.into_iter().filter(|note| bench.store.note(log, note)).collect();
        let Some(again) = bench.reopen() else { return };
        bench = again;
        let log = bench.open("noted");
        assert_eq!(bench.store.notes(log), Ok(kept.concat()), "life {life}");
        bench.append(log, &batch(life, 1, 10, 7));
        bench.settle();
        let Some(again) = bench.reopen() else { return };
        bench = again;
        let log = bench.open("noted");
        assert_eq!(bench.store.notes(log), Ok(Vec::new()), "life {life}");
    }
}

fn what_is_noted_ends_with_what_it_stands_behind(subject: &mut dyn Subject) {
    let mut bench = Bench::new(subject);
    let log = bench.open("noted");
    for round in 0..3 {
        bench.append(log, &batch(round, 1, 10, 7));
    }
    bench.settle();
    bench.store.note(log, b"of the third");
    bench.store.truncate_suffix(log, 2).unwrap();
    bench.append(log, &batch(9, 1, 10, 7));
    bench.settle();
    let Some(mut again) = bench.reopen() else { return };
    let log = again.open("noted");
    assert_eq!(again.store.notes(log), Ok(Vec::new()));
}
