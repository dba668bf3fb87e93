//! `cargo xtask bench-bus`: compares the bus with other buses and channels, in one run on one machine.
//!
//! The programs are in `bench/bus`: a Rust program for the bus and the channels, and a Go program for mochi's inline
//! client. Each prints a line of JSON per row. This command runs them in turn for several rounds and prints a table of
//! the medians. A missed target is not an error; only a failed run is.

use crate::Outcome;
use crate::bench::machine::{commit, describe};
use crate::bench::{median, positive};
use crate::ci::{run_command, succeeds};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A row and its targets.
struct Row {
    name: &'static str,
    about: &'static str,
    /// The contender that the targets apply to.
    own: &'static str,
    targets: &'static [Target],
}

enum Target {
    /// Maximum nanoseconds per operation.
    NsMax(f64),
    /// Minimum operations per second.
    RateMin(f64),
    /// Maximum allocations per operation.
    AllocationsMax(f64),
    /// Minimum operations per second, as a multiple of those of another row.
    RateTimes(f64, &'static str),
}

use Target::{AllocationsMax, NsMax, RateMin, RateTimes};

const CALLBACKS: &str = "mainstem callbacks";
const CURSORS: &str = "mainstem cursors";

const ROWS: [Row; 12] = [
    Row {
        name: "match-exact",
        about: "a name against 1,000,000 filters without wildcards",
        own: "mainstem",
        targets: &[NsMax(10.0), AllocationsMax(0.0)],
    },
    Row {
        name: "match-cached",
        about: "the same with 10 % wildcards, the result in the cache",
        own: "mainstem",
        targets: &[NsMax(35.0), AllocationsMax(0.0)],
    },
    Row {
        name: "match-wildcard",
        about: "the same, not in the cache",
        own: "mainstem",
        targets: &[NsMax(300.0)],
    },
    Row {
        name: "publish-5",
        about: "one publish, received five times",
        own: CALLBACKS,
        targets: &[NsMax(150.0), AllocationsMax(1.0)],
    },
    Row {
        name: "concurrent-1",
        about: "one thread that publishes to one callback",
        own: CALLBACKS,
        targets: &[NsMax(60.0)],
    },
    Row {
        name: "concurrent-2",
        about: "two threads at once, each on its own topic",
        own: CALLBACKS,
        targets: &[NsMax(60.0), RateTimes(1.8, "concurrent-1")],
    },
    Row {
        name: "fan-out",
        about: "one publish, received 1,000 times; an operation is one delivery, counted at the receiver",
        own: CALLBACKS,
        targets: &[RateMin(150e6)],
    },
    Row { name: "fan-out", about: "the same, received in batches", own: CURSORS, targets: &[RateMin(500e6)] },
    Row {
        name: "subscribe-exact",
        about: "subscribe and unsubscribe beside 100,000 filters",
        own: CALLBACKS,
        targets: &[NsMax(2_000.0)],
    },
    Row {
        name: "subscribe-wildcard",
        about: "the same with a wildcard",
        own: CALLBACKS,
        targets: &[NsMax(2_000.0)],
    },
    Row {
        name: "subscribe-publish",
        about: "the same as subscribe-exact, with a publish in between that misses the cache",
        own: CALLBACKS,
        targets: &[NsMax(2_000.0)],
    },
    Row { name: "one-to-one", about: "256 messages to one receiver, then read", own: CURSORS, targets: &[] },
];

/// One line of a program's output.
#[derive(Debug)]
struct Sample {
    row: String,
    contender: String,
    report: Value,
}

/// Runs the programs and prints the table.
///
/// # Errors
/// If a program cannot be built or run.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let rounds = match *arguments {
        [] => 3,
        ["--rounds", rounds] => positive("--rounds", rounds)?,
        _ => return Err("bench-bus takes only --rounds N".to_owned()),
    };
    let programs = build(root)?;
    let mut samples = Vec::new();
    for round in 1..=rounds {
        for program in &programs {
            println!("round {round} of {rounds}: {}", program.timed.display());
            samples.extend(output_of(Command::new(&program.timed))?);
        }
    }
    for program in &programs {
        let mut counted = Command::new(&program.counted);
        counted.args(&program.counted_arguments);
        samples.extend(output_of(counted)?);
    }
    let machine = describe();
    println!("\ncommit {}, {machine}; medians of {rounds} rounds\n{}", commit(root), render(&samples));
    Ok(())
}

/// A program, and how to run it to measure time and to count allocations.
struct Program {
    timed: PathBuf,
    counted: PathBuf,
    counted_arguments: Vec<String>,
}

impl Program {
    fn with_argument(path: PathBuf) -> Self {
        Self { timed: path.clone(), counted: path, counted_arguments: vec!["allocations".to_owned()] }
    }
}

fn build(root: &Path) -> Outcome<Vec<Program>> {
    let target = root.join("target/bench-bus");
    let mut paths = Vec::new();
    for (directory, features) in [("time", None), ("allocations", Some("--features=allocations"))] {
        let target = target.join(directory);
        let mut arguments =
            vec!["build", "--release", "--quiet", "--locked", "--manifest-path", "bench/bus/Cargo.toml"];
        arguments.extend(features);
        run_command(root, "cargo", &arguments, &[("CARGO_TARGET_DIR", &target.to_string_lossy())])?;
        paths.push(target.join("release/mainstem-bench-bus"));
    }
    let counted = paths.pop().unwrap_or_default();
    let mut programs =
        vec![Program { timed: paths.pop().unwrap_or_default(), counted, counted_arguments: vec![] }];
    if succeeds("go", &["version"]) {
        let mochi = target.join("mochi");
        let path = mochi.to_string_lossy();
        run_command(root, "go", &["-C", "bench/bus/go", "build", "-o", &path, "."], &[])?;
        programs.push(Program::with_argument(mochi));
    } else {
        println!("Go is not installed: mochi is excluded");
    }
    match std::env::var_os("BLAZESUB") {
        Some(path) => programs.push(Program::with_argument(path.into())),
        None => println!("BLAZESUB is not set: BlazeSub is excluded"),
    }
    Ok(programs)
}

fn output_of(mut command: Command) -> Outcome<Vec<Sample>> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| parse(line).ok_or_else(|| format!("{command:?} printed an invalid line `{line}`")))
        .collect()
}

fn parse(line: &str) -> Option<Sample> {
    let report: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| report.get(key)?.as_str().map(str::to_owned);
    Some(Sample { row: text("row")?, contender: text("contender")?, report })
}

/// Median of one number of a contender in a row.
fn value(samples: &[Sample], row: &str, contender: &str, key: &str) -> Option<f64> {
    let own = samples.iter().filter(|sample| sample.row == row && sample.contender == contender);
    median(own.filter_map(|sample| sample.report.get(key)?.as_f64()).collect())
}

fn render(samples: &[Sample]) -> String {
    let mut text = String::new();
    let mut last = "";
    for row in &ROWS {
        // Two rows may share a load, with targets for two contenders.
        if row.name == last {
            writeln!(text, "  {}:", row.about).expect("writing to a string cannot fail");
        } else {
            text += &lines_of(row, samples);
        }
        last = row.name;
        for target in row.targets {
            writeln!(text, "  {}", target_line(samples, row, target))
                .expect("writing to a string cannot fail");
        }
    }
    text
}

/// The header of a row, and a line per contender.
fn lines_of(row: &Row, samples: &[Sample]) -> String {
    let mut text = format!("\n{}: {}\n", row.name, row.about);
    writeln!(text, "  {:<22} {:>10} {:>14} {:>12}", "", "ns/op", "operations/s", "allocations")
        .expect("writing to a string cannot fail");
    let mut contenders: Vec<&str> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.row == row.name) {
        if !contenders.contains(&sample.contender.as_str()) {
            contenders.push(&sample.contender);
        }
    }
    for contender in contenders {
        let shown = |key, decimals: usize| {
            let value = value(samples, row.name, contender, key);
            value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        let (ns, rate, allocations) = (shown("ns", 2), shown("per_s", 0), shown("allocations", 3));
        writeln!(text, "  {contender:<22} {ns:>10} {rate:>14} {allocations:>12}")
            .expect("writing to a string cannot fail");
    }
    text
}

fn target_line(samples: &[Sample], row: &Row, target: &Target) -> String {
    let own = |key| value(samples, row.name, row.own, key);
    let (aim, reached, is_met): (String, _, fn(f64, f64) -> bool) = match *target {
        NsMax(ns) => (format!("at most {ns} ns"), own("ns").map(|own| (own, ns)), |own, aim| own <= aim),
        RateMin(rate) => {
            let aim = format!("at least {} million/s", rate / 1e6);
            (aim, own("per_s").map(|own| (own / 1e6, rate / 1e6)), |own, aim| own >= aim)
        }
        AllocationsMax(count) => {
            let aim = format!("at most {count} allocations");
            (aim, own("allocations").map(|own| (own, count)), |own, aim| own <= aim)
        }
        RateTimes(times, other) => {
            let other_rate = value(samples, other, row.own, "per_s");
            let ratio = own("per_s").zip(other_rate).map(|(own, other_rate)| (own / other_rate, times));
            (format!("at least {times} times the rate of {other}"), ratio, |own, aim| own >= aim)
        }
    };
    let outcome = match reached {
        Some((own, aim)) if is_met(own, aim) => format!("met ({own:.2})"),
        Some((own, _)) => format!("not met ({own:.2})"),
        None => "not measured".to_owned(),
    };
    format!("target of {}: {aim}: {outcome}", row.own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        let lines = [
            r#"{"row":"concurrent-1","contender":"mainstem callbacks","ns":40.0,"per_s":25000000}"#,
            r#"{"row":"concurrent-2","contender":"mainstem callbacks","ns":50.0,"per_s":40000000}"#,
            r#"{"row":"concurrent-2","contender":"mainstem callbacks","ns":70.0,"per_s":60000000}"#,
            r#"{"row":"match-exact","contender":"mainstem","allocations":0.0}"#,
        ];
        lines.iter().filter_map(|line| parse(line)).collect()
    }

    #[test]
    fn targets_compare_medians_and_report_missing_values() {
        let text = render(&samples());
        for line in [
            "target of mainstem callbacks: at most 60 ns: met (60.00)",
            "target of mainstem callbacks: at least 1.8 times the rate of concurrent-1: met (2.00)",
            "target of mainstem: at most 10 ns: not measured",
            "target of mainstem: at most 0 allocations: met (0.00)",
            "target of mainstem cursors: at least 500 million/s: not measured",
        ] {
            assert!(text.contains(line), "no `{line}` in\n{text}");
        }
    }

    #[test]
    fn rejects_lines_that_are_not_reports() {
        assert!(parse("panicked").is_none());
        assert!(parse(r#"{"row":"x"}"#).is_none());
    }
}
