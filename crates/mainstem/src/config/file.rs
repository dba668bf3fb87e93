//! The configuration file: all its errors, its values, and the place of each.
//!
//! serde stops at the first error. To report all of them, the entry with the error is removed from the parsed document,
//! and what is left is deserialized again, until nothing is left to complain about.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};
use toml::{Spanned, Table};

use super::Config;
use super::key_path::{KeyPath, Step};
use super::problem::{FileText, Origin, Problem};

/// Errors of one file that are reported.
const PROBLEMS_MAX: usize = 100;

/// A file that was read.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    pub(crate) text: FileText,
    /// Its values, without those that are invalid.
    pub(crate) table: Table,
    /// Where each value stands.
    pub(crate) origins: BTreeMap<KeyPath, Origin>,
    pub(crate) problems: Vec<Problem>,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let path_text = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path_text}: {error}"))?;
        Ok(Self::parse(FileText { path: path_text, text }))
    }

    /// Parses the text of a file.
    pub(crate) fn parse(text: FileText) -> Self {
        let (mut document, errors) = DeTable::parse_recoverable(&text.text);
        let mut problems: Vec<Problem> = errors.iter().map(problem).collect();
        if !problems.is_empty() {
            problems.truncate(PROBLEMS_MAX);
            return Self { text, problems, ..Self::default() };
        }
        while let Err(error) = Config::deserialize(Deserializer::from(document.clone())) {
            problems.push(problem(&error));
            let is_removed = error.span().is_some_and(|span| remove_from(document.get_mut(), &span));
            if !is_removed || problems.len() >= PROBLEMS_MAX {
                return Self { text, problems, ..Self::default() };
            }
        }
        let mut origins = BTreeMap::new();
        note_table(document.get_ref(), &KeyPath::default(), &mut origins);
        let table = Table::deserialize(Deserializer::from(document)).unwrap_or_else(|error| {
            problems.push(problem(&error));
            Table::new()
        });
        Self { text, table, origins, problems }
    }
}

fn problem(error: &toml::de::Error) -> Problem {
    Problem { origin: error.span().map(Origin::File), message: error.message().to_owned() }
}

/// Removes the innermost entry that covers `span`. Returns whether there was one.
fn remove_from(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    for (_, value) in table.iter_mut() {
        if remove_within(value.get_mut(), span) {
            return true;
        }
    }
    let found = table.iter().find(|(key, value)| covers(&key.span(), span) || covers(&value.span(), span));
    let Some(name) = found.map(|(key, _)| key.get_ref().clone().into_owned()) else { return false };
    table.remove(name.as_str()).is_some()
}

fn remove_within(value: &mut DeValue<'_>, span: &Range<usize>) -> bool {
    match value {
        DeValue::Table(table) => remove_from(table, span),
        DeValue::Array(items) => {
            if items.iter_mut().any(|item| remove_within(item.get_mut(), span)) {
                return true;
            }
            let is_table = |item: &Spanned<DeValue<'_>>| {
                matches!(item.get_ref(), DeValue::Table(_)) && covers(&item.span(), span)
            };
            let Some(index) = items.iter().position(is_table) else { return false };
            let others = std::mem::replace(items, DeArray::new())
                .into_iter()
                .enumerate()
                .filter(|(other, _)| *other != index);
            *items = others.map(|(_, item)| item).collect();
            true
        }
        _ => false,
    }
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn note_table(table: &DeTable<'_>, path: &KeyPath, origins: &mut BTreeMap<KeyPath, Origin>) {
    for (key, value) in table {
        let path = path.join(Step::Key(key.get_ref().clone().into_owned()));
        note_value(value, &path, &key.span(), origins);
    }
}

fn note_value(
    value: &Spanned<DeValue<'_>>,
    path: &KeyPath,
    span: &Range<usize>,
    origins: &mut BTreeMap<KeyPath, Origin>,
) {
    match value.get_ref() {
        DeValue::Table(table) => note_table(table, path, origins),
        DeValue::Array(items) if items.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_))) => {
            for (index, item) in items.iter().enumerate() {
                let path = path.join(Step::Index(index));
                origins.insert(path.clone(), Origin::File(item.span()));
                note_value(item, &path, &item.span(), origins);
            }
        }
        _ => drop(origins.insert(path.clone(), Origin::File(span.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::problem::Problems;

    fn problems(text: &str) -> String {
        let ConfigFile { text, problems, .. } =
            ConfigFile::parse(FileText { path: "f".into(), text: text.into() });
        let mut problems = Problems { file: text, problems };
        problems.sort();
        problems.to_string()
    }

    #[test]
    fn all_errors_are_found_each_with_its_caret() {
        let text = "[mqtt]\nmax_quued = 3\nlisten = \"x\"\nqueue_qos0 = 1\n\n[kafk]\nx = 1\n\n[[listener]]\nname = \"a\"\n\
                    protocol = \"smtp\"\nlisten = 1\ntls = { certificate = \"c\" }\n\n[kafka]\nsasl = [\"PLAIN\", 5]\n";
        let found = problems(text);
        for line in [
            "f:2:1: unknown key `max_quued`",
            "2 | max_quued = 3\n  | ^^^^^^^^^",
            "f:4:14: invalid type: integer `1`, expected true or false",
            "f:6:2: unknown field `kafk`",
            "f:11:12: unknown variant `smtp`",
            "f:12:10: invalid type: integer `1`",
            "f:13:7: missing field `key`",
            "f:16:18: invalid type: integer `5`",
        ] {
            assert!(found.contains(line), "{line}\n{found}");
        }
        assert_eq!(
            found.lines().filter(|line| line.contains(" | ") && line.contains('^')).count(),
            8,
            "{found}"
        );
    }

    #[test]
    fn syntax_errors_are_reported_alone() {
        let found = problems("[mqtt\nlisten = 1\n");
        assert!(found.contains("f:1:") && !found.contains("expected text"), "{found}");
    }

    #[test]
    fn each_value_has_its_place() {
        let text =
            "[mqtt]\nlisten = \"x\"\n[[listener]]\nname = \"a\"\nprotocol = \"mqtt\"\nlisten = \"y\"\n";
        let file = ConfigFile::parse(FileText { path: "f".into(), text: text.into() });
        let line = |path: &str| match file.origins.get(&KeyPath::parse(path, ".").unwrap()) {
            Some(Origin::File(span)) => file.text.position(span.start).0,
            other => panic!("{other:?}"),
        };
        assert_eq!(["mqtt.listen", "listener.0", "listener.0.listen"].map(line), [2, 3, 6]);
    }
}
