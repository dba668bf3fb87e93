//! Routing, delivery, sessions and retained messages: what happens between the doors.
//!
//! A [`Shard`] is the MQTT door on one shard: a [`Service`](mainstem_runtime::Service) that takes bytes and
//! time and leaves bytes, timers and mail behind. It opens no socket, reads no clock and starts no thread, so
//! tests, fuzz targets and a simulator run exactly the code that serves clients.
//!
//! # What this crate must never know
//! Sockets, files, threads. Other doors' protocols. What a store of logs does with its bytes.
//!
//! # Entry points
//! [`Shared::new`] once per broker, [`Shard::restore`] once per shard and then [`settle_origins`], or
//! [`Shard::new`] for shards that keep nothing; [`MqttConfig`] for all.
//!
//! # Invariants
//! - A session lives on one shard for its whole life; a connection is handed to the shard of its session.
//! - A publish is matched once, where it arrives; every other shard with subscribers gets one mail.
//! - A subscription is visible to every shard before its SUBACK is written.
//! - Messages of one publisher to one topic reach each subscriber in order: mail and queues keep theirs.
//! - Whatever is dropped is counted in `publish_dropped` and logged once per client and spell.
//! - An acknowledgement leaves when what it promises has been committed, and in the order of what it answers.
//! - Nothing here grows beyond what [`MqttConfig`] allows.
//!
//! # Files
//! `shard` packets and turns · `connect` CONNECT · `lifecycle` lost connections, wills, the end of sessions ·
//! `publish` routing and fan-out · `acks` what clients acknowledge · `subscribe` subscriptions and retained
//! delivery · `offer`, `delivery`, `templates` from a message to bytes · `queue` what waits for a session ·
//! `session` per client state · `routes` filter → shards · `groups` shared subscriptions · `retained` ·
//! `registry` client identifier → session · `message` · `pressure` who waits for whom · `timers` · `sys` ·
//! `counters` · `shared` · `config` · `unfinished` what is remembered.
//!
//! Other doors: `outside` sinks and sources · `work` work queues.
//!
//! What outlives the process: `durable` commits and what waits for them · `answers` · `once` QoS 2 across
//! journals · `given` what sessions give to others · `journal` the log of a shard's sessions · `retained_log` · `snapshots` · `restore` the start.

mod acks;
mod answers;
pub mod config;
mod connect;
mod counters;
mod delivery;
mod durable;
mod given;
mod groups;
mod journal;
mod lifecycle;
mod message;
mod offer;
mod once;
mod outside;
mod pressure;
mod publish;
mod queue;
mod registry;
mod restore;
mod retained;
mod retained_log;
mod routes;
mod session;
mod shard;
mod shared;
mod snapshots;
mod subscribe;
mod sys;
mod templates;
mod timers;
mod unfinished;
mod work;

pub use config::{Durability, MqttConfig, QueueOverflow, Redirect};
pub use counters::Counters;
pub use outside::{Outcome, Outside, Sink, SinkTicket, Sunk, user_properties};
pub use restore::{Restored, StoreAt, settle_origins};
pub use shard::Shard;
pub use shared::{Mail, Shared};
pub use work::{Errand, Lease, Parcel, QueueGroup, Verdict, Wants, queue_of};
