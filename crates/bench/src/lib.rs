//! Load generators behind `mainstem bench`: MQTT (this level), Kafka (`kafka`) and work queues (`queue`).
//!
//! Reports count received messages, never sent ones. Every payload carries the time its message was due and a
//! sequence number, which exposes lost, duplicate, reordered and late messages. The load is either an open loop on
//! a fixed schedule ([`Load::Rate`]; latency counts from the schedule, so a stalled broker cannot hide its stall)
//! or a closed loop with a fixed number of messages in flight ([`Load::Window`]).
//!
//! The generator must use much less CPU than the broker, because both share a machine. Each thread runs one epoll
//! loop with one large read buffer, parses frames in place, writes once per connection and turn, allocates nothing
//! per message, and has one timer instead of one per message.
//!
//! This crate depends only on wire protocols, never on broker code. It works against any MQTT or Kafka broker, and
//! against queue servers that speak MQTT, AMQP or NATS.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `options.rs`, `error.rs` | options of a run, errors |
//! | `plan.rs` | which connection publishes and receives which topics |
//! | `schedule.rs` | when each message of an open-loop run is due |
//! | `flow.rs` | in-flight limits of a closed-loop run; packet identifiers |
//! | `sequence.rs` | sequence tracking: lost, duplicate, out of order |
//! | `wire.rs` | payload stamps, prepared publishes, fast parsing |
//! | `sockets.rs`, `transport.rs` | sockets; plain or with TLS |
//! | `net.rs`, `timer.rs` | the epoll loop, its timeouts |
//! | `handshake.rs` | CONNECT to SUBACK |
//! | `publisher.rs`, `traffic.rs`, `tally.rs` | publishers, receivers and their counters |
//! | `worker.rs`, `coordinator.rs`, `run.rs` | one thread, the phases of all threads, their setup |
//! | `stored.rs` | storing and fetching retained messages and messages of offline sessions |
//! | `process.rs`, `monitor.rs`, `report.rs` | /proc, the observed processes, the results |
//! | `kafka.rs` | the generator for Kafka brokers, in `kafka/` |
//! | `queue.rs` | the generator for work queues, in `queue/` |

mod coordinator;
mod error;
mod flow;
mod handshake;
mod kafka;
mod monitor;
mod net;
mod options;
mod plan;
mod process;
mod publisher;
mod queue;
mod report;
mod run;
mod schedule;
mod sequence;
mod sockets;
mod stored;
mod tally;
mod timer;
mod traffic;
mod transport;
mod wire;
mod worker;

pub use coordinator::Progress;
pub use error::BenchError;
pub use kafka::{
    Acks, FetchReport, KafkaCost, KafkaOptions, KafkaReport, ProduceReport, Shape, Work, run_kafka,
};
pub use options::{Load, Options, Part, Scenario, WindowScope};
pub use queue::{
    ConsumeReport, EnqueueReport, QueueDurability, QueueOptions, QueueProtocol, QueueReport, QueueType,
    QueueWork, run_queue,
};
pub use report::{BrokerCost, IdleReport, Latency, Report, StoredReport, TrafficReport};
pub use run::run;
