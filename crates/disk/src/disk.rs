//! State of a store that its logs share, and why a write fails.

use std::io;
use std::sync::Arc;

use crate::commit::Group;
use crate::files::{Files, Recent};
use crate::fs::Fs;
use crate::journal::JournalError;
use crate::settings::Settings;

/// State of the store that its logs share.
pub(crate) struct Disk {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) settings: Settings,
    pub(crate) files: Files,
    /// Closed segments whose index is in memory.
    pub(crate) indexes: Recent,
    /// Writes of the current turn.
    pub(crate) group: Group,
}

/// Why a write failed.
pub(crate) enum Failure {
    /// No space, or too many open files. The write may be retried.
    Full,
    /// The contents of the file are unknown.
    Broken(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use rustix::io::Errno;
        let passes = [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE];
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if is_full || Errno::from_io_error(&error).is_some_and(|errno| passes.contains(&errno)) {
            return Self::Full;
        }
        Self::Broken(error)
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Unwritten(error) => error.into(),
            error => Self::Broken(error.into()),
        }
    }
}
