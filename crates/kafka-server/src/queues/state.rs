//! The state of the queues of one shard. Only the files of this folder see it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_log::LogId;
use mainstem_queue_core::{Engine, Reply};
use slab::Slab;

use super::command_queue::ReplyFn;
use super::message::{QueueRequest, ReplyTo};
use crate::catalogue::{PartitionId, Topic, TopicId};

/// Prefix of the names of state logs.
const STATE: &str = "q-";

/// The queues of one shard.
#[derive(Default)]
pub(crate) struct Queues {
    pub(super) open: BTreeMap<PartitionId, OpenQueue>,
    pub(super) by_state: HashMap<(usize, LogId), PartitionId, foldhash::fast::RandomState>,
    /// The catalogue's version that `open` and `unopened` reflect.
    pub(super) version: Option<u64>,
    /// Queues of this shard that are not open yet.
    pub(super) unopened: VecDeque<PartitionId>,
    /// Queues to poll.
    pub(super) ready: BTreeSet<PartitionId>,
    /// Queues with events that the stores have not been handed.
    pub(super) changed: BTreeSet<PartitionId>,
    /// Queues that may have messages to truncate.
    pub(super) untrimmed: BTreeSet<PartitionId>,
    /// Deadlines, ms since 1970.
    pub(super) due: BTreeSet<(u64, PartitionId)>,
    /// Deadline of the timer.
    pub(super) timer_ms: Option<u64>,
    /// Replies to the other protocols of this shard.
    pub(super) replies: Vec<(u64, Reply)>,
    /// Requesters on other threads.
    pub(super) client_replies: Slab<ReplyFn>,
    /// Replies to them.
    pub(super) ready_replies: Vec<(ReplyFn, Reply)>,
    /// Deleted queues, which are freed in steps.
    pub(super) closed: Vec<Engine<ReplyTo>>,
    /// Requests for queues that are being created; on shard 0.
    pub(super) pending_creation: Vec<QueueRequest>,
}

/// An open queue.
pub(super) struct OpenQueue {
    pub(super) topic: Arc<Topic>,
    /// Index of the shard's store that has it.
    pub(super) store: usize,
    pub(super) engine: Engine<ReplyTo>,
    pub(super) due_ms: Option<u64>,
}

/// The name of the log of a queue's state.
pub(super) fn state_name(id: PartitionId) -> String {
    format!("{STATE}{}", id.topic.to_hex())
}

/// The topic whose state a log of this name has; nothing if it is another log.
pub(crate) fn topic_of_state(name: &str) -> Option<TopicId> {
    TopicId::from_hex(name.strip_prefix(STATE)?)
}
