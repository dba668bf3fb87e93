//! A Produce request whose appends are in flight.

use std::sync::Arc;

use mainstem_kafka::Uuid;
use mainstem_partition::AppendInfo;

use crate::append_error::AppendError;
use crate::shard_message::RequestContext;

/// A request whose appends are in flight.
#[derive(Debug)]
pub(crate) struct ProduceJob {
    pub(crate) call: RequestContext,
    pub(crate) wants_response: bool,
    pub(crate) topics: Vec<ProduceTopic>,
    /// Index and result of each partition, in request order.
    pub(crate) parts: Vec<(i32, Result<AppendInfo, AppendError>)>,
    /// Parts without a result.
    pub(crate) waiting: u32,
    /// Bytes of records sent to other shards.
    pub(crate) mailed_bytes: usize,
}

/// A topic of the request.
#[derive(Debug)]
pub(crate) struct ProduceTopic {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    /// Number of parts of this topic.
    pub(crate) parts: usize,
}
