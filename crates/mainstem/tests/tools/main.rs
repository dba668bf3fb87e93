//! The command-line tools against the real broker: both are the binary under test.

mod bench_kafka;
mod kafka;
mod mqtt;
mod support;
