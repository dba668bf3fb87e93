//! Crash tests of the segment log, from seeds: several logs, random appends, commits and truncations, and an end at
//! any point, by a kill or by loss of power, again and again. What was acknowledged must be there each time,
//! nothing else but what was appended, and the store must go on working.
//!
//! `SIM_SEEDS=from..to` chooses other seeds than those of the smoke run. A seed that fails is printed with the
//! command that runs it again, and with the last that was done with the store and by it; with `SIM_TRACE=1` with all.

mod flaws;
mod life;
mod model;
mod notes;
mod rot;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use life::{Commits, Make, Tally};
use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, SegmentStore, Settings};
use mainstem_log::{Error, Store};

/// What the smoke run takes.
const SMOKE: Range<u64> = 0..100;
/// Seeds within which a planted bug must be found.
const PLANTED_WITHIN: u64 = 200;
/// Lines of the trace that are shown of a run that fails.
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

/// What the store broke with this seed, if anything.
fn try_seed(seed: u64, make: Make) -> Result<Tally, String> {
    let outcome =
        catch_unwind(AssertUnwindSafe(|| life::run(seed, &FaultFs::new(seed), make, Commits::AtOnce)));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// All that is done with this seed, whether it fails or not.
fn trace(seed: u64, make: Make) -> Vec<String> {
    let fs = FaultFs::new(seed);
    fs.trace();
    let outcome = catch_unwind(AssertUnwindSafe(|| life::run(seed, &fs, make, Commits::AtOnce)));
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
                    "again: SIM_SEEDS={seed}..{next} cargo test -p mainstem-disk --test crash acknowledged"
                );
                panic!("seed {seed} fails");
            }
        }
    }
    println!("seeds {:?}: {all:?}", seeds());
}

/// Here a seed that fails need not fail again: the thread has a will of its own.
#[test]
fn nothing_is_lost_with_a_thread_either() {
    for seed in seeds() {
        let fs = FaultFs::new(seed);
        fs.trace();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            life::run(seed, &fs, open_with_thread, Commits::InTheirTime);
        }));
        let trace = fs.take_trace();
        if outcome.is_err() {
            println!("{}", trace.join("\n"));
            panic!("seed {seed} fails, this time");
        }
    }
}

#[test]
fn a_bit_that_flips_costs_one_batch_at_most() {
    for seed in seeds() {
        println!("again: SIM_SEEDS={seed}..{} cargo test -p mainstem-disk --test crash flips", seed + 1);
        rot::run(seed, open);
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
fn every_planted_bug_is_found() {
    for (name, make) in flaws::ALL {
        let found = (0..PLANTED_WITHIN).find_map(|seed| Some((seed, try_seed(seed, *make).err()?)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{name}: not found within {PLANTED_WITHIN} seeds"));
        println!("{name}: seed {seed}: {what}");
    }
}

#[test]
fn checksums_that_are_forgiven_are_found_by_rot() {
    let is_found = |seed| catch_unwind(|| rot::run(seed, flaws::forgiving)).is_err();
    assert!((0..PLANTED_WITHIN).any(is_found));
}
