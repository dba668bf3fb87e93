//! `cargo xtask soak`: runs the broker under load for a long time, and kills it under load, checking for losses.
//!
//! | file | part |
//! |---|---|
//! | `many` | many loads at once: nothing is lost, nothing grows |
//! | `kill` | the broker is killed repeatedly: everything it acknowledged survives the restarts |

mod kill;
mod many;

use crate::Outcome;
use crate::bench::positive;
use std::path::Path;

/// Runs both parts, each for half the time, or only the named one.
///
/// # Errors
/// If an option is unknown, or with all violations found.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Outcome {
    match arguments {
        ["many"] => many::run(root, SECONDS),
        ["many", "--seconds", seconds] => many::run(root, positive("--seconds", seconds)?),
        ["kill", rest @ ..] => kill::run(root, &kill::Options::parse(rest)?),
        [] => both(root, SECONDS),
        ["--smoke"] => smoke(root),
        ["--seconds", seconds] => both(root, positive("--seconds", seconds)?),
        _ => Err(format!("soak: unknown option `{}`", arguments.join(" "))),
    }
}

/// Smoke run of `cargo xtask ci`: a short run of both parts, and of a broker that loses its data, which must be
/// detected.
///
/// # Errors
/// All violations found.
fn smoke(root: &Path) -> Outcome {
    many::run(root, SMOKE_SECONDS)?;
    kill::smoke(root, SMOKE_SECONDS)
}

/// Default duration in seconds.
const SECONDS: u32 = 3600;
/// Duration of each part of the smoke run, in seconds.
const SMOKE_SECONDS: u32 = 20;

fn both(root: &Path, seconds: u32) -> Outcome {
    many::run(root, seconds.div_ceil(2))?;
    kill::run(root, &kill::Options::for_seconds(seconds.div_ceil(2)))
}
