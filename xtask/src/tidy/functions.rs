//! Function length: production functions have at most 70 lines.
//!
//! A function that fits on one screen has one job. Clippy's own limit counts statements and stops at 100, so the check
//! counts the lines from `fn` to the closing brace. Test modules and test files are left to clippy: a test may be one
//! long table.

use super::Violation;
use super::lexer::split;
use crate::repo::{File, Repo, numbered};

/// Longest production function, lines, signature and closing brace included.
const LINES_MAX: usize = 70;

/// One function of a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Line of `fn`, from 1.
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) lines: usize,
}

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in repo.with_extension("rs").filter(|file| is_production(&file.path)) {
        for function in functions(file).into_iter().filter(|function| function.lines > LINES_MAX) {
            let Function { line, name, lines } = function;
            let what = format!("function `{name}` has {lines} lines: at most {LINES_MAX}");
            violations.push(Violation::error(&file.path, line, what));
        }
    }
    violations
}

/// Whether the file is compiled into a library or binary, rather than a test, benchmark or example.
pub(crate) fn is_production(path: &str) -> bool {
    !path.split('/').any(|part| {
        matches!(part, "tests" | "tests.rs" | "benches" | "examples" | "fuzz" | "fuzz_targets" | "bench")
    })
}

/// Functions with a body outside the file's test module.
pub(crate) fn functions(file: &File) -> Vec<Function> {
    let code = production_code(file);
    let lines: Vec<&str> = numbered(&code).map(|(_, line)| line).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = declared(line) else { continue };
        if let Some(length) = body_length(&lines[index..]) {
            found.push(Function { line: index + 1, name: name.to_owned(), lines: length });
        }
    }
    found
}

/// The code of a file without comments, literals and its trailing test module.
pub(crate) fn production_code(file: &File) -> String {
    let code = split(&file.text).code;
    let tests = numbered(&code).find(|(_, line)| line.trim() == "#[cfg(test)]").map(|(number, _)| number);
    let Some(tests) = tests else { return code };
    let production: Vec<&str> = code.split('\n').take(tests - 1).collect();
    production.join("\n")
}

/// The name in a line that declares a function.
fn declared(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_declaration = before
        .split_whitespace()
        .all(|word| word.starts_with("pub") || matches!(word, "const" | "async" | "unsafe" | "extern"));
    let name = after.split(|character: char| !(character.is_alphanumeric() || character == '_')).next()?;
    (is_declaration && !name.is_empty()).then_some(name)
}

/// Lines from the declaration to the end of the body; `None` for a declaration without a body.
fn body_length(lines: &[&str]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut has_body = false;
    for (index, line) in lines.iter().enumerate() {
        for character in line.chars() {
            match character {
                '{' => {
                    depth += 1;
                    has_body = true;
                }
                '}' => depth = depth.saturating_sub(1),
                ';' if !has_body && depth == 0 => return None,
                _ => {}
            }
            if has_body && depth == 0 {
                return Some(index + 1);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    fn function(lines: usize) -> String {
        format!("fn f(\n    a: u8,\n) {{\n{}}}\n", "    x();\n".repeat(lines - 4))
    }

    #[test]
    fn rejects_long_production_functions_only() {
        let (longest, too_long) = (function(LINES_MAX), function(LINES_MAX + 1));
        assert!(violations_in(check, &[("crates/a/src/a.rs", &longest)]).is_empty());
        assert_eq!(violations_in(check, &[("crates/a/src/a.rs", &too_long)]), ["crates/a/src/a.rs:1"]);
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n{too_long}}}\n");
        assert!(violations_in(check, &[("crates/a/src/a.rs", &in_tests)]).is_empty());
        assert!(violations_in(check, &[("crates/a/tests/a.rs", &too_long)]).is_empty());
    }

    #[test]
    fn braces_in_literals_and_declarations_without_body_do_not_count() {
        let text = "trait T {\n    fn a(&self);\n}\npub(crate) const fn b() -> char {\n    '{'\n}\n";
        let file = File { path: "a.rs".to_owned(), text: text.to_owned() };
        assert_eq!(functions(&file), [Function { line: 4, name: "b".to_owned(), lines: 3 }]);
    }
}
