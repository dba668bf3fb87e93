//! Topics and their partitions on the log, and the Kafka door on them.
//!
//! A topic's partition is a log of its home's store, in the very batches that producers sent. Whatever shard a
//! client is connected to, the shard that has the partition appends and reads; they talk by mail. The catalogue of
//! topics, consumer groups, transactions and producer ids have one coordinator, on shard 0.
//!
//! # What this crate must never know
//! MQTT, files, threads. It has stores, and no idea where they keep things.
//!
//! # Entry points
//! [`Shard`] is the Kafka door on one shard, a [`mainstem_runtime::Service`]; all shards of a broker have the same
//! [`Shared`].
//!
//! # Invariants
//! - Nothing is acknowledged before it is as durable as its topic asks for, and nothing is read before that.
//! - Responses of a connection leave in the order of its requests. A request other than Produce begins when
//!   those before it are answered; Produce requests follow one another without waiting.
//! - What a client can make grow has a bound: frames, requests that wait, answers, fetch sessions.
//!
//! # Files
//! `config` · `shared` what shards share · `catalogue` topics there are · `topic_config` and what they are set to ·
//! `conn` a connection and the order of its answers · `shard` the service · `mail` between shards · `work` what is
//! done where a partition lives · `jobs` what waits for it · `partition` a partition, `unmade` one without a log ·
//! `kept` keyed records that must last · `bound` topics that other doors use · `declared` what those have said · `tending` what goes on by itself · `producers` what a partition knows of its
//! producers · `held` batches that wait for the transaction coordinator · `faults` how often those of clients are
//! logged · `controller` what is coordinated on shard 0, `alike` topics' names that collide ·
//! `groups` consumer groups there · `transactions` transactions there · `markers` their ends, into partitions and
//! groups · `handlers` one file per API · `broker_config`, `config_entries` configurations as clients see them.

mod alike;
mod bound;
mod broker_config;
mod catalogue;
mod config;
mod config_entries;
mod conn;
mod controller;
mod declared;
mod faults;
mod follow;
mod groups;
mod handlers;
mod held;
mod jobs;
mod kept;
mod mail;
mod markers;
mod partition;
mod producers;
mod queues;
mod shard;
mod shared;
mod sink;
mod tail;
mod tending;
mod topic_config;
mod transactions;
mod unmade;
mod work;

pub use config::Config;
pub use mail::Mail;
pub use mainstem_log::{Header, put_headers};
pub use queues::desk::{Answer, Desk};
pub use shard::{Shard, StoreAt};
pub use shared::{Sendable, Shared};
pub use sink::{BoundTopic, Incoming, Sank, check_topic};
pub use tail::{Outgoing, Source};
