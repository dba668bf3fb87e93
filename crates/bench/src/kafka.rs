//! Load generator for Kafka brokers: sends one pre-encoded batch repeatedly and parses responses minimally.
//!
//! A client library would dominate the measurement: with 100-byte records it costs several times as much CPU as a
//! broker. The generator therefore sends the same bytes in every request, one batch each, and reads only error codes,
//! offsets and lengths of responses. Results are still verified: after a run the topic must hold as many records as
//! were acknowledged, and fetched batches must have contiguous offsets.
//!
//! One thread runs everything in one epoll loop. It depends only on the wire protocol and works against any single
//! Kafka broker.
//!
//! | file | holds |
//! |---|---|
//! | `options` | options of a run |
//! | `wire` | requests and responses |
//! | `batch` | the produced batch; iterating over fetched batches |
//! | `control` | blocking requests: topics, offsets |
//! | `event_loop` | the epoll loop |
//! | `produce`, `fetch` | the two load types |
//! | `run`, `report` | running a benchmark, and its results |

mod batch;
mod control;
mod event_loop;
mod fetch;
mod options;
mod produce;
mod report;
mod run;
mod wire;

pub use options::{Acks, KafkaOptions, Shape, Work};
pub use report::{FetchReport, KafkaCost, KafkaReport, ProduceReport};
pub use run::run_kafka;
