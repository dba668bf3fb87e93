//! Topics and their partitions on the log, and the Kafka door on them.
//!
//! # What this crate must never know
//! MQTT, files, threads.
