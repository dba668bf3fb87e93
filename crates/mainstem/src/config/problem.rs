//! Errors of the configuration: what is wrong, and where the value comes from.

use std::fmt;
use std::ops::Range;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The configuration file: what to mark in it.
    File(Range<usize>),
    /// An environment variable, by name.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

/// One error.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) origin: Option<Origin>,
    pub(crate) message: String,
}

impl Problem {
    /// An error in a file that the configuration names.
    pub(crate) fn of_file(message: String) -> Self {
        Self { origin: None, message }
    }
}

/// The text of a configuration file, for messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileText {
    /// Path as the user wrote it.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl FileText {
    /// Line and column of an offset, both from 1.
    pub(crate) fn position(&self, offset: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line = before.split(|byte| *byte == b'\n').count();
        let column = 1 + String::from_utf8_lossy(&before[line_start..]).chars().count();
        (line, column)
    }

    /// The message, its line and column, and the line with carets below what `span` covers of it.
    fn mark(&self, span: &Range<usize>, message: &str) -> String {
        let (line, column) = self.position(span.start);
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        let covered = self.text.get(span.clone()).and_then(|text| text.lines().next()).unwrap_or_default();
        let room = (text.chars().count() + 1).saturating_sub(column);
        let carets = "^".repeat(covered.chars().count().min(room).max(1));
        let number = line.to_string();
        let (margin, indent) = (" ".repeat(number.len()), " ".repeat(column - 1));
        let message = message.trim_end();
        format!(
            "{}:{line}:{column}: {message}\n{margin} |\n{number} | {text}\n{margin} | {indent}{carets}",
            self.path
        )
    }
}

/// Errors of a configuration, for people.
#[derive(Debug)]
pub(crate) struct Problems {
    pub(crate) file: FileText,
    pub(crate) problems: Vec<Problem>,
}

impl Problems {
    /// Sorts: first those of the file, in the order of its lines.
    pub(crate) fn sort(&mut self) {
        self.problems.sort_by_key(|problem| match &problem.origin {
            Some(Origin::File(span)) => span.start,
            _ => usize::MAX,
        });
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Problem { origin, message }) in self.problems.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            match origin {
                Some(Origin::File(span)) => f.write_str(&self.file.mark(span, message))?,
                Some(Origin::Environment(name)) => write!(f, "environment variable {name}: {message}")?,
                Some(Origin::Flag(flag)) => write!(f, "{flag}: {message}")?,
                None => f.write_str(message)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_marked_below_the_error() {
        let file = FileText { path: "m.toml".into(), text: "# ü\n[mqtt]\n  lisen = 1\n".into() };
        let start = file.text.find("lisen").unwrap();
        let origin = Some(Origin::File(start..start + 5));
        let problem = Problem { origin, message: "unknown key `lisen`".into() };
        let other = Problem { origin: Some(Origin::Flag("--shards".into())), message: "too many".into() };
        let mut problems = Problems { file, problems: vec![other, problem] };
        problems.sort();
        let expected =
            "m.toml:3:3: unknown key `lisen`\n  |\n3 |   lisen = 1\n  |   ^^^^^\n--shards: too many";
        assert_eq!(problems.to_string(), expected);
    }
}
