//! The MQTT server: connections, sessions, routing, delivery, retained messages and their persistence.
//!
//! A [`Shard`] is the MQTT server of one shard, a [`Service`](mainstem_runtime::Service): it is called with bytes,
//! messages and time, and returns bytes, messages and timers. It opens no socket, reads no clock and starts no thread,
//! so tests, fuzz targets and the simulator run the code that serves clients.
//!
//! # What this crate must never know
//! Sockets, files, threads. Other protocols. How a store of logs stores bytes.
//!
//! # Entry points
//! [`Shared::new`] once per broker. [`Shard::restore`] once per shard and then [`settle_origins`], or [`Shard::new`]
//! for shards without persistence. [`MqttConfig`] for all.
//!
//! # Invariants
//! - A session lives on one shard for its whole life; a connection is handed to the shard of its session.
//! - A publish is matched once, where it arrives; each other shard with subscribers gets one message.
//! - A subscription is visible to every shard before its SUBACK is written.
//! - Messages of one publisher to one topic reach each subscriber in order.
//! - Every dropped message counts by its [reason](DropReason); the log has one line per client until its queue is empty
//!   again.
//! - An acknowledgement is sent when what it promises is durable, and in the order of the requests.
//! - A message is published, subscribed to and delivered only if the rules of its session allow it.
//! - Everything that clients can make grow is bounded by [`MqttConfig`].
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `shard/` | [`Shard`], which owns the machines below, and the handlers of connections, turns, timers and messages |
//! | `session_host/` | all sessions of a shard: their subscriptions, deliveries, acknowledgements and appends |
//! | `publisher.rs`, `publication.rs` | publishing; what accompanies a message while it is published |
//! | `handled.rs` | how a connection continues after a packet, or why it ends |
//! | `admission/` | which clients are accepted: CONNECT, log-ins, bans, rights, quotas |
//! | `access.rs` | users and rules as all shards share them, and what a session may do |
//! | `authentication.rs` | the exchange of an enhanced authentication |
//! | `flapping.rs` | clients that connect again and again |
//! | `connections.rs` | connections before and after CONNECT, keep alive, when publishers wait |
//! | `filter_list.rs` | a SUBSCRIBE or UNSUBSCRIBE that takes more than one turn |
//! | `session/` | sessions, their queues, and the way of a message from an offer to bytes |
//! | `router.rs` | subscribers of a shard by filter, and the fan-out to them |
//! | `fan_outs.rs` | fan-outs that take several turns: their order, and who waits for them |
//! | `persistence.rs`, `commits.rs` | journals and the retained log of a shard, one commit per turn, who waits for it |
//! | `ending.rs` | ended sessions whose end is not on disk yet |
//! | `queue_consumers/` | queue subscriptions: requests to queues, leased deliveries |
//! | `bridge.rs` | sinks and sources of other protocols |
//! | `sys.rs`, `timers.rs` | values under `$SYS`; timer tokens |
//! | `pending_acks.rs` | acks of a session that wait until what they promise is durable |
//! | `qos2_recovery.rs` | QoS 2 publishes of a session that have reached some of their targets |
//! | `reassigned.rs` | deliveries that a session has passed on to other members of a group |
//! | `retained_replay.rs` | retained messages on their way to new subscriptions of a session |
//! | `wills.rs` | the will of a session |
//! | `log_interval.rs` | how often a log line about clients may be written |
//! | `journal/`, `retained_log.rs` | logs of sessions, and of retained messages |
//! | `broker_state.rs` | what all shards share, and the messages between them |
//! | `routes.rs`, `groups.rs`, `pressure.rs` | the index of filters, shared subscriptions, whether receivers keep up |
//! | `registry.rs`, `retained.rs` | client identifiers, retained messages in memory |
//! | `counters.rs`, `metrics.rs` | counters of a shard; their descriptions for monitoring |
//! | `message.rs` | messages and their pool |
//! | `config.rs`, `config_value.rs` | settings; values with units and error messages |

mod access;
mod admission;
mod authentication;
mod bridge;
mod broker_state;
mod commits;
pub mod config;
pub mod config_value;
mod connections;
mod counters;
mod ending;
mod fan_outs;
mod filter_list;
mod flapping;
mod groups;
mod handled;
mod journal;
mod log_interval;
mod message;
pub mod metrics;
mod pending_acks;
mod persistence;
mod pressure;
mod publication;
mod publisher;
mod qos2_recovery;
mod queue_consumers;
mod reassigned;
mod registry;
mod retained;
mod retained_log;
mod retained_replay;
mod router;
mod routes;
mod session;
mod session_host;
mod shard;
mod sys;
mod timers;
mod wills;

pub use bridge::{BridgePublish, Sink, SinkMessage, SinkOutcome, SinkTicket, user_properties};
pub use broker_state::{Mail, Shared};
pub use config::{Durability, MqttConfig, QueueOverflow, QuotaPolicy, Redirect};
pub use counters::{Counters, DropReason};
pub use queue_consumers::{QueueDelivery, QueueGroup, QueueRequest, queue_of};
pub use session_host::Restored;
pub use shard::{Shard, settle_origins};
