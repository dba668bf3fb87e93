//! Durable work queues: competing consumers with leases, retries, delays, priorities, order by key and dead letters.
//!
//! [`Queue`] is the state machine. It registers messages by their offsets, leases them to consumers, and settles each
//! delivery with a [`Disposition`]. Every durable change comes out of it as an event, and replaying the events rebuilds
//! it. [`DurableQueue`] connects the state machine to two logs of a [`mainstem_log::Store`]: it reads messages from one
//! log and writes events and snapshots to the other. It also reports which messages the store may delete.
//!
//! # What this crate must never know
//! Sockets, protocols, files, clocks. Time, randomness and decompression are parameters.
//!
//! # Entry points
//! [`Queue`], [`DurableQueue`] and [`Config`]. Protocols send a [`Request`] to the owner of a queue and get a
//! [`Reply`].
//!
//! # Invariants
//! - Within a group, one consumer at a time holds the lease of a message. A settled message is never leased
//!   again, unless an operator replays it.
//! - Within a group, at most one message of a key is available or leased at a time: the oldest.
//! - A message that moves to another queue is in at least one of the two queues, whenever the process ends.
//! - Settling a message costs O(log n) of the pending messages, and one small event.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `config.rs` | configuration of a queue |
//! | `dedup.rs` | deduplication identifiers that were seen |
//! | `deferred_drop.rs` | frees large collections in steps |
//! | `duplicates.rs` | which messages are dropped because they were seen before |
//! | `durable_queue.rs` | the state machine and its two logs |
//! | `engine.rs` | one queue as its host runs it: requests in, effects out |
//! | `event.rs` | encoding of events |
//! | `event_recorder.rs` | gathers events into batches |
//! | `expiry.rs` | when messages expire |
//! | `group.rs` | state of the messages in one group |
//! | `group_table.rs` | names and numbers of the groups; removed groups |
//! | `joining_group.rs` | messages that a new group has still to take over |
//! | `key_order.rs` | order of messages with the same key |
//! | `machine.rs`, `machine/` | [`Queue`]: groups, leases, settlements, maintenance, registration, operators' calls, snapshots |
//! | `messages.rs`, `message_entry.rs` | what all groups know of each message |
//! | `meta.rs` | headers that a queue interprets |
//! | `offset_ranges.rs` | sets of offsets |
//! | `outgoing_transfers.rs` | transfers of a group to other queues: numbers and progress |
//! | `registration.rs` | how far messages are registered |
//! | `request.rs` | requests and replies |
//! | `shared.rs` | what the groups of a queue share |
//! | `transferred.rs` | records of messages that move to another queue |
//! | `tuning.rs` | thresholds of background work |
//! | `unloaded.rs` | messages that are counted, but not in memory |

mod config;
mod dedup;
mod deferred_drop;
mod duplicates;
mod durable_queue;
mod engine;
mod event;
mod event_recorder;
mod expiry;
mod group;
mod group_table;
mod joining_group;
mod key_order;
mod machine;
mod message_entry;
mod messages;
mod meta;
mod offset_ranges;
mod outgoing_transfers;
mod registration;
mod request;
mod shared;
mod transferred;
mod tuning;
mod unloaded;

pub use config::{Config, ConfigError, LEASE_MS_MAX, Overflow, Start};
pub use durable_queue::{Decompress, DurableQueue, LeaseRequest, TRANSFERRED, Transfer};
pub use engine::{
    Context, Effect, Engine, EngineOptions, EngineSettings, MessageLog, PendingBatch, WhenCrowded,
};
pub use event::Malformed;
pub use machine::{GroupId, Lease, PendingTransfer, Queue, SnapshotCursor, check_group_name};
pub use meta::{DEDUP_ID_BYTES_MAX, Meta, SPAN_MS_MAX, TIME_MS_MAX, check_option, header};
pub use request::{
    DEFAULT_GROUP, Delivery, Disposition, GroupInfo, GroupName, Info, ItemResult, NewMessage, Payload,
    PeekedMessage, QueueError, Reason, Receipt, Redriven, ReplayFrom, Reply, Request, Settlement,
    UncompressedBatch,
};
pub use transferred::{Origin, TransferredMessage, transfer_batch};
pub use tuning::Tuning;
