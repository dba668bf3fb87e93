//! `cargo xtask config-reference`: writes or checks the page of all configuration keys.
//!
//! The broker prints the page from its configuration types, so the page cannot differ from the code.

use crate::Outcome;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: &str = "docs/configuration.md";

/// Writes the page.
///
/// # Errors
/// If the broker cannot be built or does not print the page, or the page cannot be written.
pub(crate) fn write(root: &Path) -> Outcome {
    fs::write(root.join(PAGE), printed(root)?).map_err(|error| format!("cannot write {PAGE}: {error}"))
}

/// Checks that the page is up to date.
///
/// # Errors
/// If it is not, or as [`write()`].
pub(crate) fn check(root: &Path) -> Outcome {
    compare(fs::read(root.join(PAGE)).ok().as_deref(), &printed(root)?)
}

fn compare(page: Option<&[u8]>, printed: &[u8]) -> Outcome {
    if page == Some(printed) {
        return Ok(());
    }
    Err(format!("{PAGE} is stale: run `cargo xtask config-reference`"))
}

/// Output of the broker of the working tree, built with the dev profile like its tests.
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
    fn different_or_missing_page_is_stale() {
        assert_eq!(compare(Some(b"# Configuration\n"), b"# Configuration\n"), Ok(()));
        for page in [Some(&b"# Configuration\n\n"[..]), None] {
            assert!(compare(page, b"# Configuration\n").is_err_and(|error| error.contains("is stale")));
        }
    }
}
