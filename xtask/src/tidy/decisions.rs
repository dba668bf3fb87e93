//! Decision records: `docs/adr/NNNN-title.md`, numbered without gaps, each with the headings a reader looks for.

use super::Fault;
use crate::repo::{File, Repo};

const DIRECTORY: &str = "docs/adr/";

/// Each record has a heading of every row, under one of the row's names.
const HEADINGS: [&[&str]; 4] = [&["Goals"], &["Non-goals"], &["Alternatives"], &["Consequences", "Decision"]];

pub(super) fn check(repo: &Repo) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut last = 0;
    for file in &repo.files {
        let Some(name) = file.path.strip_prefix(DIRECTORY).filter(|name| *name != "README.md") else {
            continue;
        };
        let Some(number) = number(name) else {
            faults.push(Fault::error(&file.path, 0, "a decision is named NNNN-title.md"));
            continue;
        };
        if number != last + 1 {
            faults.push(Fault::error(
                &file.path,
                0,
                format!("decision {:04} comes next, not {number:04}", last + 1),
            ));
        }
        last = number;
        check_headings(file, &mut faults);
    }
    faults
}

fn number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    (number.len() == 4 && !title.is_empty()).then(|| number.parse().ok())?
}

fn check_headings(file: &File, faults: &mut Vec<Fault>) {
    let heading = |line: &str| line.starts_with("##").then(|| line.trim_matches(['#', ' ']).to_owned());
    let found: Vec<String> = file.lines().filter_map(|(_, line)| heading(line)).collect();
    for names in HEADINGS {
        if !names.iter().any(|name| found.iter().any(|found| found == name)) {
            faults.push(Fault::error(
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
    use crate::tidy::faults_in;

    const WHOLE: &str = "# T\n## Goals\n## Non-goals\n## Alternatives\n## Decision\n";

    #[test]
    fn whole_and_numbered_records_pass() {
        let files =
            [("docs/adr/0001-a.md", WHOLE), ("docs/adr/0002-b.md", WHOLE), ("docs/adr/README.md", "")];
        assert!(faults_in(check, &files).is_empty());
    }

    #[test]
    fn a_gap_a_twin_and_an_odd_name_are_faults() {
        let gap = [("docs/adr/0001-a.md", WHOLE), ("docs/adr/0003-c.md", WHOLE)];
        assert_eq!(faults_in(check, &gap), ["docs/adr/0003-c.md:0"]);
        let twin = [("docs/adr/0001-a.md", WHOLE), ("docs/adr/0001-b.md", WHOLE)];
        assert_eq!(faults_in(check, &twin), ["docs/adr/0001-b.md:0"]);
        assert_eq!(faults_in(check, &[("docs/adr/first.md", WHOLE)]), ["docs/adr/first.md:0"]);
    }

    #[test]
    fn each_heading_is_asked_for() {
        for heading in ["## Goals\n", "## Non-goals\n", "## Alternatives\n", "## Decision\n"] {
            let text = WHOLE.replace(heading, "");
            assert_eq!(faults_in(check, &[("docs/adr/0001-a.md", &text)]).len(), 1, "{heading}");
        }
    }
}
