//! The simulator: whole brokers with their clients, network and disk, from one seed.
//!
//! A run starts a broker and lets clients use it under conditions that no test on a real machine produces: bytes
//! arrive late and in pieces, connections stall and break, the disk fails or is full for a while, and the process is
//! killed, loses power or is asked to end at any step. It is then started again with what is left on the disk, perhaps
//! with another number of shards. Time, network and disk are virtual, and every choice comes from the seed. An oracle
//! per scenario records what clients were promised and compares it with what they observe.
//!
//! # What this crate must never know
//! The real clock, the real network, the real disk. What a broker does inside: it is judged by what its clients see,
//! and by the gauges that it exports.
//!
//! # Entry points
//! [`Scenario::try_seed`], [`Scenario::trace`]; [`FaultInjector`] for tests that plant bugs.
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `engine.rs` | clock, network, disk, broker, faults, and the loop that runs a scenario on them |
//! | `mqtt.rs` | MQTT scenario: clients and oracle |
//! | `kafka.rs` | Kafka scenario: clients and oracle |
//! | `queue.rs` | queue scenario: clients and oracle |
//! | `fault_injector.rs` | hooks for planted bugs |

mod engine;
mod fault_injector;
mod kafka;
mod mqtt;
mod queue;

pub use engine::{Tally, Violation, WrapStore};
pub use fault_injector::{FaultInjector, NoFault};

use kafka::KafkaScenario;
use mqtt::MqttScenario;
use queue::QueueScenario;

/// Which clients a run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scenario {
    /// Clients of the MQTT protocol.
    #[default]
    Mqtt,
    /// Clients of the Kafka protocol, and publishers whose messages a binding takes to a topic.
    Kafka,
    /// Users of work queues: by requests, and by MQTT.
    Queue,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 3] = [Self::Mqtt, Self::Kafka, Self::Queue];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Kafka => "kafka",
            Self::Queue => "queue",
        }
    }

    /// Runs one seed.
    ///
    /// # Errors
    /// What the broker did wrong. A panic is a violation too.
    pub fn try_seed(self, seed: u64, injector: &mut dyn FaultInjector) -> Result<Tally, Violation> {
        match self {
            Self::Mqtt => engine::simulate::<MqttScenario>(seed, injector),
            Self::Kafka => engine::simulate::<KafkaScenario>(seed, injector),
            Self::Queue => engine::simulate::<QueueScenario>(seed, injector),
        }
    }

    /// Runs one seed. Returns everything that happens, one line each: packets, requests, calls of the file system, ends
    /// and starts of brokers, and the outcome.
    pub fn trace(self, seed: u64, injector: &mut dyn FaultInjector) -> Vec<String> {
        match self {
            Self::Mqtt => engine::trace::<MqttScenario>(seed, injector),
            Self::Kafka => engine::trace::<KafkaScenario>(seed, injector),
            Self::Queue => engine::trace::<QueueScenario>(seed, injector),
        }
    }
}
