//! Messages between shards of the Kafka server.

use std::net::IpAddr;
use std::sync::Arc;

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::Producer;
pub(crate) use mainstem_partition::JobId;
use mainstem_queue_server::{QueueRequest, ReplyTo};
use mainstem_quota::ClientQuotas;
use mainstem_runtime::ConnId;

use crate::answer::Answer;
use crate::catalogue::{PartitionId, TopicId};
use crate::long_request::LongRequest;
use crate::partition_message::{PartitionRequest, PartitionResponse};
use crate::sender::Sender;
use crate::unverified_batches::Transactional;

/// A message to another shard.
#[derive(Debug)]
pub struct Mail(pub(crate) ShardMessage);

/// The kinds of messages.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    /// To the shard that owns the partitions.
    PartitionRequest { job: JobId, work: PartitionRequest },
    /// Response to a [`PartitionRequest`].
    PartitionResponse { job: u64, done: PartitionResponse },
    /// To shard 0: a client request that its coordinators handle.
    ForwardToController { call: RequestContext, body: Vec<u8> },
    /// The same, of a request that was decoded in steps.
    ForwardDecoded { call: RequestContext, request: Box<dyn LongRequest> },
    /// To the connection's shard: the encoded response.
    Response { caller: Caller, response: Answer },
    /// To the connection's shard: the request was malformed.
    CloseConnection { conn: ConnId, what: String },
    /// To shard 0: verify that the partition is part of the transaction.
    VerifyTxn(VerifyTxn),
    /// Response to a [`VerifyTxn`].
    TxnVerified(TxnVerified),
    /// To the shard of a parked fetch: one of its partitions has new records.
    FetchWakeup { watcher: JobId },
    /// Remove the partitions of a deleted topic.
    RemovePartitions { partitions: Vec<PartitionId> },
    /// To shard 0: create a topic that another protocol writes to.
    CreateBoundTopic { bound: usize },
    /// To the shard that owns a queue, or to shard 0.
    QueueRequest(Box<QueueRequest>),
    /// Response to a [`QueueRequest`].
    QueueReply { to: ReplyTo, reply: mainstem_queue_core::Reply },
    /// The catalogue has changed: reconfigure the open partitions of the topics that were changed.
    CatalogueChanged { changed: Arc<[TopicId]> },
}

/// Asks the coordinator whether the partition is part of the producer's transaction.
#[derive(Debug)]
pub(crate) struct VerifyTxn {
    /// The requesting shard.
    pub(crate) shard: usize,
    pub(crate) id: PartitionId,
    pub(crate) topic: Arc<str>,
    pub(crate) producer: Producer,
    pub(crate) transactional: Transactional,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct TxnVerified {
    pub(crate) id: PartitionId,
    pub(crate) producer: Producer,
    pub(crate) outcome: Result<(), Error>,
}

/// Where the response goes: the connection and the number of the request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) shard: usize,
    pub(crate) conn: ConnId,
    /// Number of the request on its connection.
    pub(crate) request: u64,
}

/// The request header as handlers see it; what a response needs.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) caller: Caller,
    pub(crate) api_key: i16,
    pub(crate) version: i16,
    pub(crate) correlation_id: i32,
    pub(crate) client_id: Arc<str>,
    /// Address of the client, if known.
    pub(crate) peer: Option<IpAddr>,
    /// Number of its listener.
    pub(crate) listener: u16,
    /// The job of the request that this one is a part of, see `division.rs`.
    pub(crate) division: Option<u64>,
    /// Who sends it, and what they may do; `None` without users and rules.
    pub(crate) sender: Option<Arc<Sender>>,
    /// The quotas of the sender; `None` without any.
    pub(crate) quotas: Option<Arc<ClientQuotas>>,
    /// How long the sender is throttled after the response, ms.
    pub(crate) throttle_ms: u32,
}

impl RequestContext {
    /// The address of the client as group members show it: Java writes one without a host name with a leading slash.
    pub(crate) fn client_host(&self) -> String {
        self.peer.map_or_else(String::new, |peer| format!("/{peer}"))
    }
}
