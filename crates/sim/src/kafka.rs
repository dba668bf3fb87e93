//! The Kafka scenario: producers with and without transactions, consumers, groups that commit offsets, administrators,
//! and MQTT publishers whose messages a binding takes to a topic.
//!
//! | what holds | where |
//! |---|---|
//! | an acknowledged record is stored, whatever happens after that | `Oracle::check_losses` |
//! | it is stored once: a batch that an idempotent producer repeats keeps its offset | `Oracle::observe_entry`, `Oracle::acked` |
//! | records of one producer keep their order in a partition | `Oracle::observe_entry` |
//! | the entry at an offset never changes, and there are no gaps | `Oracle::observe_entry`, `Consumer::read` |
//! | high watermark, last stable offset and log start never go back | `Oracle::observe_watermarks` |
//! | consumers of committed records receive whole transactions, and nothing of others | `Oracle::seen_committed`, `Oracle::seen_aborted` |
//! | of producers with one transactional id, all but the last are fenced | `Oracle::fence` |
//! | no two producers have one producer id | `Oracle::assigned_id` |
//! | committed offsets never go back, in transactions too | `Committer`, `GroupMember`, `ConsumerMember`, `Oracle::fetched_offset` |
//! | in one generation of a group, a partition is assigned to one member | `Oracle::assigned_partition` |
//! | in a group of the consumer protocol, a partition is owned by one member at a time | `Oracle::own` |
//! | a topic has the partitions and configuration of the last change, and a deleted one stays deleted | `Admin` |
//! | an acknowledged message is in its topic, at QoS 2 once unless a broker ended in between | `Oracle::check_messages` |
//!
//! Kafka promises neither of these, so they are not checked: that records deleted before a crash stay deleted while
//! others of the partition are there, and that a producer can continue after a disk fault.

mod admin;
mod client;
mod committer;
mod connection;
mod consumer;
mod consumer_member;
mod member;
mod oracle;
mod plan;
mod producer;
mod scenario;
mod topic_creator;
mod transactor;

pub(crate) use scenario::KafkaScenario;
