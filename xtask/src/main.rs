//! The project's own chores, so that nothing has to be installed to run them: `cargo xtask <chore>`.
//!
//! - `ci`: every check and every test, in the order in which they fail fastest (`ci.rs`).
//! - `tidy`: the rules that no compiler and no lint keeps (`tidy.rs` and the files beside it).
//! - `config-reference`: the page of all configuration keys, which the broker prints from its own types.
//! - `conformance`: the tables that lead from a statement of the specification to the tests that show it.
//! - `fuzz`: each fuzz target for so many seconds.
//!
//! Checks read the repository once, as text in memory ([`repo::Repo`]), and never touch the disk themselves: that
//! is how their own tests plant faults.

mod ci;
mod config_reference;
mod conformance;
mod fuzz;
mod repo;
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
  fuzz [--seconds N]      run each fuzz target for N seconds (300)";

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
