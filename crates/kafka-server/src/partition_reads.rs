//! Reads for fetches of other shards, on the shard that owns the partitions.
//!
//! If what a shard has read [is short](is_short) of what the fetch waits for, the shard registers the fetch as a
//! watcher at once, so that no record can arrive between the read and the registration.

use mainstem_runtime::Io;

use crate::partition_message::{PartitionResponse, ReadLimit, is_short};
use crate::pending_work::RemoteRead;
use crate::shard::Shard;
use crate::shard_message::Mail;

impl Shard {
    /// Reads partitions of this shard for a fetch of another shard, as far as the turn lasts. Returns what is left.
    pub(crate) fn read_for_shard(
        &mut self,
        io: &mut Io<'_, Mail>,
        mut read: Box<RemoteRead>,
    ) -> Option<Box<RemoteRead>> {
        let begin = if read.is_sliced { read.all.len() } else { 0 };
        while let Some(part) = read.request.parts.get(read.all.len()) {
            if !self.pending_work.has_room(io.charged()) {
                // Records may arrive before the last partition is read.
                self.storage.watch_parts(&mut self.env, &read.request, begin..read.all.len());
                read.is_sliced = true;
                return Some(read);
            }
            let bytes_max = part.bytes_max.min(read.left);
            let limit = ReadLimit { bytes_max, bytes_min: read.request.bytes_min, is_first: read.is_first };
            let fetched = self.storage.read(&mut self.env, io, part, read.request.isolation, limit);
            read.left = read.left.saturating_sub(fetched.records.len());
            read.is_first &= fetched.records.is_empty();
            read.all.push(fetched);
        }
        let RemoteRead { job, request, all, is_sliced, .. } = *read;
        if is_short(&all, request.bytes_min) {
            self.storage.watch_parts(&mut self.env, &request, begin..all.len());
        } else if is_sliced && let Some(watcher) = request.watcher {
            request.parts.iter().for_each(|part| self.storage.unwatch(part.id, watcher));
        }
        self.send_partition_response(io, job, PartitionResponse::Fetched(all));
        None
    }
}
