//! Options of the MQTT generator.

use std::sync::Arc;
use std::time::Duration;

use mainstem_mqtt::packet::{QoS, Version};

/// Options of one run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host name or address of the broker.
    pub host: String,
    /// Port of the broker.
    pub port: u16,
    /// Protocol version of every connection.
    pub version: Version,
    /// Traffic pattern; `None` to test only idle connections or stored messages.
    pub scenario: Option<Scenario>,
    /// Publishing connections; the default depends on the scenario.
    pub publishers: Option<u32>,
    /// Subscribing connections; the default depends on the scenario.
    pub subscribers: Option<u32>,
    /// Topics; the default depends on the scenario.
    pub topics: Option<u32>,
    /// Fan-in only: every subscriber receives every topic instead of a share of them.
    pub overlap: bool,
    /// QoS of publishes and subscriptions.
    pub qos: QoS,
    /// Payload size in bytes, at least [`Options::PAYLOAD_BYTES_MIN`].
    pub payload_bytes: usize,
    /// Open or closed loop.
    pub load: Load,
    /// Whose messages a closed loop limits.
    pub window_scope: WindowScope,
    /// Length of the measured part.
    pub duration: Duration,
    /// Length of the load before the measured part.
    pub warmup: Duration,
    /// Maximum wait for outstanding messages after the load ends.
    pub drain: Duration,
    /// Maximum rate of new connections, per second; `None` for no limit.
    pub connect_rate: Option<f64>,
    /// Number of idle connections, opened first and held.
    pub idle: u32,
    /// Number of retained messages to store and fetch.
    pub retained: u32,
    /// Number of messages to store for `subscribers` offline sessions and to fetch: each message goes to one session
    /// in turn or, with one topic, to all sessions.
    pub queued: u32,
    /// Which half of the stored-message test runs.
    pub part: Part,
    /// Whether subscribers have persistent sessions.
    pub durable: bool,
    /// Minimum sleep between sends under [`Load::Rate`]; arrivals end it early. A longer tick costs the generator less
    /// CPU and adds latency.
    pub tick: Duration,
    /// Maximum unacknowledged publishes per publisher under [`Load::Rate`].
    pub max_inflight: u16,
    /// Receive Maximum that subscribers announce (MQTT 5).
    pub receive_maximum: u16,
    /// Number of generator threads.
    pub threads: usize,
    /// User name and password of every connection.
    pub credentials: Option<(String, String)>,
    /// TLS of every connection; `None` for none.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Process id of the broker, to read its cost from /proc.
    pub broker_pid: Option<u32>,
}

impl Options {
    /// Smallest payload in bytes: the stamp that every message carries.
    pub const PAYLOAD_BYTES_MIN: usize = crate::wire::STAMP_BYTES;

    /// Base options for tests.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 1883,
            version: Version::V5,
            scenario: Some(Scenario::FanOut),
            publishers: None,
            subscribers: None,
            topics: None,
            overlap: false,
            qos: QoS::AtMostOnce,
            payload_bytes: Self::PAYLOAD_BYTES_MIN,
            load: Load::Window(10),
            window_scope: WindowScope::Publisher,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            drain: Duration::from_secs(1),
            connect_rate: None,
            idle: 0,
            retained: 0,
            queued: 0,
            part: Part::Both,
            durable: false,
            tick: Duration::ZERO,
            max_inflight: u16::MAX,
            receive_maximum: u16::MAX,
            threads: 1,
            credentials: None,
            tls: None,
            broker_pid: None,
        }
    }
}

/// Traffic pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Every subscriber receives every topic.
    FanOut,
    /// Each publisher has its own topic; wildcard subscriptions divide the topics among the subscribers.
    FanIn,
    /// Publisher *i* sends to subscriber *i*.
    Pairs,
    /// All subscribers form one shared subscription.
    Shared,
}

impl Scenario {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::FanOut => "fan-out",
            Self::FanIn => "fan-in",
            Self::Pairs => "pairs",
            Self::Shared => "shared",
        }
    }
}

/// Half of the stored-message test to run. The broker may be restarted between the two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Store, then fetch.
    Both,
    /// Store only.
    Store,
    /// Fetch the messages that an earlier run stored.
    Fetch,
}

/// When publishers send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop: messages per second over all publishers, due at fixed times regardless of the broker.
    Rate(f64),
    /// Closed loop: messages in flight per publisher. A message is in flight until all receivers have it (QoS 0) or
    /// until the publisher has the acknowledgement (QoS 1 and 2).
    Window(u32),
}

/// Whose messages in flight [`Load::Window`] limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowScope {
    /// Those of each publisher.
    #[default]
    Publisher,
    /// Those of all publishers together, which send in turn. At every QoS, a message is in flight until all receivers
    /// have it.
    Run,
}
