//! The command-line tools against the real broker: both are the binary under test.

mod kafka;
mod mqtt;
mod support;
