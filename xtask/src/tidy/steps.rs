//! Tables of steps: the ways that a message takes through the code, one file per row.
//!
//! A reader follows such a table from file to file, so a file that occurs twice leads in circles, and a name that its
//! file no longer has leads nowhere. Links are checked by `links.rs`; this check is about tables whose header begins
//! `| step | file |`. Each of them links to a file once, and a code span of a row that is an identifier occurs in a
//! file that the row links to. It need not be defined there, since a row may name what its file calls.

use std::collections::BTreeMap;

use super::Violation;
use crate::repo::{File, Repo, directory, join};

const HEADER: &str = "| step | file |";

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    repo.with_extension("md").flat_map(|page| check_page(repo, page)).collect()
}

fn check_page(repo: &Repo, page: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Of the table that the line is in: the line of each file.
    let mut table: Option<BTreeMap<&str, usize>> = None;
    for (number, line) in page.lines() {
        if line.starts_with(HEADER) {
            table = Some(BTreeMap::new());
        } else if !line.starts_with('|') {
            table = None;
        }
        let Some(seen) = &mut table else { continue };
        let linked = files(repo, page, line);
        for file in &linked {
            if let Some(before) = seen.insert(&file.path, number) {
                let what = format!("{} is a step already, in line {before}", file.path);
                violations.push(Violation::error(&page.path, number, what));
            }
        }
        let is_unknown = |name: &&str| !linked.iter().any(|file| has_word(&file.text, name));
        for name in names(line).filter(is_unknown) {
            let what = format!("`{name}` does not occur in the file of the step");
            violations.push(Violation::error(&page.path, number, what));
        }
    }
    violations
}

/// The files that a row links to.
fn files<'a>(repo: &'a Repo, page: &File, row: &str) -> Vec<&'a File> {
    let targets = row.match_indices("](").filter_map(|(at, found)| row[at + found.len()..].split(')').next());
    targets.filter_map(|target| repo.file(&join(directory(&page.path), target)?)).collect()
}

/// The code spans of a row that are identifiers.
fn names(row: &str) -> impl Iterator<Item = &str> {
    // Every second piece between backticks is code.
    let spans = row.split('`').skip(1).step_by(2);
    spans.filter(|span| !span.is_empty() && span.chars().all(is_of_word))
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter| !is_of_word(letter)).any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    const FILES: [(&str, &str); 2] = [("a/src/x.rs", "fn begin() {}\n"), ("a/src/y.rs", "struct Step;\n")];

    fn violations(page: &str) -> Vec<String> {
        violations_in(check, &[FILES[0], FILES[1], ("docs/page.md", page)])
    }

    #[test]
    fn a_file_is_a_step_once_per_table() {
        let row = "| 1 | [x](../a/src/x.rs) | begins |\n";
        let table = format!("{HEADER} what |\n|---|---|---|\n{row}");
        assert_eq!(violations(&format!("{table}\n{table}")), [""; 0]);
        assert_eq!(violations(&format!("{table}{row}")), ["docs/page.md:4"]);
        assert_eq!(violations(&format!("| file | contents |\n|---|---|\n{row}{row}")), [""; 0]);
    }

    #[test]
    fn names_of_a_step_occur_in_its_file() {
        let head = format!("{HEADER} what |\n|---|---|---|\n");
        let row = |what: &str| format!("{head}| 1 | [x](../a/src/x.rs) | {what} |\n");
        assert_eq!(violations(&row("`begin`, `acks=all` and `y.rs`")), [""; 0]);
        assert_eq!(violations(&row("`begin` of `Step`")), ["docs/page.md:3"]);
        assert_eq!(violations(&row("`Step`, see [y](../a/src/y.rs)")), [""; 0]);
        assert_eq!(violations(&row("`beg`")), ["docs/page.md:3"]);
    }
}
