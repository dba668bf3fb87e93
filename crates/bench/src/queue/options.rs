//! Options of the queue generator.

use std::time::Duration;

use crate::wire::STAMP_BYTES;

/// Minimum payload size: the stamp that every message carries.
pub(super) const PAYLOAD_BYTES_MIN: usize = STAMP_BYTES;
/// Maximum payload size.
pub(super) const PAYLOAD_BYTES_MAX: usize = 100_000;

/// Options of one run against a queue server.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Host name or address of the server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Protocol, and type of the created queue.
    pub protocol: QueueProtocol,
    /// Name of the queue. `None` creates one with a unique name.
    pub queue: Option<String>,
    /// Number of publishing connections.
    pub publishers: u32,
    /// Number of consuming connections.
    pub consumers: u32,
    /// Maximum unacknowledged messages per publisher, 1 to 65,535.
    pub in_flight: u32,
    /// Maximum unacknowledged messages per consumer, 1 to 65,535.
    pub prefetch: u16,
    /// Payload size in bytes, 16 to 100,000.
    pub payload_bytes: usize,
    /// Type of load.
    pub work: QueueWork,
    /// Length of the measured part. [`QueueWork::Consume`] ends early when the queue is empty.
    pub duration: Duration,
    /// Length of the load before the measured part. Not used by [`QueueWork::Consume`].
    pub warmup: Duration,
    /// Maximum wait for outstanding messages after the load ends.
    pub drain: Duration,
    /// Process id of the server, to read its cost from /proc.
    pub broker_pid: Option<u32>,
}

/// Protocol, and type of the created queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueProtocol {
    /// MQTT 5 with queues under `$queue/`.
    Mqtt {
        /// Address of the HTTP API, which creates the queue and returns its depth. Without it, the first message
        /// creates the queue, and its depth is not checked.
        http: Option<String>,
        /// When a publish counts as durable and is acknowledged.
        durability: QueueDurability,
    },
    /// NATS JetStream: a work-queue stream with file storage, and one shared pull consumer.
    Nats,
    /// AMQP 0-9-1 with RabbitMQ's extensions: a durable queue and persistent messages.
    Amqp(QueueType),
}

impl QueueProtocol {
    /// Name on the command line and in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mqtt { .. } => "mqtt",
            Self::Nats => "nats",
            Self::Amqp(_) => "amqp",
        }
    }

    /// Type or durability of the created queue; `None` if there is no choice.
    pub fn made(&self) -> Option<&'static str> {
        match self {
            Self::Mqtt { http: None, .. } | Self::Nats => None,
            Self::Mqtt { durability, .. } => Some(durability.name()),
            Self::Amqp(queue_type) => Some(queue_type.name()),
        }
    }
}

/// When a message counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDurability {
    /// After fsync.
    Fsync,
    /// After the write to the operating system.
    Os,
}

impl QueueDurability {
    /// Name in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Os => "os",
        }
    }
}

/// Queue types of AMQP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    /// RabbitMQ quorum queue: a replicated log.
    Quorum,
    /// RabbitMQ classic queue.
    Classic,
    /// FluxMQ queue, under `$queue/`. FluxMQ does not return its depth.
    Flux,
}

impl QueueType {
    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
            Self::Flux => "flux",
        }
    }

    /// Value of the argument `x-queue-type`.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic | Self::Flux => "classic",
        }
    }
}

/// Type of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueWork {
    /// Enqueues messages.
    Enqueue {
        /// Messages per second over all publishers (open loop); `None` for a closed loop.
        rate: Option<f64>,
    },
    /// Fills the queue, then consumes its messages.
    Consume {
        /// Number of messages to fill the queue with.
        messages: u32,
        /// Maximum time to fill; the run continues with the messages enqueued by then.
        fill_max: Duration,
    },
    /// Enqueues and consumes at the same time.
    Flow {
        /// Messages per second over all publishers.
        rate: f64,
    },
}

impl QueueWork {
    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue { .. } => "enqueue",
            Self::Consume { .. } => "consume",
            Self::Flow { .. } => "flow",
        }
    }

    /// Messages per second in an open loop; `None` in a closed loop.
    pub fn rate(self) -> Option<f64> {
        match self {
            Self::Enqueue { rate } => rate,
            Self::Consume { .. } => None,
            Self::Flow { rate } => Some(rate),
        }
    }
}
