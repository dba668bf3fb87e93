//! Shards, sockets, mailboxes and timers: the event loop below every listener.
//!
//! A *shard* is one thread, pinned to one core, that owns its connections, their output, its timers and the state of
//! its [`Service`]. Shards share nothing but mailboxes. This crate moves bytes; the service interprets them.
//!
//! # What this crate must never know
//! Any protocol. It sees bytes in, bytes out, and packet lengths reported by a service.
//!
//! # Entry points
//! - [`start()`] runs one [`Service`] per shard on the `mio` driver and hands back a [`Handle`].
//! - [`Service`] is the interface that a protocol implements; [`Io`] is everything that a service may do. A service
//!   never sees a socket, so the same code runs under a simulated driver: see [`Io::detached`].
//!
//! # Invariants
//! - A turn of the loop flushes each connection at most once, after all input that the turn has read was handled.
//! - Each ready connection is read once per turn; further input waits for the next turn.
//! - No socket is written while input is handled; [`Output`] only grows.
//! - A turn is short: work is charged in units, and what exceeds a turn's budget waits for the next, in fair order.
//! - Mailboxes are bounded: [`Io::congested`] reports a full one to the sender, which then holds the input that would
//!   cause more messages. Messages are never dropped.
//! - After [`Io::close`] a service receives no more calls for that connection. After `closed` it must not use it.
//!
//! # Files
//! | file | content |
//! |---|---|
//! | `service.rs`, `io.rs` | calls to a service; actions of a service |
//! | `listener.rs`, `accept.rs` | the table of listeners; their sockets, and the choice of a shard |
//! | `unix.rs`, `proxy.rs` | Unix sockets; the header in which a proxy names its client |
//! | `admission.rs`, `rate.rs` | limits of the number of connections, and of new ones per second |
//! | `transport.rs` | plain connections, and layers such as TLS |
//! | `layer.rs`, `stacked.rs`, `frame.rs` | the interface of a layer; a layer above another one; output behind headers |
//! | `links.rs` | connection slots; its folder has a connection, its input, its output |
//! | `coalescing.rs`, `fan_outs.rs` | how long a busy shard waits for more input; when the output of fan-outs is flushed |
//! | `output.rs`, `file.rs` | pending bytes of a connection; file ranges among them |
//! | `memory.rs`, `trim.rs` | the memory budget of the process; free memory goes back to the system |
//! | `discard.rs` | large values are freed on a thread of their own |
//! | `shared.rs` | bytes that many outputs share |
//! | `mailbox.rs`, `timer.rs` | messages between shards; the timing wheel |
//! | `work.rs`, `turn_times.rs` | the work budget of a turn; histograms of how long turns take |
//! | `driver.rs` | the `mio` loop; its folder has new connections, handshakes, input, fair queues, flush, lingering, drain |
//! | `detached.rs` | a shard without sockets |
//! | `start.rs`, `pinning.rs` | threads, limits; whether threads are pinned to cores |

mod accept;
mod admission;
mod coalescing;
mod detached;
mod discard;
mod driver;
mod fan_outs;
mod file;
mod frame;
mod io;
mod layer;
mod links;
mod listener;
mod mailbox;
mod memory;
mod output;
mod pinning;
mod proxy;
mod rate;
mod service;
mod shared;
mod stacked;
mod start;
mod timer;
mod transport;
mod trim;
mod turn_times;
mod unix;
mod work;

pub use admission::{AddressGate, AddressPermit, Admission, AdmissionLimits, ListenerQuota, Permit, Refusal};
pub use detached::{Departure, Detached};
pub use file::FileBytes;
pub use frame::Frame;
pub use io::{Clock, Io, IoStats, TIMER_MARK};
pub use layer::{StreamState, TransportLayer};
pub use links::ConnId;
pub use listener::{BoundListener, ListenerAddress, ListenerConfig, ProtocolTag};
pub use memory::{MemoryBudget, MemoryCharge, MemoryMeter, MemoryOwner, MemoryPressure, ShardMemory};
pub use output::{Output, SHARED_MIN_BYTES};
pub use pinning::Pinning;
pub use proxy::{ProxiedClient, TrustedProxies};
pub use service::{Received, Service};
pub use shared::SharedBytes;
pub use start::{Handle, Options, SHARDS_MAX, Wake, raise_open_files_limit, shard_count, start};
pub use transport::{ListenerTransport, MakeLayer};
pub use trim::return_free_memory;
pub use turn_times::{TURN_BOUNDS_US, TurnHistogram, TurnPhase, TurnTimes};
pub use unix::UnixSocket;
pub use work::TURN_UNITS;
