//! Why a write fails: whether it may be repeated, or nobody knows what the file contains.
//!
//! A lack of space or of file descriptors passes, and what failed had no effect. Everything else makes a log read-only.

use std::io;

use mainstem_log::Error;

use crate::journal::JournalError;

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
