//! Sources: records of topics that other protocols read.
//!
//! Each record must reach the other protocol at least once, also across a crash. A reader follows each partition of a
//! source topic up to its last stable offset. It stores a position only after the other protocol has confirmed all
//! records before it (a fence). A crash may therefore repeat records, but loses none.
//!
//! A small batch may hold millions of records when decompressed, so memory needs a bound. At most one batch of a shard
//! is partially delivered at a time, and each delivery is bounded in records and bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_compress::batch::decompress_records;
use mainstem_log::{Batch, BatchHeader, Completion, Durability, Error, Record, Records, batches};
use mainstem_log::{Header, Headers};
use mainstem_partition::{AbortedFilter, CompactedLog, LOG_APPEND_TIME, Partition};
use mainstem_runtime::Io;

use crate::binding_registry::Source;
use crate::catalogue::PartitionId;
use crate::shard::Shard;
use crate::shard_message::Mail;

/// The log of positions, in each store with partitions of sources.
const LOG: &str = "kafka-positions";
/// Bytes per read.
const READ_BYTES: usize = 256 * 1024;
/// Most reads of one partition in a row if everything read is skipped.
const READS_MAX: usize = 16;
/// Largest decompressed batch that is delivered, bytes.
const DECOMPRESSED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest batch of another partition that may be delivered while a batch is partially delivered, bytes.
const SMALL_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Most records, and approximately the most bytes of memory, in one delivery.
const DELIVERY_RECORDS_MAX: usize = 16 * 1024;
const DELIVERY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most headers of a delivered record. A header of two bytes on the log takes much more memory.
const HEADERS_MAX: usize = 64 * 1024;

/// A record for another protocol.
#[derive(Debug)]
pub struct SourceRecord {
    /// Number of the source: its index in [`crate::Config::sources`], or the result of [`crate::Shared::add_source`].
    pub source: usize,
    /// Partition index.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: u64,
    /// Timestamp, ms since 1970.
    pub timestamp_ms: i64,
    /// Record key.
    pub key: Option<Vec<u8>>,
    /// Record value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Record headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// All source readers of one shard.
#[derive(Debug, Default)]
pub(crate) struct SourceReaders {
    all: BTreeMap<(usize, PartitionId), SourceReader>,
    /// Positions per store, opened when the first reader needs them.
    positions: Vec<Positions>,
    /// Versions of the catalogue and of the bindings that the readers match.
    versions: Option<(u64, u64)>,
    /// Number of sources at those versions.
    sources: usize,
    last_token: u64,
    /// Index of the reader that delivers next.
    next_index: usize,
    /// The partially delivered batch; at most one, see the top of the file.
    partial: Option<PartialBatch>,
}

/// A partially delivered batch.
#[derive(Debug)]
struct PartialBatch {
    reader: (usize, PartitionId),
    header: BatchHeader,
    /// Decompressed records; those from byte `at` on are not delivered yet.
    decompressed: Vec<u8>,
    at: usize,
    records_left: u32,
}

/// Records for the other protocol, delivered together.
#[derive(Debug, Default)]
struct Delivery {
    records: Vec<SourceRecord>,
    bytes: usize,
    /// Everything read was skipped, and there is more to read.
    has_more: bool,
}

impl Delivery {
    fn is_full(&self) -> bool {
        self.records.len() >= DELIVERY_RECORDS_MAX || self.bytes >= DELIVERY_BYTES_MAX
    }
}

/// Stored positions by record key.
type OffsetsByKey = BTreeMap<Vec<u8>, u64>;

#[derive(Debug)]
struct Positions {
    store: usize,
    log: CompactedLog<()>,
    offsets: OffsetsByKey,
}

#[derive(Debug)]
struct SourceReader {
    /// Offset of the next record.
    next: u64,
    /// The stored position.
    stored: u64,
    /// The fence in progress and the position that it confirms.
    fence: Option<(u64, u64)>,
    /// Whether a read error of the partition has been logged.
    has_failed: bool,
    /// Whether a skipped batch has been logged.
    has_skipped: bool,
}

fn position_key(source: &str, id: PartitionId) -> Vec<u8> {
    format!("{source}/{}/{}", id.topic.to_hex(), id.index).into_bytes()
}

impl Shard {
    /// Creates readers for the partitions of sources on this shard, and removes those that no longer exist.
    fn sync_source_readers(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        let versions = (self.catalogue.version, self.bindings.version);
        let Some((catalogue_before, bound_before)) = self.source_readers.versions.replace(versions) else {
            return self.create_source_readers(|_| true);
        };
        if (catalogue_before, bound_before) == versions {
            return;
        }
        // An existing source reads a new topic from its start; a new source may skip the records that exist.
        let sources_before = self.source_readers.sources;
        self.create_source_readers(|number| number >= sources_before);
    }

    /// Creates readers. Readers of a new source start at the end unless the source says `from_start`.
    fn create_source_readers(&mut self, is_new: impl Fn(usize) -> bool) {
        let catalogue = Arc::clone(&self.catalogue);
        let bound = Arc::clone(&self.bindings);
        self.source_readers.sources = bound.sources.len();
        self.source_readers.all.retain(|(source, id), _| {
            catalogue.topic_by_id(id.topic).is_some()
                && bound.sources.get(*source).is_some_and(Option::is_some)
        });
        let exists = |partial: &PartialBatch| self.source_readers.all.contains_key(&partial.reader);
        self.source_readers.partial = self.source_readers.partial.take().filter(exists);
        for (number, source) in bound.sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let Some(topic) = catalogue.topic(&source.topic) else { continue };
            for index in 0..topic.partitions() {
                let id = topic.partition(index);
                if self.owner_of(id) != Ok(self.me) || self.source_readers.all.contains_key(&(number, id)) {
                    continue;
                }
                match self.create_source_reader(source, id, source.from_start || !is_new(number)) {
                    Ok(reader) => drop(self.source_readers.all.insert((number, id), reader)),
                    Err(error) => log::error!("source {}: partition {index}: {error}", source.name),
                }
            }
        }
    }

    /// The name of a source.
    fn source_name(&self, source: usize) -> Arc<str> {
        let source = self.bindings.sources.get(source).and_then(Option::as_ref);
        source.map_or_else(|| "".into(), |source| Arc::clone(&source.name))
    }

    /// Creates a reader at the stored position; without one, at the start or the end of the partition.
    fn create_source_reader(
        &mut self,
        source: &Source,
        id: PartitionId,
        from_start: bool,
    ) -> Result<SourceReader, Error> {
        let failed = |code: mainstem_kafka::ErrorCode| Error::System(code.name().into());
        let (partition, store) = self.partition(id).map_err(failed)?;
        let (watermarks, store_index) = (partition.watermarks(store), partition.store_index());
        let stored = self.positions(store_index)?.offsets.get(&position_key(&source.name, id)).copied();
        let begin = if from_start { watermarks.start } else { watermarks.high_watermark };
        let next = stored.unwrap_or(begin).clamp(watermarks.start, watermarks.high_watermark);
        let stored = if stored.is_some() { next } else { u64::MAX };
        Ok(SourceReader { next, stored, fence: None, has_failed: false, has_skipped: false })
    }

    fn positions(&mut self, store: usize) -> Result<&mut Positions, Error> {
        if let Some(at) = self.source_readers.positions.iter().position(|positions| positions.store == store)
        {
            return Ok(&mut self.source_readers.positions[at]);
        }
        let mut offsets = OffsetsByKey::new();
        let log = CompactedLog::open(&mut *self.stores[store].store, LOG, Durability::Os, |key, value| {
            let offset = value.and_then(|value| Some(u64::from_be_bytes(*value.first_chunk()?)));
            match offset {
                Some(offset) => drop(offsets.insert(key.to_vec(), offset)),
                None => drop(offsets.remove(key)),
            }
        })?;
        self.source_readers.positions.push(Positions { store, log, offsets });
        Ok(self.source_readers.positions.last_mut().expect("just pushed"))
    }

    /// Takes the next records for other protocols; `None` if there are none. An empty result means that there may be
    /// more: call it again.
    pub fn take_outgoing(&mut self) -> Option<Vec<SourceRecord>> {
        self.shared.bound.refresh(&mut self.bindings);
        if self.bindings.sources.is_empty() {
            return None;
        }
        self.sync_source_readers();
        let keys: Vec<(usize, PartitionId)> = self.source_readers.all.keys().copied().collect();
        let mut has_more = false;
        for step in 0..keys.len() {
            let key = keys[(self.source_readers.next_index + step) % keys.len()];
            let delivery = self.read_delivery(key);
            has_more |= delivery.has_more;
            if !delivery.records.is_empty() {
                self.source_readers.next_index = (self.source_readers.next_index + step + 1) % keys.len();
                return Some(delivery.records);
            }
        }
        has_more.then(Vec::new)
    }

    fn read_delivery(&mut self, key: (usize, PartitionId)) -> Delivery {
        let (source, id) = key;
        let mut delivery = Delivery::default();
        let Some(mut reader) = self.source_readers.all.remove(&key) else { return delivery };
        if let Some(partial) = self.source_readers.partial.take_if(|partial| partial.reader == key) {
            self.deliver_records(partial, &mut reader, &mut delivery);
        }
        if !delivery.is_full() {
            match self.read_source(key, &mut reader, &mut delivery) {
                Ok(()) => reader.has_failed = false,
                Err(error) if !std::mem::replace(&mut reader.has_failed, true) => {
                    let name = self.source_name(source);
                    log::error!("source {name}: partition {} at {}: {error}", id.index, reader.next);
                }
                Err(_) => {}
            }
        }
        self.source_readers.all.insert(key, reader);
        delivery
    }

    fn read_source(
        &mut self,
        key: (usize, PartitionId),
        reader: &mut SourceReader,
        delivery: &mut Delivery,
    ) -> Result<(), Error> {
        let failed = |code: mainstem_kafka::ErrorCode| Error::System(code.name().into());
        for _ in 0..READS_MAX {
            let (partition, store) = self.partition(key.1).map_err(failed)?;
            let watermarks = partition.watermarks(store);
            reader.next = reader.next.max(watermarks.start);
            if !delivery.records.is_empty() || reader.next >= watermarks.last_stable {
                return Ok(());
            }
            let mut bytes = Vec::new();
            let offsets = reader.next..watermarks.last_stable;
            store.read(partition.log(), offsets.clone(), READ_BYTES, &mut bytes)?;
            let mut aborted = AbortedFilter::new(partition.aborted(offsets));
            let before = reader.next;
            for batch in batches(&bytes) {
                let header = batch.header;
                if aborted.should_skip(&header) {
                    reader.next = header.end_offset();
                    continue;
                }
                if delivery.is_full() || !self.deliver_batch(key, reader, &batch, delivery) {
                    break;
                }
            }
            if reader.next == before {
                return Ok(());
            }
        }
        delivery.has_more = true;
        Ok(())
    }

    /// Delivers a batch. Returns false if the batch is large and must wait until the partial batch is delivered.
    fn deliver_batch(
        &mut self,
        key: (usize, PartitionId),
        reader: &mut SourceReader,
        batch: &Batch<'_>,
        delivery: &mut Delivery,
    ) -> bool {
        let header = batch.header;
        let has_partial = self.source_readers.partial.is_some();
        if has_partial
            && (header.records as usize > DELIVERY_RECORDS_MAX || header.total_bytes > SMALL_BATCH_BYTES_MAX)
        {
            return false;
        }
        let bytes_max = if has_partial { SMALL_BATCH_BYTES_MAX } else { DECOMPRESSED_BYTES_MAX };
        match decompress_records(batch, bytes_max) {
            Ok(decompressed) => {
                let partial = PartialBatch {
                    reader: key,
                    header,
                    decompressed: decompressed.into_owned(),
                    at: 0,
                    records_left: header.records,
                };
                self.deliver_records(partial, reader, delivery);
            }
            Err(mainstem_compress::Error::TooLarge) if has_partial => return false,
            Err(error) => self.skip_batch(key, reader, &header, &error.to_string()),
        }
        true
    }

    /// Adds the remaining records of a batch to the delivery, up to its bounds.
    fn deliver_records(&mut self, partial: PartialBatch, reader: &mut SourceReader, delivery: &mut Delivery) {
        let PartialBatch { reader: key, header, ref decompressed, at, records_left } = partial;
        let mut records = Records::resume(header, &decompressed[at..], records_left);
        // Only one batch may be partial, so this one is read to its end if another one is partial.
        let may_pause = self.source_readers.partial.is_none();
        while !(delivery.is_full() && may_pause) {
            let source_record = match records.next() {
                None => break,
                Some(Ok(record)) if record.offset < reader.next => continue,
                Some(Ok(record)) => source_record(key, &header, &record),
                Some(Err(_)) => None,
            };
            let Some(source_record) = source_record else {
                return self.skip_batch(
                    key,
                    reader,
                    &header,
                    "a record is malformed or has too many headers",
                );
            };
            reader.next = source_record.offset + 1;
            delivery.bytes += source_record.memory_bytes();
            delivery.records.push(source_record);
        }
        let (at, records_left) = (decompressed.len() - records.rest().len(), records.left());
        if records_left > 0 {
            self.source_readers.partial = Some(PartialBatch { at, records_left, ..partial });
        } else {
            reader.next = reader.next.max(header.end_offset());
        }
    }

    /// Skips the rest of an unreadable batch, so that it does not block later records. The broker does not validate
    /// compressed batches when it appends them.
    fn skip_batch(
        &self,
        key: (usize, PartitionId),
        reader: &mut SourceReader,
        header: &BatchHeader,
        reason: &str,
    ) {
        if !std::mem::replace(&mut reader.has_skipped, true) {
            let (name, index) = (self.source_name(key.0), key.1.index);
            log::error!(
                "source {name}: partition {index}: the batch at offset {} is unreadable; skipped its records from offset {}: {reason}",
                header.base_offset,
                reader.next
            );
        }
        reader.next = reader.next.max(header.end_offset());
    }

    /// Begins a fence for each reader whose position has moved, and returns their tokens.
    pub fn wanted_fences(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        for reader in self.source_readers.all.values_mut() {
            if reader.next != reader.stored && reader.fence.is_none() {
                self.source_readers.last_token += 1;
                reader.fence = Some((self.source_readers.last_token, reader.next));
                tokens.push(self.source_readers.last_token);
            }
        }
        tokens
    }

    /// Ends a fence. If `is_safe`, all records delivered before it are durable in the other protocol.
    pub fn fenced(&mut self, io: &mut Io<'_, Mail>, token: u64, is_safe: bool) {
        let has_token =
            |reader: &SourceReader| reader.fence.is_some_and(|(fence_token, _)| fence_token == token);
        let Some((key, reader)) = self.source_readers.all.iter_mut().find(|(_, reader)| has_token(reader))
        else {
            return;
        };
        let (source, id) = *key;
        let Some((_, position)) = reader.fence.take() else { return };
        if !is_safe {
            return;
        }
        reader.stored = position;
        let name = self.source_name(source);
        let Some(store) = self.partitions.get(&id).map(Partition::store_index) else { return };
        let Some(at) = self.source_readers.positions.iter().position(|positions| positions.store == store)
        else {
            return;
        };
        let record = (position_key(&name, id), Some(position.to_be_bytes().to_vec()));
        self.source_readers.positions[at].log.append(
            &mut *self.stores[store].store,
            io.clock.unix_ms,
            &[record],
            (),
        );
    }

    /// Appends the positions of this turn.
    pub(crate) fn store_positions(&mut self) {
        for Positions { store, log, .. } in &mut self.source_readers.positions {
            log.store_pending(&mut *self.stores[*store].store);
        }
    }

    /// Handles a completion. Returns false if it belongs to another log.
    pub(crate) fn on_positions_completion(&mut self, store: usize, completion: &Completion) -> bool {
        let Some(positions) =
            self.source_readers.positions.iter_mut().find(|positions| positions.store == store)
        else {
            return false;
        };
        positions.log.on_completion(completion, &mut Vec::new())
    }
}

impl SourceRecord {
    /// Approximate memory, bytes.
    fn memory_bytes(&self) -> usize {
        let len = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers = headers.map(|header| size_of_val(header) + header.0.len() + len(&header.1));
        size_of::<Self>() + len(&self.key) + len(&self.value) + headers.sum::<usize>()
    }
}

/// Converts a record; `None` if its headers are malformed or too many.
fn source_record(
    key: (usize, PartitionId),
    header: &BatchHeader,
    record: &Record<'_>,
) -> Option<SourceRecord> {
    // With `LogAppendTime` the batch header has the time, and the records still have the producer's.
    let arrived_ms = (header.attributes & LOG_APPEND_TIME != 0).then_some(header.max_timestamp_ms);
    let headers = Headers::parse(record.headers).ok()?.take(HEADERS_MAX + 1).map(|header| {
        let Header { key, value } = header.ok()?;
        Some((key.to_owned(), value.map(<[u8]>::to_vec)))
    });
    let headers: Vec<_> = headers.collect::<Option<_>>()?;
    (headers.len() <= HEADERS_MAX).then(|| SourceRecord {
        source: key.0,
        partition: key.1.index,
        offset: record.offset,
        timestamp_ms: arrived_ms.unwrap_or(record.timestamp_ms),
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers,
    })
}
