//! Seeded crash tests of the segment log: several logs, random appends, commits and truncations, with repeated kills
//! and power failures at any point. After each restart every acknowledged record must exist, nothing may exist that
//! was never appended, and the store must keep working.
//!
//! `SIM_SEEDS=from..to` selects other seeds than the smoke run. A failing seed is printed with the command that
//! reproduces it and with the end of its trace; `SIM_TRACE=1` prints the whole trace.

mod bit_flip;
mod incarnation;
mod model;
mod notes;
mod planted_bugs;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use incarnation::{CommitMode, OpenStore, Tally};
use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, SegmentStore, Settings};
use mainstem_log::{Error, Store};

/// Seeds of the smoke run.
const SMOKE: Range<u64> = 0..100;
/// Number of seeds within which a planted bug must be found.
const PLANTED_WITHIN: u64 = 200;
/// Trace lines printed for a failing seed.
const TRACE_LINES: usize = 120;

fn open(fs: &FaultFs, settings: &Settings) -> Result<Box<dyn Store>, Error> {
    let fs = Arc::new(fs.clone());
    let store = SegmentStore::open(fs, PathBuf::from("/"), settings.clone(), Committer::Inline)?;
    Ok(Box::new(store))
}

fn open_with_thread(fs: &FaultFs, settings: &Settings) -> Result<Box<dyn Store>, Error> {
    let fs = Arc::new(fs.clone());
    let committer = Committer::Thread { wake: Arc::new(|| {}) };
    Ok(Box::new(SegmentStore::open(fs, PathBuf::from("/"), settings.clone(), committer)?))
}

fn seeds() -> Range<u64> {
    let Ok(seeds) = std::env::var("SIM_SEEDS") else { return SMOKE };
    let (from, to) = seeds.split_once("..").expect("SIM_SEEDS is from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// Runs one seed. Returns the failure as text.
fn try_seed(seed: u64, open_store: OpenStore) -> Result<Tally, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        incarnation::run(seed, &FaultFs::new(seed), open_store, CommitMode::Inline)
    }));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Trace of one seed, whether it fails or not.
fn trace(seed: u64, open_store: OpenStore) -> Vec<String> {
    let fs = FaultFs::new(seed);
    fs.trace();
    let outcome =
        catch_unwind(AssertUnwindSafe(|| incarnation::run(seed, &fs, open_store, CommitMode::Inline)));
    let mut trace = fs.take_trace();
    trace.push(format!("failed: {}", outcome.is_err()));
    trace
}

#[test]
fn nothing_acknowledged_is_lost() {
    let mut all = Tally::default();
    for seed in seeds() {
        match try_seed(seed, open) {
            Ok(tally) => all.add(tally),
            Err(what) => {
                let trace = trace(seed, open);
                let shown = std::env::var("SIM_TRACE").map_or(TRACE_LINES, |_| trace.len());
                println!("{}", trace[trace.len().saturating_sub(shown)..].join("\n"));
                println!("{what}");
                let next = seed + 1;
                println!(
                    "reproduce: SIM_SEEDS={seed}..{next} cargo test -p mainstem-disk --test crash acknowledged"
                );
                panic!("seed {seed} fails");
            }
        }
    }
    println!("seeds {:?}: {all:?}", seeds());
}

/// A failure here may not reproduce: thread scheduling is not deterministic.
#[test]
fn nothing_acknowledged_is_lost_with_a_thread() {
    for seed in seeds() {
        let fs = FaultFs::new(seed);
        fs.trace();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            incarnation::run(seed, &fs, open_with_thread, CommitMode::Threaded);
        }));
        let trace = fs.take_trace();
        if outcome.is_err() {
            println!("{}", trace.join("\n"));
            panic!("seed {seed} fails (not deterministic)");
        }
    }
}

#[test]
fn a_bit_flip_loses_at_most_one_batch() {
    for seed in seeds() {
        println!(
            "reproduce: SIM_SEEDS={seed}..{} cargo test -p mainstem-disk --test crash at_most_one",
            seed + 1
        );
        bit_flip::run(seed, open);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..20 {
        let (one, two) = (trace(seed, open), trace(seed, open));
        assert!(one.len() > 20, "{one:?}");
        assert_eq!(one, two);
        assert_ne!(one, trace(seed + 1, open));
    }
}

#[test]
fn detects_every_planted_bug() {
    for (name, open_store) in planted_bugs::ALL {
        let found = (0..PLANTED_WITHIN).find_map(|seed| Some((seed, try_seed(seed, *open_store).err()?)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{name}: not found within {PLANTED_WITHIN} seeds"));
        println!("{name}: seed {seed}: {what}");
    }
}

#[test]
fn bit_flips_detect_ignored_checksums() {
    let is_found = |seed| catch_unwind(|| bit_flip::run(seed, planted_bugs::ignoring_checksums)).is_err();
    assert!((0..PLANTED_WITHIN).any(is_found));
}
