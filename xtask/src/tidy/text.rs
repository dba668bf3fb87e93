//! Rules for a single file: white space, first-line documentation, length, forbidden code.

use super::lexer::{Split, split};
use super::{Violation, layers};
use crate::repo::{File, Repo, numbered};

/// Longest source without a warning, lines, tests not counted.
const LONG_LINES: usize = 600;
/// Longest source, lines, tests included: beyond it, redesign the file.
const TOO_LONG_LINES: usize = 1000;

/// Code that is never committed, and why.
const FORBIDDEN: [(&str, &str); 4] = [
    ("todo!", "unfinished code is not committed"),
    ("unimplemented!", "unfinished code is not committed"),
    ("dbg!", "debug output is not committed"),
    ("#[ignore", "an ignored test proves nothing: fix it or delete it"),
];

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &repo.files {
        if ["rs", "md", "toml"].iter().any(|extension| file.is(extension)) {
            check_blanks(file, &mut violations);
        }
        if file.is("rs") {
            check_rust(file, &mut violations);
        }
    }
    violations
}

fn check_blanks(file: &File, violations: &mut Vec<Violation>) {
    for (number, line) in file.lines() {
        if line.ends_with([' ', '\t', '\r']) {
            violations.push(Violation::error(&file.path, number, "trailing white space"));
        }
        if line.contains('\t') {
            violations.push(Violation::error(
                &file.path,
                number,
                "a tab: indent with spaces, write `\\t` in a literal",
            ));
        }
    }
}

fn check_rust(file: &File, violations: &mut Vec<Violation>) {
    let path = &file.path;
    if !file.text.starts_with("//!") {
        violations.push(Violation::error(
            path,
            1,
            "the first line of a source is a `//!` line with its purpose",
        ));
    }
    let Split { code, .. } = split(&file.text);
    let is_test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "examples"));
    check_length(file, &code, is_test, violations);
    if !is_test {
        check_silenced_lints(path, &code, violations);
        check_ignored_sends(path, &code, violations);
    }
    for (number, line) in numbered(&code) {
        for (word, why) in FORBIDDEN {
            if line.contains(word) {
                violations.push(Violation::error(path, number, format!("`{word}`: {why}")));
            }
        }
        if has_word(line, "unsafe")
            && !layers::UNSAFE_CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/")))
        {
            violations.push(Violation::error(
                path,
                number,
                "`unsafe` is allowed in the crates runtime and disk only",
            ));
        }
    }
}

fn check_length(file: &File, code: &str, is_test: bool, violations: &mut Vec<Violation>) {
    let path = &file.path;
    let all = file.lines().count();
    // Test modules come last in a file.
    let tests = numbered(code).find(|(_, line)| line.trim() == "#[cfg(test)]").map(|(number, _)| number - 1);
    let own = if is_test { 0 } else { tests.unwrap_or(all) };
    if all > TOO_LONG_LINES {
        let what = format!("{all} lines: redesign files above {TOO_LONG_LINES}");
        violations.push(Violation::error(path, 0, what));
    } else if own > LONG_LINES {
        violations.push(Violation::warning(
            path,
            0,
            format!("{own} lines without tests: more than {LONG_LINES} is long"),
        ));
    }
}

/// Clippy's limit for functions may be lifted in tests only: a test may be one long table.
fn check_silenced_lints(path: &str, code: &str, violations: &mut Vec<Violation>) {
    for (number, _) in numbered(code).filter(|(_, line)| line.contains("too_many_lines")) {
        violations.push(Violation::error(path, number, "split the function instead of silencing clippy"));
    }
}

/// `let _ = sender.send(…)` and `sender.send(…).ok();` lose messages silently. In tests the peer may be gone.
fn check_ignored_sends(path: &str, code: &str, violations: &mut Vec<Violation>) {
    let mut line = 1;
    for statement in code.split_inclusive([';', '{', '}']) {
        let sends = statement.contains(".send(") || statement.contains(".try_send(");
        let squeezed: String = statement.split_whitespace().collect();
        if sends && (squeezed.starts_with("let_=") || squeezed.ends_with(").ok();")) {
            let blank = statement.len() - statement.trim_start().len();
            let number = line + statement[..blank].matches('\n').count();
            violations.push(Violation::error(path, number, "the result of a send is ignored: a silent loss"));
        }
        line += statement.matches('\n').count();
    }
}

/// Whether the line contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let in_word = |character: char| character.is_alphanumeric() || character == '_';
    line.split(|character| !in_word(character)).any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::{Level, violations_in};

    fn violations(path: &str, text: &str) -> Vec<String> {
        violations_in(check, &[(path, text)])
    }

    #[test]
    fn rejects_trailing_white_space_and_tabs() {
        assert_eq!(violations("a.md", "good\nbad \n\ttab\n"), ["a.md:2", "a.md:3"]);
        assert_eq!(violations("a.toml", "a = 1\r\n"), ["a.toml:1"]);
        assert!(violations("a.py", "bad \n").is_empty());
    }

    #[test]
    fn a_source_begins_with_its_purpose() {
        assert_eq!(violations("a.rs", "fn main() {}\n"), ["a.rs:1"]);
        assert!(violations("a.rs", "//! A.\nfn main() {}\n").is_empty());
    }

    #[test]
    fn forbidden_code_is_allowed_in_comments_and_literals() {
        for word in ["todo!()", "unimplemented!()", "dbg!(x)", "#[ignore]"] {
            assert_eq!(violations("a.rs", &format!("//! A.\n{word}\n")), ["a.rs:2"], "{word}");
            assert!(
                violations("a.rs", &format!("//! A.\n// {word}\nlet a = \"{word}\";\n")).is_empty(),
                "{word}"
            );
        }
    }

    #[test]
    fn long_functions_are_allowed_in_tests_only() {
        let text = "//! A.\n#[expect(clippy::too_many_lines, reason = \"a table\")]\nfn f() {}\n";
        assert_eq!(violations("crates/a/src/a.rs", text), ["crates/a/src/a.rs:2"]);
        assert!(violations("crates/a/tests/a.rs", text).is_empty());
    }

    #[test]
    fn unsafe_is_confined_to_two_crates() {
        let text = "//! A.\nunsafe { f() }\n";
        assert_eq!(violations("crates/mqtt/src/a.rs", text), ["crates/mqtt/src/a.rs:2"]);
        assert!(violations("crates/runtime/src/a.rs", text).is_empty());
        assert!(violations("crates/mqtt/src/a.rs", "//! A.\n#![forbid(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn rejects_ignored_sends() {
        let text = "//! A.\nfn f() {\n    let _ = a\n        .send(1);\n    b.try_send(2).ok();\n    c.send(3)?;\n}\n";
        assert_eq!(violations("a.rs", text), ["a.rs:3", "a.rs:5"]);
        assert!(violations("tests/a.rs", text).is_empty());
    }

    #[test]
    fn warns_of_long_files_and_rejects_longer_ones() {
        let lines = |count: usize| format!("//! A.\n{}", "x();\n".repeat(count - 1));
        let level = |path: &str, text: &str| {
            check(&Repo::planted(&[(path, text)])).first().map(|violation| violation.level)
        };
        assert_eq!(level("src/a.rs", &lines(600)), None);
        assert_eq!(level("src/a.rs", &lines(601)), Some(Level::Warning));
        assert_eq!(level("tests/a.rs", &lines(1000)), None);
        assert_eq!(level("tests/a.rs", &lines(1001)), Some(Level::Error));
        let with_tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(500), "y();\n".repeat(400));
        assert_eq!(level("src/a.rs", &with_tests), None);
    }
}
