//! A repository of backups: in a directory, or in an object store such as S3.
//!
//! A backup is a list of files with their contents. Contents are stored once, in objects that are named by their
//! SHA-256; so a backup costs what has changed since the last one. `docs/formats`
//! specifies every object.
//!
//! # What this crate must never know
//! What the files are. Brokers, logs, protocols.
//!
//! # Entry points
//! [`Repository::open`].
//!
//! # Invariants
//! - A backup exists once its manifest does, and its manifest is written after everything that it refers to.
//! - Nothing is restored whose checksum differs. A restore that is not complete can be told from one that is.
//! - Memory is bounded: by [`CHUNK_BYTES`] for each request under way, and by the number of files and chunks.
//! - What a repository contains is not trusted: no content of it causes a panic, or a file outside the directory that
//!   is restored.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `repository.rs` | [`Repository`]: listing backups, choosing one, checking it |
//! | `target.rs` | where a repository is, from a URL; its requests |
//! | `manifest.rs` | the manifest of a backup, as JSON, and what makes one valid |
//! | `content.rs` | chunks of files, and their hashes |
//! | `create.rs`, `pack.rs` | storing a backup; small contents that share an object |
//! | `fetch.rs` | reading manifests and the contents of files back |
//! | `restore.rs`, `restore_marker.rs` | writing a backup into a directory, and the mark of one that is not complete |
//! | `prune.rs` | removing backups, and objects that none needs |
//! | `error.rs` | errors |

mod content;
mod create;
mod error;
mod fetch;
mod manifest;
mod pack;
mod prune;
mod repository;
mod restore;
mod restore_marker;
mod target;
#[cfg(test)]
mod tests;

pub use content::CHUNK_BYTES;
pub use create::{Created, SourceFile};
pub use error::Error;
pub use prune::Pruned;
pub use repository::{BackupInfo, Checked, Repository, Which};
pub use restore::Restored;
pub use restore_marker::RESTORE_MARKER;
