//! The command-line tools against the real broker: both are the binary under test.

mod bench_kafka;
mod binding;
mod kafka;
mod mqtt;
mod queue;
mod support;
