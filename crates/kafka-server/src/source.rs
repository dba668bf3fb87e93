//! Sources: delivers records of this shard's partitions to other protocols, see [`crate::sources`].

use mainstem_runtime::Io;

use crate::bindings::Bindings;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::sources::SourceRecord;

impl Shard {
    /// The topics that other protocols write to and read.
    pub fn bindings_mut(&mut self) -> &mut Bindings {
        &mut self.bindings
    }

    /// Takes the next records for other protocols; `None` if there are none. An empty result means that there may be
    /// more: call it again, in a later turn if the share of this one is used up.
    pub fn take_outgoing(&mut self, io: &mut Io<'_, Mail>) -> Option<Vec<SourceRecord>> {
        self.bindings.take_outgoing(&mut self.env, &mut self.storage, io)
    }

    /// Ends a fence. If `is_durable`, all records delivered before it are durable in the other protocol.
    pub fn end_source_fence(&mut self, io: &mut Io<'_, Mail>, token: u64, is_durable: bool) {
        self.bindings.end_source_fence(&mut self.storage, io, token, is_durable);
    }
}
