//! The work queues of a broker: a host of the queues of one shard, and a client for threads that are no shards.
//!
//! A queue is a topic of one partition with an [`Engine`](mainstem_queue_core::Engine) on the shard that owns the
//! partition. [`QueueHost`] has the engines of one shard. Requests of all protocols are routed to the shard that owns
//! the queue. A queue in which something has happened is ready; each turn polls the ready queues, and appends their
//! events before the turn's commit. So all queues of a shard share one commit with its partitions.
//!
//! The host is a machine without IO. Its owner lends it the stores, the partitions and the catalogue with each call, as
//! [`Context`], and carries out the [`Effect`]s that it returns.
//!
//! # What this crate must never know
//! Protocols and their error codes, connections, how a topic is created, threads other than those of a
//! [`QueueClient`], clocks. Time and randomness are parameters.
//!
//! # Entry points
//! [`QueueHost`] for the server of a shard; [`QueueClient`] for other threads.
//!
//! # Invariants
//! - A requester gets one reply, after the state that the reply tells of is durable.
//! - Nothing is appended to the partition of a queue before the queue is open and offsets that its log has lost are
//!   filled: the host admits appends, as the manager of the partition.
//! - Engines are polled only while they have something to do.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `host.rs` | [`QueueHost`]: opening, the turn, completions, timers, removal; in `host/`, routing of requests and replies, effects of engines, which queues have something to do |
//! | `effect.rs` | what the owner of a host carries out |
//! | `context.rs` | what the owner lends, and what it knows of a topic |
//! | `message.rs` | requests and replies as shards exchange them |
//! | `client.rs`, `command_queue.rs` | requests of threads that are no shards |

mod client;
mod command_queue;
mod context;
mod effect;
mod host;
mod message;

pub use client::{QueueClient, QueueDirectory};
pub use command_queue::{CommandQueues, ReplyFn, Wake};
pub use context::{Context, QueueTopicConfig};
pub use effect::{AppendTicket, Effect};
pub use host::{QueueHost, topic_of_state};
pub use message::{QueueOperation, QueueRequest, ReplyTo, Requester};
