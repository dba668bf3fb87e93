//! Snapshot of the repository for the checks: path and text of every file.

use crate::Outcome;
use std::fs;
use std::path::Path;

/// Directories without project files: build output, fetched packages, scratch data.
const SKIPPED_DIRECTORIES: [&str; 12] = [
    ".git",
    ".pytest_cache",
    ".venv",
    "__pycache__",
    "artifacts",
    "corpus",
    "coverage",
    "data",
    "node_modules",
    "proptest-regressions",
    "results",
    "target",
];

/// One file of the repository.
pub(crate) struct File {
    /// Relative to the root, with `/` between its parts.
    pub(crate) path: String,
    /// Empty if the file is not UTF-8.
    pub(crate) text: String,
}

impl File {
    /// Whether the file has this extension.
    pub(crate) fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    /// Lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        numbered(&self.text)
    }
}

/// Lines of a text with their numbers, from 1. Keeps a trailing `\r`, unlike `str::lines`.
pub(crate) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.strip_suffix('\n').unwrap_or(text).split('\n'))
}

/// Directory part of a path, without the trailing `/`; empty for a file in the root.
pub(crate) fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Joins two relative paths and resolves `.` and `..`. `None` if the result is outside the repository.
pub(crate) fn join(directory: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// All files, sorted by path.
pub(crate) struct Repo {
    pub(crate) files: Vec<File>,
}

impl Repo {
    /// Reads all files under `root`, except build output and fetched packages.
    pub(crate) fn read(root: &Path) -> Outcome<Self> {
        let mut files = Vec::new();
        read_directory(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// An in-memory repository for tests.
    #[cfg(test)]
    pub(crate) fn planted(files: &[(&str, &str)]) -> Self {
        let mut files: Vec<File> =
            files.iter().map(|&(path, text)| File { path: path.to_owned(), text: text.to_owned() }).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// The file with this path.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|found| &self.files[found])
    }

    /// Whether the path is a file, or a directory that contains one.
    pub(crate) fn has(&self, path: &str) -> bool {
        let inside = |file: &File| file.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        path.is_empty() || self.file(path).is_some() || self.files.iter().any(inside)
    }

    /// All files with this extension.
    pub(crate) fn with_extension(&self, extension: &str) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.is(extension))
    }
}

fn read_directory(directory: &Path, prefix: &str, files: &mut Vec<File>) -> Outcome {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            if !SKIPPED_DIRECTORIES.contains(&name.as_str()) {
                read_directory(&entry.path(), &path, files)?;
            }
        } else if kind.is_file() {
            // The file may have been removed since the listing, or may not be readable.
            let bytes = fs::read(entry.path()).unwrap_or_default();
            files.push(File { path, text: String::from_utf8(bytes).unwrap_or_default() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_resolves_dots() {
        assert_eq!(join("docs/adr", "../design.md").as_deref(), Some("docs/design.md"));
        assert_eq!(join("", "./a//b").as_deref(), Some("a/b"));
        assert_eq!(join("docs", "../../etc"), None);
    }

    #[test]
    fn directory_exists_if_it_contains_a_file() {
        let repo = Repo::planted(&[("docs/adr/0001-a.md", ""), ("docs-old/x", "")]);
        assert!(repo.has("docs") && repo.has("docs/adr") && repo.has("docs/adr/0001-a.md"));
        assert!(!repo.has("doc") && !repo.has("docs/ad"));
    }
}
