//! The Markdown table of a specification: statement, what it says, the tests that show it.

use super::registry::{Specification, Statement};
use super::scan::Citation;
use std::fmt::Write;

/// The whole page.
pub(super) fn render(specification: &Specification, citations: &[Citation]) -> String {
    let mut page = format!(
        "# {}: statement by statement\n\n\
         Written by `cargo xtask conformance` from the registry beside this file and from the tests; not by hand.\n\
         The numbers are those of the specification, the sentences are ours.\n\n\
         {}.\n\n\
         | statement | binds | what it asks | shown by |\n|---|---|---|---|\n",
        specification.title,
        summary(specification, citations),
    );
    for statement in &specification.statements {
        let shown = shown_by(statement, &tests_of(&specification.id(statement), citations));
        let Statement { number, binds, says, .. } = statement;
        writeln!(page, "| {number} | {} | {says} | {shown} |", binds.word()).expect("a string takes all");
    }
    page
}

/// How many statements there are, bind a server, and are shown.
pub(super) fn summary(specification: &Specification, citations: &[Citation]) -> String {
    let binding = || specification.statements.iter().filter(|statement| statement.binds.server());
    let is_shown = |statement: &&Statement| !tests_of(&specification.id(statement), citations).is_empty();
    let shown = binding().filter(is_shown).count();
    let excused = binding().filter(|statement| !is_shown(statement) && statement.reason.is_some()).count();
    format!(
        "{} statements, {} of them bind a server: {shown} have a test, {excused} have a reason for having none",
        specification.statements.len(),
        binding().count(),
    )
}

/// The tests that cite this statement, as `file::test`, sorted, each once.
pub(super) fn tests_of(id: &str, citations: &[Citation]) -> Vec<String> {
    let cites = citations.iter().filter(|citation| citation.statement == id);
    let name = |citation: &Citation| citation.test.as_ref().map(|test| format!("{}::{test}", citation.path));
    let mut tests: Vec<String> = cites.filter_map(name).collect();
    tests.sort();
    tests.dedup();
    tests
}

fn shown_by(statement: &Statement, tests: &[String]) -> String {
    if !tests.is_empty() {
        return tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join("<br>");
    }
    match &statement.reason {
        Some(reason) => format!("no test: {reason}"),
        None if statement.binds.server() => "**nothing**".to_owned(),
        None => "–".to_owned(),
    }
}
