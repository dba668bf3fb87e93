//! `cargo xtask tidy`: the rules of the house that no compiler and no lint keeps.
//!
//! Each check is a function from the repository to faults, in a file of its own beside this one. The length of
//! functions is left to clippy (`too_many_lines`), which `text.rs` keeps from being switched off.

mod dead;
mod decisions;
mod hosts;
mod layers;
mod lexer;
mod links;
mod text;

pub(crate) use layers::pure_packages;

use crate::Outcome;
use crate::repo::Repo;
use std::fmt;
use std::path::Path;

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Warning,
    Error,
}

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    level: Level,
    path: String,
    /// From 1; 0 if the fault is of the file as a whole.
    line: usize,
    what: String,
}

impl Fault {
    fn error(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { level: Level::Error, path: path.to_owned(), line, what: what.into() }
    }

    fn warning(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(path, line, what) }
    }
}

impl fmt::Display for Fault {
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

const CHECKS: [fn(&Repo) -> Vec<Fault>; 6] =
    [layers::check, text::check, dead::check, links::check, decisions::check, hosts::check];

/// Runs all checks and prints what they found.
///
/// # Errors
/// If there is any fault that is more than a warning.
pub(crate) fn run(root: &Path) -> Outcome {
    let repo = Repo::read(root)?;
    let mut faults: Vec<Fault> = CHECKS.iter().flat_map(|check| check(&repo)).collect();
    faults.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for fault in &faults {
        println!("{fault}");
    }
    let errors = faults.iter().filter(|fault| fault.level == Level::Error).count();
    let warnings = faults.len() - errors;
    println!("tidy: {} files, {errors} errors, {warnings} warnings", repo.files.len());
    if errors == 0 { Ok(()) } else { Err("tidy: please mend the errors above".to_owned()) }
}

/// Runs one check over planted files and returns the faults as `path:line`, for the tests of the checks.
#[cfg(test)]
fn faults_in(check: fn(&Repo) -> Vec<Fault>, files: &[(&str, &str)]) -> Vec<String> {
    let faults = check(&Repo::planted(files));
    faults.iter().map(|fault| format!("{}:{}", fault.path, fault.line)).collect()
}
