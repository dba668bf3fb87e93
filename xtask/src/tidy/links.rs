//! Links in Markdown: those to files of this repository, and to headings in them, must resolve.

use super::Violation;
use crate::repo::{File, Repo, directory, join};

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in repo.with_extension("md") {
        for (number, line) in prose_lines(file) {
            for target in targets(&line) {
                if let Some(what) = broken(repo, file, target) {
                    violations.push(Violation::error(&file.path, number, what));
                }
            }
        }
    }
    violations
}

/// Lines outside code blocks, without their code spans.
fn prose_lines(file: &File) -> Vec<(usize, String)> {
    let mut in_block = false;
    let mut lines = Vec::new();
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            // Every second piece between backticks is code.
            lines.push((number, line.split('`').step_by(2).collect::<Vec<_>>().join("`")));
        }
    }
    lines
}

/// Link targets in `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("](") {
        let rest = &line[at + 2..];
        found.push(rest.split(')').next().unwrap_or(rest));
    }
    if line.starts_with('[') {
        found.extend(line.split_once("]: ").map(|(_, target)| target));
    }
    // A title may follow: `(target "title")`.
    found.into_iter().filter_map(|target| target.split_whitespace().next()).collect()
}

fn broken(repo: &Repo, file: &File, target: &str) -> Option<String> {
    let target = target.trim_start_matches('<').trim_end_matches('>');
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) =
        target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
    let found = if path.is_empty() { Some(file.path.clone()) } else { join(directory(&file.path), path) };
    let Some(found) = found.filter(|found| repo.has(found)) else {
        return Some(format!("`{target}`: no such file"));
    };
    let heading = heading?;
    let headings = repo.file(&found).filter(|file| file.is("md")).map(headings)?;
    (!headings.iter().any(|known| known == heading)).then(|| format!("`{target}`: no such heading"))
}

/// Anchors of the headings: lower case, hyphens for spaces, most punctuation removed.
fn headings(file: &File) -> Vec<String> {
    let heading = |line: &str| {
        let title = line.trim_start_matches('#').trim();
        let letters =
            title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        letters.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
    };
    file.lines().map(|(_, line)| line).filter(|line| line.starts_with('#')).map(heading).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    #[test]
    fn links_to_missing_files_and_headings_are_rejected() {
        let page = "[a](guide.md)\n[b](../README.md#two-words-and-more)\n[c](../docs)\n[d](#here)\n# Here\n\
                    [e](gone.md)\n[f](guide.md#gone)\n[g]: ../../out.md\n[h](https://example.com/x.md)\n";
        let files = [
            ("docs/page.md", page),
            ("docs/guide.md", "# Guide\n"),
            ("README.md", "## Two words, `and` more\n"),
        ];
        assert_eq!(violations_in(check, &files), ["docs/page.md:6", "docs/page.md:7", "docs/page.md:8"]);
    }

    #[test]
    fn code_is_not_searched_for_links() {
        let page = "`[a](gone.md)`\n```\n[b](gone.md)\n```\n[`c`](gone.md)\n";
        assert_eq!(violations_in(check, &[("a.md", page)]), ["a.md:5"]);
    }
}
