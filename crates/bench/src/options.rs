//! What a caller may ask of the generator.

use std::time::Duration;

use mainstem_mqtt::packet::{QoS, Version};

/// Everything a run depends on.
#[derive(Clone, Debug)]
pub struct Options {
    /// Broker's host name or address.
    pub host: String,
    /// Broker's port.
    pub port: u16,
    /// Protocol version of every connection.
    pub version: Version,
    /// Who talks to whom; `None` for idle connections or stored messages alone.
    pub scenario: Option<Scenario>,
    /// Publishing connections; the default depends on the scenario.
    pub publishers: Option<u32>,
    /// Subscribing connections; the default depends on the scenario.
    pub subscribers: Option<u32>,
    /// Topics; the default depends on the scenario.
    pub topics: Option<u32>,
    /// Fan-in only: every subscriber takes every topic instead of a part of them.
    pub overlap: bool,
    /// Quality of service of publishes and of subscriptions.
    pub qos: QoS,
    /// Payload bytes, at least [`Options::PAYLOAD_BYTES_MIN`].
    pub payload_bytes: usize,
    /// How publishers decide when to publish.
    pub load: Load,
    /// The measured part.
    pub duration: Duration,
    /// Load before the measured part.
    pub warmup: Duration,
    /// Longest wait for stragglers after the load ended.
    pub drain: Duration,
    /// Most new connections per second.
    pub connect_rate: Option<f64>,
    /// Idle connections to open first and hold.
    pub idle: u32,
    /// Retained messages to store and fetch.
    pub retained: u32,
    /// Messages to store for sessions that are away, and to fetch; one for each of `subscribers` sessions in turn, or,
    /// with one topic, each for all of them.
    pub queued: u32,
    /// Which part of that is done.
    pub part: Part,
    /// Whether the sessions of subscribers outlive their connections.
    pub durable: bool,
    /// Under [`Load::Rate`], the shortest sleep until the next message is due; arrivals end it early. Longer costs
    /// the generator less, and adds to the latency.
    pub tick: Duration,
    /// Most unacknowledged publishes per publisher under [`Load::Rate`].
    pub max_inflight: u16,
    /// Receive maximum that subscribers announce (version 5).
    pub receive_maximum: u16,
    /// Threads of the generator.
    pub threads: usize,
    /// User name and password of every connection.
    pub credentials: Option<(String, String)>,
    /// The broker's process, whose cost is read from /proc.
    pub broker_pid: Option<u32>,
}

impl Options {
    /// The stamp in a payload takes this many bytes.
    pub const PAYLOAD_BYTES_MIN: usize = crate::wire::STAMP_BYTES;

    /// Options for tests to vary.
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
            broker_pid: None,
        }
    }
}

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Every subscriber takes every topic.
    FanOut,
    /// Each publisher has its own topic; the subscribers divide the topics among them by wildcard.
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

/// What is done of storing messages and fetching them. Between two runs the broker may be started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Storing, then fetching.
    Both,
    /// Storing only.
    Store,
    /// Fetching only what another run stored.
    Fetch,
}

/// How publishers decide when to publish.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop: messages per second over all publishers, due at fixed moments whatever the broker does.
    Rate(f64),
    /// Closed loop: messages in flight per publisher. At QoS 0 a message is in flight until all its receivers
    /// have it, above until the publisher has the acknowledgement.
    Window(u32),
}
