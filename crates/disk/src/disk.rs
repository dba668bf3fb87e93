//! State of a store that its logs share, and why a write fails.

use std::io;
use std::sync::Arc;

use mainstem_log::Error;

use crate::commit::Group;
use crate::files::{Files, Recent};
use crate::fs::Fs;
use crate::journal::JournalError;
use crate::next_file::NextFiles;
use crate::queue::CommitQueue;
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
    pub(crate) queue: Arc<CommitQueue>,
    pub(crate) next_files: NextFiles,
    /// Bytes of appends to logs whose files do not exist yet.
    pub(crate) held_bytes: usize,
    /// Why the last log could not be created, until one is.
    pub(crate) creation_failure: Option<Error>,
}

/// Why a write failed.
pub(crate) enum Failure {
    /// No space, or too many open files, as this error says. The write may be retried.
    Full(Error),
    /// The contents of the file are unknown.
    Broken(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match store_error(&error) {
            transient if transient.is_transient() => Self::Full(transient),
            _ => Self::Broken(error),
        }
    }
}

/// Maps an IO error to [`Error::Full`], [`Error::TooManyFiles`] or [`Error::System`].
pub(crate) fn store_error(error: &io::Error) -> Error {
    use rustix::io::Errno;
    match (error.kind(), Errno::from_io_error(error)) {
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _) => Error::Full,
        (_, Some(Errno::MFILE | Errno::NFILE)) => Error::TooManyFiles,
        _ => Error::System(error.to_string()),
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

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn errors_that_pass_name_what_is_short() {
        for (errno, error, text) in [
            (Errno::NOSPC, Error::Full, "no space left"),
            (Errno::DQUOT, Error::Full, "no space left"),
            (Errno::MFILE, Error::TooManyFiles, "raise the limit of open files"),
            (Errno::NFILE, Error::TooManyFiles, "raise the limit of open files"),
        ] {
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!(store_error(&errno.into()), error);
            assert!(matches!(Failure::from(io::Error::from(errno)), Failure::Full(found) if found == error));
        }
        assert!(matches!(Failure::from(io::Error::from(Errno::IO)), Failure::Broken(_)));
        assert!(matches!(store_error(&Errno::IO.into()), Error::System(_)));
    }
}
