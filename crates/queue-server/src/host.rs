//! The queues of one shard: opening, the turn, completions, timers and removal.
//!
//! Each queue is an engine of `mainstem-queue-core` on the log of its partition. A shard may have thousands of them, of
//! which few have something to do, so a queue is polled only after a request, a completion or a timer has made it
//! ready. Queues are opened one per turn after a start, because opening reads files, or at once for a request.
//!
//! The host does nothing to the world itself. It returns effects, in the order in which they must happen; its owner
//! carries them out between two calls, and may call the host again while it does.

mod engine_effects;
mod open_queues;
mod replies;
mod routing;
mod schedule;

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_compress::batch::decompress_records;
use mainstem_log::{Batch, Completion, LogId};
use mainstem_partition::{DECOMPRESSED_BYTES_MAX, PartitionEvent, PartitionId, TopicId};
use mainstem_queue_core::{Engine, EngineOptions, QueueError, Reply, Tuning, WhenCrowded};

use open_queues::{OpenQueue, OpenQueues};
use replies::Replies;
use schedule::Schedule;

use crate::command_queue::CommandQueues;
use crate::context::{Context, MessagePartition, QueueTopicConfig};
use crate::effect::{Effect, Effects};
use crate::message::{QueueRequest, ReplyTo};

/// Limit of recently read messages in memory, of all queues together, bytes, about.
const CACHE_BYTES: usize = 128 * 1024 * 1024;
/// Prefix of the names of state logs.
const STATE: &str = "q-";

/// The queues of one shard. `C` is the configuration of a topic.
///
/// After each call, its owner carries out the effects that [`QueueHost::poll_effect`] returns.
pub struct QueueHost<C> {
    me: usize,
    commands: CommandQueues,
    tuning: Tuning,
    open: OpenQueues<C>,
    /// The catalogue's version that `open` and `unopened` reflect.
    version: Option<u64>,
    /// Queues of this shard that are not open yet.
    unopened: VecDeque<PartitionId>,
    schedule: Schedule,
    replies: Replies,
    /// Deleted queues, which are freed in steps.
    closed: Vec<Engine<ReplyTo>>,
    /// Requests for queues that are being created; on shard 0.
    awaiting_creation: Vec<QueueRequest>,
    is_draining: bool,
    effects: Effects,
}

/// Decompresses a batch for a queue.
fn decompress(batch: &Batch<'_>) -> Option<Vec<u8>> {
    decompress_records(batch, DECOMPRESSED_BYTES_MAX).ok().map(std::borrow::Cow::into_owned)
}

/// The name of the log of a queue's state.
fn state_name(id: PartitionId) -> String {
    format!("{STATE}{}", id.topic.to_hex())
}

/// The topic whose state a log of this name has; `None` if it is another log.
pub fn topic_of_state(name: &str) -> Option<TopicId> {
    TopicId::from_hex(name.strip_prefix(STATE)?)
}

impl<C: QueueTopicConfig> QueueHost<C> {
    /// The host of shard `me`. It opens the queues of the shard one by one as it is polled.
    pub fn new(me: usize, commands: CommandQueues, tuning: Tuning) -> Self {
        Self {
            me,
            commands,
            tuning,
            open: OpenQueues::default(),
            version: None,
            unopened: VecDeque::new(),
            schedule: Schedule::default(),
            replies: Replies::default(),
            closed: Vec::new(),
            awaiting_creation: Vec::new(),
            is_draining: false,
            effects: Effects::default(),
        }
    }

    /// Begins to carry out effects, until [`QueueHost::poll_effect`] returns `None`. False if the owner is doing so:
    /// it has called the host while it carries out an effect, and the later ones keep their order.
    pub fn begin_effects(&mut self) -> bool {
        self.effects.begin()
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.poll()
    }

    /// Memory of all queues, bytes, about.
    pub fn memory(&self) -> u64 {
        let open = self.open.values().map(|open| &open.engine);
        open.chain(&self.closed).map(Engine::memory).sum()
    }

    // --- the turn

    /// Takes what has happened since the last call. To be called when a turn begins, and before it ends; then
    /// [`QueueHost::next_unopened`], [`QueueHost::poll_next`] and [`QueueHost::end_poll`].
    pub fn begin_poll(&mut self, cx: &mut Context<'_, C>) {
        self.take_partition_events(cx);
        for command in self.commands.take(self.me) {
            self.handle_command(cx, command);
        }
        self.sync_with_catalogue(cx);
        if let Some(closed) = self.closed.last_mut() {
            if !closed.drop_step() {
                self.closed.pop();
            }
            self.effects.request_turn();
        }
    }

    /// The next queue to [open](Self::open), once; one per turn.
    pub fn next_unopened(&mut self) -> Option<PartitionId> {
        let id = self.unopened.pop_front()?;
        self.effects.request_turn();
        Some(id)
    }

    /// Whether a queue is ready. Mostly none is, so this is cheaper than [`QueueHost::poll_next`].
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.schedule.has_ready()
    }

    /// Polls a queue that is ready, if there is one.
    pub fn poll_next(&mut self, cx: &mut Context<'_, C>) {
        let Some(id) = self.schedule.take_ready() else { return };
        if self.poll_queue(cx, id) {
            self.schedule.continue_in_next_turn(id);
            self.effects.request_turn();
        }
    }

    /// Ends the poll that [`QueueHost::begin_poll`] has begun.
    pub fn end_poll(&mut self, now_ms: u64) {
        self.schedule.end_turn();
        self.set_timer(now_ms);
    }

    /// Polls a queue. Returns whether it has more to do at once.
    fn poll_queue(&mut self, cx: &mut Context<'_, C>, id: PartitionId) -> bool {
        if !self.fill_gap(cx, id) {
            return false;
        }
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the path is not general over lifetimes"
        )]
        let has_more = self.with_engine(cx, id, |engine, cx| engine.poll(cx));
        let Some(open) = self.open.get_mut(id) else { return false };
        let due_ms = open.engine.next_due(cx.now_ms);
        self.schedule.move_deadline(id, &mut open.due_ms, due_ms);
        has_more == Some(true)
    }

    /// Calls an engine and takes its effects; `None` if the queue is not open.
    fn with_engine<T>(
        &mut self,
        cx: &mut Context<'_, C>,
        id: PartitionId,
        call: impl FnOnce(&mut Engine<ReplyTo>, &mut mainstem_queue_core::Context<'_, MessagePartition<'_>>) -> T,
    ) -> Option<T> {
        let open = self.open.get_mut(id)?;
        let store = &mut *cx.stores[open.store].store;
        let log = MessagePartition(cx.partitions.get(&id)?);
        let now_ms = cx.now_ms;
        let result = call(&mut open.engine, &mut mainstem_queue_core::Context { store, log: &log, now_ms });
        self.take_engine_effects(cx, id);
        self.admit_producers(cx, id);
        Some(result)
    }

    /// Whether a queue may have messages or events to append.
    #[inline]
    pub fn has_unappended(&self) -> bool {
        self.schedule.has_changed()
    }

    /// Hands over the messages of this turn, as effects. To be called before [`QueueHost::append_events`].
    pub fn end_batches(&mut self, cx: &mut Context<'_, C>) {
        for id in self.schedule.changed() {
            self.with_engine(cx, id, |engine, _| engine.end_batch());
        }
    }

    /// Hands the stores the events of this turn. To be called before the turn's commit.
    pub fn append_events(&mut self, cx: &mut Context<'_, C>) {
        for id in self.schedule.take_changed() {
            let Some(open) = self.open.get_mut(id) else { continue };
            let queue = open.engine.queue_mut();
            queue.store_events(&mut *cx.stores[open.store].store, cx.now_ms);
            if queue.has_unwritten_events() {
                // Retried each turn.
                self.schedule.mark_changed(id);
            }
        }
    }

    /// Whether there are replies to the other protocols of this shard.
    pub fn has_replies(&self) -> bool {
        self.replies.has_some_to_protocols()
    }

    /// Takes the replies to the other protocols of this shard since the last call, with their tokens.
    pub fn take_replies(&mut self) -> Vec<(u64, Reply)> {
        self.replies.take_to_protocols()
    }

    /// Truncates the logs of queues. To be called now and then.
    pub fn trim(&mut self, cx: &mut Context<'_, C>) {
        let cache_bytes = CACHE_BYTES / self.open.len().max(1);
        for id in self.schedule.take_untrimmed() {
            let trims_again = self.with_engine(cx, id, |engine, cx| {
                engine.release_buffers(cache_bytes);
                engine.trim(cx.store, cx.now_ms)
            });
            if trims_again == Some(true) {
                self.schedule.mark_untrimmed(id);
            }
            if self.open.get(id).is_some_and(|open| open.engine.queue().has_unwritten_events()) {
                self.schedule.mark_changed(id);
            }
        }
    }

    // --- completions, events and timers

    /// Whether a log of a store has the state of an open queue.
    #[inline]
    pub fn is_state_log(&self, store: usize, log: LogId) -> bool {
        self.open.of_state(store, log).is_some()
    }

    /// Handles a completion. False if it is of no queue's state.
    pub fn on_completion(&mut self, cx: &mut Context<'_, C>, store: usize, completion: &Completion) -> bool {
        let Some(id) = self.open.of_state(store, completion.log) else { return false };
        if let Some(open) = self.open.get_mut(id) {
            open.engine.queue_mut().on_completion(&mut *cx.stores[store].store, completion, cx.now_ms);
            self.mark_ready(id);
        }
        true
    }

    /// Applies what has happened in the partitions of queues: appends of producers, and records that became durable.
    pub fn take_partition_events(&mut self, cx: &mut Context<'_, C>) {
        if !cx.partitions.has_events() {
            return;
        }
        for event in cx.partitions.take_events() {
            match event {
                PartitionEvent::Appended { id, end, bytes } => {
                    if let Some(open) = self.open.get_mut(id) {
                        open.engine.on_foreign_append(end, bytes);
                    }
                }
                PartitionEvent::Advanced { id } => self.mark_ready(id),
                PartitionEvent::Failed { id, end } => {
                    if let Some(open) = self.open.get_mut(id) {
                        open.engine.on_foreign_append_failed(end);
                    }
                    self.mark_ready(id);
                }
            }
        }
    }

    /// Something has happened to a partition that may be a queue's.
    fn mark_ready(&mut self, id: PartitionId) {
        if self.open.contains(id) {
            self.schedule.mark_ready(id);
            self.effects.request_turn();
        }
    }

    /// The timer is due.
    pub fn on_timer(&mut self, now_ms: u64) {
        self.schedule.on_timer();
        while let Some(id) = self.schedule.take_due(now_ms) {
            if let Some(open) = self.open.get_mut(id) {
                open.due_ms = None;
                self.mark_ready(id);
            }
        }
        self.set_timer(now_ms);
    }

    fn set_timer(&mut self, now_ms: u64) {
        if let Some(delay_ms) = self.schedule.next_timer(now_ms) {
            self.effects.push(Effect::SetTimer(delay_ms));
        }
    }

    // --- opening and removal

    /// Finds new queues of this shard, and applies changed settings.
    fn sync_with_catalogue(&mut self, cx: &mut Context<'_, C>) {
        if self.version == Some(cx.catalogue.version) {
            return;
        }
        self.version = Some(cx.catalogue.version);
        for topic in cx.catalogue.by_name.values() {
            let Some(settings) = topic.config.engine_settings() else { continue };
            let id = topic.partition(0);
            if let Some(open) = self.open.get_mut(id) {
                if !Arc::ptr_eq(&open.topic, topic) {
                    open.topic = Arc::clone(topic);
                    let store = &mut *cx.stores[open.store].store;
                    if let Err(error) = open.engine.configure(store, settings, cx.now_ms) {
                        log::error!("queue {}: its state keeps its old durability: {error}", topic.name);
                    }
                    self.schedule.mark_ready(id);
                }
            } else if cx.owner(id) == Some(self.me) && !self.unopened.contains(&id) {
                self.unopened.push_back(id);
            }
        }
    }

    /// Whether a queue is open.
    pub fn is_open(&self, id: PartitionId) -> bool {
        self.open.contains(id)
    }

    /// Opens a queue of this shard, whose partition is open. `random` is a number that nobody can guess, another one
    /// each time.
    ///
    /// # Errors
    /// The queue or its partition does not exist, or its state cannot be read.
    pub fn open(&mut self, cx: &mut Context<'_, C>, id: PartitionId, random: u64) -> Result<(), QueueError> {
        if self.is_open(id) {
            return Ok(());
        }
        let topic = Arc::clone(cx.catalogue.topic_by_id(id.topic).ok_or(QueueError::UnknownQueue)?);
        let settings = topic.config.engine_settings().ok_or(QueueError::NotAQueue)?;
        let partition = cx.partitions.get(&id).ok_or(QueueError::Storage)?;
        let (store, messages) = (partition.store_index(), partition.log());
        let options = EngineOptions {
            name: Arc::clone(&topic.name),
            id: &id.topic.to_hex(),
            state_log: &state_name(id),
            messages,
            settings,
            decompress,
            tuning: self.tuning,
            random,
            when_crowded: WhenCrowded::Wait,
        };
        let engine = Engine::open(&mut *cx.stores[store].store, options, cx.now_ms).map_err(|error| {
            log::error!("queue {}: its state cannot be read: {error}", topic.name);
            QueueError::Storage
        })?;
        self.open.insert(id, OpenQueue { topic, store, engine, due_ms: None });
        self.unopened.retain(|unopened| *unopened != id);
        self.schedule.mark_ready(id);
        self.fill_gap(cx, id);
        self.admit_producers(cx, id);
        Ok(())
    }

    /// A topic is being deleted, which may be a queue. Its partition is still open.
    pub fn remove(&mut self, cx: &mut Context<'_, C>, id: PartitionId) {
        self.unopened.retain(|unopened| *unopened != id);
        if let Some(open) = self.open.get_mut(id) {
            open.engine.close();
        }
        self.take_engine_effects(cx, id);
        let Some(mut open) = self.open.remove(id) else {
            return self.effects.push(Effect::RemoveClosedStateLog(state_name(id)));
        };
        self.schedule.move_deadline(id, &mut open.due_ms, None);
        let log = open.engine.queue().state_log();
        self.effects.push(Effect::RemoveStateLog { store: open.store, log });
        self.closed.push(open.engine);
        self.effects.request_turn();
    }

    /// The process is to end: requests are refused, and consumers that wait get no messages.
    pub fn drain(&mut self, cx: &mut Context<'_, C>) {
        self.is_draining = true;
        for id in self.open.ids() {
            self.with_engine(cx, id, |engine, _| engine.drain());
        }
    }

    /// Keeps a request for a queue that another request is creating.
    pub fn await_creation(&mut self, request: QueueRequest) {
        self.awaiting_creation.push(request);
    }

    /// Topics have changed: routes the requests that wait for a queue.
    pub fn retry_awaiting_creation(&mut self, cx: &mut Context<'_, C>) {
        for request in std::mem::take(&mut self.awaiting_creation) {
            self.route(cx, request);
        }
    }
}
