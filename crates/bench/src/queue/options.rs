//! What a caller may ask of the generator for work queues.

use std::time::Duration;

use crate::wire::STAMP_BYTES;

/// The smallest payload: what says which message it is.
pub(super) const PAYLOAD_BYTES_MIN: usize = STAMP_BYTES;
/// The largest payload.
pub(super) const PAYLOAD_BYTES_MAX: usize = 100_000;

/// Everything a run on a server of work queues depends on.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Server's host name or address.
    pub host: String,
    /// Server's port.
    pub port: u16,
    /// What is spoken there, and how the queue is made.
    pub protocol: QueueProtocol,
    /// The queue. `None` makes one with a name of its own.
    pub queue: Option<String>,
    /// Connections that put messages in.
    pub publishers: u32,
    /// Connections that take messages out.
    pub consumers: u32,
    /// Messages that each publisher has under way unacknowledged, 1 to 65,535.
    pub in_flight: u32,
    /// Messages that each consumer may have unacknowledged, 1 to 65,535.
    pub prefetch: u16,
    /// Size of each payload, 16 to 100,000 bytes.
    pub payload_bytes: usize,
    /// What is done.
    pub work: QueueWork,
    /// The measured part; what is consumed may be over before.
    pub duration: Duration,
    /// Load before the measured part. None where a queue is filled first.
    pub warmup: Duration,
    /// Longest wait for what is still under way when the load has ended.
    pub drain: Duration,
    /// The server's process, whose cost is read from /proc.
    pub broker_pid: Option<u32>,
}

/// What the server speaks, and how the queue is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueProtocol {
    /// MQTT 5 with queues below `$queue/`.
    Mqtt {
        /// Address of the HTTP API that makes the queue and counts what is in it. Without it, the queue is made by
        /// its first message, and not asked how many messages it has.
        http: Option<String>,
        /// When a publish is acknowledged.
        durability: QueueDurability,
    },
    /// NATS with JetStream: a stream in files from which messages go once they are acknowledged, and one consumer
    /// from which all pull.
    Nats,
    /// AMQP 0-9-1 as RabbitMQ speaks it: a durable queue and persistent messages.
    Amqp(QueueType),
}

impl QueueProtocol {
    /// The name on the command line and in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mqtt { .. } => "mqtt",
            Self::Nats => "nats",
            Self::Amqp(_) => "amqp",
        }
    }

    /// How the queue is made, if there is a choice.
    pub fn made(&self) -> Option<&'static str> {
        match self {
            Self::Mqtt { http: None, .. } | Self::Nats => None,
            Self::Mqtt { durability, .. } => Some(durability.name()),
            Self::Amqp(queue_type) => Some(queue_type.name()),
        }
    }
}

/// When a message counts as kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDurability {
    /// Once the disk has it.
    Fsync,
    /// Once the system has it.
    Os,
}

impl QueueDurability {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Os => "os",
        }
    }
}

/// Kinds of queues of servers that speak AMQP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    /// A replicated log.
    Quorum,
    /// What all queues once were.
    Classic,
    /// FluxMQ's: below `$queue/`. It says of none how many messages there are.
    Flux,
}

impl QueueType {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
            Self::Flux => "flux",
        }
    }

    /// The argument `x-queue-type`.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic | Self::Flux => "classic",
        }
    }
}

/// What is done with the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueWork {
    /// Messages are put in.
    Enqueue {
        /// Messages per second over all publishers, on schedule; without, as many as may be in flight.
        rate: Option<f64>,
    },
    /// The queue is filled, and then what is there is taken out.
    Consume {
        /// Messages to fill it with.
        messages: u32,
        /// What is in it after this long has to do.
        fill_max: Duration,
    },
    /// Messages are put in and taken out at the same time.
    Flow {
        /// Messages per second over all publishers, on schedule.
        rate: f64,
    },
}

impl QueueWork {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue { .. } => "enqueue",
            Self::Consume { .. } => "consume",
            Self::Flow { .. } => "flow",
        }
    }

    /// Messages per second on schedule, if there is one.
    pub fn rate(self) -> Option<f64> {
        match self {
            Self::Enqueue { rate } => rate,
            Self::Consume { .. } => None,
            Self::Flow { rate } => Some(rate),
        }
    }
}
