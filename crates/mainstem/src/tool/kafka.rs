//! The Kafka tools: `mainstem topic`, `produce`, `consume`, `group`.
//!
//! | file | contents |
//! |---|---|
//! | `topics.rs`, `groups.rs` | `mainstem topic`; `mainstem group` |
//! | `produce.rs`, `accumulator.rs` | `mainstem produce`; record batches and partitioning |
//! | `consume.rs`, `reader.rs`, `output.rs` | `mainstem consume`; fetching; output of records |
//! | `member.rs`, `assignment.rs` | a member of a consumer group; range assignment of partitions |
//! | `cluster.rs`, `errors.rs` | brokers, leaders, offsets; error codes and retries |
//! | `connection.rs` | one connection: version negotiation, log-in, requests and responses |
//! | `log_in.rs` | mechanisms of SASL and their messages |

mod accumulator;
mod assignment;
mod cluster;
mod connection;
mod consume;
mod errors;
mod groups;
mod log_in;
mod member;
mod output;
mod produce;
mod reader;
mod topics;

pub(super) use consume::run as consume;
pub(super) use groups::run as group;
pub(super) use produce::run as produce;
pub(super) use topics::run as topic;
