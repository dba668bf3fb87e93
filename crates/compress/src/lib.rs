//! The four codecs of Kafka's record batches, behind one bound on what comes out.
//!
//! # What this crate must never know
//! What is in a record.
