//! Quotas: how much users, client ids and addresses may use per second, in all protocols.
//!
//! # What this crate must never know
//! Protocols, connections, files, threads, clocks. Time is a parameter. [`Buckets`] has a lock, which is taken when a
//! client connects or quotas change, never for a message.
//!
//! # Entry points
//! - [`QuotaTable`]: the quotas by [`Entity`], with the precedence of Kafka (KIP-13, KIP-55, KIP-612).
//! - [`Buckets::resolve`]: the token buckets of a client, which it shares with others of its user or client id.
//! - [`Bucket::take`] and [`Bucket::try_take`]: what a message costs.
//!
//! # Invariants
//! - All shards together exceed a quota by at most a hundredth of a second's units per shard, and one request each.
//! - A client that reconnects finds its bucket as it left it.
//! - Memory is bounded, whatever client ids strangers choose.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `key.rs` | the kinds of quotas |
//! | `entity.rs` | what a quota is for |
//! | `table.rs` | quotas by entity, and which one applies |
//! | `bucket.rs` | a token bucket that shards share |
//! | `buckets.rs` | the buckets of all clients, and counters |
//! | `log_throttle.rs` | how often a log line about clients may be written |

mod bucket;
mod buckets;
mod entity;
mod key;
mod log_throttle;
mod table;

pub use bucket::Bucket;
pub use buckets::{BUCKET_BYTES_MAX, BUCKETS_MAX, BucketSettings, Buckets, ClientQuotas, Counts};
pub use entity::{ANONYMOUS, Entity, MAX_ENTITY_NAME_BYTES, Name};
pub use key::{ADDRESS_KEYS, CLIENT_KEYS, HTTP_KEYS, KAFKA_KEYS, MQTT_KEYS, QuotaKey};
pub use log_throttle::LogThrottle;
pub use table::{MAX_QUOTAS, QuotaTable, Quotas};
