//! The operations door: work queues and bindings over HTTP, health and readiness, and an OpenAPI description of it all.
//!
//! It runs on one thread of its own, called "control", beside the shards, and knows the broker by the trait
//! [`Broker`]: what it asks of a queue goes there as a [`mainstem_queue::Request`], and the reply comes back
//! from a shard's thread.
//!
//! # What this crate must never know
//! Logs, shards, other doors. Who may do what: it has no authentication, and listens on loopback unless told otherwise.
//!
//! # Entry points
//! [`Bound::bind`] takes the address, [`Bound::start`] serves it; [`Control`] ends that.
//!
//! # Invariants
//! - What a client can make grow has a bound: connections, request bodies of each and of all, answers, time.
//! - Messages that were taken for a client that has gone are released, unless the kernel has its answer already.
//! - Every answer that is no success is `application/problem+json`.
//!
//! # Files
//! `seam` the broker as this crate sees it · `serve` thread, connections, end · `wire` a connection's socket, and messages
//! that its client has yet to get · `app` what all requests share · `routes` all routes in one table · `queues`, `send`, `receive`, `settle`, `bindings`, `health`, `metrics` what
//! they do · `record` messages as JSON · `input` paths, queries and bodies, checked · `problem` refusals.

mod app;
mod bindings;
mod health;
mod input;
mod metrics;
mod problem;
mod queues;
mod receive;
mod record;
mod routes;
mod seam;
mod send;
mod serve;
mod settle;
mod wire;

pub use seam::{Broker, Reply};
pub use serve::{Bound, Control, Settings};
