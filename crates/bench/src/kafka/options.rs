//! What a caller may ask of the Kafka generator.

use std::time::Duration;

use mainstem_log::Compression;

use crate::options::Load;

/// Everything a run on a Kafka broker depends on.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// Broker's host name or address. All partitions must live on this broker.
    pub host: String,
    /// Broker's port.
    pub port: u16,
    /// The topic; made if it is not there. `None` makes one with a name of its own.
    pub topic: Option<String>,
    /// Partitions of the topic, if it is made.
    pub partitions: u32,
    /// Connections that put the load on; partitions are dealt out among them.
    pub connections: u32,
    /// The batch that is sent again and again.
    pub shape: Shape,
    /// What is done.
    pub work: Work,
    /// The measured part.
    pub duration: Duration,
    /// Load before the measured part.
    pub warmup: Duration,
    /// Longest wait for answers after the load ended.
    pub drain: Duration,
    /// The broker's process, whose cost is read from /proc.
    pub broker_pid: Option<u32>,
}

/// What a record batch looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Records in a batch, at least 1.
    pub records: u32,
    /// Bytes of each record's value. There are no keys and no headers.
    pub record_bytes: usize,
    /// How the batch is compressed.
    pub compression: Compression,
}

/// What is done on the connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Batches are produced, one in a request.
    Produce {
        /// When a batch is answered.
        acks: Acks,
        /// When a request is sent. Under [`Load::Window`], requests in flight on each connection.
        load: Load,
        /// One more connection reads everything, by long polls.
        consume: bool,
    },
    /// What is in the topic is read from its start to its end, again and again.
    Fetch {
        /// Bytes to produce first; with 0, what is there is read.
        fill_bytes: u64,
        /// Most bytes of one partition in one answer.
        partition_bytes: u32,
    },
    /// Consumers wait at the end of an empty topic.
    Idle,
}

impl Work {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Produce { .. } => "produce",
            Self::Fetch { .. } => "fetch",
            Self::Idle => "idle",
        }
    }
}

/// Whose acknowledgement a producer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum Acks {
    /// Nobody's: there is no answer.
    None = 0,
    /// The leader's.
    Leader = 1,
    /// That of all replicas in sync.
    All = -1,
}
