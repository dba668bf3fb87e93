//! Shards, sockets, mailboxes and timers: the loop under every door.
//!
//! A *shard* is one thread, pinned to one core, that owns everything it touches: connections, their output,
//! timers, and whatever its [`Service`] keeps. Shards share nothing but mailboxes. This crate knows how bytes
//! come and go; what they mean is the service's business.
//!
//! # What this crate must never know
//! Any protocol. It sees bytes in, bytes out, and lengths that a service asked for.
//!
//! # Entry points
//! - [`start()`] runs one [`Service`] per shard on the `mio` driver and hands back a [`Handle`].
//! - [`Service`] is what a door implements; [`Io`] is all it may do to the outside. A service never sees a
//!   socket, so the same code runs under a simulated driver: see [`Io::detached`].
//!
//! # Invariants
//! - A turn of the loop flushes each connection at most once, after all of the turn's input was handled.
//! - One read per ready connection and turn; whoever has more waits for the next turn.
//! - Nothing is written while input is being handled; [`Output`] only grows.
//! - A mailbox is bounded: when one is full the sending shard is told ([`Io::congested`]) and stops taking
//!   in what would fill it further. Mail is never dropped.
//! - After [`Io::close`] a service hears no more of that connection; after `closed` it must not use it.
//!
//! # Files
//! `service` the seam · `links` connection slots · `output` bytes on their way out · `file` ranges of files among
//! them · `mailbox` between shards · `timer` the wheel · `driver` the mio loop · `driver/leave` its end: flush, close,
//! hand over · `detached` a shard without sockets · `accept` listeners · `start` threads, limits, pinning.

mod accept;
mod detached;
mod driver;
mod file;
mod links;
mod mailbox;
mod output;
mod service;
mod start;
mod timer;

pub use detached::{Departure, Detached};
pub use file::FileBytes;
pub use links::ConnId;
pub use output::{Output, SHARED_MIN_BYTES};
pub use service::{Clock, Io, IoStats, Received, Service, TIMER_MARK};
pub use start::{Handle, Listen, Options, Wake, raise_open_files_limit, shard_count, start};
