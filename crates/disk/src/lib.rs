//! The segment log: the durable store, one directory of segment files per log.
//!
//! [`SegmentStore`] implements [`Store`](mainstem_log::Store) on a file system. A log is a directory of segments. A
//! segment is a file of consecutive record batches, stored byte for byte as they were appended. `docs/formats`
//! specifies every byte.
//!
//! # What this crate must never know
//! The origin of an append; the contents of a record beyond its key and timestamp. Protocols, sockets, clocks.
//!
//! # Entry points
//! [`SegmentStore::open`], with [`Settings`] and a [`Committer`]; offline, [`verify`](verify()) and
//! [`repair`](repair()). [`Fs`] and [`File`] are the file system interface; [`RealFs`] implements it for the operating
//! system, and [`fault::FaultFs`] injects faults.
//!
//! # Invariants
//! - Nothing is reported durable before its sync succeeded. A failed sync is never retried: the log becomes
//!   read-only.
//! - With a committer thread, creating logs, appending, committing, retention and prefix truncation create, resize,
//!   rename, remove and sync no file on the caller's thread, except after a failed write. If a segment grows to twice
//!   its size before the next file is created, they wait for the committer. Beyond 16 MiB of appends to logs whose
//!   first file does not exist yet, they create such files.
//! - Nothing in a file is acknowledged before the file has the name of a segment. If the directory has no space for the
//!   name, the log refuses appends until it has.
//! - A segment is written from front to back, into zeros. Bytes after the log end are zero, or are truncated before
//!   the next write to the log.
//! - With the inline committer, identical calls produce identical file system calls in the same order.
//!
//! # Memory
//! An idle log takes about 1 KiB. Cached entries are bounded per log and in total ([`Settings::tail_bytes`],
//! [`Settings::cache_bytes`]). In addition, a log buffers at most 4 MiB of a turn's appends, and new logs together
//! 16 MiB. An index takes up to 48 KiB ([`Settings::indexes`]).
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `store.rs` | all logs of a shard; opening, rolling, retention and compaction in `store/` |
//! | `disk.rs`, `single.rs` | what the logs of a store share; one log and its append path |
//! | `log_dir.rs`, `segments.rs`, `positions.rs` | where a log is, its segments, how far it has come |
//! | `writer.rs`, `space.rs`, `tickets.rs` | writes into the newest segment, preallocation, tickets that are not complete |
//! | `creation.rs`, `new_log.rs` | logs that do not exist yet, and the appends that wait for their files |
//! | `log_start.rs`, `upkeep.rs` | where a log starts, what maintenance remembers of it |
//! | `notes.rs`, `notes/` | sidecar notes of a log |
//! | `read.rs`, `read/`, `cursors.rs`, `scan.rs`, `index.rs` | reading a log, where readers continue, a segment front to back, the sparse index |
//! | `truncate.rs`, `removal.rs` | removing entries from either end, and segments |
//! | `recover.rs`, `redo.rs`, `checkpoint.rs` | opening after a crash |
//! | `image.rs` | what the files contain at one moment, for a backup |
//! | `verify.rs`, `overlay.rs`, `repair.rs` | offline check, its view of the files, and offline repair |
//! | `compact.rs`, `cleaning.rs`, `keys.rs`, `filter.rs` | compaction by key, and its state |
//! | `replacement.rs` | the replacement of segments by a compacted one, in the files |
//! | `tail.rs` | the newest entries, in memory |
//! | `group.rs`, `commit.rs`, `report.rs` | what the committer is given, group commit, what it reports |
//! | `queue.rs`, `backlog.rs` | the channel between a shard and its committer; the order of the committer's work |
//! | `deferred.rs`, `batch.rs`, `directories.rs` | work that no acknowledgement waits for, slow work for a second thread, slow calls |
//! | `next_file.rs`, `roller.rs` | the file of a log's next segment, created in advance; how a log gets it |
//! | `refused_names.rs` | the work of logs whose next segment has no name for lack of space |
//! | `journal.rs` | small writes of many logs in one sync |
//! | `files.rs`, `name.rs`, `settings.rs`, `failure.rs` | open files, file names, settings, why a write fails |
//! | `fs.rs`, `mapped.rs` | the file system interface, and mapped writes |
//! | `fault.rs` | the fault injector |

mod backlog;
mod batch;
mod checkpoint;
mod cleaning;
mod commit;
mod compact;
mod creation;
mod cursors;
mod deferred;
mod directories;
mod disk;
mod failure;
pub mod fault;
mod files;
mod filter;
mod fs;
mod group;
mod image;
mod index;
mod journal;
mod keys;
mod log_dir;
mod log_start;
mod mapped;
mod name;
mod new_log;
mod next_file;
mod notes;
mod overlay;
mod positions;
mod queue;
mod read;
mod recover;
mod redo;
mod refused_names;
mod removal;
mod repair;
mod replacement;
mod report;
mod roller;
mod scan;
mod segments;
mod settings;
mod single;
mod space;
mod store;
mod tail;
mod tickets;
mod truncate;
mod upkeep;
mod verify;
mod writer;

pub use fs::{File, Fs, Mode, RealFs};
pub use read::FileRange;
pub use repair::repair;
pub use settings::{Committer, Decompress, OnCommitted, Settings};
pub use store::SegmentStore;
pub use verify::{Finding, FindingKind, Report, Severity, verify};
