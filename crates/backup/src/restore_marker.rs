//! The name of the file that marks an incomplete restore. No file of a backup has it.

/// File that a directory has while a restore into it is not complete.
pub const RESTORE_MARKER: &str = "restore-incomplete";
