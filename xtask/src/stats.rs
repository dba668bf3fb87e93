//! `cargo xtask stats`: size and structure of the code, counted the same way in any checkout.
//!
//! The numbers are for comparing two trees: run it here and on an older checkout. They are counted from text, not from
//! a parsed program: a method is a function inside an `impl` block, an import is a `use crate::…` path or an inline
//! `crate::…` path, and a file's imports lead to the file that holds the named module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Outcome;
use crate::repo::{File, Repo, numbered};
use crate::tidy::functions::{functions, is_production, production_code};
use crate::tidy::imports::{by_crate, cycles, imports, place};
use crate::tidy::lexer::split;
use crate::tidy::width::wide_lines;

/// Types with fewer methods than this are not listed.
const METHODS_LISTED: usize = 40;
/// Longest function that is not counted as long, lines.
const LONG_FUNCTION: usize = 70;

/// Counts `root` and prints the table.
///
/// # Errors
/// If the tree cannot be read.
pub(crate) fn run(root: &Path) -> Outcome {
    let repo = Repo::read(root)?;
    let sources: Vec<&File> = repo.with_extension("rs").collect();
    let production: Vec<&File> = sources
        .iter()
        .copied()
        .filter(|file| file.path.starts_with("crates/") && is_production(&file.path))
        .collect();
    let lines = |file: &File| file.lines().count();
    let own: usize = production.iter().map(|file| production_code(file).lines().count()).sum();
    let comments: usize = production.iter().map(|file| comment_lines(file)).sum();
    let long: usize = production
        .iter()
        .map(|file| functions(file).iter().filter(|function| function.lines > LONG_FUNCTION).count())
        .sum();
    let wide: usize = repo.files.iter().map(|file| wide_lines(file).len()).sum();
    let pages: usize = repo.with_extension("md").map(lines).sum();
    println!("| count | value |\n|---|---|");
    println!("| Rust files, all | {} |", sources.len());
    println!("| Rust lines, all | {} |", sources.iter().map(|file| lines(file)).sum::<usize>());
    println!("| production files in crates/ | {} |", production.len());
    println!("| production lines in crates/, tests excluded | {own} |");
    println!("| of these, comment lines | {comments} ({} %) |", comments * 100 / own.max(1));
    println!("| production functions above {LONG_FUNCTION} lines | {long} |");
    println!("| prose lines above 120 columns | {wide} |");
    println!("| Markdown lines | {pages} |");
    print_cycles(&production);
    print_types(&production);
    Ok(())
}

/// Comment lines outside the test module.
fn comment_lines(file: &File) -> usize {
    let count = production_code(file).lines().count();
    let prose = split(&file.text).prose;
    numbered(&prose).take(count).filter(|(_, line)| line.trim_start().starts_with("//")).count()
}

fn print_cycles(production: &[&File]) {
    println!("\n| crate | files | files in import cycles | largest cycle |\n|---|---|---|---|");
    let crates = by_crate(production.iter().copied());
    let all: Vec<_> = crates.iter().map(|(name, files)| (name, files, cycles(&imports(files)))).collect();
    for (name, files, cycles) in all.iter().filter(|(_, _, cycles)| !cycles.is_empty()) {
        let largest = cycles.iter().map(Vec::len).max().unwrap_or(0);
        let total: usize = cycles.iter().map(Vec::len).sum();
        println!("| {name} | {} | {total} | {largest} |", files.len());
    }
}

fn print_types(production: &[&File]) {
    let mut methods: BTreeMap<(&str, String), (usize, BTreeSet<&str>)> = BTreeMap::new();
    let mut fields: BTreeMap<(&str, String), (usize, usize)> = BTreeMap::new();
    for file in production {
        let Some((name, _)) = place(&file.path) else { continue };
        let code = production_code(file);
        for (owner, count) in method_counts(&code) {
            let entry = methods.entry((name, owner)).or_default();
            entry.0 += count;
            entry.1.insert(&file.path);
        }
        for (owner, all, open) in field_counts(&code) {
            fields.insert((name, owner), (all, open));
        }
    }
    println!(
        "\n| type | methods | in files | fields | of these, visible to other files |\n|---|---|---|---|---|"
    );
    for ((name, owner), (count, files)) in methods {
        if count >= METHODS_LISTED {
            let (all, open) = fields.get(&(name, owner.clone())).copied().unwrap_or_default();
            println!("| {name}::{owner} | {count} | {} | {all} | {open} |", files.len());
        }
    }
}

/// Functions in the `impl` blocks of each type, trait implementations included.
fn method_counts(code: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut owner: Option<String> = None;
    for line in code.split('\n') {
        if line.starts_with("impl") {
            owner = implementing(line);
        } else if line.starts_with('}') {
            owner = None;
        } else if let Some(owner) = &owner
            && line.starts_with("    ")
            && !line.starts_with("     ")
            && line.trim_start().split(' ').take(3).any(|word| word == "fn")
        {
            *counts.entry(owner.clone()).or_default() += 1;
        }
    }
    counts
}

/// The type of an `impl` line.
fn implementing(line: &str) -> Option<String> {
    let subject = line.rsplit(" for ").next()?.trim_start_matches("impl");
    let subject = match subject.strip_prefix('<') {
        Some(generic) => generic.split_once('>')?.1,
        None => subject,
    };
    let name: String = subject
        .trim_start()
        .chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Name, number of fields, and number of fields with a visibility, of each struct with named fields.
fn field_counts(code: &str) -> Vec<(String, usize, usize)> {
    let mut found: Vec<(String, usize, usize)> = Vec::new();
    let mut is_open = false;
    for line in code.split('\n') {
        let declared =
            line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").strip_prefix("struct ");
        if let Some(rest) = declared.filter(|rest| rest.trim_end().ends_with('{')) {
            let name = rest.chars().take_while(|character| character.is_alphanumeric()).collect();
            found.push((name, 0, 0));
            is_open = true;
        } else if line.starts_with('}') {
            is_open = false;
        } else if let Some(last) = found.last_mut().filter(|_| is_open)
            && line.starts_with("    ")
            && !line.starts_with("     ")
            && line.contains(": ")
        {
            last.1 += 1;
            last.2 += usize::from(line.trim_start().starts_with("pub"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_methods_and_fields() {
        let code = "pub(crate) struct A {\n    pub(crate) x: u8,\n    y: u8,\n}\nimpl A {\n    fn f() {\n        fn_call();\n    }\n    \
                    pub(crate) fn g() {}\n}\nimpl<T> From<T> for A {\n    fn from() {}\n}\nfn h() {}\n";
        assert_eq!(method_counts(code), BTreeMap::from([("A".to_owned(), 3)]));
        assert_eq!(field_counts(code), [("A".to_owned(), 2, 1)]);
    }
}
