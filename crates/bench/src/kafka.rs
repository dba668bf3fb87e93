//! The generator for Kafka brokers: batches encoded once and sent again and again, and answers hardly looked at.
//!
//! A client library would be what is measured: at records of 100 bytes it costs several times what a broker does.
//! So the same bytes are sent each time, one batch in a request, and of an answer only error, offsets and lengths
//! are read. Still nothing is taken on trust: after a run the topic must have as many records as were
//! acknowledged, and whatever is fetched must have offsets that follow each other.
//!
//! One thread does everything, in one epoll loop. It knows nothing of the broker but the wire protocol, and works
//! against any single Kafka broker.
//!
//! | file | holds |
//! |---|---|
//! | `options` | what the caller may ask for |
//! | `wire` | requests and answers |
//! | `batch` | the batch that is sent, and looking through those that come |
//! | `control` | one request at a time: topics, offsets |
//! | `links` | the epoll loop |
//! | `produce`, `fetch` | the two kinds of load |
//! | `run`, `report` | from options to a report |

mod batch;
mod control;
mod fetch;
mod links;
mod options;
mod produce;
mod report;
mod run;
mod wire;

pub use options::{Acks, KafkaOptions, Shape, Work};
pub use report::{FetchReport, KafkaCost, KafkaReport, ProduceReport};
pub use run::run_kafka;
