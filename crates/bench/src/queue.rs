//! The generator for work queues: messages put into a queue and acknowledged, and taken out of it and acknowledged.
//!
//! Servers of work queues speak different protocols, and client libraries differ more than the servers. So there is
//! one generator, and of each protocol just what it takes: the loop, the load, the clock and the counting are the
//! same for all. Nothing is taken on trust: each payload says which message it is, and at the end the server is asked
//! how many messages it still has.
//!
//! One thread does everything, in one epoll loop. It knows nothing of the servers but their protocols.
//!
//! | file | holds |
//! |---|---|
//! | `options` | what the caller may ask for |
//! | `talk` | what a protocol has to be able to do |
//! | `mqtt`, `nats`, `amqp` | the protocols |
//! | `amqp_frames` | frames of AMQP 0-9-1 to and from bytes |
//! | `dialogue`, `http` | one question at a time; the API that MQTT has no packets for |
//! | `links` | the epoll loop |
//! | `load` | who sends what when, and what came |
//! | `run`, `report` | from options to a report |

mod amqp;
mod amqp_frames;
mod dialogue;
mod http;
mod links;
mod load;
mod mqtt;
mod nats;
mod options;
mod report;
mod run;
mod talk;
#[cfg(test)]
mod tests;

pub use options::{QueueDurability, QueueOptions, QueueProtocol, QueueType, QueueWork};
pub use report::{ConsumeReport, EnqueueReport, QueueReport};
pub use run::run_queue;
