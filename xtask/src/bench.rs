//! `cargo xtask bench`, `bench-kafka` and `bench-queue`: the broker and its peers side by side, in one run on one machine.
//!
//! Each row is a load of `mainstem bench mqtt`, `kafka` or `queue`, put on each broker in turn, a fresh process each time, and
//! that for so many rounds (A B C A B C): what the machine does meanwhile hits all of them alike. What counts are the
//! ratios of medians. Nothing fails because a number is bad; only what could not be run is an error.
//!
//! | file | holds |
//! |---|---|
//! | `rows`, `kafka_rows`, `queue_rows` | what is measured, and the targets |
//! | `metric` | one number of a report: its name, where it stands, how it is printed |
//! | `brokers`, `rabbit` | the brokers: where their binaries are, how they are started |
//! | `server`, `ready` | one running broker; whether a Kafka broker answers |
//! | `table` | medians, ratios and verdicts as text |
//! | `machine` | what it ran on |

mod brokers;
mod kafka_rows;
pub(crate) mod machine;
mod metric;
mod queue_rows;
mod rabbit;
mod ready;
mod rows;
pub(crate) mod server;
mod table;

use crate::Outcome;
use crate::ci::run_command;
use brokers::Broker;
use kafka_rows::KAFKA_ROWS;
use queue_rows::QUEUE_ROWS;
use rows::{ROWS, Row};
use serde_json::{Value, json};
use server::Server;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use table::Sample;

pub(crate) use brokers::install;
pub(crate) use table::median;

/// Rows that are measured alike.
#[derive(Debug)]
pub(crate) struct Suite {
    rows: &'static [Row],
    peers: &'static [&'static str],
    /// The command that puts the load on a broker, in front of what the row says.
    generator: &'static [&'static str],
    /// Seconds of load before the measured part, where the row does not say.
    warmup_s: u32,
    /// Measured seconds, where neither the caller nor the row says.
    seconds: u32,
}

/// The MQTT door.
pub(crate) const MQTT: Suite = Suite {
    rows: &ROWS,
    peers: &brokers::PEERS,
    generator: &["bench", "mqtt", "--version", "4"],
    // Queues and windows are full by then.
    warmup_s: 2,
    seconds: 8,
};

/// The Kafka door.
pub(crate) const KAFKA: Suite = Suite {
    rows: &KAFKA_ROWS,
    peers: &brokers::KAFKA,
    generator: &["bench", "kafka"],
    warmup_s: 5,
    seconds: 5,
};

/// Work queues.
pub(crate) const QUEUE: Suite = Suite {
    rows: &QUEUE_ROWS,
    peers: &brokers::QUEUE,
    generator: &["bench", "queue"],
    warmup_s: 2,
    seconds: 5,
};

/// What to measure and how long.
#[derive(Debug)]
struct Plan {
    suite: &'static Suite,
    rows: Vec<&'static Row>,
    rounds: u32,
    seconds: u32,
    /// Names of the peers to measure; all that are there if none is named.
    peers: Vec<String>,
}

impl Plan {
    fn parse(suite: &'static Suite, arguments: &[&str]) -> Outcome<Self> {
        let mut plan = Self { suite, rows: Vec::new(), rounds: 3, seconds: suite.seconds, peers: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} takes a value"));
            match argument {
                "--rounds" => plan.rounds = positive(argument, value()?)?,
                "--seconds" => plan.seconds = positive(argument, value()?)?,
                "--peers" => plan.peers = value()?.split(',').map(str::to_owned).collect(),
                name => plan.rows.push(row_named(suite, name)?),
            }
        }
        if let Some(unknown) = plan.peers.iter().find(|peer| !suite.peers.contains(&peer.as_str())) {
            return Err(format!("no peer is called `{unknown}`; there are {}", suite.peers.join(", ")));
        }
        if plan.rows.is_empty() {
            plan.rows = suite.rows.iter().collect();
        }
        Ok(plan)
    }
}

/// A whole number above zero, as the value of an option.
///
/// # Errors
/// If it is none.
pub(crate) fn positive(option: &str, value: &str) -> Outcome<u32> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{option} takes a whole number above zero, not `{value}`")),
    }
}

fn row_named(suite: &'static Suite, name: &str) -> Outcome<&'static Row> {
    suite.rows.iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<&str> = suite.rows.iter().map(|row| row.name).collect();
        format!("no row is called `{name}`; there are {}", names.join(", "))
    })
}

/// Measures, printing a line per run, a table per row, and where the raw reports are kept.
///
/// # Errors
/// If a broker or the generator could not run; what could is measured and printed all the same.
pub(crate) fn run(root: &Path, suite: &'static Suite, arguments: &[&str]) -> Outcome {
    let plan = Plan::parse(suite, arguments)?;
    let mut run = Run::prepare(root, &plan)?;
    let header = run.header(&plan);
    run.say(&header)?;
    for row in &plan.rows {
        let samples = run.row(row, &plan)?;
        run.say(&table::render(row, &run.names(row), &samples))?;
    }
    println!("\nraw reports: {}\ntables: {}", run.raw_path.display(), run.text_path.display());
    if run.failures.is_empty() {
        Ok(())
    } else {
        Err(format!("\nbench: these could not run:\n  {}", run.failures.join("\n  ")))
    }
}

/// Everything that lasts as long as the run.
struct Run {
    root: PathBuf,
    /// The generator: a copy, so that a build meanwhile changes nothing.
    generator: PathBuf,
    brokers: Vec<Broker>,
    scratch: PathBuf,
    machine: String,
    commit: String,
    raw: File,
    raw_path: PathBuf,
    text: File,
    text_path: PathBuf,
    failures: Vec<String>,
}

impl Run {
    fn prepare(root: &Path, plan: &Plan) -> Outcome<Self> {
        let binary = binary(root)?;
        server::raise_file_limit()?;
        let directory = root.join("target/bench");
        let stamp = machine::timestamp()?;
        let scratch = directory.join(format!("scratch-{stamp}"));
        fs::create_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
        let generator = scratch.join("mainstem");
        fs::copy(&binary, &generator).map_err(|error| at(&binary, &error))?;
        let brokers = brokers::find(root, &generator, &scratch, plan.suite.peers, &plan.peers)?;
        let (raw_path, text_path) =
            (directory.join(format!("{stamp}.jsonl")), directory.join(format!("{stamp}.txt")));
        let create = |path: &Path| File::create(path).map_err(|error| at(path, &error));
        Ok(Self {
            root: root.to_owned(),
            generator,
            brokers,
            scratch,
            machine: machine::describe(),
            commit: machine::commit(root),
            raw: create(&raw_path)?,
            text: create(&text_path)?,
            raw_path,
            text_path,
            failures: Vec::new(),
        })
    }

    fn header(&self, plan: &Plan) -> String {
        let versions = self.brokers.iter().map(|broker| format!("{} ({})", broker.name, broker.version));
        let missing = plan.suite.peers.iter().filter(|peer| self.is_missing(peer, plan));
        let missing = missing.map(|peer| format!("missing  {peer}: {}", brokers::how_to_get(peer)));
        let mut lines = vec![
            format!("machine  {}", self.machine),
            format!("commit   {}", self.commit),
            format!("brokers  {}", versions.collect::<Vec<_>>().join("\n         ")),
            format!(
                "rounds   {} of {} s after {} s of warm-up",
                plan.rounds, plan.seconds, plan.suite.warmup_s
            ),
        ];
        lines.extend(missing);
        lines.join("\n")
    }

    fn is_missing(&self, peer: &str, plan: &Plan) -> bool {
        plan.peers.is_empty() && !self.brokers.iter().any(|broker| broker.name == peer)
    }

    /// Prints, and keeps what it prints.
    fn say(&mut self, text: &str) -> Outcome {
        println!("{text}");
        writeln!(self.text, "{text}").map_err(|error| at(&self.text_path, &error))
    }

    /// The brokers that take part in a row.
    fn names(&self, row: &Row) -> Vec<&'static str> {
        self.brokers.iter().map(|broker| broker.name).filter(|name| row.takes(name)).collect()
    }

    /// All rounds of one row, the brokers taking turns within each.
    fn row(&mut self, row: &Row, plan: &Plan) -> Outcome<Vec<Sample>> {
        let mut samples = Vec::new();
        println!("\n== {}", row.name);
        for round in 1..=plan.rounds {
            for index in 0..self.brokers.len() {
                let name = self.brokers[index].name;
                if !row.takes(name) {
                    continue;
                }
                match self.measure(row, &self.brokers[index], plan) {
                    Ok(report) => {
                        println!("   round {round} {name}: {}", table::in_a_line(row, &report));
                        self.keep(row, name, round, &report)?;
                        samples.push(Sample { broker: name, report });
                    }
                    Err(why) => {
                        println!("   round {round} {name}: could not run: {why}");
                        self.failures.push(format!("{}, round {round}, {name}: {why}", row.name));
                    }
                }
            }
        }
        Ok(samples)
    }

    /// Starts the broker, puts the load on it, stops it; in between it may be started anew. Takes away its files.
    fn measure(&self, row: &Row, broker: &Broker, plan: &Plan) -> Outcome<Value> {
        let (mut server, ready) = broker.start(&self.root, &self.scratch, row.ground)?;
        if let Some(first) = broker.exercise() {
            self.load(first, &server, &[], plan)?;
        }
        let dialect = broker.dialect(row.ground, server.port);
        let mut report = self.load(row.load, &server, &dialect, plan)?;
        report["ready_s"] = json!(ready.as_secs_f64());
        if let Some(then) = &row.then {
            let port = server.port;
            server.end(then.end)?;
            let data = bytes_below(&broker.directory(&self.scratch));
            let (again, took) = broker.start_again(&self.root, &self.scratch, row.ground, port)?;
            server = again;
            report["restart"] = json!({
                "seconds": took.as_secs_f64(),
                "rss_mib": server.resident_mib()?,
                "data_mib": data >> 20,
            });
            merge(&mut report, self.load(then.load, &server, &dialect, plan)?);
        }
        server.stop()?;
        let directory = broker.directory(&self.scratch);
        fs::remove_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        Ok(report)
    }

    fn load(&self, load: &[&str], server: &Server, dialect: &[String], plan: &Plan) -> Outcome<Value> {
        let mut command = Command::new(&self.generator);
        command.args(plan.suite.generator).args(load).args(dialect).arg("--json").stdin(Stdio::null());
        command.args(["--port", &server.port.to_string(), "--broker-pid", &server.pid().to_string()]);
        for (option, seconds) in [("--duration", plan.seconds), ("--warmup", plan.suite.warmup_s)] {
            if !load.contains(&option) {
                command.args([option, &seconds.to_string()]);
            }
        }
        let output = command.output().map_err(|error| at(&self.generator, &error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim_end().lines().last().unwrap_or("it said nothing");
            return Err(last.to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("the report cannot be read: {error}"))
    }

    /// Adds a run to the raw reports.
    fn keep(&mut self, row: &Row, broker: &str, round: u32, report: &Value) -> Outcome {
        let line = json!({
            "row": row.name,
            "broker": broker,
            "round": round,
            "commit": self.commit,
            "machine": self.machine,
            "report": report,
        });
        writeln!(self.raw, "{line}").map_err(|error| at(&self.raw_path, &error))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.scratch) {
            eprintln!("{}", at(&self.scratch, &error));
        }
    }
}

/// Lays a second report over the first: what it does not know stays as it was.
fn merge(report: &mut Value, second: Value) {
    match (report, second) {
        (Value::Object(report), Value::Object(second)) => {
            for (name, value) in second {
                merge(report.entry(name).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (report, second) => *report = second,
    }
}

/// Bytes of all files below a directory. One may go while it is looked at.
pub(crate) fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// The broker's binary: `MAINSTEM_BIN`, or else a release build of what is here.
///
/// # Errors
/// If it does not build, or is not there.
pub(crate) fn binary(root: &Path) -> Outcome<PathBuf> {
    if let Some(named) = std::env::var_os("MAINSTEM_BIN") {
        return fs::canonicalize(&named).map_err(|error| at(Path::new(&named), &error));
    }
    run_command(root, "cargo", &["build", "--release", "--locked", "--quiet", "-p", "mainstem"], &[])?;
    Ok(root.join("target/release/mainstem"))
}

/// An error with the path it is about.
pub(crate) fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_options_come_in_any_order() {
        let plan =
            Plan::parse(&MQTT, &["idle", "--rounds", "5", "retained", "--peers", "flashmq,mochi"]).unwrap();
        let names: Vec<&str> = plan.rows.iter().map(|row| row.name).collect();
        assert_eq!((names, plan.rounds, plan.seconds), (vec!["idle", "retained"], 5, 8));
        assert_eq!(plan.peers, ["flashmq", "mochi"]);
        assert_eq!(Plan::parse(&MQTT, &[]).unwrap().rows.len(), ROWS.len());
    }

    #[test]
    fn a_second_report_adds_to_the_first() {
        let mut report = json!({"retained": {"stored_per_s": 7, "lost": 0}, "queued": null});
        merge(
            &mut report,
            json!({"retained": {"stored_per_s": null, "lost": 3, "fetch_s": 1}, "queued": null}),
        );
        let expected = json!({"retained": {"stored_per_s": 7, "lost": 3, "fetch_s": 1}, "queued": null});
        assert_eq!(report, expected);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for arguments in [["nothing"].as_slice(), &["--rounds", "0"], &["--rounds"], &["--peers", "kafka"]] {
            let refusal = Plan::parse(&MQTT, arguments).unwrap_err();
            assert!(refusal.contains(arguments[0]) || refusal.contains(arguments[1]), "{refusal}");
        }
    }
}
