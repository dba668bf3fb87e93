//! Development tasks of the project, without tools to install first: `cargo xtask <command>`.
//!
//! - `ci`: every check and every test, fastest first (`ci.rs`).
//! - `tidy`: rules that neither the compiler nor lints enforce (`tidy.rs`, `tidy/`).
//! - `architecture`: the crate table of ARCHITECTURE.md, generated from the layers that `tidy` enforces.
//! - `stats`: size and structure of the code, counted.
//! - `config-reference`, `metrics-reference`: the pages of all configuration keys and of all metrics, printed by the
//!   broker from its tables.
//! - `conformance`: the tables that link statements of the specifications to tests.
//! - `fuzz`: each fuzz target for a number of seconds or executions.
//! - `bench`, `bench-kafka`, `bench-queue`: comparison of the broker with its peers; `bench-peers` installs them.
//! - `bench-bus`: comparison of the bus with other buses and channels.
//! - `bystander`: innocent clients beside an attacker.
//! - `soak`: many loads at once for a long time, checked for loss, growth and panics; and a broker that is killed.
//! - `sim`: seeded tests, with as many seeds as the time allows.
//!
//! Checks read the repository once, as text in memory ([`repo::Repo`]), and never access the disk themselves, so their
//! own tests can use planted files.

mod architecture;
mod bench;
mod bench_bus;
mod bystander;
mod ci;
mod conformance;
mod fuzz;
mod reference;
mod repo;
mod sim;
mod soak;
mod stats;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

/// Result of a command. The error is a message for the user.
type Outcome<T = ()> = Result<T, String>;

const USAGE: &str = "\
usage: cargo xtask <command>

  ci                      run every check and every test
  ci seeded               run only the schedules of the bus and the simulation smoke
  tidy                    check layering, file lengths, dead files, links and the like
  architecture [--check]  write the crate table of ARCHITECTURE.md, or fail if it is stale
  stats [DIRECTORY]       count lines, methods, cycles and prose of this tree, or of another one
  config-reference        write docs/configuration.md
  metrics-reference       write docs/metrics.md
  config-reference --check, metrics-reference --check
                          fail if that page is stale
  conformance             write docs/conformance/*.md
  conformance --check     fail if a statement has no test, or the tables are stale
  fuzz [TARGET...] [--seconds N] [--executions N]
                          run each fuzz target for N seconds (300), or that many executions
  bench [ROW...] [--rounds N] [--seconds N] [--peers A,B]
                          compare the broker with its peers over MQTT (3 rounds of 8 seconds)
  bench-kafka [ROW...] [--rounds N] [--seconds N] [--peers A,B]
                          compare the broker with Apache Kafka (3 rounds of 5 seconds)
  bench-queue [ROW...] [--rounds N] [--seconds N] [--peers A,B]
                          compare work queues with RabbitMQ and JetStream (3 rounds of 5 seconds)
  bench log [ROW...]      compare the segment log with bare system calls
  bench queues [ROW...]   measure embedded work queues, without a broker
  bench-peers             install missing peers into target/peers
  bench-bus [--rounds N]  compare the bus with its peers (3 rounds)
  bystander [ATTACK...] [--samples N] [--seconds N] [--peers] [--smoke]
                          measure innocent clients beside an attacker (30,000 samples; docs/benchmarks.md)
  soak [--seconds N] [--smoke]
                          run both of the following, each for half of N seconds (3600)
  soak many [--seconds N] run many loads at once
  soak kill [--seconds N] [--seed N] [--rate N] [--shards N] [--end kill|term|never] [--broker mosquitto] [--forget]
            [--lazyfs PROGRAM] [--durability fsync|os|none]
                          kill the broker under load repeatedly (docs/benchmarks.md)
  sim [--seconds N] [--seed N]
                          crash the log and whole brokers for N seconds (300), from seed N or a new seed";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace");
    let outcome = match arguments[..] {
        ["ci"] => ci::run(root),
        ["ci", "seeded"] => ci::run_seeded(root),
        ["tidy"] => tidy::run(root),
        ["architecture"] => architecture::write(root),
        ["architecture", "--check"] => architecture::check(root),
        ["stats"] => stats::run(root),
        ["stats", directory] => stats::run(Path::new(directory)),
        ["config-reference"] => reference::write(root, reference::CONFIGURATION),
        ["config-reference", "--check"] => reference::check(root, reference::CONFIGURATION),
        ["metrics-reference"] => reference::write(root, reference::METRICS),
        ["metrics-reference", "--check"] => reference::check(root, reference::METRICS),
        ["conformance"] => conformance::write(root),
        ["conformance", "--check"] => conformance::check(root),
        ["fuzz", ref rest @ ..] => fuzz::Options::parse(rest).and_then(|options| fuzz::run(root, &options)),
        ["bench", "log", ref rows @ ..] => bench_crate(root, "mainstem-disk", "log", rows),
        ["bench", "queues", ref rows @ ..] => bench_crate(root, "mainstem-queue", "queues", rows),
        ["bench", ref rest @ ..] => bench::run(root, &bench::MQTT, rest),
        ["bench-kafka", ref rest @ ..] => bench::run(root, &bench::KAFKA, rest),
        ["bench-queue", ref rest @ ..] => bench::run(root, &bench::QUEUE, rest),
        ["bench-peers"] => bench::install(root),
        ["bystander", ref rest @ ..] => bystander::run(root, rest),
        ["bench-bus", ref rest @ ..] => bench_bus::run(root, rest),
        ["soak", ref rest @ ..] => soak::run(root, rest),
        ["sim", ref rest @ ..] => sim::run(root, rest),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo xtask bench log` and `cargo xtask bench queues`: runs a crate's own `benches`.
fn bench_crate(root: &Path, package: &str, name: &str, rows: &[&str]) -> Outcome {
    let measure = ["bench", "--quiet", "--package", package, "--bench", name, "--"];
    ci::run_command(root, "cargo", &[&measure, rows].concat(), &[])
}
