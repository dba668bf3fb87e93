//! The Kafka server: connections, request handlers, coordinators. It also drives the shard's work queues, which are
//! topics: those of [`mainstem_queue_server`].
//!
//! Topics and partitions are those of [`mainstem_partition`]. A client may connect to any shard: the shard that owns
//! the partition appends and reads, and shards exchange messages. Shard 0 is the controller: it owns the topic
//! catalogue, the consumer groups, the transactions and the producer ids.
//!
//! # What this crate must never know
//! MQTT, files, threads. It writes to [`mainstem_log::Store`], wherever that keeps its data.
//!
//! # Entry points
//! [`Shard`] is the server on one shard, a [`mainstem_runtime::Service`]. All shards of a broker have one [`Shared`].
//!
//! # Invariants
//! - Nothing is acknowledged before it is as durable as its topic requires, and no consumer reads it before that.
//! - Responses leave a connection in the order of its requests. Produce requests are pipelined; any other request
//!   begins when all requests before it are answered.
//! - Everything that a client can make grow has a bound: frames, queued requests, responses, fetch sessions.
//!
//! # Layers
//! A subsystem (`storage.rs`, `bindings.rs`, `controller.rs`, `conn.rs`, `jobs.rs`, …) is a type with private fields
//! that does not know [`Shard`]: it returns effects and outcomes as data. What it needs of the broker around it, it is
//! given as an `Environment`. [`Shard`] holds the subsystems, and the files that implement it carry out the effects. A
//! request that waits is a value of `pending.rs`, and `resume.rs` continues it. No file imports one of a higher layer:
//!
//! ```text
//! service, handlers, resume          events in, requests, continuations
//! coordinators, topic_admin, queues… impl Shard: carry out effects
//! shard                              the state
//! bindings, controller, jobs, …      subsystems
//! storage                            the subsystem that others read and write
//! environment                        what the shard shares with others
//! pending, messages, catalogue       data
//! ```
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `config.rs` | settings of the server |
//! | `shared.rs` | state that all shards share |
//! | `service.rs` | the entry of all events: connections, frames, the turn |
//! | `shard.rs` | the state of a shard, and responses to its connections |
//! | `environment.rs` | what a shard knows of the broker around it: shared state, topics, memory budget |
//! | `counters.rs`, `metrics.rs` | counters of a shard; their descriptions for monitoring |
//! | `shard_message.rs` | messages between shards |
//! | `conn.rs`, `conn/` | connections: the order of responses, log-ins, rules, quotas, bans, moving to the shard of the partitions |
//! | `answer.rs` | an encoded response, which may be in pieces |
//! | `log_in.rs` | the log-in of a connection by SASL, as data |
//! | `security.rs`, `security_changes.rs` | users and rules of the host, its answers, and changes of them |
//! | `sender.rs`, `grants.rs` | who sends a request; what they may do |
//! | `acl.rs` | rules as Kafka's ACLs |
//! | `conn_quotas.rs` | quotas of a connection, and what they say about its requests |
//! | `memory_use.rs`, `request_memory.rs` | what is charged to the memory budget; room for requests that have not arrived completely |
//! | `handlers.rs`, `handlers/` | dispatch, and one file per API |
//! | `long_request.rs`, `frame_decoding.rs` | long requests, which are decoded in steps: as data, and carried out |
//! | `jobs.rs`, `produce_job.rs`, `fetch_job.rs` | requests that wait for partitions |
//! | `fetch_session.rs` | fetch sessions (KIP-227) |
//! | `division.rs` | requests over thousands of topics or groups, which are handled in parts |
//! | `metadata_division.rs`, `offset_fetch_division.rs`, `items_left.rs`, `topics_left.rs` | the same for Metadata, for OffsetFetch, for requests over named items, over partitions of topics |
//! | `joined_response.rs` | the responses to the parts of a request, joined |
//! | `pending_work.rs`, `work_slices.rs` | work of requests that takes several turns: as data, and continued |
//! | `pending.rs`, `resume.rs` | what continues when an answer arrives: as data, and carried out |
//! | `timer.rs` | what the timers of a shard stand for |
//! | `catalogue.rs` | the topics, with the configuration of this server |
//! | `topic_config.rs`, `topic_config/` | configuration keys of topics |
//! | `broker_config.rs`, `config_entries.rs` | configurations as clients see them |
//! | `partition_message.rs` | requests to the shard that owns a partition, and responses |
//! | `partition_requests.rs` | sending and serving those requests |
//! | `storage.rs`, `storage/` | the partitions of a shard and their stores: appends, reads, queries, background work |
//! | `leader_epoch.rs` | the only leader epoch |
//! | `append_error.rs` | errors of partitions as Kafka error codes |
//! | `txn_verification.rs`, `unverified_batches.rs` | batches held until the coordinator verifies their transaction |
//! | `markers.rs` | transaction markers |
//! | `topic_change.rs`, `topic_audit.rs` | changes of topics, as data; those in the audit log |
//! | `audit_topic.rs`, `audit_appends.rs` | the events of the audit log on their way into the audit topic |
//! | `controller.rs` | the catalogue's owner on shard 0: its log and the changes in progress |
//! | `topic_validation.rs` | which changes of topics are valid |
//! | `topic_admin.rs` | carries out the effects of changes of topics |
//! | `group_config.rs` | configurations of consumer groups |
//! | `groups.rs`, `transactions.rs` | the coordinators on shard 0, their logs and callers |
//! | `coordinators.rs` | requests to the coordinators, and their effects |
//! | `bindings.rs` | the topics that other protocols write to and read, on one shard |
//! | `sinks.rs`, `sources.rs` | records from other protocols, in batches; records for them, and their readers |
//! | `bound_topics.rs` | carries out what these want |
//! | `decompression.rs` | a batch of them is decompressed in steps |
//! | `binding_registry.rs` | which topics other protocols use |
//! | `queues.rs` | drives the host of work queues |
//! | `queue_admin.rs` | creating, configuring and deleting queues, as topics |
//! | `queue_rights.rs` | rights on queues that requests for topics need |
//! | `queue_settings.rs`, `dead_letters.rs` | settings of queues as those of topics; valid dead-letter queues |
//! | `visible_topics.rs` | the catalogue as the groups see it in a request |
//! | `log_throttle.rs` | limits log lines about client errors |

mod acl;
mod answer;
mod append_error;
mod audit_appends;
mod audit_topic;
mod binding_registry;
mod bindings;
mod bound_topics;
mod broker_config;
mod catalogue;
mod config;
mod config_entries;
mod conn;
mod conn_quotas;
mod controller;
mod coordinators;
mod counters;
mod dead_letters;
mod decompression;
mod division;
mod environment;
mod fetch_job;
mod fetch_session;
mod frame_decoding;
mod grants;
mod group_config;
mod groups;
mod handlers;
mod items_left;
mod jobs;
mod joined_response;
mod leader_epoch;
mod log_in;
mod log_throttle;
mod long_request;
mod markers;
mod memory_use;
mod metadata_division;
pub mod metrics;
mod offset_fetch_division;
mod partition_message;
mod partition_requests;
mod pending;
mod pending_work;
mod produce_job;
mod queue_admin;
mod queue_rights;
mod queue_settings;
mod queues;
mod request_memory;
mod resume;
mod security;
mod security_changes;
mod sender;
mod service;
mod shard;
mod shard_message;
mod shared;
mod sinks;
mod sources;
mod storage;
mod timer;
mod topic_admin;
mod topic_audit;
mod topic_change;
mod topic_config;
mod topic_validation;
mod topics_left;
mod transactions;
mod txn_verification;
mod unverified_batches;
mod visible_topics;
mod work_slices;

pub use binding_registry::{BoundTopic, Source};
pub use bindings::Bindings;
pub use bound_topics::check_topic;
pub use config::{Config, ListenerSettings};
pub use handlers::{SERVED, ServedApi};
pub use mainstem_log::{Header, put_headers};
pub use security::Security;
pub use shard::Shard;
pub use shard_message::Mail;
pub use shared::{Sendable, Shared};
pub use sinks::{SinkRecord, SinkResult};
pub use sources::SourceRecord;
pub use topic_config::topic_config_keys;
