//! The command-line tools against a real broker. Both are the binary under test.

mod backup;
mod bench_kafka;
mod binding;
mod config;
mod kafka;
mod mqtt;
mod queue;
mod quota;
mod reload;
mod security;
mod security_kafka;
mod security_mqtt;
mod support;
