//! The coordinators of Kafka as pure machines: consumer groups, idempotent producers, transactions.
//!
//! # What this crate must never know
//! Bytes on the wire, sockets, clocks, logs. Time and randomness are parameters; what must last is returned as
//! records for somebody else to keep.
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `error` | Kafka's errors, by name |
//! | `group` | consumer groups and their offsets |
//! | `keep` | what a machine hands out to be kept: keyed records |
//! | `producer` | what one partition knows of its producers |
//! | `transaction` | transactional identifiers and their transactions; producer ids |

mod bytes;
mod error;
pub mod group;
mod keep;
pub mod producer;
pub mod transaction;

pub use bytes::Malformed;
pub use error::Error;
pub use keep::{Caller, Record};
