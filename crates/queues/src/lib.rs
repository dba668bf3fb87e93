//! Work queues of one program: in a directory of its own, without a broker.
//!
//! The same queues that the broker serves, with the same rules and the same files: what was put in and confirmed survives
//! the process and, unless a queue is set otherwise, loss of power; what was acknowledged never comes back.
//!
//! ```
//! use std::time::Duration;
//! use mainstem_queues::{Queues, Settings};
//!
//! # let directory = std::env::temp_dir().join(format!("mainstem-queues-doc-{}", std::process::id()));
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
//! A queue that is set to [`Durability::Os`] is appended to through a mapping of its newest files, without a system call, on ext4, XFS
//! and tmpfs. A disk that fails under a mapping, or somebody else who cuts off these files, ends the program by SIGBUS instead of
//! an [`Error`]. Queues of the default durability are not mapped. A thread of all queues of the program prepares what is mapped next.
//!
//! # What this crate must never know
//! Sockets and protocols.
//!
//! # Entry points
//! [`Queues::open`], [`Queues::queue`], [`Queue::enqueue`], [`Message`], [`Queue::receive`], [`Delivery`].
//!
//! # Invariants
//! - A call that puts something in or settles something returns when that is as durable as the queue is set to;
//!   [`Queue::post`] and [`Queue::flush`] take the two apart.
//! - A delivery that is dropped without a verdict goes back.
//! - A delivery is counted before anybody has it, so that a message that ends its process becomes a dead letter in the end.
//!
//! # Files
//! `queue`, `message` and `delivery` are what programs hold · `operate` what operators do · `settings` what a queue is set
//! to · `common` all queues behind one lock, and the thread that does what is due by itself · `inner` the store and its
//! queues · `depart` messages that go to another queue · `sent` what becomes of what was put in · `signal` what threads wait
//! for · `time` · `error`.

mod common;
mod delivery;
mod depart;
mod error;
mod inner;
mod message;
mod operate;
mod queue;
mod sent;
mod settings;
mod signal;
#[cfg(test)]
mod tests;
mod time;

pub use common::Queues;
pub use delivery::Delivery;
pub use error::Error;
pub use mainstem_log::{Durability, Header, Headers, put_headers};
pub use mainstem_queue::{Config, Fault, GroupInfo, Info, Overflow, Receipt, Refusal, ReplayFrom, Start};
pub use message::Message;
pub use operate::Peeked;
pub use queue::Queue;
pub use settings::Settings;
