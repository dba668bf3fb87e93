//! `cargo xtask config-reference` and `metrics-reference`: write or check the pages of all configuration keys and of
//! all metrics.
//!
//! The broker prints each page from the tables that it uses itself, so the page cannot differ from the code.

use crate::Outcome;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A page that the broker prints.
#[derive(Clone, Copy)]
pub(crate) struct Page {
    path: &'static str,
    /// The subcommand that prints it.
    subcommand: &'static [&'static str],
    /// The task that writes it.
    task: &'static str,
}

/// All configuration keys.
pub(crate) const CONFIGURATION: Page =
    Page { path: "docs/configuration.md", subcommand: &["config", "reference"], task: "config-reference" };
/// All metrics.
pub(crate) const METRICS: Page =
    Page { path: "docs/metrics.md", subcommand: &["metrics-reference"], task: "metrics-reference" };

/// Writes a page.
///
/// # Errors
/// If the broker cannot be built or does not print the page, or the page cannot be written.
pub(crate) fn write(root: &Path, page: Page) -> Outcome {
    fs::write(root.join(page.path), printed(root, page)?)
        .map_err(|error| format!("cannot write {}: {error}", page.path))
}

/// Checks that a page is up to date.
///
/// # Errors
/// If it is not, or as [`write()`].
pub(crate) fn check(root: &Path, page: Page) -> Outcome {
    compare(page, fs::read(root.join(page.path)).ok().as_deref(), &printed(root, page)?)
}

fn compare(page: Page, content: Option<&[u8]>, printed: &[u8]) -> Outcome {
    if content == Some(printed) {
        return Ok(());
    }
    Err(format!("{} is stale: run `cargo xtask {}`", page.path, page.task))
}

/// Output of the broker of the working tree, built like that of the tests.
fn printed(root: &Path, page: Page) -> Outcome<Vec<u8>> {
    let mut command = Command::new("cargo");
    command.args(["run", "--profile", "checked", "--quiet", "--locked", "-p", "mainstem", "--"]);
    command.args(page.subcommand);
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
        assert_eq!(compare(CONFIGURATION, Some(b"# Configuration\n"), b"# Configuration\n"), Ok(()));
        for page in [Some(&b"# Configuration\n\n"[..]), None] {
            assert!(
                compare(CONFIGURATION, page, b"# Configuration\n")
                    .is_err_and(|error| error.contains("is stale"))
            );
        }
    }
}
