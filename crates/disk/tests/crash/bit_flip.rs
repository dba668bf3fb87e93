//! A bit flip at rest anywhere in the files of a store may lose one batch and no other, and must never produce data
//! that was not appended.

use std::path::Path;

use mainstem_disk::fault::{FaultFs, Rng};
use mainstem_log::contract::{ReferenceLog, batch};
use mainstem_log::{Batch, BatchHeader, Error, LogId, Options, Store};

use crate::incarnation::{OpenStore, settings};

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// Fills a store, ends it, flips a bit and checks the result. Determined by `seed`.
///
/// # Panics
/// If more than the affected batch is lost, or other data changed.
pub(crate) fn run(seed: u64, open_store: OpenStore) {
    let mut rng = Rng::new(seed);
    let settings = settings(&mut rng);
    let fs = FaultFs::new(seed);
    let mut store = open_store(&fs, &settings).expect("no fault is planned");
    let mut references = [const { ReferenceLog { start: 0, end: 0, batches: Vec::new() } }; NAMES.len()];
    let options = Options { segment_bytes: 500 << rng.below(6), ..Options::default() };
    let logs = NAMES.map(|name| store.open(name, &options).expect("no fault is planned"));
    for salt in 0..10 + rng.below(60) {
        let which = rng.below(NAMES.len() as u64) as usize;
        let bytes = batch(salt, 1 + rng.below(3) as u32, rng.below(900) as usize, salt.cast_signed() * 10);
        store.append(logs[which], &bytes).expect("no fault is planned");
        references[which].append(&bytes);
        if rng.chance(30) {
            store.commit();
        }
    }
    store.commit();
    let is_clean = rng.chance(50);
    if is_clean {
        drop(store);
    }
    let ended = fs.killed(seed);
    let hit = flip(&ended, &mut rng);
    let mut store = open_store(&ended, &settings).unwrap_or_else(|error| panic!("{hit}: {error:?}"));
    for (name, reference) in NAMES.iter().zip(&mut references) {
        let log = store.open(name, &options).unwrap_or_else(|error| panic!("{hit}: {name}: {error:?}"));
        let status = store.status(log);
        if !is_clean && status.end < reference.end {
            // Damage at the very end looks like a torn write.
            let last = reference.batches.last().map_or(0, |last| end_of(last) - base_of(last));
            assert_eq!(status.end, reference.end - last, "{hit}: {name}");
            reference.truncate_suffix(status.end);
        }
        assert_eq!((status.start, status.end), (0, reference.end), "{hit}: {name}, clean: {is_clean}");
        let missing = check_readable(&mut *store, log, reference)
            .unwrap_or_else(|what| panic!("{hit}: {name}, clean: {is_clean}: {what}"));
        assert!(missing <= usize::from(hit.contains(name)), "{hit}: {name} misses {missing}");
        let bytes = batch(1000, 2, 50, 7);
        assert_eq!(
            store.append(log, &bytes).expect("the log accepts appends").base_offset,
            reference.append(&bytes)
        );
    }
    store.commit();
}

/// Flips one bit of one file and returns its description.
fn flip(fs: &FaultFs, rng: &mut Rng) -> String {
    let files: Vec<(String, u64)> = fs.files().into_iter().filter(|(_, len)| *len > 0).collect();
    let (path, len) = &files[rng.below(files.len() as u64) as usize];
    // Most of a large file is unused.
    let at = rng.below(*len.min(&20_000));
    fs.flip_bit(Path::new(path), at, rng.below(8) as u8).expect("the file exists");
    format!("byte {at} of {path}")
}

/// Reads all readable batches and returns the number of unreadable ones.
fn check_readable(store: &mut dyn Store, log: LogId, reference: &ReferenceLog) -> Result<usize, String> {
    let mut missing = 0;
    let mut at = 0;
    while at < reference.end {
        let mut read = Vec::new();
        let following = reference.batches.iter().position(|batch| end_of(batch) > at).unwrap_or_default();
        match store.read(log, at..reference.end, 3000, &mut read) {
            Ok(()) => {
                let mut rest = read.as_slice();
                for expected in &reference.batches[following..] {
                    let Some((found, after)) = rest.split_at_checked(expected.len()) else { break };
                    if !same(found, expected) {
                        let header = BatchHeader::parse(found);
                        return Err(format!("offset {at} has changed: {header:?}"));
                    }
                    rest = after;
                    at = end_of(expected);
                }
                if !rest.is_empty() || read.is_empty() {
                    return Err(format!("{} bytes at offset {at}, {} too many", read.len(), rest.len()));
                }
            }
            Err(Error::Corrupt { .. }) => {
                missing += 1;
                at = end_of(&reference.batches[following]);
            }
            Err(error) => return Err(format!("offset {at}: {error:?}")),
        }
    }
    // The result may be empty, but the search must terminate.
    match store.find_time(log, 100) {
        Ok(_) | Err(Error::Corrupt { .. }) => Ok(missing),
        Err(error) => Err(format!("by time: {error:?}")),
    }
}

/// Whether two batches are equal except for the leader epoch, which is unused and not covered by the checksum.
fn same(found: &[u8], expected: &[u8]) -> bool {
    found[..12] == expected[..12] && found[16..] == expected[16..]
}

fn base_of(bytes: &[u8]) -> u64 {
    Batch::parse(bytes).expect("a batch").header.base_offset
}

fn end_of(bytes: &[u8]) -> u64 {
    Batch::parse(bytes).expect("a batch").header.end_offset()
}
