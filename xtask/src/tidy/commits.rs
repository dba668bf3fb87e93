//! Commits that pages cite: every abbreviated hash in a Markdown page names a commit of this repository's history.
//!
//! A measurement stands beside its commit so that it can be repeated; a hash that leads nowhere is worse than none.
//! The check asks git once for all hashes. A copy without history (an archive, a shallow clone) cannot answer, and the
//! check says so instead of failing.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Violation;
use crate::Outcome;
use crate::repo::Repo;

/// Length of an abbreviated hash.
const HASH_LENGTH: usize = 7;

/// # Errors
/// If git cannot be run in a repository that has history.
pub(super) fn check(root: &Path, repo: &Repo) -> Outcome<Vec<Violation>> {
    if !has_history(root) {
        println!("tidy: no full git history here, cited commits are not checked");
        return Ok(Vec::new());
    }
    let cited = citations(repo);
    let missing = missing(root, cited.keys())?;
    let mut violations = Vec::new();
    for hash in &missing {
        for (path, line) in &cited[hash] {
            violations.push(Violation::error(
                path,
                *line,
                format!("`{hash}` is not a commit of this repository"),
            ));
        }
    }
    Ok(violations)
}

fn has_history(root: &Path) -> bool {
    let shallow =
        Command::new("git").args(["rev-parse", "--is-shallow-repository"]).current_dir(root).output();
    shallow.is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"false"))
}

/// Hashes in pages, with the places that cite them.
fn citations(repo: &Repo) -> BTreeMap<String, Vec<(String, usize)>> {
    let mut found: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for file in repo.with_extension("md") {
        for (number, line) in file.lines() {
            let words = line.split(|character: char| !character.is_ascii_alphanumeric());
            for hash in words.filter(|word| is_hash(word)) {
                found.entry(hash.to_owned()).or_default().push((file.path.clone(), number));
            }
        }
    }
    found
}

/// Whether a word is an abbreviated hash rather than a number or an English word.
fn is_hash(word: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    word.len() == HASH_LENGTH
        && word.bytes().all(is_hex)
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Those of the hashes that name no commit.
fn missing<'a>(root: &Path, hashes: impl Iterator<Item = &'a String>) -> Outcome<Vec<String>> {
    let failed = |error: std::io::Error| format!("cannot run git cat-file: {error}");
    let mut git = Command::new("git")
        .args(["cat-file", "--batch-check"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut query = String::new();
    for hash in hashes {
        query.extend([hash, "^{commit}\n"]);
    }
    let mut stdin = git.stdin.take().ok_or("git cat-file has no input")?;
    // A few hundred short lines fit into the pipe, so git need not be read at the same time.
    stdin.write_all(query.as_bytes()).map_err(failed)?;
    drop(stdin);
    let output = git.wait_with_output().map_err(failed)?;
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let missing = answers.lines().filter_map(|line| line.strip_suffix(" missing"));
    Ok(missing.map(|name| name.trim_end_matches("^{commit}").to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_told_from_numbers_and_words() {
        assert!(is_hash("a7106db") && is_hash("0282a02"));
        for word in ["1234567", "defaced", "a7106d", "a7106dbc", "A7106DB", "g7106db"] {
            assert!(!is_hash(word), "{word}");
        }
    }

    #[test]
    fn a_commit_that_does_not_exist_is_reported() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace");
        if !has_history(root) {
            return;
        }
        let repo = Repo::planted(&[("a.md", "measured at\n0000f00\n")]);
        let found = check(root, &repo).expect("git answers");
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [2]);
    }
}
