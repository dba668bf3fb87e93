//! What a host decides and its owner carries out, in order.
//!
//! The host has no partitions, connections or mailboxes: it says what is to be done, and its owner tells it later what
//! came of it. Effects are carried out in the order in which they were decided, because a reply may promise what an
//! earlier append wrote.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_log::LogId;
use mainstem_partition::PartitionId;
use mainstem_queue_core::{PendingBatch, Reply};

use crate::message::{QueueRequest, ReplyTo};

/// Something for the owner of a host to carry out.
#[derive(Debug)]
pub enum Effect {
    /// Append a batch of a queue to its partition. Call [`QueueHost::on_append_tried`] at once, and
    /// [`QueueHost::on_appended`] with the ticket when the batch is durable or has failed.
    ///
    /// [`QueueHost::on_append_tried`]: crate::QueueHost::on_append_tried
    /// [`QueueHost::on_appended`]: crate::QueueHost::on_appended
    Append {
        /// The partition.
        id: PartitionId,
        /// The batch.
        batch: PendingBatch,
        /// Identifies the append.
        ticket: AppendTicket,
    },
    /// Append messages of another queue, and call [`QueueHost::on_appended`](crate::QueueHost::on_appended) when they
    /// are durable or have failed.
    AppendTransfer {
        /// The partition.
        id: PartitionId,
        /// An encoded batch.
        batch: Vec<u8>,
        /// Whether the append is synced, whatever the partition is configured for.
        is_synced: bool,
        /// Identifies the append.
        ticket: AppendTicket,
    },
    /// Open the partition of this queue and then the queue, and route the request again; or refuse the request.
    Open {
        /// The partition of the queue.
        id: PartitionId,
        /// The request.
        request: QueueRequest,
    },
    /// Send a request to the host of this shard.
    SendRequest {
        /// The shard.
        shard: usize,
        /// The request.
        request: QueueRequest,
    },
    /// Send a reply to the host of the shard of its requester.
    SendReply {
        /// The requester.
        to: ReplyTo,
        /// The reply.
        reply: Reply,
    },
    /// Deliver a reply to a job of the owner, see [`Requester::Job`](crate::Requester::Job).
    ReplyToJob {
        /// The job.
        job: u64,
        /// The reply.
        reply: Reply,
    },
    /// Create, configure or delete a queue, or create the one that the request needs. Only on shard 0.
    Administer(QueueRequest),
    /// Store a declaration in the catalogue, or remove it, and reply.
    Declare {
        /// Its name.
        name: Arc<str>,
        /// Its text; `None` to remove it.
        text: Option<Arc<str>>,
        /// The requester.
        to: ReplyTo,
    },
    /// The log of the partition now begins later.
    StartAdvanced(PartitionId),
    /// Remove the log of the state of a deleted queue.
    RemoveStateLog {
        /// Index of its store.
        store: usize,
        /// The log.
        log: LogId,
    },
    /// Remove the log of this name, if there is one: the state of a deleted queue that was not open.
    RemoveClosedStateLog(String),
    /// Call [`QueueHost::on_timer`](crate::QueueHost::on_timer) in this time, ms. It replaces no earlier timer.
    SetTimer(u64),
    /// Run another turn without waiting for events.
    RequestTurn,
}

/// Identifies an append that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub struct AppendTicket(pub(crate) Append);

/// What is appended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Append {
    /// A batch of the queue's engine, by its number.
    Batch { id: PartitionId, number: u64 },
    /// Messages of another queue.
    Transfer { to: ReplyTo, count: u64 },
}

/// The effects that the owner has still to carry out.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pending: VecDeque<Effect>,
    /// The owner is carrying out effects.
    is_carrying_out: bool,
}

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.pending.push_back(effect);
    }

    /// Requests another turn, once.
    pub(crate) fn request_turn(&mut self) {
        if !matches!(self.pending.back(), Some(Effect::RequestTurn)) {
            self.pending.push_back(Effect::RequestTurn);
        }
    }

    /// Begins to carry out effects. False if the owner is doing so.
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_carrying_out, true)
    }

    /// The next effect to carry out; with `None` the owner has carried out all of them.
    pub(crate) fn poll(&mut self) -> Option<Effect> {
        debug_assert!(self.is_carrying_out, "the owner has begun to carry out effects");
        let effect = self.pending.pop_front();
        self.is_carrying_out = effect.is_some();
        effect
    }
}
