//! The topics that other protocols write to and read, on one shard: their sinks, and the readers of their sources.
//!
//! The names of bound topics are configuration; the topics themselves may not exist yet, or may be deleted and created
//! again. So a sink looks its topic up with each record, has a missing one created, and lets records wait in order
//! meanwhile. A reader belongs to a partition with its topic's id: a new topic of the same name gets a new reader, from
//! its start.

use std::sync::Arc;

use mainstem_kafka::partition_for_key;
use mainstem_log::{Completion, Error, Stores};
use mainstem_queue_core::{NewMessage, Reply};
use mainstem_runtime::Io;

use crate::binding_registry::{BindingRegistry, BoundTopic, Source};
use crate::catalogue::{PartitionId, Topic};
use crate::environment::Environment;
use crate::sinks::{SinkBatch, SinkJob, SinkRecord, SinkResult, Sinks};
use crate::sources::{Delivery, ReaderKey, SourceReaders, SourceRecord};
use crate::storage::Storage;

/// What the shard carries out for the records of other protocols.
pub(crate) enum SinkEffect {
    /// Append a batch to a partition.
    Append { id: PartitionId, batch: SinkBatch, job: SinkJob },
    /// Send messages to a work queue.
    Send { queue: Arc<str>, messages: Vec<NewMessage>, job: SinkJob },
    /// Have the topic with this number created.
    CreateTopic(usize),
}

/// The sinks and sources of one shard.
#[derive(Default)]
pub struct Bindings {
    /// Snapshot of the topics that other protocols write to and read.
    registry: Arc<BindingRegistry>,
    sinks: Sinks,
    readers: SourceReaders,
}

/// Records from other protocols.
impl Bindings {
    /// Whether records are finished.
    pub fn has_sink_results(&self) -> bool {
        self.sinks.has_results()
    }

    /// Takes the tokens and results of finished records.
    pub fn take_sink_results(&mut self) -> Vec<(u64, SinkResult)> {
        self.sinks.take_results()
    }

    /// Whether other protocols should pause.
    pub fn is_sink_behind(&self) -> bool {
        self.sinks.is_behind()
    }

    /// Number of topics that other protocols write to.
    pub(crate) fn bound_topics(&mut self, env: &Environment) -> usize {
        env.shared().bound.refresh(&mut self.registry);
        self.registry.topics.len()
    }

    /// A topic that other protocols write to, if it does not exist.
    pub(crate) fn missing_topic(&mut self, env: &mut Environment, bound: usize) -> Option<BoundTopic> {
        env.shared().bound.refresh(&mut self.registry);
        env.refresh();
        let topic = self.registry.topics.get(bound)?;
        env.catalogue().topic(&topic.name).is_none().then(|| topic.clone())
    }

    /// Adds a record to the batch of its topic. If the topic does not exist, or an earlier record waits for its topic,
    /// the record waits too: call [`Self::next_waiting`].
    pub(crate) fn add(&mut self, env: &mut Environment, record: &SinkRecord<'_>) -> Option<SinkEffect> {
        env.refresh();
        env.shared().bound.refresh(&mut self.registry);
        match self.topic(env, record.bound) {
            Some(topic) if !self.has_waiting() => self.add_to_batch(&topic, record),
            _ => {
                self.sinks.push_awaiting_topic(record);
                None
            }
        }
    }

    /// Whether records wait for their topic.
    pub(crate) fn has_waiting(&self) -> bool {
        self.sinks.next_awaiting_topic().is_some()
    }

    /// Adds waiting records to batches while their topics exist, then has the next missing topic created. Call it until
    /// it returns `None`.
    pub(crate) fn next_waiting(&mut self, env: &Environment) -> Option<SinkEffect> {
        while let Some(bound) = self.sinks.next_awaiting_topic() {
            let Some(topic) = self.topic(env, bound) else {
                return self.sinks.request(bound).then_some(SinkEffect::CreateTopic(bound));
            };
            if let Some(waiting) = self.sinks.pop_awaiting_topic()
                && let Some(effect) = self.add_to_batch(&topic, &waiting.record())
            {
                return Some(effect);
            }
        }
        None
    }

    /// Missing topics are requested again.
    pub(crate) fn clear_topic_requests(&mut self) {
        self.sinks.clear_requests();
    }

    /// Takes the next batch of this turn.
    pub(crate) fn next_batch(&mut self) -> Option<SinkEffect> {
        if let Some((queue, send)) = self.sinks.pop_send() {
            let (messages, job) = self.sinks.begin_send(send);
            return Some(SinkEffect::Send { queue, messages, job });
        }
        let (id, batch) = self.sinks.pop_batch()?;
        Some(self.begin(id, batch))
    }

    /// A batch has been appended, or not.
    pub(crate) fn settle(&mut self, job: SinkJob, result: SinkResult) {
        self.sinks.settle(job, result);
    }

    /// A queue has answered a batch of messages.
    pub(crate) fn settle_reply(&mut self, job: SinkJob, reply: &Reply) {
        match reply {
            Reply::Sent(answers) => self.sinks.settle_each(job, answers),
            _ => self.sinks.settle(job, SinkResult::NotDurable),
        }
    }

    fn topic(&self, env: &Environment, bound: usize) -> Option<Arc<Topic>> {
        env.catalogue().topic(&self.registry.topics.get(bound)?.name).cloned()
    }

    /// Adds a record to the batch of its topic, and returns the batch that it does not fit into.
    fn add_to_batch(&mut self, topic: &Topic, record: &SinkRecord<'_>) -> Option<SinkEffect> {
        if topic.config.queue.is_some() {
            let full = self.sinks.add_for_queue(&topic.name, record)?;
            let (messages, job) = self.sinks.begin_send(full);
            return Some(SinkEffect::Send { queue: Arc::clone(&topic.name), messages, job });
        }
        let id = topic.partition(partition_for_key(record.partition_key, topic.partitions()));
        let full = self.sinks.add(id, record, topic.config.partition.message_bytes_max)?;
        Some(self.begin(id, full))
    }

    fn begin(&mut self, id: PartitionId, mut batch: SinkBatch) -> SinkEffect {
        let job = self.sinks.begin(&mut batch);
        SinkEffect::Append { id, batch, job }
    }
}

/// Records for other protocols, see `sources.rs`.
impl Bindings {
    /// Takes the next records, as [`crate::Shard::take_outgoing`] does.
    pub(crate) fn take_outgoing<M>(
        &mut self,
        env: &mut Environment,
        storage: &mut Storage,
        io: &mut Io<'_, M>,
    ) -> Option<Vec<SourceRecord>> {
        env.shared().bound.refresh(&mut self.registry);
        if self.registry.sources.is_empty() {
            return None;
        }
        self.sync_readers(env, storage);
        let mut has_more = false;
        for (place, key) in self.readers.turns().into_iter().enumerate() {
            let delivery = self.read_delivery(env, storage, key);
            io.charge(delivery.units);
            has_more |= delivery.has_more;
            if !delivery.records.is_empty() {
                self.readers.end_turn(place);
                return Some(delivery.records);
            }
        }
        has_more.then(Vec::new)
    }

    fn read_delivery(&mut self, env: &mut Environment, storage: &mut Storage, key: ReaderKey) -> Delivery {
        let mut delivery = self.readers.deliver_partial(key);
        if !delivery.is_full() && !delivery.has_more {
            self.readers.read(key, storage.partition(env, key.1), &mut delivery);
        }
        delivery
    }

    /// Creates readers for the partitions of sources on this shard, and removes those that no longer exist.
    fn sync_readers(&mut self, env: &mut Environment, storage: &mut Storage) {
        env.refresh();
        let (catalogue, registry) = (Arc::clone(env.catalogue()), Arc::clone(&self.registry));
        let versions = (catalogue.version, registry.version);
        let Some(first_new) = self.readers.set_versions(versions, registry.sources.len()) else { return };
        self.readers.remove_missing(&catalogue, &registry);
        for (number, source) in registry.sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let Some(topic) = catalogue.topic(&source.topic) else { continue };
            // An existing source reads a new topic from its start; a new source may skip the records that exist.
            let from_start = source.from_start || number < first_new;
            for index in 0..topic.partitions() {
                let id = topic.partition(index);
                if env.owner_of(id) != Ok(env.me()) || self.readers.contains((number, id)) {
                    continue;
                }
                if let Err(error) = self.add_reader(env, storage, (number, id), (source, from_start)) {
                    log::error!("source {}: partition {index}: {error}", source.name);
                }
            }
        }
    }

    fn add_reader(
        &mut self,
        env: &mut Environment,
        storage: &mut Storage,
        key: ReaderKey,
        source: (&Source, bool),
    ) -> Result<(), Error> {
        let partition = storage.partition(env, key.1);
        let (partition, store) = partition.map_err(|code| Error::System(code.name().into()))?;
        self.readers.add(key, source, partition, store)
    }

    /// Begins a fence for each reader whose position has moved, and returns their tokens.
    pub fn begin_source_fences(&mut self) -> Vec<u64> {
        self.readers.begin_fences()
    }

    /// Ends a fence, as [`crate::Shard::end_source_fence`] does.
    pub(crate) fn end_source_fence<M>(
        &mut self,
        storage: &mut Storage,
        io: &Io<'_, M>,
        token: u64,
        is_durable: bool,
    ) {
        let Some((id, position)) = self.readers.end_fence(token, is_durable) else { return };
        let Some((store_index, store)) = storage.store_of(id) else { return };
        self.readers.append_position(store_index, store, io.clock.unix_ms, position);
    }

    /// Appends the positions of this turn.
    pub(crate) fn store_positions(&mut self, stores: &mut Stores) {
        self.readers.store_pending(stores);
    }

    /// Handles a completion. Returns false if it belongs to another log.
    pub(crate) fn on_positions_completion(&mut self, store: usize, completion: &Completion) -> bool {
        self.readers.on_completion(store, completion)
    }
}
