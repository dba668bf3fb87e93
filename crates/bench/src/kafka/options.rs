//! Options of the Kafka generator.

use std::time::Duration;

use mainstem_log::Compression;

use crate::options::Load;

/// Options of one run against a Kafka broker.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// Host name or address of the broker. It must lead all partitions.
    pub host: String,
    /// Port of the broker.
    pub port: u16,
    /// The topic, created if absent. `None` creates one with a unique name.
    pub topic: Option<String>,
    /// Partitions of the topic if it is created.
    pub partitions: u32,
    /// Number of load connections; the partitions are divided among them.
    pub connections: u32,
    /// Contents of the produced batch.
    pub shape: Shape,
    /// Type of load.
    pub work: Work,
    /// Length of the measured part.
    pub duration: Duration,
    /// Length of the load before the measured part.
    pub warmup: Duration,
    /// Maximum wait for responses after the load ends.
    pub drain: Duration,
    /// Process id of the broker, to read its cost from /proc.
    pub broker_pid: Option<u32>,
}

/// Contents of a record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Records per batch, at least 1.
    pub records: u32,
    /// Size of each record's value in bytes. Records have no keys and no headers.
    pub record_bytes: usize,
    /// Compression of the batch.
    pub compression: Compression,
}

/// Type of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Produces batches, one per request.
    Produce {
        /// Required acknowledgements.
        acks: Acks,
        /// When requests are sent. [`Load::Window`] counts requests in flight per connection.
        load: Load,
        /// Whether one more connection consumes everything, by long polling.
        consume: bool,
    },
    /// Reads the topic from start to end repeatedly.
    Fetch {
        /// Bytes to produce first; 0 to read the existing records.
        fill_bytes: u64,
        /// Maximum bytes per partition and response.
        partition_bytes: u32,
    },
    /// Consumers long-poll at the end of an empty topic.
    Idle,
}

impl Work {
    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Produce { .. } => "produce",
            Self::Fetch { .. } => "fetch",
            Self::Idle => "idle",
        }
    }
}

/// Required acknowledgements of a Produce request (`acks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum Acks {
    /// None: the broker sends no response.
    None = 0,
    /// From the leader.
    Leader = 1,
    /// From all in-sync replicas.
    All = -1,
}
