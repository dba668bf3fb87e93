//! Errors: each is a message for the user, with the file or object that it is about.

use std::fmt;
use std::path::Path;

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    pub(crate) fn of_file(path: &Path, error: &dyn fmt::Display) -> Self {
        Self(format!("{}: {error}", path.display()))
    }

    pub(crate) fn of_object(path: &object_store::path::Path, error: &dyn fmt::Display) -> Self {
        Self(format!("object {path}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
