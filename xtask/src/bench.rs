//! `cargo xtask bench`, `bench-kafka` and `bench-queue`: compares the broker with its peers, in one run on one machine.
//!
//! Each row is a load of `mainstem bench mqtt`, `kafka` or `queue`. Every round runs it on each broker in turn, with a
//! new process each time (A B C A B C), so that disturbances of the machine affect all brokers alike. Results are
//! ratios of medians. A missed target is not an error; only a run that could not complete is.
//!
//! | file | holds |
//! |---|---|
//! | `rows`, `kafka_rows`, `queue_rows` | the rows and their targets |
//! | `metric` | one number of a report: its name, JSON path and format |
//! | `brokers`, `rabbit` | the brokers: where their binaries are, how they are started |
//! | `server`, `ready` | one running broker; readiness of a Kafka broker |
//! | `table` | medians, ratios and targets as text |
//! | `machine` | description of the machine |

pub(crate) mod brokers;
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

/// Rows with a common load generator and set of peers.
#[derive(Debug)]
pub(crate) struct Suite {
    rows: &'static [Row],
    peers: &'static [&'static str],
    /// Arguments of the load generator that precede those of the row.
    generator: &'static [&'static str],
    /// Default length of the warm-up, in seconds.
    warmup_s: u32,
    /// Default length of the measured part, in seconds.
    seconds: u32,
}

/// MQTT.
pub(crate) const MQTT: Suite = Suite {
    rows: &ROWS,
    peers: &brokers::PEERS,
    generator: &["bench", "mqtt", "--version", "4"],
    // Long enough to fill queues and windows.
    warmup_s: 2,
    seconds: 8,
};

/// The Kafka protocol.
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

/// Parsed command line.
#[derive(Debug)]
struct Plan {
    suite: &'static Suite,
    rows: Vec<&'static Row>,
    rounds: u32,
    seconds: u32,
    /// Names of the peers to measure; empty for all available peers.
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
            return Err(format!("unknown peer `{unknown}`; available: {}", suite.peers.join(", ")));
        }
        if plan.rows.is_empty() {
            plan.rows = suite.rows.iter().collect();
        }
        Ok(plan)
    }
}

/// Parses a positive integer as the value of an option.
///
/// # Errors
/// If it is not one.
pub(crate) fn positive(option: &str, value: &str) -> Outcome<u32> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{option} takes a positive integer, not `{value}`")),
    }
}

fn row_named(suite: &'static Suite, name: &str) -> Outcome<&'static Row> {
    suite.rows.iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<&str> = suite.rows.iter().map(|row| row.name).collect();
        format!("unknown row `{name}`; available: {}", names.join(", "))
    })
}

/// Runs the benchmark. Prints a line per run, a table per row, and the paths of the raw reports.
///
/// # Errors
/// If a run failed. The other runs are still measured and printed.
pub(crate) fn run(root: &Path, suite: &'static Suite, arguments: &[&str]) -> Outcome {
    let plan = Plan::parse(suite, arguments)?;
    let mut run = Run::prepare(root, &plan)?;
    let header = run.header(&plan);
    run.print(&header)?;
    for row in &plan.rows {
        let samples = run.row(row, &plan)?;
        run.print(&table::render(row, &run.names(row), &samples))?;
    }
    println!("\nraw reports: {}\ntables: {}", run.raw_path.display(), run.text_path.display());
    if run.failures.is_empty() {
        Ok(())
    } else {
        Err(format!("\nbench: failed runs:\n  {}", run.failures.join("\n  ")))
    }
}

/// State of a run.
struct Run {
    root: PathBuf,
    /// A copy of the binary, so that a concurrent build does not affect the run.
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
        let missing = missing.map(|peer| format!("missing  {peer}: {}", brokers::install_hint(peer)));
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

    /// Prints `text`, and appends it to the text file.
    fn print(&mut self, text: &str) -> Outcome {
        println!("{text}");
        writeln!(self.text, "{text}").map_err(|error| at(&self.text_path, &error))
    }

    /// Names of the brokers that a row measures.
    fn names(&self, row: &Row) -> Vec<&'static str> {
        self.brokers.iter().map(|broker| broker.name).filter(|name| row.includes(name)).collect()
    }

    /// Runs all rounds of one row, each with all brokers in turn.
    fn row(&mut self, row: &Row, plan: &Plan) -> Outcome<Vec<Sample>> {
        let mut samples = Vec::new();
        println!("\n== {}", row.name);
        for round in 1..=plan.rounds {
            for index in 0..self.brokers.len() {
                let name = self.brokers[index].name;
                if !row.includes(name) {
                    continue;
                }
                match self.measure(row, &self.brokers[index], plan) {
                    Ok(report) => {
                        println!("   round {round} {name}: {}", table::one_line(row, &report));
                        self.record(row, name, round, &report)?;
                        samples.push(Sample { broker: name, report });
                    }
                    Err(why) => {
                        println!("   round {round} {name}: failed: {why}");
                        self.failures.push(format!("{}, round {round}, {name}: {why}", row.name));
                    }
                }
            }
        }
        Ok(samples)
    }

    /// Starts the broker, runs the load, restarts the broker if the row requires it, stops it, and removes its files.
    fn measure(&self, row: &Row, broker: &Broker, plan: &Plan) -> Outcome<Value> {
        let (mut server, ready) = broker.start(&self.root, &self.scratch, row.category)?;
        if let Some(warm_up) = broker.warm_up_load() {
            self.load(warm_up, &server, &[], plan)?;
        }
        let protocol = broker.protocol_arguments(row.category, &self.scratch, server.port);
        let mut report = self.load(row.load, &server, &protocol, plan)?;
        report["ready_s"] = json!(ready.as_secs_f64());
        if let Some(restart) = &row.restart {
            let port = server.port;
            server.end(restart.end)?;
            let data = directory_bytes(&broker.directory(&self.scratch));
            let (restarted, took) = broker.restart(&self.root, &self.scratch, row.category, port)?;
            server = restarted;
            report["restart"] = json!({
                "seconds": took.as_secs_f64(),
                "rss_mib": server.resident_mib()?,
                "data_mib": data >> 20,
            });
            merge(&mut report, self.load(restart.load, &server, &protocol, plan)?);
        }
        server.stop()?;
        let directory = broker.directory(&self.scratch);
        fs::remove_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        Ok(report)
    }

    fn load(&self, load: &[&str], server: &Server, protocol: &[String], plan: &Plan) -> Outcome<Value> {
        let mut command = Command::new(&self.generator);
        command.args(plan.suite.generator).args(load).args(protocol).arg("--json").stdin(Stdio::null());
        command.args(["--port", &server.port.to_string(), "--broker-pid", &server.pid().to_string()]);
        for (option, seconds) in [("--duration", plan.seconds), ("--warmup", plan.suite.warmup_s)] {
            if !load.contains(&option) {
                command.args([option, &seconds.to_string()]);
            }
        }
        let output = command.output().map_err(|error| at(&self.generator, &error))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.trim_end().lines().last().unwrap_or("no error message");
            return Err(last.to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cannot parse the report: {error}"))
    }

    /// Appends a report to the raw reports.
    fn record(&mut self, row: &Row, broker: &str, round: u32, report: &Value) -> Outcome {
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

/// Merges a second report into the first. Null values do not overwrite.
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

/// Total size of all files under a directory. Files that disappear during the scan count as 0.
pub(crate) fn directory_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Path of the broker's binary: `MAINSTEM_BIN`, or else a release build of the working tree.
///
/// # Errors
/// If the build fails, or the named file does not exist.
pub(crate) fn binary(root: &Path) -> Outcome<PathBuf> {
    if let Some(named) = std::env::var_os("MAINSTEM_BIN") {
        return fs::canonicalize(&named).map_err(|error| at(Path::new(&named), &error));
    }
    run_command(root, "cargo", &["build", "--release", "--locked", "--quiet", "-p", "mainstem"], &[])?;
    Ok(root.join("target/release/mainstem"))
}

/// Error message with its path.
pub(crate) fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_rows_and_options_in_any_order() {
        let plan =
            Plan::parse(&MQTT, &["idle", "--rounds", "5", "retained", "--peers", "flashmq,mochi"]).unwrap();
        let names: Vec<&str> = plan.rows.iter().map(|row| row.name).collect();
        assert_eq!((names, plan.rounds, plan.seconds), (vec!["idle", "retained"], 5, 8));
        assert_eq!(plan.peers, ["flashmq", "mochi"]);
        assert_eq!(Plan::parse(&MQTT, &[]).unwrap().rows.len(), ROWS.len());
    }

    #[test]
    fn merge_adds_to_the_first_report() {
        let mut report = json!({"retained": {"stored_per_s": 7, "lost": 0}, "queued": null});
        merge(
            &mut report,
            json!({"retained": {"stored_per_s": null, "lost": 3, "fetch_s": 1}, "queued": null}),
        );
        let expected = json!({"retained": {"stored_per_s": 7, "lost": 3, "fetch_s": 1}, "queued": null});
        assert_eq!(report, expected);
    }

    #[test]
    fn rejects_unknown_arguments_by_name() {
        for arguments in [["nothing"].as_slice(), &["--rounds", "0"], &["--rounds"], &["--peers", "kafka"]] {
            let refusal = Plan::parse(&MQTT, arguments).unwrap_err();
            assert!(refusal.contains(arguments[0]) || refusal.contains(arguments[1]), "{refusal}");
        }
    }
}
