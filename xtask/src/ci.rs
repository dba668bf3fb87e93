//! `cargo xtask ci`: every check and every test, cheapest first, up to the first that fails.

mod tally;

use crate::repo::Repo;
use crate::{Outcome, config_reference, conformance, fuzz, sim, soak, tidy};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tally::Tally;

/// Seconds of fuzzing in all; `make fuzz` is for more.
const FUZZ_SECONDS: u32 = 30;
/// What property tests and the schedules of the bus draw from here: a check of a change must not depend on luck. By
/// itself, `cargo test` draws anew each time.
const SEED: &str = "1";
const WASM: &str = "wasm32-unknown-unknown";

/// The manifests of the crates that are no part of the workspace.
const APART: [&str; 3] = ["fuzz/Cargo.toml", "bench/bus/Cargo.toml", "bindings/python/Cargo.toml"];

/// How a step ended, if not with an error.
enum Done {
    Passed,
    /// Not done, for this reason: something is missing that cannot be had here.
    Skipped(String),
}

struct Step {
    name: &'static str,
    run: fn(&Path, &mut Tally) -> Outcome<Done>,
}

const fn step(name: &'static str, run: fn(&Path, &mut Tally) -> Outcome<Done>) -> Step {
    Step { name, run }
}

const STEPS: [Step; 15] = [
    step("format", format),
    step("tidy", |root, _| passed(tidy::run(root))),
    step("conformance tables", |root, _| passed(conformance::check(root))),
    step("clippy", clippy),
    step("documentation", documentation),
    step("dependencies", dependencies),
    step("pure crates on wasm32", wasm),
    step("configuration page", |root, _| passed(config_reference::check(root))),
    step("release build", release_build),
    step("tests", tests),
    step("schedules of the bus", schedules),
    step("simulation smoke", |root, _| passed(sim::smoke(root))),
    step("real clients", clients),
    step("soak smoke", soak_smoke),
    step("fuzz smoke", fuzz_smoke),
];

/// Runs the steps, then prints how long each took and how many tests passed.
///
/// # Errors
/// If a step fails; the later ones are not run.
pub(crate) fn run(root: &Path) -> Outcome {
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut table = Vec::new();
    let mut failure = None;
    for step in &STEPS {
        println!("\n== {}", step.name);
        let started = Instant::now();
        let outcome = (step.run)(root, &mut tally);
        let said = match &outcome {
            Ok(Done::Passed) => "ok".to_owned(),
            Ok(Done::Skipped(why)) => format!("skipped: {why}"),
            Err(_) => "FAILED".to_owned(),
        };
        table.push(row(step.name, started.elapsed(), &said));
        println!("{}", table[table.len() - 1]);
        if let Err(message) = outcome {
            failure = Some(format!("ci: {}: {message}", step.name));
            break;
        }
    }
    println!(
        "\n{}\n{}",
        table.join("\n"),
        row("all", started.elapsed(), if failure.is_some() { "FAILED" } else { "ok" })
    );
    println!("{tally}");
    failure.map_or(Ok(()), Err)
}

fn row(name: &str, took: Duration, said: &str) -> String {
    format!("{name:<22} {:>7.1} s  {said}", took.as_secs_f64())
}

fn passed(outcome: Outcome) -> Outcome<Done> {
    outcome.map(|()| Done::Passed)
}

fn cargo(root: &Path, arguments: &[&str]) -> Outcome<Done> {
    passed(run_command(root, "cargo", arguments, &[]))
}

fn format(root: &Path, _: &mut Tally) -> Outcome<Done> {
    if !is_there("cargo", &["fmt", "--version"]) || !is_there("cargo", &["clippy", "--version"]) {
        run_command(root, "rustup", &["component", "add", "rustfmt", "clippy"], &[])?;
    }
    run_command(root, "cargo", &["fmt", "--all", "--check"], &[])?;
    for manifest in APART {
        run_command(root, "cargo", &["fmt", "--manifest-path", manifest, "--check"], &[])?;
    }
    Ok(Done::Passed)
}

fn clippy(root: &Path, _: &mut Tally) -> Outcome<Done> {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
}

/// Links in doc comments lead somewhere. They may lead to private items: nothing here is published.
fn documentation(root: &Path, _: &mut Tally) -> Outcome<Done> {
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"];
    passed(run_command(
        root,
        "cargo",
        &arguments,
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")],
    ))
}

fn dependencies(root: &Path, _: &mut Tally) -> Outcome<Done> {
    if !is_there("cargo", &["deny", "--version"]) {
        println!("installing cargo-deny (about two minutes, once)");
        // Unoptimised: it runs for a second, and takes far longer to build than to run.
        run_command(root, "cargo", &["install", "cargo-deny", "--locked", "--debug", "--quiet"], &[])?;
    }
    cargo(root, &["deny", "--locked", "check", "licenses", "bans", "sources"])?;
    if !is_there("cargo", &["deny", "--locked", "fetch", "db"]) {
        println!("the advisory database cannot be reached from here: advisories are not checked");
        return Ok(Done::Passed);
    }
    cargo(root, &["deny", "--locked", "check", "--disable-fetch", "advisories"])
}

fn wasm(root: &Path, _: &mut Tally) -> Outcome<Done> {
    let sysroot = output("rustc", &["--print", "sysroot"])?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(WASM).exists();
    if !installed && !is_there("rustup", &["target", "add", WASM]) {
        return Ok(Done::Skipped(format!("rustup cannot get the target {WASM} here")));
    }
    let packages = tidy::pure_packages(&Repo::read(root)?);
    let mut arguments = vec!["check", "--locked", "--quiet", "--target", WASM];
    arguments.extend(packages.iter().flat_map(|package| ["-p", package]));
    println!("{}", packages.join(", "));
    cargo(root, &arguments)
}

fn release_build(root: &Path, _: &mut Tally) -> Outcome<Done> {
    cargo(root, &["build", "--release", "--locked", "-p", "mainstem"])
}

/// Tests are built without optimisation, since the release profile would link each of them for minutes; those that
/// start the broker start the release binary.
fn tests(root: &Path, tally: &mut Tally) -> Outcome<Done> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    command.env("PROPTEST_RNG_SEED", SEED);
    passed(run_counted(root, command, tally))
}

/// What threads do to each other in the bus, in thousands of orders that shuttle chooses. Built apart, since with this
/// flag the crate takes its locks from shuttle.
fn schedules(root: &Path, tally: &mut Tally) -> Outcome<Done> {
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "--locked", "-p", "mainstem-bus", "--test", "shuttle"]);
    command.env("RUSTFLAGS", "--cfg mainstem_shuttle").env("CARGO_TARGET_DIR", root.join("target/shuttle"));
    command.env("SHUTTLE_RANDOM_SEED", SEED);
    passed(run_counted(root, command, tally))
}

fn clients(root: &Path, tally: &mut Tally) -> Outcome<Done> {
    run_command(root, "tests/install", &[], &[])?;
    passed(run_counted(root, Command::new(root.join("tests/run")), tally))
}

fn soak_smoke(root: &Path, _: &mut Tally) -> Outcome<Done> {
    passed(soak::smoke(root))
}

fn fuzz_smoke(root: &Path, _: &mut Tally) -> Outcome<Done> {
    if !is_there("cargo", &["+nightly", "--version"]) || !is_there("cargo", &["fuzz", "--version"]) {
        return Ok(Done::Skipped(
            "no nightly compiler or no cargo-fuzz here (`make fuzz` installs both)".to_owned(),
        ));
    }
    let targets = u32::try_from(fuzz::targets(root)?.len()).unwrap_or(u32::MAX);
    passed(fuzz::smoke(root, (FUZZ_SECONDS / targets).max(5)))
}

/// Whether a command runs and succeeds; what it says is not shown.
pub(crate) fn is_there(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command at the root of the repository; its output is seen as it comes.
///
/// # Errors
/// If it cannot be started, or fails.
pub(crate) fn run_command(
    root: &Path,
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Outcome {
    let program = if program.contains('/') { root.join(program) } else { program.into() };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).current_dir(root);
    let status = command.status();
    succeeded(&command, status)
}

/// Runs a test command against the release binary, shows its output and counts the tests in it.
fn run_counted(root: &Path, mut command: Command, tally: &mut Tally) -> Outcome {
    command
        .current_dir(root)
        .env("MAINSTEM_BIN", root.join("target/release/mainstem"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("cannot read what {command:?} says: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            tally.note(&line);
        }
    }
    let status = child.wait();
    succeeded(&command, status)
}

fn succeeded(command: &Command, status: std::io::Result<std::process::ExitStatus>) -> Outcome {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("cannot start {command:?}: {error}")),
    }
}

fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    let mut command = Command::new(program);
    let output =
        command.args(arguments).output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    succeeded(&command, Ok(output.status))?;
    String::from_utf8(output.stdout).map_err(|_| format!("{command:?} does not speak UTF-8"))
}
