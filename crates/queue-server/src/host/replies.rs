//! Replies to requesters on the shard of a host.

use mainstem_queue_core::Reply;
use slab::Slab;

use crate::command_queue::ReplyFn;

/// Replies that wait for their requesters, and requesters on other threads that wait for replies.
#[derive(Default)]
pub(super) struct Replies {
    /// To the other protocols of this shard, with their tokens.
    to_protocols: Vec<(u64, Reply)>,
    /// Requesters on other threads.
    clients: Slab<ReplyFn>,
    /// Replies to them.
    to_clients: Vec<(ReplyFn, Reply)>,
}

impl Replies {
    /// Adds a requester on another thread, which gets one reply. Returns its key.
    pub(super) fn add_client(&mut self, answer: ReplyFn) -> usize {
        self.clients.insert(answer)
    }

    /// Adds a reply to a protocol of this shard.
    pub(super) fn reply_to_protocol(&mut self, token: u64, reply: Reply) {
        self.to_protocols.push((token, reply));
    }

    /// Adds the reply to a requester on another thread. Only the first one counts.
    pub(super) fn reply_to_client(&mut self, client: usize, reply: Reply) {
        if let Some(answer) = self.clients.try_remove(client) {
            self.to_clients.push((answer, reply));
        }
    }

    /// Whether there are replies to protocols of this shard.
    pub(super) fn has_some_to_protocols(&self) -> bool {
        !self.to_protocols.is_empty()
    }

    /// Takes the replies to protocols of this shard.
    pub(super) fn take_to_protocols(&mut self) -> Vec<(u64, Reply)> {
        std::mem::take(&mut self.to_protocols)
    }

    /// Delivers the replies to other threads.
    pub(super) fn deliver_to_clients(&mut self) {
        for (answer, reply) in self.to_clients.drain(..) {
            answer(reply);
        }
    }
}
