//! A partition on the shard that has it: a log, what of it is in flight, and who waits for more.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mainstem_compress as compress;
use mainstem_coordinator::producer::{Aborted, Active, Marker, Membership, Verdict};
use mainstem_coordinator::transaction::Producer;
use mainstem_kafka::ErrorCode;
use mainstem_log::{
    Batch, BatchBuilder, BatchHeader, Completion, Compression, Error, HEADER_BYTES, LogId, Malformed, Store,
    Ticket,
};
use mainstem_queue::MOVER;

use crate::catalogue::{PartitionId, Topic, hex};
use crate::held::Held;
use crate::mail::{JobId, Watcher};
use crate::producers::{Found, Known, data, on_log};
use crate::topic_config::{TimestampType, TopicConfig};
use crate::work::Isolation;

/// What the records of one batch may take when they are decompressed for a check, bytes.
pub(crate) const PLAIN_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bits of a batch's attributes: timestamps are of the batch's arrival.
pub(crate) const LOG_APPEND_TIME: i16 = 8;

/// Why a batch was not appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: ErrorCode,
    /// For the producer; nothing if the code says it all.
    pub(crate) message: Option<String>,
    /// Which records are to blame, by their places in the batch, if it is not all of them (KIP-467).
    pub(crate) records: Vec<i32>,
}

impl Refused {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()), records: Vec::new() }
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: None, records: Vec::new() }
    }
}

fn invalid(message: &str) -> Refused {
    Refused::new(ErrorCode::InvalidRecord, message)
}

/// How an append ended for its producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Produced {
    /// Which of the request's partitions this is.
    pub(crate) part: u32,
    pub(crate) outcome: Result<Placed, Refused>,
}

/// Where a batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) base_offset: i64,
    /// -1 if records have timestamps of their producer's.
    pub(crate) append_time_ms: i64,
    pub(crate) log_start: i64,
}

/// What has been done with a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// It has been appended, up to the offset `end`.
    Appended { placed: Placed, end: u64 },
    /// It had been appended before.
    Duplicate { placed: Placed, end: u64 },
    /// Nothing: it would begin a transaction of which the coordinator must say that there is one.
    Unverified(Producer),
}

/// Somebody waits for an append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) job: JobId,
    pub(crate) part: u32,
    pub(crate) placed: Placed,
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    /// Offset behind its last record.
    end: u64,
    waiters: Vec<Waiter>,
    /// It is no part of the log any more, although its completion has not come.
    is_lost: bool,
}

/// A partition.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) id: PartitionId,
    pub(crate) topic: Arc<Topic>,
    /// Which of the shard's stores has it.
    pub(crate) store: usize,
    pub(crate) log: LogId,
    /// Offset up to which consumers read.
    pub(crate) high_watermark: u64,
    pub(crate) known: Known,
    pub(crate) held: Held,
    in_flight: VecDeque<InFlight>,
    watchers: Vec<Watcher>,
}

/// How far a partition reaches, as clients see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) start: u64,
    pub(crate) high_watermark: u64,
    pub(crate) last_stable: u64,
}

impl Reach {
    /// Offset behind what a consumer may have.
    pub(crate) fn end(self, isolation: Isolation) -> u64 {
        match isolation {
            Isolation::ReadUncommitted => self.high_watermark,
            Isolation::ReadCommitted => self.last_stable,
        }
    }
}

/// The name of a partition's log.
pub(crate) fn log_name(id: PartitionId) -> String {
    format!("p-{}-{}", hex(id.topic), id.index)
}

impl Partition {
    /// Opens the partition's log; makes it if it is not there.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn open(
        topic: &Arc<Topic>,
        index: i32,
        store_index: usize,
        store: &mut dyn Store,
        found: &Found,
        unix_ms: u64,
    ) -> Result<Self, Error> {
        let id = topic.partition(index);
        let log = store.open(&log_name(id), &topic.config.options)?;
        let known = Known::rebuild(store, log, found, unix_ms)?;
        let high_watermark = store.status(log).committed;
        Ok(Self {
            id,
            topic: Arc::clone(topic),
            store: store_index,
            log,
            high_watermark,
            known,
            held: Held::default(),
            in_flight: VecDeque::new(),
            watchers: Vec::new(),
        })
    }

    /// Takes note of what the topic is set to now.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn reconfigure(&mut self, topic: &Arc<Topic>, store: &mut dyn Store) -> Result<(), Error> {
        self.topic = Arc::clone(topic);
        store.open(&log_name(self.id), &topic.config.options).map(|_| ())
    }

    /// How far it reaches.
    pub(crate) fn reach(&self, store: &dyn Store) -> Reach {
        let start = store.status(self.log).start;
        let high_watermark = self.high_watermark.max(start);
        let last_stable = self.known.producers.last_stable_offset(high_watermark).max(start);
        Reach { start, high_watermark, last_stable }
    }

    /// Appends the batch that a producer sent, if it does not stand there yet.
    ///
    /// # Errors
    /// Why not. Nothing was appended.
    pub(crate) fn append(
        &mut self,
        store: &mut dyn Store,
        records: &[u8],
        unix_ms: u64,
        membership: Membership,
    ) -> Result<Taken, Refused> {
        let status = store.status(self.log);
        self.goes_back_to(status.end);
        let config = &self.topic.config;
        let header = check(records, config, unix_ms)?;
        if header.producer_id >= 0 {
            match self.known.producers.check(&data(&header), membership) {
                Verdict::Append => {}
                Verdict::Duplicate { base_offset, timestamp_ms } => {
                    let append_time_ms = match config.timestamp_type {
                        TimestampType::Create => -1,
                        TimestampType::LogAppend => timestamp_ms,
                    };
                    let log_start = status.start.cast_signed();
                    let placed = Placed { base_offset: base_offset.cast_signed(), append_time_ms, log_start };
                    return Ok(Taken::Duplicate { placed, end: end_of(&header, base_offset) });
                }
                Verdict::Verify => {
                    let BatchHeader { producer_id: id, producer_epoch: epoch, .. } = header;
                    return Ok(Taken::Unverified(Producer { id, epoch }));
                }
                Verdict::Refused(error) => return Err(told(error)),
            }
        }
        let rewritten = rewrite(records, &header, config, unix_ms)?;
        let records = rewritten.as_deref().unwrap_or(records);
        let appended = store.append(self.log, records).map_err(|error| {
            if header.producer_id >= 0 {
                self.known.producers.failed(&data(&header));
            }
            refusal(&error)
        })?;
        if header.producer_id >= 0 {
            let header = BatchHeader::parse(records).unwrap_or(header);
            self.known.producers.appended(&data(&header), appended.base_offset, unix_ms);
        }
        let append_time_ms = match config.timestamp_type {
            TimestampType::Create => -1,
            TimestampType::LogAppend => unix_ms.cast_signed(),
        };
        let log_start = status.start.cast_signed();
        let base_offset = appended.base_offset.cast_signed();
        let end = end_of(&header, appended.base_offset);
        self.flies(appended.ticket, end, records.len());
        Ok(Taken::Appended { placed: Placed { base_offset, append_time_ms, log_start }, end })
    }

    /// Appends the marker of a transaction that has ended.
    ///
    /// # Errors
    /// Why not. Nothing was appended.
    pub(crate) fn mark(
        &mut self,
        store: &mut dyn Store,
        marker: &Marker,
        unix_ms: u64,
    ) -> Result<Taken, Refused> {
        self.goes_back_to(store.status(self.log).end);
        self.known.producers.check_marker(marker).map_err(told)?;
        let Marker { producer_id, producer_epoch, timestamp_ms, .. } = *marker;
        let mut builder = BatchBuilder::default();
        let batch = on_log(marker).batch(&mut builder, timestamp_ms, producer_id, producer_epoch);
        let appended = store.append(self.log, batch).map_err(|error| refusal(&error))?;
        self.known.producers.ended(marker, appended.base_offset, unix_ms);
        let end = appended.base_offset + 1;
        self.flies(appended.ticket, end, batch.len());
        let base_offset = appended.base_offset.cast_signed();
        Ok(Taken::Appended { placed: Placed { base_offset, append_time_ms: -1, log_start: -1 }, end })
    }

    /// Appends a batch without records, which stands for some that were lost.
    ///
    /// # Errors
    /// What the store says. Nothing was appended.
    pub(crate) fn append_gap(&mut self, store: &mut dyn Store, batch: &[u8]) -> Result<(), Error> {
        self.goes_back_to(store.status(self.log).end);
        let appended = store.append(self.log, batch)?;
        let end = store.status(self.log).end;
        self.flies(appended.ticket, end, batch.len());
        Ok(())
    }

    /// The log ends here now. What could not be written beyond has gone, and what is appended next takes its place,
    /// perhaps before the completions come that tell of it.
    fn goes_back_to(&mut self, end: u64) {
        if self.in_flight.back().is_none_or(|last| last.end <= end) {
            return;
        }
        self.known.producers.rollback_to(end);
        for flight in self.in_flight.iter_mut().rev().take_while(|flight| flight.end > end) {
            (flight.end, flight.is_lost) = (end, true);
        }
    }

    fn flies(&mut self, ticket: Ticket, end: u64, bytes: usize) {
        self.known.grown(bytes);
        match self.in_flight.back_mut().filter(|last| last.ticket == ticket) {
            Some(last) => last.end = end,
            None => self.in_flight.push_back(InFlight { ticket, end, waiters: Vec::new(), is_lost: false }),
        }
    }

    /// Lets somebody wait until everything below `end` is durable. False if it is.
    pub(crate) fn wait(&mut self, waiter: Waiter, end: u64) -> bool {
        if end <= self.high_watermark {
            return false;
        }
        let at = self.in_flight.partition_point(|flight| flight.end < end);
        let flight = self.in_flight.get_mut(at);
        flight.map(|flight| flight.waiters.push(waiter)).is_some()
    }

    /// Aborted transactions of which records stand between these offsets: producer id and first offset.
    pub(crate) fn aborted(&self, offsets: Range<u64>) -> Vec<(i64, i64)> {
        let all = self.known.producers.aborted_between(offsets.start, offsets.end);
        all.map(|Aborted { producer_id, first_offset, .. }| (producer_id, first_offset.cast_signed()))
            .collect()
    }

    /// The producers it knows.
    pub(crate) fn producers(&self) -> Vec<Active> {
        self.known.producers.describe()
    }

    /// The log starts later now.
    pub(crate) fn started_later(&mut self, store: &dyn Store) {
        self.known.started(store.status(self.log).start);
    }

    /// Takes note of a completion: gives out who waited for it, and whether there is more to read.
    pub(crate) fn arrived(
        &mut self,
        completion: &Completion,
        mut tell: impl FnMut(JobId, Produced),
    ) -> Option<Vec<Watcher>> {
        let before = self.high_watermark;
        while let Some(flight) = self.in_flight.pop_front_if(|flight| flight.ticket <= completion.ticket) {
            if completion.outcome.is_ok() {
                self.high_watermark = self.high_watermark.max(flight.end);
                self.known.producers.durable(self.high_watermark);
            } else if !flight.is_lost {
                self.known.producers.rollback_to(self.high_watermark);
            }
            for Waiter { job, part, placed } in flight.waiters {
                let outcome = completion.outcome.as_ref().map(|()| placed).map_err(refusal);
                tell(job, Produced { part, outcome });
            }
        }
        (self.high_watermark > before).then(|| std::mem::take(&mut self.watchers))
    }

    /// Gives out who waits for an append; the partition is about to go.
    pub(crate) fn dissolve(mut self, mut tell: impl FnMut(JobId, Produced)) -> Vec<Watcher> {
        let in_flight = self.in_flight.drain(..).flat_map(|flight| flight.waiters);
        let waiters = in_flight.map(|waiter| (waiter.job, waiter.part));
        for (job, part) in waiters.chain(self.held.dissolve()) {
            tell(job, Produced { part, outcome: Err(ErrorCode::UnknownTopicOrPartition.into()) });
        }
        self.watchers
    }

    /// Lets a parked fetch hear of news. Each connection has one at most.
    pub(crate) fn watch(&mut self, watcher: Watcher) {
        if !self.watchers.contains(&watcher) {
            self.watchers.push(watcher);
        }
    }

    /// Lets a fetch that has ended hear no more.
    pub(crate) fn forget(&mut self, watcher: Watcher) {
        self.watchers.retain(|known| *known != watcher);
    }
}

fn end_of(header: &BatchHeader, base_offset: u64) -> u64 {
    base_offset + u64::from(header.last_offset_delta) + 1
}

/// What a producer is told of what its partition knows.
fn told(error: mainstem_coordinator::Error) -> Refused {
    ErrorCode::from_code(error.code()).unwrap_or(ErrorCode::UnknownServerError).into()
}

/// What a producer is told of a store's error.
pub(crate) fn refusal(error: &Error) -> Refused {
    let code = match error {
        Error::Malformed(Malformed::Checksum | Malformed::Length) => ErrorCode::CorruptMessage,
        Error::Malformed(_) => ErrorCode::InvalidRecord,
        Error::OutOfRange => ErrorCode::OffsetOutOfRange,
        Error::Full | Error::Broken | Error::Corrupt { .. } | Error::System(_) => {
            ErrorCode::KafkaStorageError
        }
    };
    Refused::new(code, error.to_string())
}

/// Checks what a producer sent for one partition (Kafka's `LogValidator`). The checksum is left to the store.
fn check(records: &[u8], config: &TopicConfig, unix_ms: u64) -> Result<BatchHeader, Refused> {
    // All formats have their version at the same place.
    match records.get(16) {
        None => return Err(invalid("no record batch")),
        Some(2) => {}
        Some(_) => return Err(invalid("only record batches of format version 2 are taken")),
    }
    let header = BatchHeader::parse(records).map_err(|_| Refused::from(ErrorCode::CorruptMessage))?;
    if header.total_bytes > records.len() {
        return Err(ErrorCode::CorruptMessage.into());
    }
    if header.total_bytes < records.len() {
        return Err(invalid("more than one record batch"));
    }
    // What a queue moves was small enough where it came in, and is longer by some headers now. Nobody is there who could be
    // told that it is too large.
    if header.total_bytes > config.message_bytes_max && header.producer_id != MOVER {
        let (bytes, most) = (header.total_bytes, config.message_bytes_max);
        let message = format!("a batch of {bytes} bytes, where max.message.bytes is {most}");
        return Err(Refused::new(ErrorCode::MessageTooLarge, message));
    }
    if header.records == 0 || header.records - 1 != header.last_offset_delta {
        return Err(invalid("the offsets of the batch do not fit its number of records"));
    }
    if header.is_control() {
        return Err(invalid("control batches are not taken from clients"));
    }
    if header.producer_id >= 0 && (header.producer_epoch < 0 || header.base_sequence < 0) {
        return Err(invalid("a producer id without epoch or sequence"));
    }
    if header.attributes & LOG_APPEND_TIME != 0 {
        let message = "timestamps of arrival are not taken from clients";
        return Err(Refused::new(ErrorCode::InvalidTimestamp, message));
    }
    check_records(records, &header, config, unix_ms)?;
    Ok(header)
}

/// Checks the records of a batch: their layout, their keys, their timestamps. Compressed ones are looked at only
/// where the topic's configuration makes it necessary.
fn check_records(
    records: &[u8],
    header: &BatchHeader,
    config: &TopicConfig,
    unix_ms: u64,
) -> Result<(), Refused> {
    let is_bounded_before = config.timestamp_before_max_ms != i64::MAX;
    let checks_time = config.timestamp_type == TimestampType::Create;
    let now_ms = unix_ms.cast_signed();
    let latest_ms = now_ms.saturating_add(config.timestamp_after_max_ms);
    let earliest_ms = now_ms.saturating_sub(config.timestamp_before_max_ms);
    let late = |timestamp_ms: i64| {
        Refused::new(ErrorCode::InvalidTimestamp, format!("timestamp {timestamp_ms} is out of range"))
    };
    if checks_time && header.max_timestamp_ms > latest_ms {
        return Err(late(header.max_timestamp_ms));
    }
    let plain;
    let batch = Batch::parse_unchecked(records).map_err(|_| Refused::from(ErrorCode::CorruptMessage))?;
    let walk = if header.compression() == Compression::None {
        batch.records()
    } else if config.is_compacted || (checks_time && is_bounded_before) {
        plain = compress::decompress(header.compression(), &records[HEADER_BYTES..], PLAIN_BYTES_MAX)
            .map_err(|error| invalid(&error.to_string()))?;
        mainstem_log::Records::of(*header, &plain)
    } else if matches!(header.compression(), Compression::Unknown(_)) {
        return Err(ErrorCode::UnsupportedCompressionType.into());
    } else {
        return Ok(());
    };
    let mut without_key = Vec::new();
    for (next, record) in (header.base_offset..).zip(walk) {
        let record = record.map_err(|_| invalid("a record that is malformed"))?;
        if record.offset != next {
            return Err(invalid("records whose offsets have gaps"));
        }
        if config.is_compacted && record.key.is_none() {
            without_key.push((next - header.base_offset) as i32);
        }
        if checks_time
            && (record.timestamp_ms > latest_ms
                || (is_bounded_before && record.timestamp_ms >= 0 && record.timestamp_ms < earliest_ms))
        {
            return Err(late(record.timestamp_ms));
        }
    }
    if !without_key.is_empty() {
        let refused = invalid("a compacted topic takes no record without key");
        return Err(Refused { records: without_key, ..refused });
    }
    Ok(())
}

/// The batch as the topic wants it; nothing if that is as it came.
fn rewrite(
    records: &[u8],
    header: &BatchHeader,
    config: &TopicConfig,
    unix_ms: u64,
) -> Result<Option<Vec<u8>>, Refused> {
    let mut rewritten = None;
    if let Some((codec, level)) = config.recompress
        && codec != header.compression()
    {
        // What is about to get another checksum must have had the right one.
        let batch = Batch::parse(records).map_err(|_| Refused::from(ErrorCode::CorruptMessage))?;
        let again = compress::batch::recompress(&batch, codec, level, PLAIN_BYTES_MAX)
            .map_err(|error| invalid(&error.to_string()))?;
        rewritten = Some(again);
    }
    if config.timestamp_type == TimestampType::LogAppend {
        let mut bytes = match rewritten {
            Some(bytes) => bytes,
            None => {
                Batch::parse(records).map_err(|_| Refused::from(ErrorCode::CorruptMessage))?.bytes().to_vec()
            }
        };
        Batch::set_append_time(&mut bytes, unix_ms.cast_signed());
        rewritten = Some(bytes);
    }
    Ok(rewritten)
}
