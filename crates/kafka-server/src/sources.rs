//! Sources of one shard: records of topics that other protocols read.
//!
//! Each record must reach the other protocol at least once, also across a crash. A reader follows each partition of a
//! source topic up to its last stable offset. It stores a position only after the other protocol has confirmed all
//! records before it (a fence). A crash may therefore repeat records, but loses none.
//!
//! A small batch may hold millions of records when decompressed, so memory and time need a bound. At most one batch of
//! a shard is partially delivered at a time, and each delivery is bounded in records and bytes. A large batch is
//! decompressed in steps that are charged to the turn ([`Decompression`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_log::{
    Batch, BatchHeader, Completion, Compression, Durability, Error, HEADER_BYTES, Record, Records, Store,
    StoreAt, batches,
};
use mainstem_log::{Header, Headers};
use mainstem_partition::{AbortedFilter, CompactedLog, KeyValue, LOG_APPEND_TIME, Partition};

use crate::binding_registry::{BindingRegistry, Source};
use crate::catalogue::{Catalogue, PartitionId};
use crate::decompression::{Decompression, record_units};

/// The log of positions, in each store with partitions of sources.
const LOG: &str = "kafka-positions";
/// Bytes per read.
const READ_BYTES: usize = 256 * 1024;
/// Most reads of one partition in a row if everything read is skipped.
const READS_MAX: usize = 16;
/// Largest batch of another partition that may be delivered while a batch is partially delivered, bytes.
const SMALL_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Most records, and approximately the most bytes of memory, in one delivery. The other protocol handles a delivery at
/// once.
const DELIVERY_RECORDS_MAX: usize = 1024;
const DELIVERY_BYTES_MAX: usize = 1024 * 1024;
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
    all: BTreeMap<ReaderKey, SourceReader>,
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
    reader: ReaderKey,
    header: BatchHeader,
    records: PartialRecords,
}

/// The records of a partially delivered batch.
#[derive(Debug)]
enum PartialRecords {
    Compressed(Decompression),
    /// Decompressed; those from byte `at` on are not delivered yet.
    Plain {
        bytes: Vec<u8>,
        at: usize,
        left: u32,
    },
}

/// Records for the other protocol, delivered together.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) records: Vec<SourceRecord>,
    bytes: usize,
    /// Nothing was delivered, but there is more to read.
    pub(crate) has_more: bool,
    /// Work that was done for it, in units of [`mainstem_runtime::Io::charge`].
    pub(crate) units: u32,
}

impl Delivery {
    pub(crate) fn is_full(&self) -> bool {
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
    /// The name of the source.
    name: Arc<str>,
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

/// A source by its number, and a partition of its topic.
pub(crate) type ReaderKey = (usize, PartitionId);

/// The readers.
impl SourceReaders {
    /// Sets the versions of the catalogue and of the bindings. Returns the number of the first new source; `None` if
    /// nothing has changed.
    pub(crate) fn set_versions(&mut self, versions: (u64, u64), sources: usize) -> Option<usize> {
        let before = self.versions.replace(versions);
        if before == Some(versions) {
            return None;
        }
        let sources_before = std::mem::replace(&mut self.sources, sources);
        Some(if before.is_none() { 0 } else { sources_before })
    }

    /// Removes the readers whose source or topic no longer exists.
    pub(crate) fn remove_missing(&mut self, catalogue: &Catalogue, bindings: &BindingRegistry) {
        self.all.retain(|(source, id), _| {
            catalogue.topic_by_id(id.topic).is_some()
                && bindings.sources.get(*source).is_some_and(Option::is_some)
        });
        let exists = |partial: &PartialBatch| self.all.contains_key(&partial.reader);
        self.partial = self.partial.take().filter(exists);
    }

    pub(crate) fn contains(&self, key: ReaderKey) -> bool {
        self.all.contains_key(&key)
    }

    /// Adds a reader at the stored position; without one, at the start or the end of the partition.
    ///
    /// # Errors
    /// The log of positions cannot be read.
    pub(crate) fn add(
        &mut self,
        key: ReaderKey,
        (source, from_start): (&Source, bool),
        partition: &Partition,
        store: &mut dyn Store,
    ) -> Result<(), Error> {
        let watermarks = partition.watermarks(store);
        let positions = self.positions(partition.store_index(), store)?;
        let stored = positions.offsets.get(&position_key(&source.name, key.1)).copied();
        let begin = if from_start { watermarks.start } else { watermarks.high_watermark };
        let next = stored.unwrap_or(begin).clamp(watermarks.start, watermarks.high_watermark);
        let stored = if stored.is_some() { next } else { u64::MAX };
        let name = Arc::clone(&source.name);
        let reader = SourceReader { name, next, stored, fence: None, has_failed: false, has_skipped: false };
        self.all.insert(key, reader);
        Ok(())
    }

    /// The readers in the order in which they deliver next.
    pub(crate) fn turns(&self) -> Vec<ReaderKey> {
        let mut keys: Vec<ReaderKey> = self.all.keys().copied().collect();
        if !keys.is_empty() {
            let first = self.next_index % keys.len();
            keys.rotate_left(first);
        }
        keys
    }

    /// The reader in this place of [`Self::turns`] has delivered, so the one after it is next.
    pub(crate) fn end_turn(&mut self, place: usize) {
        self.next_index = (self.next_index + place + 1) % self.all.len().max(1);
    }
}

/// Reading.
impl SourceReaders {
    /// Delivers what is left of a reader's partial batch, or decompresses more of it.
    pub(crate) fn deliver_partial(&mut self, key: ReaderKey) -> Delivery {
        let mut delivery = Delivery::default();
        if let Some(mut reader) = self.all.remove(&key) {
            if let Some(partial) = self.partial.take_if(|partial| partial.reader == key) {
                self.continue_batch(partial, &mut reader, &mut delivery);
            }
            self.all.insert(key, reader);
        }
        delivery
    }

    /// Reads the partition for its reader, until the delivery has records or there are none.
    pub(crate) fn read(
        &mut self,
        key: ReaderKey,
        partition: Result<(&mut Partition, &mut dyn Store), ErrorCode>,
        delivery: &mut Delivery,
    ) {
        let Some(mut reader) = self.all.remove(&key) else { return };
        let partition = partition.map_err(|code| Error::System(code.name().into()));
        let read = partition.and_then(|(partition, store)| {
            self.read_partition(key, &mut reader, (partition, store), delivery)
        });
        match read {
            Ok(()) => reader.has_failed = false,
            Err(error) if !std::mem::replace(&mut reader.has_failed, true) => {
                let SourceReader { name, next, .. } = &reader;
                log::error!("source {name}: partition {} at {next}: {error}", key.1.index);
            }
            Err(_) => {}
        }
        self.all.insert(key, reader);
    }

    fn read_partition(
        &mut self,
        key: ReaderKey,
        reader: &mut SourceReader,
        (partition, store): (&Partition, &mut dyn Store),
        delivery: &mut Delivery,
    ) -> Result<(), Error> {
        for _ in 0..READS_MAX {
            let watermarks = partition.watermarks(store);
            reader.next = reader.next.max(watermarks.start);
            if !delivery.records.is_empty() || reader.next >= watermarks.last_stable {
                return Ok(());
            }
            let mut bytes = Vec::new();
            let offsets = reader.next..watermarks.last_stable;
            store.read(partition.log(), offsets.clone(), READ_BYTES, &mut bytes)?;
            let mut aborted = AbortedFilter::new(partition.aborted(offsets));
            delivery.units += record_units(bytes.len());
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
            if reader.next == before || delivery.has_more {
                return Ok(());
            }
        }
        delivery.has_more = true;
        Ok(())
    }

    /// Delivers a batch. Returns false if it is large: it is decompressed in later steps, or waits until the partial
    /// batch is delivered.
    fn deliver_batch(
        &mut self,
        key: ReaderKey,
        reader: &mut SourceReader,
        batch: &Batch<'_>,
        delivery: &mut Delivery,
    ) -> bool {
        let header = batch.header;
        let has_partial = self.partial.is_some();
        if has_partial
            && (header.records as usize > DELIVERY_RECORDS_MAX || header.total_bytes > SMALL_BATCH_BYTES_MAX)
        {
            return false;
        }
        let bytes = &batch.bytes()[HEADER_BYTES..];
        let records = match header.compression() {
            Compression::None => PartialRecords::Plain { bytes: bytes.to_vec(), at: 0, left: header.records },
            compression => match Decompression::begin(compression, bytes) {
                Ok(decompression) => PartialRecords::Compressed(decompression),
                Err(error) => {
                    reader.skip_batch(key.1, &header, &error.to_string());
                    return true;
                }
            },
        };
        self.continue_batch(PartialBatch { reader: key, header, records }, reader, delivery)
    }

    /// Delivers a batch as far as it is decompressed after one step. Returns whether it is.
    fn continue_batch(
        &mut self,
        partial: PartialBatch,
        reader: &mut SourceReader,
        delivery: &mut Delivery,
    ) -> bool {
        let PartialBatch { reader: key, header, records } = partial;
        let mut decompression = match records {
            PartialRecords::Plain { bytes, at, left } => {
                self.deliver_records((key, header), (bytes, at, left), reader, delivery);
                return true;
            }
            PartialRecords::Compressed(decompression) => decompression,
        };
        match decompression.step(&mut delivery.units) {
            Ok(true) => {
                let bytes = decompression.into_bytes();
                self.deliver_records((key, header), (bytes, 0, header.records), reader, delivery);
                true
            }
            Ok(false) => {
                delivery.has_more = true;
                // Only one batch may be partial; another one is begun anew when that one is delivered.
                let records = PartialRecords::Compressed(decompression);
                self.partial.get_or_insert(PartialBatch { reader: key, header, records });
                false
            }
            Err(error) => {
                reader.skip_batch(key.1, &header, &error.to_string());
                true
            }
        }
    }

    /// Adds the remaining records of a batch to the delivery, up to its bounds: `left` records, from byte `at` on.
    fn deliver_records(
        &mut self,
        (key, header): (ReaderKey, BatchHeader),
        (bytes, at, left): (Vec<u8>, usize, u32),
        reader: &mut SourceReader,
        delivery: &mut Delivery,
    ) {
        let mut records = Records::resume(header, &bytes[at..], left);
        // Only one batch may be partial, so this one is read to its end if another one is partial.
        let may_pause = self.partial.is_none();
        while !(delivery.is_full() && may_pause) {
            let source_record = match records.next() {
                None => break,
                Some(Ok(record)) if record.offset < reader.next => continue,
                Some(Ok(record)) => source_record(key, &header, &record),
                Some(Err(_)) => None,
            };
            let Some(source_record) = source_record else {
                let reason = "a record is malformed or has too many headers";
                return reader.skip_batch(key.1, &header, reason);
            };
            reader.next = source_record.offset + 1;
            delivery.bytes += source_record.memory_bytes();
            delivery.records.push(source_record);
        }
        let (at, left) = (bytes.len() - records.rest().len(), records.left());
        if left > 0 {
            let records = PartialRecords::Plain { bytes, at, left };
            self.partial = Some(PartialBatch { reader: key, header, records });
        } else {
            reader.next = reader.next.max(header.end_offset());
        }
    }
}

/// Positions.
impl SourceReaders {
    /// The positions in a store, opened if necessary.
    fn positions(&mut self, index: usize, store: &mut dyn Store) -> Result<&mut Positions, Error> {
        if let Some(at) = self.positions.iter().position(|positions| positions.store == index) {
            return Ok(&mut self.positions[at]);
        }
        let mut offsets = OffsetsByKey::new();
        let log = CompactedLog::open(store, LOG, Durability::Os, |key, value| {
            let offset = value.and_then(|value| Some(u64::from_be_bytes(*value.first_chunk()?)));
            match offset {
                Some(offset) => drop(offsets.insert(key.to_vec(), offset)),
                None => drop(offsets.remove(key)),
            }
        })?;
        self.positions.push(Positions { store: index, log, offsets });
        Ok(self.positions.last_mut().expect("just pushed"))
    }

    /// Begins a fence for each reader whose position has moved, and returns their tokens.
    pub(crate) fn begin_fences(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        for reader in self.all.values_mut() {
            if reader.next != reader.stored && reader.fence.is_none() {
                self.last_token += 1;
                reader.fence = Some((self.last_token, reader.next));
                tokens.push(self.last_token);
            }
        }
        tokens
    }

    /// Ends a fence. Returns the position to store, if all records delivered before it are durable.
    pub(crate) fn end_fence(&mut self, token: u64, is_durable: bool) -> Option<(PartitionId, KeyValue)> {
        let has_token =
            |reader: &SourceReader| reader.fence.is_some_and(|(fence_token, _)| fence_token == token);
        let (key, reader) = self.all.iter_mut().find(|(_, reader)| has_token(reader))?;
        let (_, position) = reader.fence.take()?;
        if !is_durable {
            return None;
        }
        reader.stored = position;
        let record = (position_key(&reader.name, key.1), Some(position.to_be_bytes().to_vec()));
        Some((key.1, record))
    }

    /// Appends a position to the log of a store.
    pub(crate) fn append_position(
        &mut self,
        index: usize,
        store: &mut dyn Store,
        unix_ms: u64,
        position: KeyValue,
    ) {
        if let Some(positions) = self.positions.iter_mut().find(|positions| positions.store == index) {
            positions.log.append(store, unix_ms, &[position], ());
        }
    }

    /// Hands the stores the positions of this turn.
    pub(crate) fn store_pending(&mut self, stores: &mut [StoreAt]) {
        for Positions { store, log, .. } in &mut self.positions {
            log.store_pending(&mut *stores[*store].store);
        }
    }

    /// Handles a completion. Returns false if it belongs to another log.
    pub(crate) fn on_completion(&mut self, store: usize, completion: &Completion) -> bool {
        let positions = self.positions.iter_mut().find(|positions| positions.store == store);
        positions.is_some_and(|positions| positions.log.on_completion(completion, &mut Vec::new()))
    }
}

impl SourceReader {
    /// Skips the rest of an unreadable batch, so that it does not block later records. The broker does not validate
    /// compressed batches when it appends them.
    fn skip_batch(&mut self, id: PartitionId, header: &BatchHeader, reason: &str) {
        if !std::mem::replace(&mut self.has_skipped, true) {
            log::error!(
                "source {}: partition {}: the batch at offset {} is unreadable; skipped its records from offset {}: {reason}",
                self.name,
                id.index,
                header.base_offset,
                self.next
            );
        }
        self.next = self.next.max(header.end_offset());
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
fn source_record(key: ReaderKey, header: &BatchHeader, record: &Record<'_>) -> Option<SourceRecord> {
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
