//! Decision records: `docs/adr/NNNN-title.md`, numbered without gaps, each with the required headings.
//!
//! A link whose text names a decision by its number must lead to the record with that number.

use super::Violation;
use crate::repo::{File, Repo};

const DIRECTORY: &str = "docs/adr/";

/// Required headings: each record has one of the names of every row.
const HEADINGS: [&[&str]; 4] = [&["Goals"], &["Non-goals"], &["Alternatives"], &["Consequences", "Decision"]];

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut last = 0;
    for file in &repo.files {
        let Some(name) = file.path.strip_prefix(DIRECTORY).filter(|name| *name != "README.md") else {
            continue;
        };
        let Some(number) = number(name) else {
            violations.push(Violation::error(
                &file.path,
                0,
                "the name of a decision record is NNNN-title.md",
            ));
            continue;
        };
        if number != last + 1 {
            violations.push(Violation::error(
                &file.path,
                0,
                format!("the next number is {:04}, not {number:04}", last + 1),
            ));
        }
        last = number;
        check_headings(file, &mut violations);
    }
    violations.extend(repo.with_extension("md").flat_map(wrong_numbers));
    violations
}

/// Links such as `[decision 7](docs/adr/0008-title.md)`, whose text and target disagree.
fn wrong_numbers(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line_number, line) in file.lines() {
        for (at, _) in line.match_indices("](") {
            let text = line[..at].rsplit('[').next().unwrap_or("");
            let target = line[at + 2..].split(')').next().unwrap_or("");
            let named = text.to_ascii_lowercase().replace("adr", "decision");
            let named = named.split_once("decision ").and_then(|(_, rest)| leading_number(rest));
            let linked = target.rsplit('/').next().and_then(number);
            if let (Some(named), Some(linked)) = (named, linked)
                && named != linked
            {
                let what = format!("the text names decision {named}, the link leads to {linked}");
                violations.push(Violation::error(&file.path, line_number, what));
            }
        }
    }
    violations
}

fn leading_number(text: &str) -> Option<u32> {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    (number.len() == 4 && !title.is_empty()).then(|| number.parse().ok())?
}

fn check_headings(file: &File, violations: &mut Vec<Violation>) {
    let heading = |line: &str| line.starts_with("##").then(|| line.trim_matches(['#', ' ']).to_owned());
    let found: Vec<String> = file.lines().filter_map(|(_, line)| heading(line)).collect();
    for names in HEADINGS {
        if !names.iter().any(|name| found.iter().any(|found| found == name)) {
            violations.push(Violation::error(
                &file.path,
                0,
                format!("the heading `## {}` is missing", names.join("` or `## ")),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    const WHOLE: &str = "# T\n## Goals\n## Non-goals\n## Alternatives\n## Decision\n";

    #[test]
    fn complete_records_pass() {
        let files =
            [("docs/adr/0001-a.md", WHOLE), ("docs/adr/0002-b.md", WHOLE), ("docs/adr/README.md", "")];
        assert!(violations_in(check, &files).is_empty());
    }

    #[test]
    fn rejects_gaps_duplicates_and_bad_names() {
        let gap = [("docs/adr/0001-a.md", WHOLE), ("docs/adr/0003-c.md", WHOLE)];
        assert_eq!(violations_in(check, &gap), ["docs/adr/0003-c.md:0"]);
        let twin = [("docs/adr/0001-a.md", WHOLE), ("docs/adr/0001-b.md", WHOLE)];
        assert_eq!(violations_in(check, &twin), ["docs/adr/0001-b.md:0"]);
        assert_eq!(violations_in(check, &[("docs/adr/first.md", WHOLE)]), ["docs/adr/first.md:0"]);
    }

    #[test]
    fn every_heading_is_required() {
        for heading in ["## Goals\n", "## Non-goals\n", "## Alternatives\n", "## Decision\n"] {
            let text = WHOLE.replace(heading, "");
            assert_eq!(violations_in(check, &[("docs/adr/0001-a.md", &text)]).len(), 1, "{heading}");
        }
    }

    #[test]
    fn text_and_target_of_a_link_agree() {
        let page = "see [decision 1](docs/adr/0001-a.md) and [decision 7](docs/adr/0001-a.md)\n";
        let files = [("docs/adr/0001-a.md", WHOLE), ("README.md", page)];
        assert_eq!(violations_in(check, &files), ["README.md:1"]);
    }
}
