//! `cargo xtask config-reference`: the page of all configuration keys.
//!
//! The broker prints it from the types that it reads its configuration into, so the page cannot say anything else.

use crate::Outcome;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: &str = "docs/configuration.md";

/// Writes the page anew.
///
/// # Errors
/// If the broker cannot be built or does not print the page, or the page cannot be written.
pub(crate) fn write(root: &Path) -> Outcome {
    fs::write(root.join(PAGE), printed(root)?).map_err(|error| format!("cannot write {PAGE}: {error}"))
}

/// Checks that the page is what the broker prints.
///
/// # Errors
/// If it is not, or as [`write()`].
pub(crate) fn check(root: &Path) -> Outcome {
    compare(fs::read(root.join(PAGE)).ok().as_deref(), &printed(root)?)
}

fn compare(kept: Option<&[u8]>, printed: &[u8]) -> Outcome {
    if kept == Some(printed) {
        return Ok(());
    }
    Err(format!("{PAGE} is stale: run `cargo xtask config-reference`"))
}

/// What the broker of the working tree prints, built without optimisation as for its tests.
fn printed(root: &Path) -> Outcome<Vec<u8>> {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--locked", "-p", "mainstem", "--", "config-reference"]);
    let output = command
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{command:?}: {}", output.status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_differs_or_is_missing_is_stale() {
        assert_eq!(compare(Some(b"# Configuration\n"), b"# Configuration\n"), Ok(()));
        for kept in [Some(&b"# Configuration\n\n"[..]), None] {
            assert!(compare(kept, b"# Configuration\n").is_err_and(|fault| fault.contains("is stale")));
        }
    }
}
