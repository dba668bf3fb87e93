//! The Kafka protocol's bytes: frames, requests and responses of every API in all its versions, record batches.
//!
//! # What this crate must never know
//! Sockets, time, topics that exist. Both directions of each message are coded alike, so tests speak through it too.
