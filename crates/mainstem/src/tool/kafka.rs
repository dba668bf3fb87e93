//! The tools that speak Kafka: `mainstem topic`, `produce`, `consume`, `group`.
//!
//! | file | holds |
//! |---|---|
//! | `topics`, `groups` | `mainstem topic`; `mainstem group` |
//! | `produce`, `batches` | `mainstem produce`; records gathered into batches, and the partition of a key |
//! | `consume`, `reader`, `output` | `mainstem consume`; where it reads and what; how records are printed |
//! | `member` | what a member of a consumer group says and hears |
//! | `cluster`, `errors` | brokers and who leads what; offsets; what is tried again, and why |
//! | `connection` | one connection: the newest version that both sides know, requests and answers one by one |
//! | `assignment` | what members of a group tell each other, and who gets which partitions |

mod assignment;
mod batches;
mod cluster;
mod connection;
mod consume;
mod errors;
mod groups;
mod member;
mod output;
mod produce;
mod reader;
mod topics;

pub(super) use consume::run as consume;
pub(super) use groups::run as group;
pub(super) use produce::run as produce;
pub(super) use topics::run as topic;
