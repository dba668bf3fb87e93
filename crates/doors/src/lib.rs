//! The doors of one shard as one service: they share its loop, its connections and its store.
//!
//! # What this crate must never know
//! What a door says to its clients.
