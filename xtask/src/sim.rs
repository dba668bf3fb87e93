//! `cargo xtask sim`: tests that take seeds, with as many seeds as there is time for.
//!
//! Each program is a test of the workspace that reads the seeds from `SIM_SEEDS=from..to`, and prints the command
//! that runs a seed again if it fails.

use crate::Outcome;
use crate::bench::positive;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// One test that takes seeds.
struct Program {
    name: &'static str,
    package: &'static str,
    /// The test's target, and its name there.
    target: &'static str,
    test: &'static str,
    /// Whether the smoke run takes it; without, the test itself has seeds that suffice.
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
        name: "bits that rot",
        package: "mainstem-disk",
        target: "crash",
        test: "a_bit_that_flips_costs_one_batch_at_most",
        in_smoke: true,
    },
    Program {
        name: "crashes of the log, with a thread",
        package: "mainstem-disk",
        target: "crash",
        test: "nothing_is_lost_with_a_thread_either",
        // The thread has a will of its own.
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
        name: "whole brokers, with clients of Kafka",
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

/// Seeds that a program is given at once.
const CHUNK: u64 = 200;
/// How long it takes if nobody says.
const SECONDS: u32 = 300;
/// What the smoke run takes, however fast the machine is: a check of a change must not depend on luck.
const SMOKE: Range<u64> = 1_000_000..1_001_000;

/// Runs every program in turn for so long, from seeds that no run has seen or from those that are named.
///
/// # Errors
/// If an option is not known, or the first program that fails.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let (mut seconds, mut seed) = (SECONDS, None);
    for option in arguments.chunks(2) {
        match option {
            ["--seconds", value] => seconds = positive("--seconds", value)?,
            ["--seed", value] => {
                seed = Some(value.parse().map_err(|_| format!("--seed takes a number, not `{value}`"))?);
            }
            _ => return Err(format!("sim does not know `{}`", option.join(" "))),
        }
    }
    let until = Instant::now() + Duration::from_secs(seconds.into());
    simulate(root, seed.unwrap_or_else(new_seed), |_| true, |_| Instant::now() < until)
}

/// What `cargo xtask ci` runs: a little, always the same.
///
/// # Errors
/// The first program that fails.
pub(crate) fn smoke(root: &Path) -> Outcome {
    simulate(root, SMOKE.start, |program| program.in_smoke, |from| from < SMOKE.end)
}

/// A seed that is as good as never used: the time, with room for what runs in between.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1000
}

fn simulate(root: &Path, first: u64, is_run: fn(&Program) -> bool, goes_on: impl Fn(u64) -> bool) -> Outcome {
    let programs = || PROGRAMS.iter().filter(|program| is_run(program));
    for program in programs() {
        let status = program.command(root).arg("--no-run").status();
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            return Err(format!("{}: cannot be built: {status:?}", program.name));
        }
    }
    let mut from = first;
    while from == first || goes_on(from) {
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
        command.args(["test", "--profile", "sim", "--locked", "--quiet", "-p", self.package]);
        command.args(["--test", self.target]).current_dir(root);
        command
    }

    /// Runs it with these seeds; what it says is shown if it fails.
    fn run(&self, root: &Path, seeds: Range<u64>) -> Outcome {
        let mut command = self.command(root);
        command.args(["--", "--exact", self.test]);
        command.env("SIM_SEEDS", format!("{}..{}", seeds.start, seeds.end));
        let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            println!("{said}{}", String::from_utf8_lossy(&output.stderr));
            return Err(format!("{}: fails with a seed of {seeds:?}", self.name));
        }
        // A name that fits no test passes as well.
        if !said.contains("1 passed") {
            return Err(format!("{}: no such test as {}", self.name, self.test));
        }
        Ok(())
    }
}
