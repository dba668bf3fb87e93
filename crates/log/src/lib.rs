//! The durable log as everything above it sees it: named logs of record batches, appended now and on disk later.
//!
//! A [`Store`] holds all logs of one shard behind one committer. Entries are records in Kafka's record batches
//! (format version 2), in the very bytes that a producer sent or [`BatchBuilder`] made; each record has an
//! offset. An append returns a [`Ticket`] at once; the [`Completion`] that names the ticket says that it is as
//! durable as its log asks for. Nothing that waits for durability may be answered before that.
//!
//! # What this crate must never know
//! Files, threads, clocks. What is in a record.
//!
//! # Entry points
//! [`Store`], [`BatchBuilder`], [`Batch`], and [`Memory`], the store of tests and of brokers that keep nothing.
//! [`Lender`] lets the doors of a shard share its store.
//! [`contract`] is the suite that every store passes.
//!
//! # Invariants
//! - Offsets of a log grow without gaps at its end, and are never given twice to what was committed.
//! - Completions of one log come in the order of its tickets.
//! - What was completed without error is read back as it was appended, until it is truncated, retired or
//!   compacted away.
//!
//! # Files
//! `store` the trait and its types · `batch` the format: header, reader · `build` making batches · `headers` of records · `varint` ·
//! `memory` · `lend` one store for several users · `contract`.

mod batch;
mod build;
pub mod contract;
mod headers;
mod lend;
mod memory;
mod store;
pub mod varint;

pub use batch::{Batch, BatchHeader, Compression, HEADER_BYTES, Malformed, Record, Records, Sound, batches};
pub use build::{BatchBuilder, BatchKind, Origin, rebuild, repack};
pub use headers::{Header, Headers, put_headers};
pub use lend::{Lender, Lent};
pub use memory::Memory;
pub use store::{
    Appended, Cleanup, Completion, Durability, Error, Found, LogId, Options, Piece, State, Status, Store,
    Ticket,
};
