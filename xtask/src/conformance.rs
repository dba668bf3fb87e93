//! `cargo xtask conformance`: from each numbered statement of the specifications to the tests that show it.
//!
//! The statements stand in `docs/conformance/*.toml` (`registry.rs`), the tests name them in comments (`scan.rs`),
//! and the tables that join the two are written beside the statements (`table.rs`).

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

/// Writes the tables anew, then checks as [`check`] does.
///
/// # Errors
/// As [`check`]; or if a table cannot be written.
pub(crate) fn write(root: &Path) -> Outcome {
    let Joined { pages, faults } = join(&Repo::read(root)?)?;
    for Page { path, text } in pages {
        fs::write(root.join(&path), text).map_err(|error| format!("cannot write {path}: {error}"))?;
    }
    report(&faults)
}

/// Checks that each statement that binds a server has a test or a reason, that each test names statements that
/// exist, and that the tables are up to date.
///
/// # Errors
/// If that is not so.
pub(crate) fn check(root: &Path) -> Outcome {
    let repo = Repo::read(root)?;
    let Joined { pages, mut faults } = join(&repo)?;
    for Page { path, text } in pages {
        if repo.file(&path).is_none_or(|file| file.text != text) {
            faults.push(format!("{path} is stale: run `cargo xtask conformance`"));
        }
    }
    report(&faults)
}

fn report(faults: &[String]) -> Outcome {
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("{}\nconformance: {} faults", faults.join("\n"), faults.len()))
}

/// A table as a file.
struct Page {
    path: String,
    text: String,
}

/// The statements joined with the tests.
struct Joined {
    pages: Vec<Page>,
    /// All that is wrong, but for stale pages.
    faults: Vec<String>,
}

fn join(repo: &Repo) -> Outcome<Joined> {
    let mut specifications = Vec::new();
    for stem in SPECIFICATIONS {
        specifications.push((stem, registry::read(repo, &format!("{stem}.toml"))?));
    }
    let citations = scan::citations(repo);
    let mut faults = wrong_citations(&specifications, &citations);
    let mut pages = Vec::new();
    for (stem, specification) in &specifications {
        faults.extend(unshown(specification, &citations));
        let text = table::render(specification, &citations);
        println!("{}: {}", specification.title, table::summary(specification, &citations));
        pages.push(Page { path: format!("{stem}.md"), text });
    }
    Ok(Joined { pages, faults })
}

/// Citations of statements that do not exist, or that stand where no test is.
fn wrong_citations(specifications: &[(&str, Specification)], citations: &[Citation]) -> Vec<String> {
    let mut faults = Vec::new();
    for citation in citations {
        let known = specifications
            .iter()
            .any(|(_, specification)| specification.statement(&citation.statement).is_some());
        let place = format!("{}:{}", citation.path, citation.line);
        if !known {
            faults.push(format!("{place}: there is no statement [{}]", citation.statement));
        } else if citation.test.is_none() {
            faults.push(format!("{place}: [{}] stands on no test", citation.statement));
        }
    }
    faults
}

/// Statements that bind a server and have neither test nor reason, or both.
fn unshown(specification: &Specification, citations: &[Citation]) -> Vec<String> {
    let mut faults = Vec::new();
    for statement in specification.statements.iter().filter(|statement| statement.binds.server()) {
        let id = specification.id(statement);
        match (table::tests_of(&id, citations).is_empty(), &statement.reason) {
            (true, None) => {
                faults.push(format!("[{id}] has neither a test nor a reason: {}", statement.says));
            }
            (false, Some(_)) => {
                faults.push(format!("[{id}] has a test: its reason for having none is stale"));
            }
            _ => {}
        }
    }
    faults
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
        let mut joined = join(&Repo::planted(&files)).expect("a sound registry");
        (joined.pages.remove(0).text, joined.faults)
    }

    fn cite(numbers: &[&str]) -> String {
        let ids: Vec<String> = numbers.iter().map(|number| format!("[MQTT{}-{number}]", 5)).collect();
        format!("//! T.\n\n// {}\n#[test]\nfn shows() {{}}\n", ids.join(" "))
    }

    #[test]
    fn a_shown_statement_passes_and_the_table_names_the_test() {
        let (table, faults) = run(&cite(&["1.0.0-1"]));
        assert_eq!(faults, [""; 0]);
        let ten = table.find("1.0.0-10").expect("ten");
        assert!(table.find("1.0.0-2").expect("two") < ten, "sorted by number");
        assert!(
            table.contains("| `crates/a/tests/t.rs::shows` |") && table.contains("| no test: not yet. |"),
            "{table}"
        );
    }

    #[test]
    fn an_unshown_statement_needs_a_reason() {
        let (_, faults) = run("//! T.\n");
        assert!(faults.len() == 1 && faults[0].contains("1.0.0-1]"), "{faults:?}");
    }

    #[test]
    fn a_reason_goes_when_a_test_comes() {
        let (_, faults) = run(&cite(&["1.0.0-1", "1.0.0-10"]));
        assert!(faults.len() == 1 && faults[0].contains("stale"), "{faults:?}");
    }

    #[test]
    fn an_unknown_statement_is_a_fault() {
        let (_, faults) = run(&cite(&["1.0.0-1", "9.9.9-9"]));
        assert!(
            faults.len() == 1 && faults[0].starts_with("crates/a/tests/t.rs:3: there is no"),
            "{faults:?}"
        );
    }
}
