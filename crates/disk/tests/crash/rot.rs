//! A bit flips at rest, somewhere in the files of a store. One batch may be lost by that, and no other; nothing is
//! given out that was never appended.

use std::path::Path;

use mainstem_disk::fault::{Dice, FaultFs};
use mainstem_log::contract::{Plain, batch};
use mainstem_log::{Batch, BatchHeader, Error, LogId, Options, Store};

use crate::life::{Make, settings};

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// Fills a store, ends it, flips a bit and looks. All is decided by `seed`.
///
/// # Panics
/// If more is lost than the batch that is hit, or anything is not what it was.
pub(crate) fn run(seed: u64, make: Make) {
    let mut dice = Dice::new(seed);
    let settings = settings(&mut dice);
    let fs = FaultFs::new(seed);
    let mut store = make(&fs, &settings).expect("nothing fails");
    let mut plains = [const { Plain { start: 0, end: 0, batches: Vec::new() } }; NAMES.len()];
    let options = Options { segment_bytes: 500 << dice.below(6), ..Options::default() };
    let logs = NAMES.map(|name| store.open(name, &options).expect("nothing fails"));
    for salt in 0..10 + dice.below(60) {
        let which = dice.below(NAMES.len() as u64) as usize;
        let bytes = batch(salt, 1 + dice.below(3) as u32, dice.below(900) as usize, salt.cast_signed() * 10);
        store.append(logs[which], &bytes).expect("nothing fails");
        plains[which].append(&bytes);
        if dice.chance(30) {
            store.commit();
        }
    }
    store.commit();
    let in_order = dice.chance(50);
    if in_order {
        drop(store);
    }
    let ended = fs.killed(seed);
    let hit = flip(&ended, &mut dice);
    let mut store = make(&ended, &settings).unwrap_or_else(|error| panic!("{hit}: {error:?}"));
    for (name, plain) in NAMES.iter().zip(&mut plains) {
        let log = store.open(name, &options).unwrap_or_else(|error| panic!("{hit}: {name}: {error:?}"));
        let status = store.status(log);
        if !in_order && status.end < plain.end {
            // What is hit at the very end looks like a write that was cut short.
            let last = plain.batches.last().map_or(0, |last| end_of(last) - base_of(last));
            assert_eq!(status.end, plain.end - last, "{hit}: {name}");
            plain.truncate_suffix(status.end);
        }
        assert_eq!((status.start, status.end), (0, plain.end), "{hit}: {name}, in order: {in_order}");
        let missing = look(&mut *store, log, plain)
            .unwrap_or_else(|what| panic!("{hit}: {name}, in order: {in_order}: {what}"));
        assert!(missing <= usize::from(hit.contains(name)), "{hit}: {name} misses {missing}");
        let bytes = batch(1000, 2, 50, 7);
        assert_eq!(store.append(log, &bytes).expect("it goes on").base_offset, plain.append(&bytes));
    }
    store.commit();
}

/// Flips one bit of one file. Returns which.
fn flip(fs: &FaultFs, dice: &mut Dice) -> String {
    let files: Vec<(String, u64)> = fs.files().into_iter().filter(|(_, len)| *len > 0).collect();
    let (path, len) = &files[dice.below(files.len() as u64) as usize];
    // Most of a large file is empty.
    let at = dice.below(*len.min(&20_000));
    fs.rot(Path::new(path), at, dice.below(8) as u8).expect("it is there");
    format!("byte {at} of {path}")
}

/// Reads everything but what cannot be read, and counts the batches that are missing.
fn look(store: &mut dyn Store, log: LogId, plain: &Plain) -> Result<usize, String> {
    let mut missing = 0;
    let mut at = 0;
    while at < plain.end {
        let mut read = Vec::new();
        let following = plain.batches.iter().position(|batch| end_of(batch) > at).unwrap_or_default();
        match store.read(log, at..plain.end, 3000, &mut read) {
            Ok(()) => {
                let mut rest = read.as_slice();
                for expected in &plain.batches[following..] {
                    let Some((found, behind)) = rest.split_at_checked(expected.len()) else { break };
                    if !same(found, expected) {
                        let header = BatchHeader::parse(found);
                        return Err(format!("offset {at} is not what it was: {header:?}"));
                    }
                    rest = behind;
                    at = end_of(expected);
                }
                if !rest.is_empty() || read.is_empty() {
                    return Err(format!("{} bytes at offset {at}, {} too many", read.len(), rest.len()));
                }
            }
            Err(Error::Corrupt { .. }) => {
                missing += 1;
                at = end_of(&plain.batches[following]);
            }
            Err(error) => return Err(format!("offset {at}: {error:?}")),
        }
    }
    // It may find nothing, but it must come to an end.
    match store.find_time(log, 100) {
        Ok(_) | Err(Error::Corrupt { .. }) => Ok(missing),
        Err(error) => Err(format!("by time: {error:?}")),
    }
}

/// Whether two batches are the same, but for the leader epoch, which no checksum covers and nobody uses.
fn same(found: &[u8], expected: &[u8]) -> bool {
    found[..12] == expected[..12] && found[16..] == expected[16..]
}

fn base_of(bytes: &[u8]) -> u64 {
    Batch::parse(bytes).expect("a batch").header.base_offset
}

fn end_of(bytes: &[u8]) -> u64 {
    Batch::parse(bytes).expect("a batch").header.end_offset()
}
