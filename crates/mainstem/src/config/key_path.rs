//! Where a value stands in the configuration: tables by name, items of arrays by number.

use std::fmt;

use toml::{Table, Value};

/// Most steps of a path. The deepest key has five: `listener.0.tls.more_certificates.0.key`, and one more.
const STEPS_MAX: usize = 8;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Item of an array, from 0.
    Index(usize),
    /// Key of a table.
    Key(String),
}

impl Step {
    fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Key(text.to_owned()), Self::Index)
    }
}

/// The path of a value, such as `mqtt.listen` or `listener.0.name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyPath(pub(crate) Vec<Step>);

impl KeyPath {
    /// Path of a key of a section.
    pub(crate) fn key(section: &str, key: &str) -> Self {
        Self(vec![Step::Key(section.to_owned()), Step::Key(key.to_owned())])
    }

    /// Path of an item of an array of tables.
    pub(crate) fn item(section: &str, index: usize) -> Self {
        Self(vec![Step::Key(section.to_owned()), Step::Index(index)])
    }

    /// Parses steps that are separated by `separator`.
    ///
    /// # Errors
    /// There are too few or too many steps, or one is empty.
    pub(crate) fn parse(text: &str, separator: &str) -> Result<Self, String> {
        let steps: Vec<&str> = text.split(separator).collect();
        if steps.len() < 2 || steps.iter().any(|step| step.is_empty()) {
            return Err(format!("expected SECTION{separator}KEY"));
        }
        if steps.len() > STEPS_MAX {
            return Err(format!("has more than {STEPS_MAX} parts"));
        }
        Ok(Self(steps.into_iter().map(Step::parse).collect()))
    }

    /// The path followed by a step.
    pub(crate) fn join(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// The section: the first step.
    pub(crate) fn section(&self) -> &str {
        match self.0.first() {
            Some(Step::Key(name)) => name,
            _ => "",
        }
    }

    /// The last step, if it is a key.
    pub(crate) fn last_key(&self) -> &str {
        match self.0.last() {
            Some(Step::Key(name)) => name,
            _ => "",
        }
    }

    /// Whether this path leads into `other`, or to it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The item of an array of tables that this path leads into, if any.
    pub(crate) fn enclosing_item(&self) -> Option<Self> {
        matches!(self.0.get(1), Some(Step::Index(_))).then(|| Self(self.0[..2].to_vec()))
    }

    /// Sets the value at this path, and creates the tables and array items on the way.
    ///
    /// # Errors
    /// The path meets a value that is neither a table nor an array, or leaves a gap in an array.
    pub(crate) fn set(&self, table: &mut Table, value: Value) -> Result<(), String> {
        let Some((Step::Key(first), rest)) = self.0.split_first() else {
            return Err("must begin with the name of a section".into());
        };
        set(table.entry(first.clone()).or_insert_with(|| container(rest)), rest, value)
    }
}

/// The value that `path` leads into.
fn container(path: &[Step]) -> Value {
    match path.first() {
        Some(Step::Index(_)) => Value::Array(Vec::new()),
        _ => Value::Table(Table::new()),
    }
}

fn set(target: &mut Value, path: &[Step], value: Value) -> Result<(), String> {
    let Some((step, rest)) = path.split_first() else {
        *target = value;
        return Ok(());
    };
    match (target, step) {
        (Value::Table(table), Step::Key(key)) => {
            set(table.entry(key.clone()).or_insert_with(|| container(rest)), rest, value)
        }
        (Value::Array(items), Step::Index(index)) => {
            if *index == items.len() {
                items.push(container(rest));
            }
            let count = items.len();
            let item = items.get_mut(*index);
            set(item.ok_or_else(|| format!("the next free number is {count}, not {index}"))?, rest, value)
        }
        (_, Step::Key(key)) => Err(format!("{key:?} is not below a table")),
        (_, Step::Index(index)) => Err(format!("{index} is not below an array")),
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(".")?;
            }
            match step {
                Step::Key(key) => f.write_str(key)?,
                Step::Index(index) => write!(f, "{index}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_set_in_tables_and_arrays() {
        let mut table: Table = toml::from_str("[[listener]]\nname = \"a\"\n").unwrap();
        for (path, value) in [("mqtt.listen", "x"), ("listener.0.tls.key", "k"), ("listener.1.name", "b")] {
            let path = KeyPath::parse(path, ".").unwrap();
            path.set(&mut table, value.into()).unwrap();
        }
        let expected = "[mqtt]\nlisten = \"x\"\n[[listener]]\nname = \"a\"\ntls.key = \"k\"\n[[listener]]\nname = \"b\"\n";
        assert_eq!(table, toml::from_str(expected).unwrap());
        for (path, error) in [
            ("listener.3.name", "the next free number is 2, not 3"),
            ("mqtt.listen.x", "\"x\" is not below a table"),
            ("mqtt.0", "0 is not below an array"),
        ] {
            let path = KeyPath::parse(path, ".").unwrap();
            assert_eq!(path.set(&mut table, "v".into()), Err(error.to_owned()));
        }
    }

    #[test]
    fn paths_have_two_to_eight_steps() {
        for text in ["mqtt", "mqtt.", ".x", "a..b", "a.b.c.d.e.f.g.h.i"] {
            assert!(KeyPath::parse(text, ".").is_err(), "{text}");
        }
    }
}
