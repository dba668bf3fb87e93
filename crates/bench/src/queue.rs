//! Load generator for work queues: enqueues messages with acknowledgements, consumes and acknowledges them.
//!
//! Queue servers speak different protocols, and client libraries differ in cost more than the servers do. This
//! generator therefore shares one event loop, load, clock and set of counters, and implements only the necessary
//! subset of each protocol. Results are verified: each payload identifies its message, and at the end the server is
//! asked for the queue depth.
//!
//! One thread runs everything in one epoll loop. It depends only on the wire protocols.
//!
//! | file | holds |
//! |---|---|
//! | `options` | options of a run |
//! | `protocol` | traits that each protocol implements |
//! | `mqtt`, `nats`, `amqp` | the protocols |
//! | `amqp_frames` | encoding of AMQP 0-9-1 frames |
//! | `blocking`, `http` | blocking connections; the queue management API |
//! | `event_loop` | the epoll loop |
//! | `load` | sending on schedule, counting acknowledgements and deliveries |
//! | `run`, `report` | running a benchmark, and its results |

mod amqp;
mod amqp_frames;
mod blocking;
mod event_loop;
mod http;
mod load;
mod mqtt;
mod nats;
mod options;
mod protocol;
mod report;
mod run;
#[cfg(test)]
mod tests;

pub use options::{QueueDurability, QueueOptions, QueueProtocol, QueueType, QueueWork};
pub use report::{ConsumeReport, EnqueueReport, QueueReport};
pub use run::run_queue;
