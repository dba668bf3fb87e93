//! Queues that answer before their messages are synced may lose some of those by a loss of power, and remember more of them
//! than there are. Their places are filled before anything else is put there.

use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::mail::Mail;
use crate::partition::Refused;
use crate::shard::Shard;

impl Shard {
    /// Fills the places of messages that a queue has lost. Returns whether it has lost none of which its log does not say so.
    pub(super) fn fill_gap(&mut self, io: &Io<'_, Mail>, id: PartitionId) -> bool {
        let Some(open) = self.queues.open.get_mut(&id).filter(|open| !open.is_ready) else { return true };
        let Some(partition) = self.partitions.get_mut(&id) else { return true };
        let store = &mut *self.stores[open.store].store;
        let gap = open.keeper.gap(store, io.clock.unix_ms);
        let filled = gap.and_then(|gap| {
            let Some(batch) = gap else { return Ok(()) };
            partition.append_gap(store, &batch)?;
            log::warn!(
                "queue {}: its log has lost its last messages, and its state has not",
                open.topic.name
            );
            Ok(())
        });
        if let Err(error) = filled
            && !std::mem::replace(&mut open.is_unreadable, true)
        {
            log::error!("queue {}: its log cannot be mended: {error}", open.topic.name);
        }
        open.keeper.restored_to() <= partition.reach(store).high_watermark
    }

    /// Something is about to be put into a partition that may be a queue's.
    ///
    /// # Errors
    /// It would stand in the place of a message that was lost.
    pub(crate) fn mend_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> Result<(), Refused> {
        if self.queues.unopened.contains(&id) {
            self.open_queue(io, id).map_err(|_| ErrorCode::KafkaStorageError)?;
        }
        self.fill_gap(io, id);
        let Some(open) = self.queues.open.get(&id) else { return Ok(()) };
        let end = self.stores[open.store].store.status(open.keeper.messages_log()).end;
        if end < open.keeper.restored_to() { Err(ErrorCode::KafkaStorageError.into()) } else { Ok(()) }
    }
}
