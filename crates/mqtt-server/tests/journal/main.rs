//! The journals of the broker: their format, and behavior with stores that are full or slow.
//!
//! | file | holds |
//! |---|---|
//! | `broker` | a broker without sockets on stores that outlive it, and its clients |
//! | `connect` | CONNACK of durable sessions |
//! | `coverage` | which kinds of entries a log has |
//! | `faults` | full stores, and an end of the process between two of them |
//! | `format` | logs of version 2, and of now |
//! | `order` | order of messages over several shards |
//! | `story` | what happened before the broker was killed |

mod broker;
mod connect;
mod coverage;
mod faults;
mod format;
mod order;
mod story;
