//! `cargo xtask ci`: runs every check and every test, cheapest first, until one fails.
//!
//! A step is skipped, with a reason, only if the machine lacks something that cannot be installed. Random tests run
//! with fixed seeds, so that the result for a change does not depend on luck.

mod tally;

use crate::repo::Repo;
use crate::{Outcome, architecture, conformance, fuzz, reference, sim, tidy};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally::Tally;

/// Fixed seed of property tests and of the shuttle schedules of the bus. Plain `cargo test` uses a new seed each time.
const SEED: &str = "1";
/// The broker that tests start.
const BROKER: &str = "target/checked/mainstem";
const WASM: &str = "wasm32-unknown-unknown";

/// Manifests of crates outside the workspace.
const SEPARATE_MANIFESTS: [&str; 3] =
    ["fuzz/Cargo.toml", "bench/bus/Cargo.toml", "bindings/python/Cargo.toml"];

/// Result of a step that did not fail.
enum StepResult {
    Passed,
    /// Skipped, for this reason.
    Skipped(String),
}

/// What the steps share.
struct Context<'a> {
    root: &'a Path,
    tally: Tally,
    /// The steps [`BESIDE_CLIENTS`], which run beside the real clients: those mostly wait for their brokers.
    beside_clients: Option<Background>,
}

type Run = fn(&mut Context<'_>) -> Outcome<StepResult>;

struct Step {
    name: &'static str,
    run: Run,
}

const fn step(name: &'static str, run: Run) -> Step {
    Step { name, run }
}

const STEPS: [Step; 19] = [
    step("format", format),
    step("tidy", |context| passed(tidy::run(context.root))),
    step("crate table", |context| passed(architecture::check(context.root))),
    step("conformance tables", |context| passed(conformance::check(context.root))),
    step("clippy", clippy),
    step("fuzz targets compile", fuzz_targets),
    step("documentation", documentation),
    step("dependencies", dependencies),
    step("pure crates on wasm32", wasm),
    step("broker", broker),
    step("configuration page", |context| passed(reference::check(context.root, reference::CONFIGURATION))),
    step("metrics page", |context| passed(reference::check(context.root, reference::METRICS))),
    step("tests", tests),
    step("seeded tests begin", begin_beside_clients),
    step("real clients", clients),
    step("seeded tests", beside_clients),
    step("soak smoke", |context| passed(task(context.root, &["soak", "--smoke"]))),
    step("bystander smoke", |context| passed(task(context.root, &["bystander", "--smoke"]))),
    step("fuzz smoke", fuzz_smoke),
];

/// Steps that need much CPU and no quiet machine: what they do depends on seeds, not on time.
const BESIDE_CLIENTS: [Step; 2] = [
    step("schedules of the bus", schedules),
    step("simulation smoke", |context| passed(sim::smoke(context.root))),
];

/// Runs all steps, then prints the duration of each and the number of passed tests.
///
/// # Errors
/// If a step fails; later steps do not run.
pub(crate) fn run(root: &Path) -> Outcome {
    run_steps(root, &STEPS)
}

/// Runs the steps that a whole run has beside the real clients.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_seeded(root: &Path) -> Outcome {
    run_steps(root, &BESIDE_CLIENTS)
}

fn run_steps(root: &Path, steps: &[Step]) -> Outcome {
    let started = Instant::now();
    let mut context = Context { root, tally: Tally::default(), beside_clients: None };
    let mut table = Vec::new();
    let mut failure = None;
    for step in steps {
        println!("\n== {}", step.name);
        let started = Instant::now();
        let outcome = (step.run)(&mut context);
        let status = match &outcome {
            Ok(StepResult::Passed) => "ok".to_owned(),
            Ok(StepResult::Skipped(why)) => format!("skipped: {why}"),
            Err(_) => "FAILED".to_owned(),
        };
        table.push(row(step.name, started.elapsed(), &status));
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
    println!("{}", context.tally);
    failure.map_or(Ok(()), Err)
}

fn row(name: &str, took: Duration, status: &str) -> String {
    format!("{name:<22} {:>7.1} s  {status}", took.as_secs_f64())
}

fn passed(outcome: Outcome) -> Outcome<StepResult> {
    outcome.map(|()| StepResult::Passed)
}

fn cargo(root: &Path, arguments: &[&str]) -> Outcome<StepResult> {
    passed(run_command(root, "cargo", arguments, &[]))
}

fn format(context: &mut Context<'_>) -> Outcome<StepResult> {
    let root = context.root;
    if !succeeds("cargo", &["fmt", "--version"]) || !succeeds("cargo", &["clippy", "--version"]) {
        run_command(root, "rustup", &["component", "add", "rustfmt", "clippy"], &[])?;
    }
    run_command(root, "cargo", &["fmt", "--all", "--check"], &[])?;
    for manifest in SEPARATE_MANIFESTS {
        run_command(root, "cargo", &["fmt", "--manifest-path", manifest, "--check"], &[])?;
    }
    Ok(StepResult::Passed)
}

fn clippy(context: &mut Context<'_>) -> Outcome<StepResult> {
    let root = context.root;
    cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
}

/// Fuzz targets are not part of the workspace, and break unseen when what they call changes.
fn fuzz_targets(context: &mut Context<'_>) -> Outcome<StepResult> {
    let root = context.root;
    let arguments = ["check", "--locked", "--quiet", "--manifest-path", "fuzz/Cargo.toml"];
    // Shares the dependencies that clippy has checked.
    let target = root.join("target").display().to_string();
    passed(run_command(root, "cargo", &arguments, &[("CARGO_TARGET_DIR", &target)]))
}

/// Checks the links in doc comments. Links to private items are allowed, because nothing is published.
fn documentation(context: &mut Context<'_>) -> Outcome<StepResult> {
    let root = context.root;
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"];
    passed(run_command(
        root,
        "cargo",
        &arguments,
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")],
    ))
}

fn dependencies(context: &mut Context<'_>) -> Outcome<StepResult> {
    let root = context.root;
    if !succeeds("cargo", &["deny", "--version"]) {
        println!("installing cargo-deny (about two minutes, once)");
        // A debug build: it runs for a second, and building takes much longer than running.
        run_command(root, "cargo", &["install", "cargo-deny", "--locked", "--debug", "--quiet"], &[])?;
    }
    cargo(root, &["deny", "--locked", "check", "licenses", "bans", "sources"])?;
    if !succeeds("cargo", &["deny", "--locked", "fetch", "db"]) {
        println!("cannot fetch the advisory database: advisories are not checked");
        return Ok(StepResult::Passed);
    }
    cargo(root, &["deny", "--locked", "check", "--disable-fetch", "advisories"])
}

fn wasm(context: &mut Context<'_>) -> Outcome<StepResult> {
    let root = context.root;
    let sysroot = output("rustc", &["--print", "sysroot"])?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(WASM).exists();
    if !installed && !succeeds("rustup", &["target", "add", WASM]) {
        return Ok(StepResult::Skipped(format!("rustup cannot install the target {WASM}")));
    }
    let packages = tidy::pure_packages(&Repo::read(root)?);
    let mut arguments = vec!["check", "--locked", "--quiet", "--target", WASM];
    arguments.extend(packages.iter().flat_map(|package| ["-p", package]));
    println!("{}", packages.join(", "));
    cargo(root, &arguments)
}

fn broker(context: &mut Context<'_>) -> Outcome<StepResult> {
    cargo(context.root, &["build", "--profile", "checked", "--locked", "--quiet", "-p", "mainstem"])
}

fn begin_beside_clients(context: &mut Context<'_>) -> Outcome<StepResult> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let path = seeded_output(context.root);
    let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let errors = file.try_clone().map_err(|error| format!("{}: {error}", path.display()))?;
    // The clients have deadlines.
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program).args(["ci", "seeded"]).current_dir(context.root);
    command.stdin(Stdio::null()).stdout(file).stderr(errors);
    context.beside_clients = Some(Background::start(command)?);
    Ok(StepResult::Passed)
}

/// Waits for the steps beside the real clients and shows their output.
fn beside_clients(context: &mut Context<'_>) -> Outcome<StepResult> {
    let steps = context.beside_clients.take().ok_or("the seeded tests have not begun")?;
    let outcome = steps.wait();
    let path = seeded_output(context.root);
    let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    for line in String::from_utf8_lossy(&text).lines() {
        println!("{line}");
        context.tally.parse_line(line);
    }
    passed(outcome)
}

/// Output of the steps beside the real clients.
fn seeded_output(root: &Path) -> PathBuf {
    root.join("target/seeded-tests.log")
}

/// A command that runs beside the steps. It is killed if it is not waited for, because a step has failed.
struct Background {
    command: Command,
    child: Child,
}

impl Background {
    fn start(mut command: Command) -> Outcome<Self> {
        let child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Self { command, child })
    }

    fn wait(mut self) -> Outcome {
        let status = self.child.wait();
        succeeded(&self.command, status)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Fails if the command has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Tests, simulations and the broker that real clients use have one profile, so that dependencies are compiled once. It
/// is optimized a little, which saves more time than it takes, and has the assertions that a release has not.
fn tests(context: &mut Context<'_>) -> Outcome<StepResult> {
    let Context { root, tally, .. } = context;
    let mut command = Command::new("cargo");
    command.args(["test", "--profile", "checked", "--workspace", "--locked", "--no-fail-fast"]);
    command.env("PROPTEST_RNG_SEED", SEED);
    passed(run_counted(root, command, tally))
}

/// Runs the bus under shuttle, in thousands of thread interleavings. Uses a separate target directory, because the cfg
/// flag replaces the crate's locks with those of shuttle.
fn schedules(context: &mut Context<'_>) -> Outcome<StepResult> {
    let Context { root, tally, .. } = context;
    let mut command = Command::new("cargo");
    command.args(["test", "--profile", "checked", "--locked", "-p", "mainstem-bus", "--test", "shuttle"]);
    command.env("RUSTFLAGS", "--cfg mainstem_shuttle").env("CARGO_TARGET_DIR", root.join("target/shuttle"));
    command.env("SHUTTLE_RANDOM_SEED", SEED);
    passed(run_counted(root, command, tally))
}

fn clients(context: &mut Context<'_>) -> Outcome<StepResult> {
    let Context { root, tally, .. } = context;
    run_command(root, "tests/install", &[], &[])?;
    passed(run_counted(root, Command::new(root.join("tests/run")), tally))
}

/// Runs a task of this program with the broker that the tests have.
fn task(root: &Path, arguments: &[&str]) -> Outcome {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root).env("MAINSTEM_BIN", root.join(BROKER));
    let status = command.status();
    succeeded(&command, status)
}

/// Building the targets takes minutes, so a run of `make fuzz` comes first.
fn fuzz_smoke(context: &mut Context<'_>) -> Outcome<StepResult> {
    if !context.root.join("fuzz/target").exists() {
        return Ok(StepResult::Skipped("the targets were not built yet (`make fuzz` does)".to_owned()));
    }
    passed(fuzz::run(context.root, &fuzz::Options::SMOKE))
}

/// Whether a command starts and succeeds. Discards its output.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command in the root of the repository, with inherited output.
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

/// Runs a test command with the broker of the tests, shows its output and counts the tests in it.
fn run_counted(root: &Path, mut command: Command, tally: &mut Tally) -> Outcome {
    command.current_dir(root).env("MAINSTEM_BIN", root.join(BROKER)).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("cannot read the output of {command:?}: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            tally.parse_line(&line);
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

/// Runs a program and returns what it prints.
///
/// # Errors
/// If it cannot be started, fails, or prints something else than text.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    let mut command = Command::new(program);
    let output =
        command.args(arguments).output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    succeeded(&command, Ok(output.status))?;
    String::from_utf8(output.stdout).map_err(|_| format!("the output of {command:?} is not UTF-8"))
}
