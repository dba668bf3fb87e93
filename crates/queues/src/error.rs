//! Why something was not done.

use std::fmt;

use mainstem_queue::{Fault, Refusal};

/// Why something was not done, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Another process, or another part of this one, has the directory.
    InUse,
    /// The queue refuses.
    Refused(Refusal),
    /// The queue cannot be set to this.
    Fault(Fault),
    /// The disk refuses.
    Store(mainstem_log::Error),
    /// The system refuses, in its own words.
    System(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("the directory is in use"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<mainstem_log::Error> for Error {
    fn from(error: mainstem_log::Error) -> Self {
        Self::Store(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::System(error.to_string())
    }
}
