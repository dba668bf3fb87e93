//! What all records of the security log have: a version, and one error for what cannot be read.

use crate::error::SecurityError;

pub(crate) const VERSION: u8 = 1;

pub(crate) fn invalid(what: &str, error: impl std::fmt::Display) -> SecurityError {
    SecurityError::Record(format!("{what}: {error}"))
}

pub(crate) fn check_version(version: u8) -> Result<(), SecurityError> {
    let unknown = || SecurityError::Record(format!("its version is {version}; known is {VERSION}"));
    if version == VERSION { Ok(()) } else { Err(unknown()) }
}
