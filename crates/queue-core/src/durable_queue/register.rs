//! Reads messages from their log: new ones to register, and old ones to replay for a group.
//!
//! A message belongs to the queue when it is durable in the log of messages, whoever appended it: the queue itself or a
//! Kafka producer. Registering means that the state machine learns of its offset, key, size and times. The queue's own
//! batches are known when they are appended, so that their registration reads nothing; others are read, and
//! decompressed if need be.
//!
//! A log that cannot be read stops registration at that offset, and nothing behind it is delivered: skipping a message
//! would lose it.

use std::ops::Range;

use mainstem_log::{Batch, BatchHeader, Error, Store, ValidBatch, batches};

use super::{DurableQueue, READ_BYTES, is_gap, is_transferred};
use crate::machine::GroupId;
use crate::meta::Meta;
use crate::request::UncompressedBatch;

impl DurableQueue {
    /// Registers durable messages below `to`, some per call. `passes_over` selects batches without messages of the
    /// queue. Returns whether there are more.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn register(
        &mut self,
        store: &mut dyn Store,
        to: u64,
        now_ms: u64,
        mut passes_over: impl FnMut(&BatchHeader) -> bool,
    ) -> Result<bool, Error> {
        let start = store.status(self.messages).start;
        if self.queue.registered_to() < start {
            self.queue.registered(start);
        }
        let from = self.queue.registered_to();
        if from >= to || self.queue.is_crowded() {
            return Ok(false);
        }
        if !self.register_known(to, now_ms, &mut passes_over) {
            self.register_read(store, to, now_ms, &mut passes_over)?;
        }
        if self.queue.registered_to() == from {
            // Nothing is left in the range: compaction has removed it.
            self.queue.registered(to);
        }
        Ok(self.queue.registered_to() < to && !self.queue.is_crowded())
    }

    /// Caches a batch that was appended to the log of messages, so that it need not be read when it is durable. The
    /// caller must report every appended batch in this way, and a failed append by
    /// [`append_failed`](Self::append_failed).
    pub fn appended(&mut self, batch: ValidBatch<'_>, base_offset: u64) {
        // An earlier append at these offsets has failed.
        self.cache.forget_from(base_offset);
        if self.cache.has_room(batch.bytes().len())
            && let Some(plain) = UncompressedBatch::placed(batch, base_offset)
        {
            self.cache.insert(plain);
        }
    }

    /// An append to the log of messages has failed, so its batches are not part of the log.
    pub fn append_failed(&mut self) {
        self.cache.forget_from(self.queue.registered_to());
    }

    /// Registers messages of cached batches. Returns false if there are none.
    fn register_known(
        &mut self,
        to: u64,
        now_ms: u64,
        passes_over: &mut impl FnMut(&BatchHeader) -> bool,
    ) -> bool {
        let from = self.queue.registered_to();
        let mut bytes = 0;
        while bytes < READ_BYTES
            && let Some(plain) = self.cache.batch(self.queue.registered_to()).cloned()
        {
            let header = plain.header();
            if header.end_offset() > to {
                break;
            }
            bytes += header.total_bytes;
            if !passes_over(&header)
                && !header.is_control()
                && self.register_batch(&plain, header.base_offset, now_ms)
            {
                self.cache.read(header.base_offset);
            }
            self.queue.registered(header.end_offset());
        }
        self.queue.registered_to() > from
    }

    fn register_read(
        &mut self,
        store: &mut dyn Store,
        to: u64,
        now_ms: u64,
        passes_over: &mut impl FnMut(&BatchHeader) -> bool,
    ) -> Result<(), Error> {
        let offsets = self.queue.registered_to()..to;
        self.read_messages(store, offsets.clone(), READ_BYTES, |this, bytes| {
            this.register_bytes(bytes, offsets, now_ms, passes_over);
        })
    }

    /// Reads batches into a reused buffer and passes them to `with`.
    pub(super) fn read_messages<R>(
        &mut self,
        store: &mut dyn Store,
        offsets: Range<u64>,
        most: usize,
        with: impl FnOnce(&mut Self, &[u8]) -> R,
    ) -> Result<R, Error> {
        let mut bytes = std::mem::take(&mut self.read_buffer);
        bytes.clear();
        let outcome = store.read(self.messages, offsets, most, &mut bytes);
        let outcome = outcome.map(|()| with(self, &bytes));
        if bytes.capacity() <= 2 * READ_BYTES {
            self.read_buffer = bytes;
        }
        outcome
    }

    fn register_bytes(
        &mut self,
        bytes: &[u8],
        offsets: Range<u64>,
        now_ms: u64,
        passes_over: &mut impl FnMut(&BatchHeader) -> bool,
    ) {
        for batch in batches(bytes) {
            if is_gap(&batch.header) {
                self.register_gap(&batch.header, offsets.start, now_ms);
            } else if !passes_over(&batch.header) && !batch.header.is_control() {
                match self.plain(&batch) {
                    Some(plain) => {
                        self.register_batch(&plain, offsets.start, now_ms);
                        self.cache.put(plain);
                    }
                    None => log_unreadable(&batch.header),
                }
            }
            self.queue.registered(batch.header.end_offset().min(offsets.end));
        }
    }

    /// Registers the messages of a batch from an offset on. Returns whether all records are valid.
    fn register_batch(&mut self, plain: &UncompressedBatch, from: u64, now_ms: u64) -> bool {
        let header = plain.header();
        let is_moved = is_transferred(&header);
        for record in plain.records() {
            let Ok(record) = record else {
                log_unreadable(&header);
                return false;
            };
            if record.offset >= from {
                self.queue.register(Meta::of(&record, is_moved), now_ms);
            }
        }
        true
    }

    /// Appends the metadata of the selected messages of a batch. Returns false if the batch is invalid.
    pub(super) fn metas(
        &self,
        batch: &Batch<'_>,
        is_wanted: impl Fn(u64) -> bool,
        into: &mut Vec<Meta>,
    ) -> bool {
        let Some(plain) = self.plain(batch) else { return false };
        let is_moved = is_transferred(&batch.header);
        let records = plain.records().map_while(Result::ok).filter(|record| is_wanted(record.offset));
        into.extend(records.map(|record| Meta::of(&record, is_moved)));
        true
    }

    /// Decompresses a batch. `None` if it is invalid.
    pub(super) fn plain(&self, batch: &Batch<'_>) -> Option<UncompressedBatch> {
        UncompressedBatch::copy(batch)
            .or_else(|| Some(UncompressedBatch::unpacked(&batch.header, &(self.decompress)(batch)?)))
    }

    /// Makes messages on disk from `from` on pending again in a group, some per call. Returns their number and the
    /// offset to continue from.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn replay_from(
        &mut self,
        store: &mut dyn Store,
        group: GroupId,
        from: u64,
        now_ms: u64,
        mut passes_over: impl FnMut(&BatchHeader) -> bool,
    ) -> Result<(u64, Option<u64>), Error> {
        let from = from.max(store.status(self.messages).start);
        let to = self.queue.registered_to();
        if from >= to {
            return Ok((0, None));
        }
        if self.queue.is_listing() {
            // Otherwise [`Queue::replay_from`] would list everything in one call.
            self.queue.list(&mut { self.tuning.at_once });
            return Ok((0, Some(from)));
        }
        let mut bytes = Vec::new();
        store.read(self.messages, from..to, READ_BYTES, &mut bytes)?;
        let (mut metas, mut next) = (Vec::new(), from);
        for batch in batches(&bytes) {
            next = batch.header.end_offset();
            if passes_over(&batch.header) || batch.header.is_control() {
                continue;
            }
            self.metas(&batch, |offset| (from..to).contains(&offset), &mut metas);
        }
        let count = self.queue.replay_from(group, &metas, now_ms);
        Ok((count, (next > from && next < to).then_some(next)))
    }
}

pub(super) fn log_unreadable(header: &BatchHeader) {
    log::error!("queue: skipping an invalid batch at offset {}", header.base_offset);
}
