//! `cargo xtask soak`: the broker under load for long, and killed under load, watching that nothing is lost.
//!
//! | file | part |
//! |---|---|
//! | `many` | many kinds of load at once: nothing is lost, nothing grows |
//! | `kill` | the broker is killed again and again: what it acknowledged is there when it comes back |

mod kill;
mod many;

use crate::Outcome;
use crate::bench::positive;
use std::path::Path;

/// Runs both parts, each for half the time, or the one that is named, for all of it.
///
/// # Errors
/// If an option is not known, or all that is amiss.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Outcome {
    match arguments {
        ["many"] => many::run(root, SECONDS),
        ["many", "--seconds", seconds] => many::run(root, positive("--seconds", seconds)?),
        ["kill", rest @ ..] => kill::run(root, &kill::Options::parse(rest)?),
        [] => both(root, SECONDS),
        ["--seconds", seconds] => both(root, positive("--seconds", seconds)?),
        _ => Err(format!("soak does not know `{}`", arguments.join(" "))),
    }
}

/// What `cargo xtask ci` runs: a little of both, and whether a broker that forgets is found out.
///
/// # Errors
/// All that is amiss.
pub(crate) fn smoke(root: &Path) -> Outcome {
    many::run(root, SMOKE_SECONDS)?;
    kill::smoke(root, SMOKE_SECONDS)
}

/// How long it takes if nobody says.
const SECONDS: u32 = 3600;
/// How long each part of the smoke run takes.
const SMOKE_SECONDS: u32 = 20;

fn both(root: &Path, seconds: u32) -> Outcome {
    many::run(root, seconds.div_ceil(2))?;
    kill::run(root, &kill::Options::lasting(seconds.div_ceil(2)))
}
