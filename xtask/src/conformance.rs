//! `cargo xtask conformance`: links each numbered statement of the specifications to the tests that cover it.
//!
//! The statements are listed in `docs/conformance/*.toml` (`registry.rs`), tests cite them in comments (`scan.rs`), and
//! the generated tables in the same directory join the two (`table.rs`).

mod registry;
mod scan;
mod table;

use crate::Outcome;
use crate::repo::Repo;
use registry::Specification;
use scan::Citation;
use std::fs;
use std::path::Path;

const SPECIFICATIONS: [&str; 2] = ["docs/conformance/mqtt-5", "docs/conformance/mqtt-3.1.1"];

/// Writes the tables, then checks as [`check`] does.
///
/// # Errors
/// As [`check`], or if a table cannot be written.
pub(crate) fn write(root: &Path) -> Outcome {
    let Joined { pages, errors } = join(&Repo::read(root)?)?;
    for Page { path, text } in pages {
        fs::write(root.join(&path), text).map_err(|error| format!("cannot write {path}: {error}"))?;
    }
    report(&errors)
}

/// Checks that each statement that binds a server has a test or a reason, that each citation names an existing
/// statement, and that the tables are up to date.
///
/// # Errors
/// If a check fails.
pub(crate) fn check(root: &Path) -> Outcome {
    let repo = Repo::read(root)?;
    let Joined { pages, mut errors } = join(&repo)?;
    for Page { path, text } in pages {
        if repo.file(&path).is_none_or(|file| file.text != text) {
            errors.push(format!("{path} is stale: run `cargo xtask conformance`"));
        }
    }
    report(&errors)
}

fn report(errors: &[String]) -> Outcome {
    if errors.is_empty() {
        return Ok(());
    }
    Err(format!("{}\nconformance: {} errors", errors.join("\n"), errors.len()))
}

/// A generated table.
struct Page {
    path: String,
    text: String,
}

/// Statements joined with tests.
struct Joined {
    pages: Vec<Page>,
    /// All errors except stale pages.
    errors: Vec<String>,
}

fn join(repo: &Repo) -> Outcome<Joined> {
    let mut specifications = Vec::new();
    for stem in SPECIFICATIONS {
        specifications.push((stem, registry::read(repo, &format!("{stem}.toml"))?));
    }
    let citations = scan::citations(repo);
    let mut errors = wrong_citations(&specifications, &citations);
    let mut pages = Vec::new();
    for (stem, specification) in &specifications {
        errors.extend(uncovered(specification, &citations));
        let text = table::render(specification, &citations);
        println!("{}: {}", specification.title, table::summary(specification, &citations));
        pages.push(Page { path: format!("{stem}.md"), text });
    }
    Ok(Joined { pages, errors })
}

/// Citations of unknown statements, and citations outside tests.
fn wrong_citations(specifications: &[(&str, Specification)], citations: &[Citation]) -> Vec<String> {
    let mut errors = Vec::new();
    for citation in citations {
        let known = specifications
            .iter()
            .any(|(_, specification)| specification.statement(&citation.statement).is_some());
        let place = format!("{}:{}", citation.path, citation.line);
        if !known {
            errors.push(format!("{place}: there is no statement [{}]", citation.statement));
        } else if citation.test.is_none() {
            errors.push(format!("{place}: [{}] does not belong to a test", citation.statement));
        }
    }
    errors
}

/// Statements that bind a server and have neither a test nor a reason, or both.
fn uncovered(specification: &Specification, citations: &[Citation]) -> Vec<String> {
    let mut errors = Vec::new();
    for statement in specification.statements.iter().filter(|statement| statement.binds.server()) {
        let id = specification.id(statement);
        match (table::tests_of(&id, citations).is_empty(), &statement.reason) {
            (true, None) => {
                errors.push(format!("[{id}] has neither a test nor a reason: {}", statement.says));
            }
            (false, Some(_)) => {
                errors.push(format!("[{id}] has a test and a reason for having none: the reason is stale"));
            }
            _ => {}
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = "\
        [specification]\ntitle = \"MQTT 5\"\nprefix = \"MQTT5\"\n[statement]\n\
        \"1.0.0-1\" = { binds = \"server\", says = \"One.\" }\n\
        \"1.0.0-2\" = { binds = \"client\", says = \"Two.\" }\n\
        \"1.0.0-10\" = { binds = \"both\", says = \"Ten.\", reason = \"not yet.\" }\n";
    const OLDER: &str = "[specification]\ntitle = \"MQTT 3.1.1\"\nprefix = \"MQTT3\"\n[statement]\n";

    fn run(source: &str) -> (String, Vec<String>) {
        let files = [
            ("docs/conformance/mqtt-5.toml", REGISTRY),
            ("docs/conformance/mqtt-3.1.1.toml", OLDER),
            ("crates/a/tests/t.rs", source),
        ];
        let mut joined = join(&Repo::planted(&files)).expect("a valid registry");
        (joined.pages.remove(0).text, joined.errors)
    }

    fn cite(numbers: &[&str]) -> String {
        let ids: Vec<String> = numbers.iter().map(|number| format!("[MQTT{}-{number}]", 5)).collect();
        format!("//! T.\n\n// {}\n#[test]\nfn shows() {{}}\n", ids.join(" "))
    }

    #[test]
    fn covered_statement_passes_and_the_table_names_the_test() {
        let (table, errors) = run(&cite(&["1.0.0-1"]));
        assert_eq!(errors, [""; 0]);
        let ten = table.find("1.0.0-10").expect("ten");
        assert!(table.find("1.0.0-2").expect("two") < ten, "sorted by number");
        assert!(
            table.contains("| `crates/a/tests/t.rs::shows` |") && table.contains("| no test: not yet. |"),
            "{table}"
        );
    }

    #[test]
    fn uncovered_statement_needs_a_reason() {
        let (_, errors) = run("//! T.\n");
        assert!(errors.len() == 1 && errors[0].contains("1.0.0-1]"), "{errors:?}");
    }

    #[test]
    fn reason_is_stale_once_a_test_exists() {
        let (_, errors) = run(&cite(&["1.0.0-1", "1.0.0-10"]));
        assert!(errors.len() == 1 && errors[0].contains("stale"), "{errors:?}");
    }

    #[test]
    fn unknown_statement_is_an_error() {
        let (_, errors) = run(&cite(&["1.0.0-1", "9.9.9-9"]));
        assert!(
            errors.len() == 1 && errors[0].starts_with("crates/a/tests/t.rs:3: there is no"),
            "{errors:?}"
        );
    }
}
