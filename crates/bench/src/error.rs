//! Why a benchmark could not be run.

use std::fmt;
use std::io;

/// Why a benchmark could not be run to its end.
#[derive(Debug)]
pub enum BenchError {
    /// The options contradict each other, or what they ask for cannot be measured.
    Options(String),
    /// A connection could not be opened: unreachable, refused, or a subscription refused.
    Open(String),
    /// The broker closed a connection, or said what it may not say.
    Broken(String),
    /// This machine refused something: sockets, limits, threads, /proc.
    System(String),
}

impl BenchError {
    /// What the generator was doing when the machine refused.
    pub(crate) fn system(doing: &str, error: impl fmt::Display) -> Self {
        Self::System(format!("{doing}: {error}"))
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
