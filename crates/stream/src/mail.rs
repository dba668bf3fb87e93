//! What shards of the Kafka door say to each other.

use std::net::IpAddr;
use std::sync::Arc;

use mainstem_runtime::ConnId;

use crate::catalogue::PartitionId;
use crate::held::{Vouch, Vouched};
use crate::queues::{Errand, ReplyTo};
use crate::work::{Done, Work};

/// Mail between shards.
#[derive(Debug)]
pub struct Mail(pub(crate) Letter);

/// What stands in it.
#[derive(Debug)]
pub(crate) enum Letter {
    /// To the shard that has the partitions: do this.
    Work { job: JobId, work: Work },
    /// Back: done.
    Done { job: u64, done: Done },
    /// To shard 0: a request that is coordinated there.
    Ask { call: Call, body: Vec<u8> },
    /// Back to the connection's shard: the whole response.
    Answer { caller: Caller, response: Vec<u8> },
    /// Back: the request is malformed, end its connection.
    Refuse { conn: ConnId, what: String },
    /// To shard 0: is this partition part of the transaction?
    Vouch(Vouch),
    /// Back: the answer.
    Vouched(Vouched),
    /// A partition that a parked fetch waits for has news.
    News { watcher: Watcher },
    /// Partitions of a topic that has been deleted are to be removed.
    Remove { partitions: Vec<PartitionId> },
    /// To shard 0: a topic that another door writes to is to be made.
    Make { bound: usize },
    /// To the shard that has a queue, or to shard 0: something is wanted of it.
    Errand(Box<Errand>),
    /// Back: the answer.
    Errands { to: ReplyTo, reply: mainstem_queue::Reply },
    /// Something in the catalogue has changed that opened partitions are to know.
    Changed,
}

/// A request that waits for work: the shard that has the connection, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobId {
    pub(crate) shard: usize,
    pub(crate) job: u64,
}

/// A parked fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub(crate) shard: usize,
    pub(crate) job: u64,
}

/// A request's place: its connection, and which of its requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) shard: usize,
    pub(crate) conn: ConnId,
    /// Number of the request among those of its connection.
    pub(crate) request: u64,
}

/// A request as its handler sees it; what its answer needs.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) caller: Caller,
    pub(crate) api_key: i16,
    pub(crate) version: i16,
    pub(crate) correlation_id: i32,
    pub(crate) client_id: Arc<str>,
    /// Where the client is, if that is known.
    pub(crate) peer: Option<IpAddr>,
}
