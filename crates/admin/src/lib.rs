//! The HTTP API: work queues, bindings, health, metrics, and an OpenAPI description.
//!
//! The server runs on its own thread, named "http", beside the shards. It reaches the broker through the trait
//! [`Broker`]: a request to a queue is a [`mainstem_queue_core::Request`], and a shard's thread delivers the reply.
//!
//! # What this crate must never know
//! Logs, shards, other protocols. How users and rules are stored.
//!
//! # Entry points
//! [`Bound::bind`] binds an address, [`start`] serves all of them, and [`HttpServer`] stops the server.
//!
//! # Invariants
//! - Everything that a client can make grow is bounded: connections, the size of one body and of all bodies together,
//!   responses, waiting times.
//! - A connection without a request under way keeps no other client out.
//! - Messages leased to a client that disconnects are released, unless the response is already in the kernel's buffer.
//! - Every error response is `application/problem+json`.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `broker.rs` | [`Broker`], the trait through which this crate reaches the broker |
//! | `serve.rs` | thread, connections, shutdown |
//! | `listeners.rs` | addresses, and the streams of their connections: plain, or with TLS |
//! | `connections.rs` | open connections, and which of them makes room for a new one |
//! | `socket.rs` | a connection's socket; release of messages whose response was not sent |
//! | `gate.rs`, `head.rs` | rejection of malformed requests before hyper reads them |
//! | `hosts.rs` | names by which requests may address the server |
//! | `origins.rs` | web pages that may use the API |
//! | `access.rs` | who may use a route |
//! | `users.rs`, `rules.rs`, `quotas.rs`, `bans.rs`, `keys.rs` | handlers for users, rules, quotas, bans and API keys |
//! | `request_quota.rs` | the quota of HTTP requests |
//! | `app.rs` | state shared by all requests |
//! | `routes.rs` | the table of all routes |
//! | `watched_body.rs` | whether the body of a request was read |
//! | `queues.rs`, `send.rs`, `receive.rs`, `settle.rs` | handlers for queues and their messages |
//! | `bindings.rs`, `health.rs`, `metrics.rs` | handlers for bindings, health, Prometheus |
//! | `config.rs` | handlers for the log and for reloads of the configuration |
//! | `snapshots.rs` | handlers for snapshots of the data directory |
//! | `input.rs` | extractors for paths, queries and bodies |
//! | `consumers.rs` | ids of consumers, and the newest request of each with a name |
//! | `record.rs`, `receipt.rs` | messages as JSON, receipts as text |
//! | `response.rs`, `problem.rs` | JSON responses, error responses |
//! | `settings.rs`, `clock.rs` | limits; the time |

mod access;
mod app;
mod bans;
mod bindings;
mod broker;
mod clock;
mod config;
mod connections;
mod consumers;
mod gate;
mod head;
mod health;
mod hosts;
mod input;
mod keys;
mod listeners;
mod metrics;
mod origins;
mod problem;
mod queues;
mod quotas;
mod receipt;
mod receive;
mod record;
mod request_quota;
mod response;
mod routes;
mod rules;
mod send;
mod serve;
mod settings;
mod settle;
mod snapshots;
mod socket;
mod users;
mod watched_body;

pub use broker::{
    Broker, ConfigHost, ConnectionPermit, MemoryUsage, PhaseDurations, ReplyCallback, SnapshotHost,
    TurnDurations,
};
pub use listeners::{Bound, TlsSource};
pub use metrics::metrics;
pub use routes::OPENAPI;
pub use serve::{HttpServer, RESERVED_CONNECTIONS, start};
pub use settings::Settings;
