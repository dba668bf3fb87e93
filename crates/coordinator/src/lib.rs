//! Kafka's coordinators as pure state machines: consumer groups, idempotent producers, transactions.
//!
//! # What this crate must never know
//! The wire format, sockets, clocks, logs. Time and randomness are parameters. State that must survive a restart is
//! returned as records, which the owner appends to a compacted log.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `group.rs` | consumer groups and their offsets |
//! | `producer.rs` | producer state of one partition |
//! | `transaction.rs` | transactional identifiers, their transactions, producer ids |
//! | `record.rs`, `bytes.rs` | keyed records, their encoding, and request identifiers |
//! | `error.rs` | Kafka's error codes that a coordinator returns |

mod bytes;
mod error;
pub mod group;
pub mod producer;
mod record;
pub mod transaction;

pub use bytes::Malformed;
pub use error::Error;
pub use record::{Caller, Record};
