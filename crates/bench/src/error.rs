//! Errors that end a benchmark run.

use std::fmt;
use std::io;

/// Why a benchmark run failed.
#[derive(Debug)]
pub enum BenchError {
    /// The options are invalid or contradict each other.
    Options(String),
    /// A connection could not be opened, or a subscription was refused.
    Open(String),
    /// The broker closed a connection or violated the protocol.
    Broken(String),
    /// The operating system failed a call: sockets, limits, /proc.
    System(String),
}

impl BenchError {
    /// A [`BenchError::System`] with the failed operation.
    pub(crate) fn system(operation: &str, error: impl fmt::Display) -> Self {
        Self::System(format!("{operation}: {error}"))
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(text) | Self::Open(text) | Self::Broken(text) | Self::System(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for BenchError {}

impl From<io::Error> for BenchError {
    fn from(error: io::Error) -> Self {
        Self::system("input or output", error)
    }
}
