//! Topics and partitions on the log: catalogue, validation of batches, appends, producer state, watermarks.
//!
//! A partition is a log of a [`mainstem_log::Store`] that holds the batches as producers sent them. This crate decides
//! whether a batch may be appended, when its producer is answered, and how far consumers may read. Servers put a
//! protocol on top: they map [`PartitionError`]s to their error codes and carry requests between shards.
//!
//! # What this crate must never know
//! Request formats and error codes of a protocol, connections, shards beyond the number in a [`JobId`], work queues,
//! threads, clocks. Time is a parameter.
//!
//! # Entry points
//! - [`Catalogue`] is the set of topics; [`new_name_error`] and [`NameCollisions`] validate new names.
//! - [`Partitions`] holds the open partitions of a shard. [`Partitions::append`] takes an [`IncomingBatch`];
//!   [`Partitions::on_completion`] returns the results when the store has confirmed them.
//! - [`Partition::watermarks`] and [`Partition::aborted`] tell readers what is visible; [`AbortedFilter`] skips aborted
//!   batches.
//! - [`CompactedLog`] stores keyed records, for the catalogue and other state beside the partitions.
//!
//! # Invariants
//! - A waiter gets exactly one result, after its batch is as durable as the topic requires, or has failed.
//! - The high watermark covers durable records only; the last stable offset never exceeds it.
//! - Offsets are never reused for other durable records.
//! - A retry of a batch is recognized, also after a restart: a snapshot and the log after it give the same producer
//!   state as the whole log.
//! - The header of a batch is parsed once, and appending copies no records unless the topic rewrites them.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `admission.rs` | what the manager of a partition admits to it |
//! | `ids.rs` | identifiers of topics, partitions and pending requests |
//! | `catalogue.rs` | the topics |
//! | `chunked_map.rs` | a sorted map whose copy is cheap |
//! | `name_collisions.rs` | topic names that differ only in `.` and `_` |
//! | `config.rs` | the part of a topic's configuration that partitions enforce |
//! | `error.rs` | errors by cause |
//! | `incoming.rs` | validation and rewriting of incoming batches |
//! | `records.rs` | validation of the records in a batch, in steps |
//! | `preparation.rs` | work on the records of a batch before it is appended, in steps |
//! | `partition.rs` | one partition: appends in flight, watermarks |
//! | `partitions.rs` | the partitions of a shard, and events of managed ones |
//! | `producers.rs` | producer state across restarts |
//! | `snapshots.rs` | producer snapshots in the store |
//! | `marker.rs` | transaction markers as records |
//! | `aborted.rs` | the filter of `read_committed` readers |
//! | `compacted_log.rs` | keyed records in a compacted log |

mod aborted;
mod admission;
mod catalogue;
mod chunked_map;
mod compacted_log;
mod config;
mod error;
mod ids;
mod incoming;
mod marker;
mod name_collisions;
mod partition;
mod partitions;
mod preparation;
mod producers;
mod records;
mod snapshots;

pub use aborted::AbortedFilter;
pub use admission::Admission;
pub use catalogue::{Catalogue, RESERVED_NAMES, Topic, name_error, new_name_error};
pub use chunked_map::ChunkedMap;
pub use compacted_log::{CompactedLog, KeyValue, Outcome};
pub use config::{PartitionConfig, TimestampType};
pub use error::PartitionError;
pub use ids::{JobId, PartitionId, TopicId};
pub use incoming::{IncomingBatch, LOG_APPEND_TIME};
pub use mainstem_coordinator::producer::Outcome as TransactionOutcome;
pub use marker::MarkerRecord;
pub use name_collisions::{NameCollisions, collides, may_collide};
pub use partition::{
    Accepted, AppendInfo, AppendResult, Isolation, Partition, PartitionSpec, Waiter, Watermarks,
};
pub use partitions::{PartitionEvent, Partitions};
pub use preparation::{CHECK_NS_PER_KIB, Preparation, Prepared, Recompression, RecordsWork};
pub use producers::{IsLast, ProducerLimits};
pub use records::{DECOMPRESSED_BYTES_MAX, RecordSummary, RecordsCheck};
