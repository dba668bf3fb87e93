//! The crate's error.

use std::fmt;

use mainstem_queue_core::{ConfigError, QueueError};

/// Errors by what the caller can do about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The directory is open in another process, or elsewhere in this one.
    InUse,
    /// The queue rejected the request.
    Refused(QueueError),
    /// Invalid settings.
    Config(ConfigError),
    /// The log failed.
    Store(mainstem_log::Error),
    /// The operating system's error message.
    System(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("the directory is in use"),
            Self::Refused(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<QueueError> for Error {
    fn from(error: QueueError) -> Self {
        Self::Refused(error)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
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
