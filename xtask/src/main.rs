//! The project's own chores, so that nothing has to be installed to run them: `cargo xtask <chore>`.
//!
//! - `ci`: every check and every test, in the order in which they fail fastest (`ci.rs`).
//! - `tidy`: the rules that no compiler and no lint keeps (`tidy.rs` and the files beside it).
//! - `config-reference`: the page of all configuration keys, which the broker prints from its own types.
//! - `conformance`: the tables that lead from a statement of the specification to the tests that show it.
//! - `fuzz`: each fuzz target for so many seconds.
//! - `bench`, `bench-kafka`, `bench-queue`, `bench-peers`: the broker and its peers side by side; installing the peers.
//! - `bench-bus`: the bus beside other buses and channels.
//! - `soak`: many loads at once for a long time, watching for loss, growth and panics; and a broker that is killed.
//! - `sim`: tests that take seeds, with as many seeds as there is time for.
//!
//! Checks read the repository once, as text in memory ([`repo::Repo`]), and never touch the disk themselves: that
//! is how their own tests plant faults.

mod bench;
mod bench_bus;
mod ci;
mod config_reference;
mod conformance;
mod fuzz;
mod repo;
mod sim;
mod soak;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

/// What a chore returns: an error is a sentence for whoever ran it.
type Outcome<T = ()> = Result<T, String>;

const USAGE: &str = "\
usage: cargo xtask <chore>

  ci                      run every check and every test
  tidy                    check layering, file lengths, dead files, links and the like
  config-reference        write docs/configuration.md
  config-reference --check
                          fail if that page is stale
  conformance             write docs/conformance/*.md
  conformance --check     fail if a statement has no test, or the tables are stale
  fuzz [--seconds N]      run each fuzz target for N seconds (300)
  bench [ROW...] [--rounds N] [--seconds N] [--peers A,B]
                          measure the broker beside its peers (3 rounds of 8 seconds)
  bench-kafka [ROW...] [--rounds N] [--seconds N] [--peers A,B]
                          measure the Kafka door beside Apache Kafka (3 rounds of 5 seconds)
  bench-queue [ROW...] [--rounds N] [--seconds N] [--peers A,B]
                          measure work queues beside RabbitMQ and JetStream (3 rounds of 5 seconds)
  bench log [ROW...]      measure the segment log beside bare system calls
  bench queues [ROW...]   measure work queues of a program, without a broker
  bench-peers             install peers that are missing into target/peers
  bench-bus [--rounds N]  measure the bus beside its peers (3 rounds)
  soak [--seconds N]      both of the following, each for half of N seconds (3600)
  soak many [--seconds N] many loads at once
  soak kill [--seconds N] [--seed N] [--rate N] [--shards N] [--end kill|term|never] [--broker mosquitto] [--forget]
            [--lazyfs PROGRAM] [--durability fsync|os|none]
                          kill the broker under load, again and again (docs/benchmarks.md)
  sim [--seconds N] [--seed N]
                          crash the log and whole brokers as often as N seconds (300) allow, from seed N on, or from a new one";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let outcome = match arguments[..] {
        ["ci"] => ci::run(root),
        ["tidy"] => tidy::run(root),
        ["config-reference"] => config_reference::write(root),
        ["config-reference", "--check"] => config_reference::check(root),
        ["conformance"] => conformance::write(root),
        ["conformance", "--check"] => conformance::check(root),
        ["fuzz"] => fuzz::run(root, 300),
        ["fuzz", "--seconds", seconds] => seconds
            .parse()
            .map_err(|_| format!("--seconds takes a number, not `{seconds}`"))
            .and_then(|seconds| fuzz::run(root, seconds)),
        ["bench", "log", ref rows @ ..] => bench_crate(root, "mainstem-disk", "log", rows),
        ["bench", "queues", ref rows @ ..] => bench_crate(root, "mainstem-queues", "queues", rows),
        ["bench", ref rest @ ..] => bench::run(root, &bench::MQTT, rest),
        ["bench-kafka", ref rest @ ..] => bench::run(root, &bench::KAFKA, rest),
        ["bench-queue", ref rest @ ..] => bench::run(root, &bench::QUEUE, rest),
        ["bench-peers"] => bench::install(root),
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

/// `cargo xtask bench log` and `cargo xtask bench queues`: what a crate measures of itself in its `benches`.
fn bench_crate(root: &Path, package: &str, name: &str, rows: &[&str]) -> Outcome {
    let measure = ["bench", "--quiet", "--package", package, "--bench", name, "--"];
    ci::run_command(root, "cargo", &[&measure, rows].concat(), &[])
}
