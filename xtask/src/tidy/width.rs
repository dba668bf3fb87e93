//! Width of prose: comment lines and lines of Markdown have at most 120 columns.
//!
//! `rustfmt` wraps code but leaves comments alone, and nothing wraps Markdown. Tables, code blocks, and lines that
//! cannot be broken (one long link or path) are exempt.

use super::Violation;
use super::lexer::split;
use crate::repo::{File, Repo, numbered};

/// Widest line of prose, columns.
pub(crate) const COLUMNS_MAX: usize = 120;

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &repo.files {
        for (number, columns) in wide_lines(file) {
            let what = format!("{columns} columns of prose: at most {COLUMNS_MAX}");
            violations.push(Violation::error(&file.path, number, what));
        }
    }
    violations
}

/// Numbers and widths of the lines of prose that are too wide.
pub(crate) fn wide_lines(file: &File) -> Vec<(usize, usize)> {
    if file.is("md") {
        wide(markdown(file))
    } else if file.is("rs") {
        let prose = split(&file.text).prose;
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        let code = numbered(&file.text);
        let comments = code.zip(numbered(&prose)).filter(|(_, (_, prose))| is_comment(prose));
        wide(
            comments
                .map(|(line, _)| line)
                .filter(|(_, line)| !line.trim_start_matches(['/', '!', ' ']).starts_with('|')),
        )
    } else {
        Vec::new()
    }
}

fn wide<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, usize)> {
    let columns = |line: &str| line.chars().count();
    lines
        .filter(|(_, line)| columns(line) > COLUMNS_MAX && can_break(line))
        .map(|(number, line)| (number, columns(line)))
        .collect()
}

/// Lines of Markdown outside code blocks and tables.
fn markdown(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    file.lines().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence && !line.trim_start().starts_with('|')
    })
}

/// Whether a space in the first 120 columns, behind the first word, lets the line be broken.
fn can_break(line: &str) -> bool {
    let text: String = line.chars().take(COLUMNS_MAX).collect();
    text.trim_start_matches(['/', '!', ' ', '-', '*', '#', '>']).trim_end().contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    #[test]
    fn wide_prose_is_a_violation_and_code_is_not() {
        let words = "word ".repeat(30);
        let source = format!("// {words}\nlet a = \"{words}\"; // b\n");
        assert_eq!(violations_in(check, &[("a.rs", source.trim_end())]), ["a.rs:1"]);
        assert_eq!(violations_in(check, &[("a.md", &words)]), ["a.md:1"]);
    }

    #[test]
    fn tables_code_blocks_and_single_long_words_are_exempt() {
        let (words, word) = ("word ".repeat(30), "w".repeat(130));
        let page = format!("| {words}|\n```\n{words}\n```\n{word}\n- [a]({word})\n");
        assert!(violations_in(check, &[("a.md", &page)]).is_empty());
    }
}
