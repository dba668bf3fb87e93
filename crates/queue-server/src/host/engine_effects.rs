//! Effects of engines, and what a host does as the manager of the partitions of its queues.
//!
//! A batch of a queue is appended like a producer's, a transfer is a request to another queue, and a truncation moves
//! the start of the partition.
//!
//! A queue that confirms messages before they are synced may lose some in a power failure, while its state log still
//! knows their offsets. A batch without messages fills those offsets before the next append, so that no offset is used
//! twice.

use mainstem_partition::{Admission, PartitionId};
use mainstem_queue_core::{Effect as EngineEffect, ItemResult, PendingBatch, Reply};

use super::QueueHost;
use crate::context::{Context, QueueTopicConfig};
use crate::effect::{Append, AppendTicket, Effect};
use crate::message::{QueueOperation, QueueRequest, ReplyTo, Requester};

impl<C: QueueTopicConfig> QueueHost<C> {
    /// Carries out the effects of an engine, or passes them on.
    pub(super) fn take_engine_effects(&mut self, cx: &mut Context<'_, C>, id: PartitionId) {
        while let Some(open) = self.open.get_mut(id)
            && let Some(effect) = open.engine.poll_effect()
        {
            match effect {
                EngineEffect::Reply { to, mut reply } => {
                    if let Reply::Info(info) = &mut reply {
                        info.settings = open.topic.config.shown_settings();
                    }
                    self.reply(cx.now_ms, to, reply);
                }
                EngineEffect::Append(batch) => {
                    let ticket = AppendTicket(Append::Batch { id, number: batch.number() });
                    self.effects.push(Effect::Append { id, batch, ticket });
                }
                EngineEffect::Transfer { queue, messages, durability } => {
                    let operation = QueueOperation::Transfer(messages, durability);
                    let to = ReplyTo { shard: self.me, requester: Requester::Queue(id) };
                    self.route(cx, QueueRequest { queue: queue.into(), operation, to });
                }
                EngineEffect::Truncate(offset) => {
                    let store = &mut *cx.stores[open.store].store;
                    if let Err(error) = store.truncate_prefix(open.engine.queue().messages_log(), offset) {
                        log::warn!("queue {}: settled messages are not removed: {error}", open.topic.name);
                    }
                    self.effects.push(Effect::StartAdvanced(id));
                }
            }
        }
    }

    /// The owner has tried to carry out [`Effect::Append`]: takes the batch back, to reuse its memory.
    pub fn on_append_tried(&mut self, id: PartitionId, batch: PendingBatch) {
        if let Some(open) = self.open.get_mut(id) {
            open.engine.on_append_tried(batch);
        }
    }

    /// An append is durable, with its first record at `base`, or has failed.
    pub fn on_appended(&mut self, cx: &mut Context<'_, C>, ticket: AppendTicket, base: &ItemResult<u64>) {
        match ticket.0 {
            Append::Batch { id, number } => {
                self.with_engine(cx, id, |engine, _| engine.on_appended(number, base));
            }
            Append::Transfer { to, count } => {
                let place = |place| base.clone().map(|base| base + place);
                self.reply(cx.now_ms, to, Reply::Sent((0..count).map(place).collect()));
            }
        }
    }

    /// Fills lost offsets of a queue. Returns whether the log reaches as far as the queue's state.
    pub fn fill_gap(&mut self, cx: &mut Context<'_, C>, id: PartitionId) -> bool {
        let Some(open) = self.open.get_mut(id) else { return true };
        let Some(partition) = cx.partitions.get_mut(&id) else { return true };
        let store = &mut *cx.stores[open.store].store;
        let gap = open.engine.gap(store, cx.now_ms);
        let filled = gap.and_then(|gap| gap.map_or(Ok(()), |batch| partition.append_gap(store, &batch)));
        if let Err(error) = filled {
            open.engine.on_unreadable(&error);
        }
        open.engine.is_ready()
            || open.engine.queue().restored_to() <= partition.watermarks(store).high_watermark
    }

    /// States what producers may append to the partition of a queue. To be called whenever that may have changed.
    pub(super) fn admit_producers(&mut self, cx: &mut Context<'_, C>, id: PartitionId) {
        // What producers have appended since the last call counts.
        self.take_partition_events(cx);
        let Some(open) = self.open.get(id) else { return };
        let queue = open.engine.queue();
        let [records, bytes] = open.engine.room(&cx.stores[open.store].store.status(queue.messages_log()));
        cx.partitions.admit(id, Admission { assigned_to: queue.restored_to(), records, bytes });
    }
}
