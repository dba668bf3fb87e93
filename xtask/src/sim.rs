//! `cargo xtask sim`: runs seeded tests with as many seeds as the time allows.
//!
//! Each program is a test of the workspace that reads its seeds from `SIM_SEEDS=from..to`. If a seed fails, the test
//! prints the command that reproduces it.

use crate::Outcome;
use crate::bench::positive;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// One seeded test.
struct Program {
    name: &'static str,
    package: &'static str,
    /// Test target, and name of the test in it.
    target: &'static str,
    test: &'static str,
    /// Whether the smoke run includes it. Other tests have sufficient default seeds.
    in_smoke: bool,
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: "crashes of the log",
        package: "mainstem-disk",
        target: "crash",
        test: "nothing_acknowledged_is_lost",
        in_smoke: true,
    },
    Program {
        name: "bit rot",
        package: "mainstem-disk",
        target: "crash",
        test: "a_bit_flip_loses_at_most_one_batch",
        in_smoke: true,
    },
    Program {
        name: "crashes of the log, with a thread",
        package: "mainstem-disk",
        target: "crash",
        test: "nothing_acknowledged_is_lost_with_a_thread",
        // Thread interleaving is not deterministic.
        in_smoke: false,
    },
    Program {
        name: "whole brokers",
        package: "mainstem-sim",
        target: "sim",
        test: "clients_see_what_they_were_promised",
        in_smoke: false,
    },
    Program {
        name: "whole brokers, with Kafka clients",
        package: "mainstem-sim",
        target: "sim",
        test: "kafka_clients_see_what_they_were_promised",
        in_smoke: false,
    },
    Program {
        name: "whole brokers, with work queues",
        package: "mainstem-sim",
        target: "sim",
        test: "users_of_queues_see_what_they_were_promised",
        in_smoke: false,
    },
];

/// Number of seeds per run of a program.
const CHUNK: u64 = 200;
/// Default duration in seconds.
const SECONDS: u32 = 300;
/// Fixed seeds of the smoke run, so that its result depends neither on luck nor on the speed of the machine.
const SMOKE: Range<u64> = 1_000_000..1_001_000;

/// Runs the programs in turn until the time is over, from new seeds or from `--seed`.
///
/// # Errors
/// If an option is unknown, or a program fails.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let (mut seconds, mut seed) = (SECONDS, None);
    for option in arguments.chunks(2) {
        match option {
            ["--seconds", value] => seconds = positive("--seconds", value)?,
            ["--seed", value] => {
                seed = Some(value.parse().map_err(|_| format!("--seed takes a number, not `{value}`"))?);
            }
            _ => return Err(format!("sim: unknown option `{}`", option.join(" "))),
        }
    }
    let until = Instant::now() + Duration::from_secs(seconds.into());
    simulate(root, seed.unwrap_or_else(new_seed), |_| true, |_| Instant::now() < until)
}

/// Smoke run of `cargo xtask ci`, always with the same seeds.
///
/// # Errors
/// If a program fails.
pub(crate) fn smoke(root: &Path) -> Outcome {
    simulate(root, SMOKE.start, |program| program.in_smoke, |from| from < SMOKE.end)
}

/// A seed that was most likely never used: the current time in milliseconds.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1000
}

fn simulate(
    root: &Path,
    first: u64,
    is_selected: fn(&Program) -> bool,
    has_time: impl Fn(u64) -> bool,
) -> Outcome {
    let programs = || PROGRAMS.iter().filter(|program| is_selected(program));
    for program in programs() {
        let status = program.command(root).arg("--no-run").status();
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            return Err(format!("{}: build failed: {status:?}", program.name));
        }
    }
    let mut from = first;
    while from == first || has_time(from) {
        for program in programs() {
            program.run(root, from..from + CHUNK)?;
        }
        from += CHUNK;
    }
    for program in programs() {
        println!("{}: {} seeds from {first} on", program.name, from - first);
    }
    Ok(())
}

impl Program {
    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new("cargo");
        command.args(["test", "--profile", "checked", "--locked", "--quiet", "-p", self.package]);
        command.args(["--test", self.target]).current_dir(root);
        command
    }

    /// Runs the test with these seeds, and prints its output if it fails.
    fn run(&self, root: &Path, seeds: Range<u64>) -> Outcome {
        let mut command = self.command(root);
        command.args(["--", "--exact", self.test]);
        command.env("SIM_SEEDS", format!("{}..{}", seeds.start, seeds.end));
        let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            println!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
            return Err(format!("{}: fails with a seed of {seeds:?}", self.name));
        }
        // A run without a matching test also succeeds.
        if !stdout.contains("1 passed") {
            return Err(format!("{}: there is no test {}", self.name, self.test));
        }
        Ok(())
    }
}
