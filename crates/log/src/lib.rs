//! The storage interface: named, append-only logs of record batches with asynchronous durability.
//!
//! A [`Store`] holds all logs of one shard behind a single committer. Entries are records in Kafka's record batches
//! (format version 2), byte for byte as a producer sent them or as [`BatchBuilder`] built them. Each record has an
//! offset. An append returns a [`Ticket`] immediately. The [`Completion`] that carries the ticket reports that the
//! append is as durable as the log's options require. Do not acknowledge anything to a client before that.
//!
//! # What this crate must never know
//! Files, threads, clocks. The contents of a record.
//!
//! # Entry points
//! [`Store`], [`BatchBuilder`], [`Batch`], and [`MemoryStore`], the store for tests and for brokers without
//! persistence. [`Stores`] are the stores of a shard, which its servers use in turn.
//! [`contract`] is the test suite that every store passes.
//!
//! # Invariants
//! - Offsets of a log are assigned without gaps, and a committed offset is never reused.
//! - Completions of one log arrive in ticket order.
//! - A batch whose append completed without error reads back unchanged until it is truncated, expired or compacted.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `store.rs` | the traits and their types |
//! | `stores.rs` | the stores of a shard, used by several servers |
//! | `batch.rs`, `headers.rs`, `varint.rs` | the format of batches and record headers |
//! | `record_scan.rs` | a scan of records for a check of their layout |
//! | `build.rs` | building batches |
//! | `memory.rs` | the store in memory |
//! | `contract.rs` | the test suite for stores |

mod batch;
mod build;
pub mod contract;
mod headers;
mod memory;
mod record_scan;
mod store;
mod stores;
pub mod varint;

pub use batch::{
    Batch, BatchHeader, Compression, HEADER_BYTES, INTERNAL_ATTRIBUTES, Malformed, Record, Records,
    ValidBatch, batches,
};
pub use build::{BatchBuilder, BatchKind, Origin, rebuild, repack};
pub use headers::{Header, Headers, put_headers};
pub use memory::MemoryStore;
pub use record_scan::{RecordFacts, RecordScan};
pub use store::{
    Appended, Cleanup, Completion, Durability, Error, FileSlice, ImageFile, LogAdmin, LogId, LogReader,
    LogWriter, Maintained, Options, State, Status, Store, StoreImage, Ticket, TimestampOffset,
};
pub use stores::{LogOwner, StoreAt, Stores};
