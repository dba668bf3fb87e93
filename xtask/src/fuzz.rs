//! `cargo xtask fuzz`: runs each fuzz target for a number of seconds, or of executions.
//!
//! The targets are built by the toolchain of the repository, with the coverage instrumentation of libFuzzer and without
//! a sanitizer: what they test is safe Rust. Its bugs are panics, endless loops and memory that grows, which libFuzzer
//! sees by itself. So fuzzing needs neither a nightly compiler nor a tool to install.

use crate::Outcome;
use crate::bench::positive;
use crate::ci::{output, run_command};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Flags of the instrumentation, as libFuzzer documents them for clang.
const FLAGS: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cdebug-assertions",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];
/// Largest memory of a target, MiB.
const MEMORY_MIB_MAX: u32 = 2048;
const EXECUTED: &str = "stat::number_of_executed_units:";

/// How long a target runs, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Targets to run; all if empty.
    pub(crate) targets: Vec<String>,
    /// 0: no limit.
    pub(crate) seconds: u32,
    /// 0: no limit.
    pub(crate) executions: u64,
    /// libFuzzer picks one if it is 0.
    pub(crate) seed: u32,
}

impl Options {
    /// Fixed short run, whose result does not depend on luck or on the speed of the machine.
    pub(crate) const SMOKE: Self = Self { targets: Vec::new(), seconds: 0, executions: 2_000, seed: 1 };
    /// Default number of seconds per target.
    const SECONDS: u32 = 300;

    /// Parses `[TARGET...] [--seconds N] [--executions N]`.
    ///
    /// # Errors
    /// If an option is unknown or has no number.
    pub(crate) fn parse(arguments: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} takes a number"));
            match argument {
                "--seconds" => options.seconds = positive(argument, value()?)?,
                "--executions" => options.executions = positive(argument, value()?)?.into(),
                target => options.targets.push(target.to_owned()),
            }
        }
        if options.seconds == 0 && options.executions == 0 {
            options.seconds = Self::SECONDS;
        }
        Ok(options)
    }
}

/// Runs targets one after the other, and prints the number of executions of each.
///
/// # Errors
/// If a target finds a failing input, or cannot be built.
pub(crate) fn run(root: &Path, options: &Options) -> Outcome {
    for package in ["mqtt", "kafka", "compress"] {
        let (package, example) = (format!("mainstem-{package}"), format!("fuzz_seeds_{package}"));
        run_command(root, "cargo", &["run", "--quiet", "-p", &package, "--example", &example], &[])?;
    }
    let known = targets(root)?;
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(name)) {
        return Err(format!("there is no fuzz target {unknown}; there are {}", known.join(", ")));
    }
    let flags = FLAGS.join(" ");
    // With a target, the flags do not apply to build scripts and macros.
    let host = host()?;
    let build = [
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target",
        &host,
    ];
    run_command(root, "cargo", &build, &[("RUSTFLAGS", &flags), ("CARGO_TARGET_DIR", "fuzz/target")])?;
    let chosen = if options.targets.is_empty() { &known } else { &options.targets };
    let mut lines = Vec::new();
    for target in chosen {
        println!("\n== {target}");
        let program = root.join("fuzz/target").join(&host).join("release").join(target);
        let executions = run_target(root, &program, target, options)?;
        lines.push(format!("{target:<20} {executions:>12} executions"));
    }
    println!("\n{}", lines.join("\n"));
    Ok(())
}

/// Runs a target. Returns the number of executions.
fn run_target(root: &Path, program: &Path, target: &str, options: &Options) -> Outcome<u64> {
    let directory = |kind: &str| {
        let path = root.join("fuzz").join(kind).join(target);
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(path)
    };
    let artifacts = directory("artifacts")?;
    let mut command = Command::new(program);
    command.arg(directory("corpus")?);
    let seeds = root.join("fuzz/seeds").join(target);
    if seeds.exists() {
        command.arg(seeds);
    }
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg(format!("-seed={}", options.seed)).arg("-print_final_stats=1");
    if options.seconds > 0 {
        command.arg(format!("-max_total_time={}", options.seconds));
    }
    if options.executions > 0 {
        command.arg(format!("-runs={}", options.executions));
    }
    command.current_dir(root).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let mut executions = 0;
    for line in child.stderr.take().into_iter().flat_map(|errors| BufReader::new(errors).split(b'\n')) {
        let line = line.map_err(|error| format!("cannot read the output of {target}: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(count) = line.strip_prefix(EXECUTED) {
            executions = count.trim().parse().map_err(|error| format!("{line}: {error}"))?;
        }
    }
    let status = child.wait().map_err(|error| format!("{target}: {error}"))?;
    if status.success() { Ok(executions) } else { Err(format!("{command:?}: {status}")) }
}

/// The platform that the compiler runs on.
fn host() -> Outcome<String> {
    let text = output("rustc", &["--version", "--verbose"])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say its host".to_owned())
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
