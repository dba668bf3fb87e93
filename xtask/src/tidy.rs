//! `cargo xtask tidy`: project rules that neither the compiler nor a lint enforces.
//!
//! Each check is a function from the repository to violations, in its own file beside this one. Checks see the
//! repository as text in memory, so their tests run on planted files.

mod commits;
mod dead;
mod decisions;
mod file_map;
pub(crate) mod functions;
mod hosts;
pub(crate) mod imports;
mod layers;
pub(crate) mod lexer;
mod links;
mod steps;
mod text;
pub(crate) mod width;
mod words;

pub(crate) use layers::{pure_packages, table as crate_table};

use crate::Outcome;
use crate::repo::Repo;
use std::fmt;
use std::path::Path;

/// Severity of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Warning,
    Error,
}

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    level: Level,
    path: String,
    /// From 1; 0 for the file as a whole.
    line: usize,
    what: String,
}

impl Violation {
    fn error(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { level: Level::Error, path: path.to_owned(), line, what: what.into() }
    }

    fn warning(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(path, line, what) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Warning => "warning",
            Level::Error => "error",
        };
        match self.line {
            0 => write!(f, "{level}: {}: {}", self.path, self.what),
            line => write!(f, "{level}: {}:{line}: {}", self.path, self.what),
        }
    }
}

const CHECKS: [fn(&Repo) -> Vec<Violation>; 12] = [
    layers::check,
    text::check,
    dead::check,
    links::check,
    steps::check,
    decisions::check,
    hosts::check,
    functions::check,
    file_map::check,
    imports::check,
    width::check,
    words::check,
];

/// Runs all checks and prints the violations.
///
/// # Errors
/// If there is a violation other than a warning.
pub(crate) fn run(root: &Path) -> Outcome {
    let repo = Repo::read(root)?;
    let mut violations: Vec<Violation> = CHECKS.iter().flat_map(|check| check(&repo)).collect();
    violations.extend(commits::check(root, &repo)?);
    violations.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for violation in &violations {
        println!("{violation}");
    }
    let errors = violations.iter().filter(|violation| violation.level == Level::Error).count();
    let warnings = violations.len() - errors;
    println!("tidy: {} files, {errors} errors, {warnings} warnings", repo.files.len());
    if errors == 0 { Ok(()) } else { Err("tidy: fix the errors above".to_owned()) }
}

/// Runs one check over planted files and returns the violations as `path:line`.
#[cfg(test)]
fn violations_in(check: fn(&Repo) -> Vec<Violation>, files: &[(&str, &str)]) -> Vec<String> {
    let violations = check(&Repo::planted(files));
    violations.iter().map(|violation| format!("{}:{}", violation.path, violation.line)).collect()
}
