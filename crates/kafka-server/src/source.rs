//! Sources: delivers records of this shard's partitions to other protocols, see [`crate::sources`].

use std::sync::Arc;

use mainstem_log::{Completion, Error};
use mainstem_runtime::Io;

use crate::binding_registry::Source;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::sources::{Delivery, ReaderKey, SourceRecord};

impl Shard {
    /// Takes the next records for other protocols; `None` if there are none. An empty result means that there may be
    /// more: call it again.
    pub fn take_outgoing(&mut self) -> Option<Vec<SourceRecord>> {
        self.env.shared().bound.refresh(&mut self.bindings);
        if self.bindings.sources.is_empty() {
            return None;
        }
        self.sync_source_readers();
        let mut has_more = false;
        for (place, key) in self.source_readers.turns().into_iter().enumerate() {
            let delivery = self.read_delivery(key);
            has_more |= delivery.has_more;
            if !delivery.records.is_empty() {
                self.source_readers.end_turn(place);
                return Some(delivery.records);
            }
        }
        has_more.then(Vec::new)
    }

    fn read_delivery(&mut self, key: ReaderKey) -> Delivery {
        let mut delivery = self.source_readers.deliver_partial(key);
        if !delivery.is_full() {
            // Reading needs the readers and a partition with its store, which is all of the shard.
            let mut readers = std::mem::take(&mut self.source_readers);
            readers.read(key, self.storage.partition(&mut self.env, key.1), &mut delivery);
            self.source_readers = readers;
        }
        delivery
    }

    /// Creates readers for the partitions of sources on this shard, and removes those that no longer exist.
    fn sync_source_readers(&mut self) {
        self.env.refresh();
        let (catalogue, bindings) = (Arc::clone(self.env.catalogue()), Arc::clone(&self.bindings));
        let versions = (catalogue.version, bindings.version);
        let Some(first_new) = self.source_readers.set_versions(versions, bindings.sources.len()) else {
            return;
        };
        self.source_readers.remove_missing(&catalogue, &bindings);
        for (number, source) in bindings.sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let Some(topic) = catalogue.topic(&source.topic) else { continue };
            // An existing source reads a new topic from its start; a new source may skip the records that exist.
            let from_start = source.from_start || number < first_new;
            for index in 0..topic.partitions() {
                let id = topic.partition(index);
                if self.env.owner_of(id) != Ok(self.env.me()) || self.source_readers.contains((number, id)) {
                    continue;
                }
                if let Err(error) = self.add_source_reader((number, id), source, from_start) {
                    log::error!("source {}: partition {index}: {error}", source.name);
                }
            }
        }
    }

    fn add_source_reader(&mut self, key: ReaderKey, source: &Source, from_start: bool) -> Result<(), Error> {
        let mut readers = std::mem::take(&mut self.source_readers);
        let partition =
            self.storage.partition(&mut self.env, key.1).map_err(|code| Error::System(code.name().into()));
        let added =
            partition.and_then(|(partition, store)| readers.add(key, (source, from_start), partition, store));
        self.source_readers = readers;
        added
    }

    /// Begins a fence for each reader whose position has moved, and returns their tokens.
    pub fn begin_source_fences(&mut self) -> Vec<u64> {
        self.source_readers.begin_fences()
    }

    /// Ends a fence. If `is_durable`, all records delivered before it are durable in the other protocol.
    pub fn end_source_fence(&mut self, io: &mut Io<'_, Mail>, token: u64, is_durable: bool) {
        let Some((id, position)) = self.source_readers.end_fence(token, is_durable) else { return };
        let Some((store_index, store)) = self.storage.store_of(id) else { return };
        self.source_readers.append_position(store_index, store, io.clock.unix_ms, position);
    }

    /// Appends the positions of this turn.
    pub(crate) fn store_positions(&mut self) {
        self.source_readers.store_pending(self.storage.stores_mut());
    }

    /// Handles a completion. Returns false if it belongs to another log.
    pub(crate) fn on_positions_completion(&mut self, store: usize, completion: &Completion) -> bool {
        self.source_readers.on_completion(store, completion)
    }
}
