//! Embedded work queues: a program opens a directory and needs no broker.
//!
//! The queues follow the same rules as the broker's and use the same file formats. A confirmed message survives the
//! process and, with the default durability, a power failure. An acknowledged message never comes back.
//!
//! ```
//! use std::time::Duration;
//! use mainstem_queue::{Queues, Settings};
//!
//! # let directory = std::env::temp_dir().join(format!("mainstem-queue-doc-{}", std::process::id()));
//! let queues = Queues::open(&directory)?;
//! let jobs = queues.queue("jobs", Settings::default())?;
//! jobs.enqueue("resize 17.png")?;
//! for delivery in jobs.receive(10, Duration::from_secs(1))? {
//!     assert_eq!(delivery.value(), b"resize 17.png");
//!     delivery.ack()?;
//! }
//! # drop((jobs, queues));
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Page-cache durability
//! On ext4, XFS and tmpfs, appends to a queue with [`Durability::Os`] go through a memory mapping of its newest files,
//! without a system call. A disk failure under a mapping, or another process that truncates these files, ends the
//! program by SIGBUS instead of an [`Error`]. Queues with the default durability are not mapped. One thread per program
//! prepares the next mappings.
//!
//! # What this crate must never know
//! Sockets and protocols.
//!
//! # Entry points
//! [`Queues::open`], [`Queues::queue`], [`Queue::enqueue`], [`Message`], [`Queue::receive`], [`Delivery`].
//!
//! # Invariants
//! - An enqueue or a settlement returns when it is as durable as the queue is configured; [`Queue::post`] and
//!   [`Queue::flush`] separate the two steps.
//! - A delivery that is dropped without a disposition is released.
//! - A delivery is counted before the consumer gets it, so a message that crashes its consumers becomes a dead letter.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `queue.rs`, `message.rs`, `delivery.rs` | the handles of producers and consumers |
//! | `group_handle.rs` | one group of a queue: settlements |
//! | `operations.rs` | purge, redrive, replay, browse, removal of groups |
//! | `settings.rs` | settings of a queue and their bounds |
//! | `common.rs` | the lock around all queues, and the maintenance thread |
//! | `host.rs` | the store and its open queues |
//! | `pending_sends.rs` | appends that are not durable or not registered |
//! | `signal.rs` | a wakeup for threads |
//! | `time.rs`, `error.rs` | milliseconds; errors |

mod common;
mod delivery;
mod error;
mod group_handle;
mod host;
mod message;
mod operations;
mod pending_sends;
mod queue;
mod settings;
mod signal;
#[cfg(test)]
mod tests;
mod time;

pub use common::Queues;
pub use delivery::Delivery;
pub use error::Error;
pub use mainstem_log::{Durability, Header, Headers, put_headers};
pub use mainstem_queue_core::{
    Config, ConfigError, GroupInfo, Info, Overflow, Payload, PeekedMessage, QueueError, Receipt, Redriven,
    ReplayFrom, Start,
};
pub use message::Message;
pub use queue::Queue;
pub use settings::Settings;
