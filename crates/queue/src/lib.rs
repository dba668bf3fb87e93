//! Durable work queues: competing consumers with leases, retries, delays, priorities, order by key and dead letters,
//! over a log of messages and a log of what has become of them.
//!
//! [`Queue`] is the machine: it is told of messages by their offsets, leases them to consumers, and takes verdicts. It
//! returns what must last as events, and is made again from them. [`Keeper`] ties it to the two logs of a
//! [`mainstem_log::Store`]: it reads messages, keeps events, writes snapshots and says how much may be forgotten.
//!
//! # What this crate must never know
//! Sockets, protocols, files, clocks. Time and randomness are parameters; how compressed batches are read is one too.
//!
//! # Entry points
//! [`Queue`], [`Keeper`], [`Config`]; [`Request`] and [`Reply`] are what doors say to whoever has the queue.
//!
//! # Invariants
//! - A message is leased to one consumer of a group at a time, and never again once it is settled.
//! - Of messages with one key, one is out in a group at a time, the oldest.
//! - A message that leaves for another queue is in one of the two, whenever the process ends.
//! - What is settled costs O(log n) of what is pending, and one small entry.
//!
//! # Files
//! `config` what a queue is set to · `meta` what its headers ask for · `ask` what doors say · `machine` the queue ·
//! `register` messages become known · `behind` groups that are far behind, and `outside` what none knows ·
//! `operate` what operators do with it · `restore` made again from events · `restate` written as a whole in parts · `group` what one group makes of messages ·
//! `join` what new groups are given · `lines` order by key · `expiry` when messages expire · `pool` what all groups know of messages · `shared` what the groups share · `dedup` what has been
//! seen · `lost` what is forgotten with messages that are lost · `recorder` and `event` what lasts · `runs` sets of offsets · `keeper` the machine and its logs ·
//! `moved` messages that go to another queue · `thin` what is freed slowly.

mod ask;
mod behind;
mod config;
mod dedup;
mod event;
mod expiry;
mod group;
mod join;
mod keeper;
mod lines;
mod lost;
mod machine;
mod meta;
mod moved;
mod operate;
mod outside;
mod pool;
mod recorder;
mod register;
mod restate;
mod restore;
mod runs;
mod shared;
mod thin;
mod unfinished;

pub use ask::{
    Answered, DEFAULT_GROUP, Delivery, GroupInfo, GroupName, Info, Message, NewMessage, Payload, Plain,
    Reason, Receipt, Refusal, ReplayFrom, Reply, Request, Settlement, Verdict,
};
pub use config::{Config, Fault, LEASE_MS_MAX, Overflow, Start};
pub use event::Malformed;
pub use keeper::{Decompress, Departure, Keeper, MOVER, Taking, Tuning};
pub use machine::{GroupId, Lease, Leaving, Queue};
pub use meta::{DEDUP_ID_BYTES_MAX, Meta, header};
pub use moved::{Moved, Origin, destination};
pub use restate::Walk;
