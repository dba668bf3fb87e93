//! `cargo xtask fuzz`: runs each fuzz target for a number of seconds, after installing the tools.

use crate::Outcome;
use crate::ci::{run_command, succeeds};
use std::fs;
use std::path::Path;

/// Runs every target in `fuzz/fuzz_targets`. Installs the nightly compiler and `cargo-fuzz` if they are missing.
///
/// # Errors
/// If a target finds a failing input, or a tool cannot be installed.
pub(crate) fn run(root: &Path, seconds: u32) -> Outcome {
    if !succeeds("cargo", &["+nightly", "--version"]) {
        run_command(root, "rustup", &["toolchain", "install", "nightly", "--profile", "minimal"], &[])?;
    }
    if !succeeds("cargo", &["fuzz", "--version"]) {
        run_command(root, "cargo", &["install", "cargo-fuzz", "--locked"], &[])?;
    }
    fuzz(root, seconds, "-seed=0")
}

/// Runs every target with the installed tools and a fixed seed, so that the result does not depend on luck.
pub(crate) fn smoke(root: &Path, seconds_each: u32) -> Outcome {
    fuzz(root, seconds_each, "-seed=1")
}

/// `seed` is libFuzzer's option; with 0 it picks a seed.
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

/// Names of the fuzz targets, sorted.
///
/// # Errors
/// If there are none, because a run without targets would prove nothing.
pub(crate) fn targets(root: &Path) -> Outcome<Vec<String>> {
    let directory = root.join("fuzz/fuzz_targets");
    let entries =
        fs::read_dir(&directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let name = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned);
    let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
    names.sort();
    if names.is_empty() { Err(format!("no fuzz targets in {}", directory.display())) } else { Ok(names) }
}
