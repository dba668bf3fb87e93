//! `cargo xtask fuzz`: each fuzz target for so many seconds, after installing what that takes.

use crate::Outcome;
use crate::ci::{is_there, run_command};
use std::fs;
use std::path::Path;

/// Runs every target in `fuzz/fuzz_targets`. Fuzzing needs the nightly compiler and `cargo-fuzz`; what is missing is
/// installed.
///
/// # Errors
/// If a target finds an input that fails, or something cannot be installed.
pub(crate) fn run(root: &Path, seconds: u32) -> Outcome {
    if !is_there("cargo", &["+nightly", "--version"]) {
        run_command(root, "rustup", &["toolchain", "install", "nightly", "--profile", "minimal"], &[])?;
    }
    if !is_there("cargo", &["fuzz", "--version"]) {
        run_command(root, "cargo", &["install", "cargo-fuzz", "--locked"], &[])?;
    }
    fuzz(root, seconds, "-seed=0")
}

/// The same with what is there already, always from the same seed: a check of a change must not depend on luck.
pub(crate) fn smoke(root: &Path, seconds_each: u32) -> Outcome {
    fuzz(root, seconds_each, "-seed=1")
}

/// `seed` is libFuzzer's option; 0 lets it choose.
fn fuzz(root: &Path, seconds_each: u32, seed: &str) -> Outcome {
    for package in ["mqtt", "kafka", "compress"] {
        let (package, example) = (format!("mainstem-{package}"), format!("fuzz_seeds_{package}"));
        run_command(root, "cargo", &["run", "--quiet", "-p", &package, "--example", &example], &[])?;
    }
    let limit = format!("-max_total_time={seconds_each}");
    for target in targets(root)? {
        run_command(
            root,
            "cargo",
            &["+nightly", "fuzz", "run", &target, "--", &limit, seed, "-rss_limit_mb=2048"],
            &[],
        )?;
    }
    Ok(())
}

/// The names of the fuzz targets, sorted.
///
/// # Errors
/// If there are none: a run over nothing would show nothing.
pub(crate) fn targets(root: &Path) -> Outcome<Vec<String>> {
    let directory = root.join("fuzz/fuzz_targets");
    let entries =
        fs::read_dir(&directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let name = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned);
    let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
    names.sort();
    if names.is_empty() { Err(format!("no fuzz targets in {}", directory.display())) } else { Ok(names) }
}
