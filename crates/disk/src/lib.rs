//! The segment log: the store that keeps its logs in files.
//!
//! [`SegmentStore`] is the [`Store`](mainstem_log::Store) of a broker that has a disk. A log is a directory of
//! segments, files of record batches one behind the other, in the very bytes in which they came; every byte of
//! them is described in `docs/formats`.
//!
//! # What this crate must never know
//! Who appends, and what is in a record beyond its key and its time. Protocols, sockets, clocks.
//!
//! # Entry points
//! [`SegmentStore::open`], with [`Settings`] and a [`Committer`]. [`Fs`] and [`File`] are all it asks of a file
//! system; [`RealFs`] is that of the machine, and [`fault::FaultFs`] one that fails as it is told.
//!
//! # Invariants
//! - Nothing is reported durable before the disk has said so. A sync that failed is not tried again: its log is
//!   read only from then on.
//! - A segment is written from front to back, into zeros. What is behind the end of a log is zeros, or cut off
//!   before the log is written to again.
//! - With a committer inline, the same calls make the same calls of the file system, in the same order.
//!
//! # Memory
//! A log takes about 1 KiB while nobody uses it. What it has in memory of its entries is bounded for each log and
//! in total ([`Settings::tail_bytes`], [`Settings::cache_bytes`]); beside that 4 MiB of a turn's appends to one
//! log at most. An index takes up to 48 KiB ([`Settings::indexes`]).
//!
//! # Files
//! `store` all logs of a shard · `single` one log, and the way of an append, with `space` ·
//! `notes` beside a log · `read` · `truncate` · `recover` · `store::tend` what is due by itself ·
//! `compact` key compaction, with `keys` and `filter` · `tail` newest entries in memory · `index` ·
//! `scan` walking through a segment · `commit` making groups durable · `queue` between the shard and that · `journal` many small writes in one · `checkpoint` · `files`
//! open files · `name` · `settings` · `fs` the seam to the file system, and the real one behind it, with `mapped` ·
//! `fault` the faulty one.

mod checkpoint;
mod commit;
mod compact;
pub mod fault;
mod files;
mod filter;
mod fs;
mod index;
mod journal;
mod keys;
mod mapped;
mod name;
mod notes;
mod queue;
mod read;
mod recover;
mod scan;
mod settings;
mod single;
mod space;
mod store;
mod tail;
mod truncate;

pub use fs::{File, Fs, Mode, RealFs};
pub use read::FileRange;
pub use settings::{Committer, Decompress, Settings};
pub use store::SegmentStore;
