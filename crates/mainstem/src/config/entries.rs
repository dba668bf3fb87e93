//! Every key with its effective value, for people and for comparisons.

use mainstem_mqtt_server::config_value::text_literal;
use toml::Value;

use super::key_path::{KeyPath, Step};
use super::layers::Loaded;
use super::problem::Origin;
use super::{ARRAYS, SECTIONS};

/// What is shown of a secret.
const HIDDEN: &str = "\"(hidden)\"";

/// A key and its effective value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: KeyPath,
    /// The value as TOML.
    pub(crate) value: String,
    /// Whether a reload applies another value.
    pub(crate) is_reloadable: bool,
    is_secret: bool,
}

impl Entry {
    /// The value as TOML, without secrets.
    pub(crate) fn shown(&self) -> String {
        if self.is_secret && self.value != "\"\"" { HIDDEN.to_owned() } else { without_password(&self.value) }
    }
}

/// Every key of the sections, and every value of the items of arrays.
pub(crate) fn entries(loaded: &Loaded) -> Vec<Entry> {
    let mut entries = Vec::new();
    for section in &SECTIONS {
        let values = (section.values)(&loaded.config);
        for (field, (key, value)) in (section.fields)().into_iter().zip(values) {
            entries.push(Entry {
                path: KeyPath::key(section.name, key),
                value,
                is_reloadable: field.is_reloadable,
                is_secret: field.is_secret,
            });
        }
    }
    for name in ARRAYS {
        if let Some(Value::Array(items)) = loaded.table.get(name) {
            for (index, item) in items.iter().enumerate() {
                add_values(item, &KeyPath::item(name, index), &mut entries);
            }
        }
    }
    entries
}

/// Adds the values of a table. Tables within it become longer paths.
fn add_values(value: &Value, path: &KeyPath, entries: &mut Vec<Entry>) {
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (key, value) in table {
                add_values(value, &path.join(Step::Key(key.clone())), entries);
            }
        }
        _ => entries.push(Entry {
            path: path.clone(),
            value: literal(value),
            is_reloadable: false,
            is_secret: false,
        }),
    }
}

/// A value as TOML.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => text_literal(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(literal).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Table(table) => {
            let pairs: Vec<String> = table
                .iter()
                .map(|(key, value)| format!("{} = {}", key_literal(key), literal(value)))
                .collect();
            if pairs.is_empty() { "{}".into() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
    }
}

/// A key as TOML, with quotation marks if it needs them.
pub(crate) fn key_literal(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { text_literal(key) }
}

/// A value without the password of a URL.
fn without_password(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_owned() };
    let authority = rest.find(['/', '?', '#']).map_or(rest, |end| &rest[..end]);
    match authority.rfind('@') {
        Some(at) => format!("{scheme}://(hidden){}", &rest[at..]),
        None => value.to_owned(),
    }
}

/// A key whose values differ in two configurations.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) path: KeyPath,
    /// The entry in the first configuration, if it is there.
    pub(crate) before: Option<Entry>,
    /// The entry in the second one.
    pub(crate) after: Option<Entry>,
}

impl Change {
    /// Whether a reload applies it.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.before.as_ref().is_some_and(|entry| entry.is_reloadable)
    }
}

/// The keys whose values differ.
pub(crate) fn changes(before: &[Entry], after: &[Entry]) -> Vec<Change> {
    let find = |entries: &[Entry], path: &KeyPath| entries.iter().find(|entry| entry.path == *path).cloned();
    let mut changes = Vec::new();
    for entry in before {
        let new = find(after, &entry.path);
        if new.as_ref().is_none_or(|new| new.value != entry.value) {
            changes.push(Change { path: entry.path.clone(), before: Some(entry.clone()), after: new });
        }
    }
    let added = after.iter().filter(|entry| find(before, &entry.path).is_none());
    changes.extend(added.map(|entry| Change {
        path: entry.path.clone(),
        before: None,
        after: Some(entry.clone()),
    }));
    changes
}

impl Loaded {
    /// Where a value comes from, for people; empty for a default.
    pub(crate) fn origin_text(&self, path: &KeyPath) -> String {
        match self.origin(path) {
            None => String::new(),
            Some(Origin::File(span)) => format!("{}:{}", self.file.path, self.file.position(span.start).0),
            Some(Origin::Environment(name)) => name.clone(),
            Some(Origin::Flag(flag)) => flag.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_urls_are_hidden() {
        for (value, shown) in [
            ("\"https://h/a@b\"", "\"https://h/a@b\""),
            ("\"https://user:p@ss@h:1/x\"", "\"https://(hidden)@h:1/x\""),
            ("\"127.0.0.1:1883\"", "\"127.0.0.1:1883\""),
        ] {
            assert_eq!(without_password(value), shown);
        }
    }

    #[test]
    fn values_are_written_as_toml() {
        let text = "value = [{ \"a.b\" = 1, c = \"x\\\"\" }, { d = [true, 1.0] }]";
        let table: toml::Table = toml::from_str(text).unwrap();
        let written = format!("value = {}", literal(&table["value"]));
        assert_eq!(toml::from_str::<toml::Table>(&written).unwrap(), table);
    }

    #[test]
    fn changes_are_values_that_differ() {
        let loaded = |text: &str| {
            let table: toml::Table = toml::from_str(text).unwrap();
            Loaded { config: table.clone().try_into().unwrap(), table, ..Loaded::default() }
        };
        let before = loaded("[mqtt]\nmax_queued_bytes = \"1KiB\"\n[[queue]]\nname = \"a\"\nfifo = true\n");
        let after = loaded("[mqtt]\nmax_queued_bytes = 1024\nlisten = \"\"\n[[queue]]\nname = \"b\"\n");
        let changed: Vec<(String, bool, bool)> = changes(&entries(&before), &entries(&after))
            .iter()
            .map(|change| (change.path.to_string(), change.before.is_some(), change.after.is_some()))
            .collect();
        let expected =
            [("mqtt.listen", true, true), ("queue.0.fifo", true, false), ("queue.0.name", true, true)];
        assert_eq!(changed, expected.map(|(path, before, after)| (path.to_owned(), before, after)));
    }
}
