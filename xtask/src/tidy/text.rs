//! What a single file may say and how long it may be.

use super::lexer::{Split, split};
use super::{Fault, layers};
use crate::repo::{File, Repo, numbered};

/// A source longer than this, tests aside, asks for a second look.
const LONG_LINES: usize = 600;
/// A source longer than this, tests included, is a redesign.
const TOO_LONG_LINES: usize = 1000;

/// What may stand in no code, and why.
const FORBIDDEN: [(&str, &str); 4] = [
    ("todo!", "unfinished code is not committed"),
    ("unimplemented!", "unfinished code is not committed"),
    ("dbg!", "a trace for one's own eyes is not committed"),
    ("#[ignore", "a test that does not run shows nothing: mend it or drop it"),
];

pub(super) fn check(repo: &Repo) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &repo.files {
        if ["rs", "md", "toml"].iter().any(|extension| file.is(extension)) {
            check_blanks(file, &mut faults);
        }
        if file.is("rs") {
            check_rust(file, &mut faults);
        }
    }
    faults
}

fn check_blanks(file: &File, faults: &mut Vec<Fault>) {
    for (number, line) in file.lines() {
        if line.ends_with([' ', '\t', '\r']) {
            faults.push(Fault::error(&file.path, number, "white space at the end of the line"));
        }
        if line.contains('\t') {
            faults.push(Fault::error(
                &file.path,
                number,
                "a tab: indent with spaces, write `\\t` in a literal",
            ));
        }
    }
}

fn check_rust(file: &File, faults: &mut Vec<Fault>) {
    let path = &file.path;
    if !file.text.starts_with("//!") {
        faults.push(Fault::error(path, 1, "a source begins with a `//!` line that says what it is for"));
    }
    let Split { code, .. } = split(&file.text);
    let is_test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "examples"));
    check_length(file, &code, is_test, faults);
    if !is_test {
        check_excuses(path, &code, faults);
        check_ignored_sends(path, &code, faults);
    }
    for (number, line) in numbered(&code) {
        for (word, why) in FORBIDDEN {
            if line.contains(word) {
                faults.push(Fault::error(path, number, format!("`{word}`: {why}")));
            }
        }
        if has_word(line, "unsafe")
            && !layers::UNSAFE_CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/")))
        {
            faults.push(Fault::error(path, number, "`unsafe` has its home in the crates runtime and disk"));
        }
    }
}

fn check_length(file: &File, code: &str, is_test: bool, faults: &mut Vec<Fault>) {
    let path = &file.path;
    let all = file.lines().count();
    // Test modules stand last, as the house's style has it.
    let tests = numbered(code).find(|(_, line)| line.trim() == "#[cfg(test)]").map(|(number, _)| number - 1);
    let own = if is_test { 0 } else { tests.unwrap_or(all) };
    if all > TOO_LONG_LINES {
        let what = format!("{all} lines: above {TOO_LONG_LINES} a file has to be redesigned");
        faults.push(Fault::error(path, 0, what));
    } else if own > LONG_LINES {
        faults.push(Fault::warning(
            path,
            0,
            format!("{own} lines without tests: above {LONG_LINES} is long"),
        ));
    }
}

/// The length of functions is clippy's to judge. A test may be one long table.
fn check_excuses(path: &str, code: &str, faults: &mut Vec<Fault>) {
    for (number, _) in numbered(code).filter(|(_, line)| line.contains("too_many_lines")) {
        faults.push(Fault::error(
            path,
            number,
            "a function that clippy finds too long is split, not excused",
        ));
    }
}

/// `let _ = sender.send(…)` and `sender.send(…).ok();` lose messages without a word. A test's peer may well be gone.
fn check_ignored_sends(path: &str, code: &str, faults: &mut Vec<Fault>) {
    let mut line = 1;
    for statement in code.split_inclusive([';', '{', '}']) {
        let sends = statement.contains(".send(") || statement.contains(".try_send(");
        let squeezed: String = statement.split_whitespace().collect();
        if sends && (squeezed.starts_with("let_=") || squeezed.ends_with(").ok();")) {
            let blank = statement.len() - statement.trim_start().len();
            let number = line + statement[..blank].matches('\n').count();
            faults.push(Fault::error(path, number, "the result of a send is ignored: a silent loss"));
        }
        line += statement.matches('\n').count();
    }
}

/// Whether the line holds the word as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let in_word = |character: char| character.is_alphanumeric() || character == '_';
    line.split(|character| !in_word(character)).any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::{Level, faults_in};

    fn faults(path: &str, text: &str) -> Vec<String> {
        faults_in(check, &[(path, text)])
    }

    #[test]
    fn blanks_and_tabs_are_faults_in_text_and_code() {
        assert_eq!(faults("a.md", "good\nbad \n\ttab\n"), ["a.md:2", "a.md:3"]);
        assert_eq!(faults("a.toml", "a = 1\r\n"), ["a.toml:1"]);
        assert!(faults("a.py", "bad \n").is_empty());
    }

    #[test]
    fn a_source_says_what_it_is_for() {
        assert_eq!(faults("a.rs", "fn main() {}\n"), ["a.rs:1"]);
        assert!(faults("a.rs", "//! A.\nfn main() {}\n").is_empty());
    }

    #[test]
    fn forbidden_words_are_faults_in_code_only() {
        for word in ["todo!()", "unimplemented!()", "dbg!(x)", "#[ignore]"] {
            assert_eq!(faults("a.rs", &format!("//! A.\n{word}\n")), ["a.rs:2"], "{word}");
            assert!(
                faults("a.rs", &format!("//! A.\n// {word}\nlet a = \"{word}\";\n")).is_empty(),
                "{word}"
            );
        }
    }

    #[test]
    fn a_function_too_long_is_excused_in_tests_only() {
        let text = "//! A.\n#[expect(clippy::too_many_lines, reason = \"a table\")]\nfn f() {}\n";
        assert_eq!(faults("crates/a/src/a.rs", text), ["crates/a/src/a.rs:2"]);
        assert!(faults("crates/a/tests/a.rs", text).is_empty());
    }

    #[test]
    fn unsafe_has_its_home() {
        let text = "//! A.\nunsafe { f() }\n";
        assert_eq!(faults("crates/mqtt/src/a.rs", text), ["crates/mqtt/src/a.rs:2"]);
        assert!(faults("crates/runtime/src/a.rs", text).is_empty());
        assert!(faults("crates/mqtt/src/a.rs", "//! A.\n#![forbid(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn an_ignored_send_is_a_fault() {
        let text = "//! A.\nfn f() {\n    let _ = a\n        .send(1);\n    b.try_send(2).ok();\n    c.send(3)?;\n}\n";
        assert_eq!(faults("a.rs", text), ["a.rs:3", "a.rs:5"]);
        assert!(faults("tests/a.rs", text).is_empty());
    }

    #[test]
    fn a_long_file_is_warned_of_and_a_longer_one_refused() {
        let lines = |count: usize| format!("//! A.\n{}", "x();\n".repeat(count - 1));
        let level =
            |path: &str, text: &str| check(&Repo::planted(&[(path, text)])).first().map(|fault| fault.level);
        assert_eq!(level("src/a.rs", &lines(600)), None);
        assert_eq!(level("src/a.rs", &lines(601)), Some(Level::Warning));
        assert_eq!(level("tests/a.rs", &lines(1000)), None);
        assert_eq!(level("tests/a.rs", &lines(1001)), Some(Level::Error));
        let with_tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(500), "y();\n".repeat(400));
        assert_eq!(level("src/a.rs", &with_tests), None);
    }
}
