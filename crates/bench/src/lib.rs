//! The load generators behind `mainstem bench`: the one for MQTT puts traffic on a broker and counts what arrives,
//! the one for Kafka is in `kafka`, the one for work queues of several kinds in `queue`.
//!
//! What is reported is what receivers got, never what was sent. Every payload carries the moment its message
//! was due and a sequence number, so that lost, repeated, reordered and late messages are all found. The load is
//! either a fixed schedule that does not wait for the broker ([`Load::Rate`]: latency counts from the schedule,
//! so a stalled broker cannot hide its stall), or a fixed number of messages in flight ([`Load::Window`]).
//!
//! The generator must cost well under the broker it measures, because both share a machine. So each thread is
//! one epoll loop with one large read buffer; frames are parsed where they lie; everything a connection has to
//! send leaves in one write per turn; nothing is allocated per message; and there is one timer per thread, not
//! one per message.
//!
//! This crate knows nothing of the broker but its wire protocols; it works against any MQTT or Kafka broker, and
//! against servers of work queues that speak MQTT, AMQP or NATS.
//!
//! | file | holds |
//! |---|---|
//! | `options` | what the caller may ask for |
//! | `plan` | who publishes what, who receives it |
//! | `schedule` | when each message of an open-loop run is due |
//! | `flow` | what may be in flight in a closed-loop run; packet identifiers |
//! | `account` | sequence tracking: lost, repeated, out of order |
//! | `wire` | payload stamps, prepared publishes, the fast path of parsing |
//! | `sockets`, `net`, `alarm` | connecting, the epoll loop, how long it waits |
//! | `opening` | CONNECT to SUBACK |
//! | `publisher`, `traffic`, `tally` | the two ends of the load, and what they count |
//! | `worker`, `coordinator`, `run` | one thread, the phases of all of them, and how they are set up |
//! | `stored` | retained messages, and those that wait for sessions: storing and fetching them |
//! | `process`, `monitor`, `report` | /proc, who is watched there, and what the caller gets |
//! | `kafka` and the files below it | the generator for Kafka brokers |
//! | `queue` and the files below it | the generator for work queues |

mod account;
mod alarm;
mod coordinator;
mod error;
mod flow;
mod kafka;
mod monitor;
mod net;
mod opening;
mod options;
mod plan;
mod process;
mod publisher;
mod queue;
mod report;
mod run;
mod schedule;
mod sockets;
mod stored;
mod tally;
mod traffic;
mod wire;
mod worker;

pub use coordinator::Progress;
pub use error::BenchError;
pub use kafka::{
    Acks, FetchReport, KafkaCost, KafkaOptions, KafkaReport, ProduceReport, Shape, Work, run_kafka,
};
pub use options::{Load, Options, Part, Scenario};
pub use queue::{
    ConsumeReport, EnqueueReport, QueueDurability, QueueOptions, QueueProtocol, QueueReport, QueueType,
    QueueWork, run_queue,
};
pub use report::{BrokerCost, IdleReport, Latency, Report, StoredReport, TrafficReport};
pub use run::run;
