//! Statements of a specification, read from `docs/conformance/*.toml`.

use crate::Outcome;
use crate::repo::Repo;
use serde::Deserialize;
use std::collections::BTreeMap;

/// One specification, its statements sorted by number.
pub(super) struct Specification {
    pub(super) title: String,
    /// Prefix of statement ids in tests, such as `MQTT5`.
    prefix: String,
    pub(super) statements: Vec<Statement>,
}

impl Specification {
    /// Id of a statement in tests, such as `MQTT5-` followed by its number.
    pub(super) fn id(&self, statement: &Statement) -> String {
        format!("{}-{}", self.prefix, statement.number)
    }

    /// Finds a statement by its id.
    pub(super) fn statement(&self, id: &str) -> Option<&Statement> {
        let number = id.strip_prefix(&self.prefix)?.strip_prefix('-')?;
        self.statements.iter().find(|statement| statement.number == number)
    }
}

/// A numbered normative statement.
pub(super) struct Statement {
    /// Number, such as `3.1.2-1`.
    pub(super) number: String,
    pub(super) binds: Binds,
    pub(super) says: String,
    /// Why no test covers it.
    pub(super) reason: Option<String>,
}

/// The party that a statement binds.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Binds {
    Server,
    Client,
    Both,
}

impl Binds {
    pub(super) fn server(self) -> bool {
        self != Self::Client
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Both => "both",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Registry {
    specification: Head,
    #[serde(default)]
    statement: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    title: String,
    prefix: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    binds: Binds,
    says: String,
    reason: Option<String>,
}

/// Reads and checks a registry.
///
/// # Errors
/// If the file is missing, does not parse, or contains an invalid statement number.
pub(super) fn read(repo: &Repo, path: &str) -> Outcome<Specification> {
    let file = repo.file(path).ok_or_else(|| format!("{path} is missing"))?;
    let registry: Registry = toml::from_str(&file.text).map_err(|error| format!("{path}: {error}"))?;
    let mut numbered = Vec::new();
    for (number, Entry { binds, says, reason }) in registry.statement {
        let order = parse(&number).ok_or_else(|| format!("{path}: `{number}` is not a statement number"))?;
        for text in reason.iter().chain([&says]) {
            if !text.ends_with('.') || text.contains(['|', '\n']) {
                return Err(format!(
                    "{path}: {number}: `{text}` must be one sentence that fits into a table"
                ));
            }
        }
        numbered.push((order, Statement { number, binds, says, reason }));
    }
    numbered.sort_by_key(|(order, _)| *order);
    let statements = numbered.into_iter().map(|(_, statement)| statement).collect();
    Ok(Specification {
        title: registry.specification.title,
        prefix: registry.specification.prefix,
        statements,
    })
}

/// Parses `3.1.2-1` into its numbers, for sorting.
fn parse(number: &str) -> Option<[u32; 4]> {
    let (section, last) = number.split_once('-')?;
    let parts: Option<Vec<u32>> = section.split('.').chain([last]).map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_statement_numbers() {
        assert_eq!(parse("3.1.2-10"), Some([3, 1, 2, 10]));
        for wrong in ["3.1-1", "3.1.2", "3.1.2-a", "3.1.2.1", ""] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn rejects_invalid_registries() {
        let head = "[specification]\ntitle = \"T\"\nprefix = \"P\"\n[statement]\n";
        for wrong in [
            "\"1.0.0\" = { binds = \"both\", says = \"A.\" }",
            "\"1.0.0-1\" = { binds = \"nobody\", says = \"A.\" }",
            "\"1.0.0-1\" = { binds = \"both\", says = \"no full stop\" }",
            "\"1.0.0-1\" = { binds = \"both\", says = \"A.\", excuse = \"B.\" }",
        ] {
            let text = format!("{head}{wrong}\n");
            assert!(read(&Repo::planted(&[("r.toml", &text)]), "r.toml").is_err(), "{wrong}");
        }
    }
}
