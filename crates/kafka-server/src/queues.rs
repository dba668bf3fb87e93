//! The host of the queues of one shard: topics of one partition, each with an [`Engine`] on the shard that owns the
//! partition.
//!
//! Requests of all protocols are routed to that shard and handed to the engine. A queue in which something has happened
//! is in the ready set; each turn polls the ready queues, carries out their effects on the partition, and appends their
//! events before the turn's commit. So all queues of a shard share one commit with its partitions.
//!
//! | file | contents |
//! |---|---|
//! | `state.rs` | the state of the queues of one shard |
//! | `request.rs` | routing of requests to the shard of a queue, and of replies back |
//! | `message.rs` | requests and replies as shards exchange them |
//! | `client.rs`, `command_queue.rs` | requests of threads that are no shards |
//! | `admin.rs` | creating, configuring and deleting queues, on shard 0 |
//! | `dead_letters.rs` | valid dead-letter queues, and the settings they are created with |
//! | `effects.rs` | effects of engines: replies, appends, transfers, truncation |

pub(crate) mod admin;
pub(crate) mod client;
pub(crate) mod command_queue;
mod dead_letters;
mod effects;
pub(crate) mod message;
mod request;
pub(crate) mod state;

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_compress::batch::decompress_records;
use mainstem_log::{Batch, Completion};
use mainstem_partition::{DECOMPRESSED_BYTES_MAX, PartitionEvent};
use mainstem_queue_core::{Context, Engine, EngineOptions, EngineSettings, QueueError, Reply, WhenCrowded};
use mainstem_runtime::Io;

use crate::catalogue::{PartitionId, Topic};
use crate::partition_message::RECORD_OVERHEAD_BYTES;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::timer::Timer;
use effects::MessagePartition;
use message::ReplyTo;
use state::{OpenQueue, state_name};

/// Limit of recently read messages in memory, of all queues together, bytes, about.
const CACHE_BYTES: usize = 128 * 1024 * 1024;

/// Decompresses a batch for a queue.
fn decompress(batch: &Batch<'_>) -> Option<Vec<u8>> {
    decompress_records(batch, DECOMPRESSED_BYTES_MAX).ok().map(std::borrow::Cow::into_owned)
}

/// The settings of a topic's queue; `None` if it is no queue.
fn engine_settings(topic: &Topic) -> Option<EngineSettings> {
    let config = topic.config.queue.clone()?;
    let partition = &topic.config.partition;
    let message_bytes_max = partition.message_bytes_max.saturating_sub(RECORD_OVERHEAD_BYTES);
    Some(EngineSettings { config, durability: partition.options.durability, message_bytes_max })
}

impl Shard {
    /// Takes the replies to the other protocols of this shard since the last call, with their tokens.
    pub fn take_queue_replies(&mut self) -> Vec<(u64, Reply)> {
        std::mem::take(&mut self.queues.replies)
    }

    /// Opens one new queue, and polls those that are ready. To be called when a turn begins, and before it ends.
    pub(crate) fn poll_queues(&mut self, io: &mut Io<'_, Mail>) {
        self.take_partition_events(io);
        self.take_client_commands(io);
        self.sync_queues_with_catalogue();
        if let Some(id) = self.queues.unopened.pop_front() {
            if let Err(error) = self.open_queue(io, id)
                && let Some(topic) = self.catalogue.topic_by_id(id.topic)
            {
                log::error!("queue {}: {error}", topic.name);
            }
            io.request_turn();
        }
        if let Some(closed) = self.queues.closed.last_mut() {
            if !closed.drop_step() {
                self.queues.closed.pop();
            }
            io.request_turn();
        }
        let mut again = BTreeSet::new();
        while let Some(id) = self.queues.ready.pop_first() {
            self.queues.changed.insert(id);
            if self.poll_queue(io, id) {
                again.insert(id);
                io.request_turn();
            }
        }
        self.queues.ready = again;
        self.set_queue_timer(io);
    }

    /// Polls a queue. Returns whether it has more to do at once.
    fn poll_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> bool {
        if !self.fill_gap(io, id) {
            return false;
        }
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the path is not general over lifetimes"
        )]
        let has_more = self.with_engine(io, id, |engine, cx| engine.poll(cx));
        let Some(open) = self.queues.open.get_mut(&id) else { return false };
        let due_ms = open.engine.next_due(io.clock.unix_ms);
        if due_ms != open.due_ms {
            if let Some(before_ms) = std::mem::replace(&mut open.due_ms, due_ms) {
                self.queues.due.remove(&(before_ms, id));
            }
            self.queues.due.extend(due_ms.map(|due_ms| (due_ms, id)));
        }
        has_more == Some(true)
    }

    /// Calls an engine and carries out its effects; `None` if the queue is not open.
    fn with_engine<T>(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        call: impl FnOnce(&mut Engine<ReplyTo>, &mut Context<'_, MessagePartition<'_>>) -> T,
    ) -> Option<T> {
        let open = self.queues.open.get_mut(&id)?;
        let store = &mut *self.stores[open.store].store;
        let log = MessagePartition(self.partitions.get(&id)?);
        let result = call(&mut open.engine, &mut Context { store, log: &log, now_ms: io.clock.unix_ms });
        self.carry_out_effects(io, id);
        self.admit_producers(io, id);
        Some(result)
    }

    /// Hands the stores the messages and events of this turn. To be called before the turn's commit.
    pub(crate) fn append_queue_events(&mut self, io: &mut Io<'_, Mail>) {
        for id in std::mem::take(&mut self.queues.changed) {
            self.queues.untrimmed.insert(id);
            self.with_engine(io, id, |engine, _| engine.end_batch());
            let Some(open) = self.queues.open.get_mut(&id) else { continue };
            let queue = open.engine.queue_mut();
            queue.store_events(&mut *self.stores[open.store].store, io.clock.unix_ms);
            if queue.has_unwritten_events() {
                // Retried each turn.
                self.queues.changed.insert(id);
            }
        }
    }

    /// Handles a completion. False if it is of no queue's state.
    pub(crate) fn on_queue_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        at: usize,
        completion: &Completion,
    ) -> bool {
        let Some(id) = self.queues.by_state.get(&(at, completion.log)).copied() else { return false };
        if let Some(open) = self.queues.open.get_mut(&id) {
            let store = &mut *self.stores[at].store;
            open.engine.queue_mut().on_completion(store, completion, io.clock.unix_ms);
            self.mark_queue_ready(io, id);
        }
        true
    }

    /// Applies what has happened in the partitions of queues: appends of producers, and records that became durable.
    #[inline]
    pub(crate) fn take_partition_events(&mut self, io: &mut Io<'_, Mail>) {
        // Called several times per turn, mostly for nothing.
        if self.partitions.has_events() {
            self.apply_partition_events(io);
        }
    }

    fn apply_partition_events(&mut self, io: &mut Io<'_, Mail>) {
        for event in self.partitions.take_events() {
            match event {
                PartitionEvent::Appended { id, end, bytes } => {
                    if let Some(open) = self.queues.open.get_mut(&id) {
                        open.engine.on_foreign_append(end, bytes);
                    }
                }
                PartitionEvent::Advanced { id } => self.mark_queue_ready(io, id),
                PartitionEvent::Failed { id, end } => {
                    if let Some(open) = self.queues.open.get_mut(&id) {
                        open.engine.on_foreign_append_failed(end);
                    }
                    self.mark_queue_ready(io, id);
                }
            }
        }
    }

    /// Something has happened to a partition that may be a queue's.
    fn mark_queue_ready(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        if self.queues.open.contains_key(&id) {
            self.queues.ready.insert(id);
            io.request_turn();
        }
    }

    /// The timer of queues is due.
    pub(crate) fn queues_due(&mut self, io: &mut Io<'_, Mail>) {
        self.queues.timer_ms = None;
        while let Some((due_ms, id)) = self.queues.due.first().copied() {
            if due_ms > io.clock.unix_ms {
                break;
            }
            self.queues.due.pop_first();
            if let Some(open) = self.queues.open.get_mut(&id) {
                open.due_ms = None;
                self.mark_queue_ready(io, id);
            }
        }
        self.set_queue_timer(io);
    }

    fn set_queue_timer(&mut self, io: &mut Io<'_, Mail>) {
        let Some((due_ms, _)) = self.queues.due.first().copied() else { return };
        if self.queues.timer_ms.is_none_or(|timer_ms| due_ms < timer_ms) {
            self.queues.timer_ms = Some(due_ms);
            let in_ms = due_ms.saturating_sub(io.clock.unix_ms);
            io.set_timer(io.clock.now_ms + in_ms, Timer::Queues.token());
        }
    }

    /// Finds new queues of this shard, and applies changed settings.
    fn sync_queues_with_catalogue(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        if self.queues.version == Some(self.catalogue.version) {
            return;
        }
        self.queues.version = Some(self.catalogue.version);
        let catalogue = Arc::clone(&self.catalogue);
        for topic in catalogue.by_name.values() {
            let Some(settings) = engine_settings(topic) else { continue };
            let id = topic.partition(0);
            if let Some(open) = self.queues.open.get_mut(&id) {
                if !Arc::ptr_eq(&open.topic, topic) {
                    open.topic = Arc::clone(topic);
                    let store = &mut *self.stores[open.store].store;
                    if let Err(error) = open.engine.configure(store, settings, self.unix_ms) {
                        log::error!("queue {}: its state keeps its old durability: {error}", topic.name);
                    }
                    self.queues.ready.insert(id);
                }
            } else if self.owner_of(id) == Ok(self.me) && !self.queues.unopened.contains(&id) {
                self.queues.unopened.push_back(id);
            }
        }
    }

    /// Opens a queue of this shard, if it is not open.
    fn open_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> Result<(), QueueError> {
        if self.queues.open.contains_key(&id) {
            return Ok(());
        }
        let topic = Arc::clone(self.catalogue.topic_by_id(id.topic).ok_or(QueueError::UnknownQueue)?);
        let settings = engine_settings(&topic).ok_or(QueueError::NotAQueue)?;
        let (partition, _) = self.partition(id).map_err(|_| QueueError::Storage)?;
        let (at, messages) = (partition.store_index(), partition.log());
        let options = EngineOptions {
            name: Arc::clone(&topic.name),
            id: &id.topic.to_hex(),
            state_log: &state_name(id),
            messages,
            settings,
            decompress,
            tuning: self.shared.config.queue_tuning,
            random: io.random(),
            when_crowded: WhenCrowded::Wait,
        };
        let engine =
            Engine::open(&mut *self.stores[at].store, options, io.clock.unix_ms).map_err(|error| {
                log::error!("queue {}: its state cannot be read: {error}", topic.name);
                QueueError::Storage
            })?;
        self.queues.by_state.insert((at, engine.queue().state_log()), id);
        self.queues.open.insert(id, OpenQueue { topic, store: at, engine, due_ms: None });
        self.queues.unopened.retain(|unopened| *unopened != id);
        self.queues.ready.insert(id);
        self.fill_gap(io, id);
        self.admit_producers(io, id);
        Ok(())
    }

    /// Truncates the logs of queues. To be called now and then.
    pub(crate) fn trim_queues(&mut self, io: &mut Io<'_, Mail>) {
        let cache_bytes = CACHE_BYTES / self.queues.open.len().max(1);
        for id in std::mem::take(&mut self.queues.untrimmed) {
            let trims_again = self.with_engine(io, id, |engine, cx| {
                engine.release_buffers(cache_bytes);
                engine.trim(cx.store, cx.now_ms)
            });
            if trims_again == Some(true) {
                self.queues.untrimmed.insert(id);
            }
            if self.queues.open.get(&id).is_some_and(|open| open.engine.queue().has_unwritten_events()) {
                self.queues.changed.insert(id);
            }
        }
    }

    /// A topic has been deleted, which may be a queue.
    pub(crate) fn remove_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        self.queues.unopened.retain(|unopened| *unopened != id);
        if let Some(open) = self.queues.open.get_mut(&id) {
            open.engine.close();
        }
        self.carry_out_effects(io, id);
        let Some(open) = self.queues.open.remove(&id) else {
            return self.maintenance.remove_state(&state_name(id));
        };
        if let Some(due_ms) = open.due_ms {
            self.queues.due.remove(&(due_ms, id));
        }
        let log = open.engine.queue().state_log();
        self.queues.by_state.remove(&(open.store, log));
        self.maintenance.remove_log(open.store, log);
        self.queues.closed.push(open.engine);
        io.request_turn();
    }

    /// The process is to end: consumers that wait get no messages.
    pub(crate) fn drain_queues(&mut self, io: &mut Io<'_, Mail>) {
        for id in self.queues.open.keys().copied().collect::<Vec<_>>() {
            self.with_engine(io, id, |engine, _| engine.drain());
        }
    }
}
