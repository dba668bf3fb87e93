//! Validation of the records in a batch: their layout, and the facts that the rules of a topic depend on.
//!
//! Consumers read batches as they are stored, so every record must be well formed. Records of compressed batches are
//! decompressed for that, as in Kafka. A small batch may decompress to hundreds of megabytes, which must neither be
//! held in memory nor stall the shard: [`RecordsCheck`] parses the stream as it is decompressed, a part per step.

use std::io::Read;

use mainstem_compress as compress;
use mainstem_log::{Batch, BatchHeader, HEADER_BYTES, RecordScan, varint};

use crate::config::{PartitionConfig, TimestampType};
use crate::error::PartitionError;

/// Most bytes of the records of one batch when they are decompressed for a check.
pub const DECOMPRESSED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Timestamp of a record without one (Kafka's `NO_TIMESTAMP`).
const NO_TIMESTAMP: i64 = -1;
/// Most records without a key that an error lists.
const KEYLESS_MAX: usize = 1000;
/// Size of the window through which decompressed records are parsed.
const WINDOW_BYTES: usize = 32 * 1024;
/// Longest varint.
const VARINT_BYTES: usize = 10;

const MALFORMED: &str = "a record is malformed";
const LEFT_OVER: &str = "bytes follow the last record of the batch";
const GAP: &str = "the offsets of the records have gaps";

/// Facts about the records of a batch whose layout is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSummary {
    /// Latest timestamp; -1 if no record has one.
    pub(crate) max_timestamp_ms: i64,
    /// Earliest timestamp, of the records that have one.
    min_timestamp_ms: Option<i64>,
    /// Positions of the first records without a key, if they were asked for.
    keyless: Vec<i32>,
    finds_keyless: bool,
}

impl RecordSummary {
    fn new(finds_keyless: bool) -> Self {
        Self { max_timestamp_ms: NO_TIMESTAMP, finds_keyless, ..Self::default() }
    }

    fn add(&mut self, position: u32, timestamp_ms: i64, has_key: bool) {
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        if timestamp_ms != NO_TIMESTAMP {
            self.min_timestamp_ms =
                Some(self.min_timestamp_ms.map_or(timestamp_ms, |min| min.min(timestamp_ms)));
        }
        if !has_key && self.finds_keyless && self.keyless.len() < KEYLESS_MAX {
            self.keyless.push(position.cast_signed());
        }
    }

    /// Checks the rules of the topic.
    ///
    /// # Errors
    /// A record breaks a rule.
    pub(crate) fn validate(&self, config: &PartitionConfig, unix_ms: u64) -> Result<(), PartitionError> {
        let limits = TimestampLimits::of(config, unix_ms);
        limits.check(self.max_timestamp_ms)?;
        self.min_timestamp_ms.map_or(Ok(()), |min| limits.check(min))?;
        if config.is_compacted && !self.keyless.is_empty() {
            let rule = "a compacted topic requires a key in each record".into();
            return Err(PartitionError::InvalidRecord { rule, records: self.keyless.clone() });
        }
        Ok(())
    }
}

/// Checks the layout of uncompressed records. The positions of those without a key are noted only if `finds_keyless`.
///
/// # Errors
/// A record is malformed.
pub(crate) fn check_plain(batch: &Batch<'_>, finds_keyless: bool) -> Result<RecordSummary, PartitionError> {
    let mut summary = RecordSummary::new(finds_keyless);
    let mut records = RecordScan::new(batch);
    for position in 0..batch.header.records {
        let Some(record) = records.next_record() else { return Err(PartitionError::rule(MALFORMED)) };
        if record.offset_delta != u64::from(position) {
            return Err(PartitionError::rule(GAP));
        }
        if !matches!(record.headers, [0]) && !has_valid_headers(record.headers) {
            return Err(PartitionError::rule(MALFORMED));
        }
        summary.add(position, record.timestamp_ms, record.has_key);
    }
    if records.is_at_end() { Ok(summary) } else { Err(PartitionError::rule(LEFT_OVER)) }
}

/// Whether encoded headers are a count and that many pairs of a key and a value, and nothing else.
fn has_valid_headers(mut rest: &[u8]) -> bool {
    let Some(count) = varint::take(&mut rest).and_then(|count| u64::try_from(count).ok()) else {
        return false;
    };
    for _ in 0..count {
        for nullable in [Nullable::No, Nullable::Yes] {
            let len = varint::take(&mut rest).and_then(|len| part_len(len, nullable));
            let Some(after) = len.and_then(|len| rest.get(usize::try_from(len).ok()?..)) else {
                return false;
            };
            rest = after;
        }
    }
    rest.is_empty()
}

/// Whether a part of a record may be absent, which its length tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nullable {
    No,
    Yes,
}

/// Bytes of a part of a record with the encoded length `len`; `None` if the length is invalid.
fn part_len(len: i64, nullable: Nullable) -> Option<u64> {
    if nullable == Nullable::Yes && len < 0 { Some(0) } else { u64::try_from(len).ok() }
}

/// What follows in the stream of decompressed records.
#[derive(Clone, Copy, Debug)]
enum Field {
    Record,
    Value,
    Headers,
    /// The key of a header; the number counts the headers that are left, with this one.
    HeaderKey(u64),
    HeaderValue(u64),
}

/// The check of a compressed batch, while its records are decompressed.
pub struct RecordsCheck<'a> {
    reader: Box<dyn Read + Send + 'a>,
    header: BatchHeader,
    window: Box<[u8]>,
    /// The part of the window that is not parsed yet.
    unparsed: std::ops::Range<usize>,
    /// Bytes decompressed so far, and the limit.
    decompressed: usize,
    bytes_max: usize,
    /// Records parsed so far.
    records: u32,
    field: Field,
    /// Bytes of a key or value to skip before the field.
    skip: u64,
    /// Bytes left of the record.
    left: u64,
    summary: RecordSummary,
}

impl<'a> RecordsCheck<'a> {
    /// Starts the check of a whole batch, for which `bytes` holds nothing else. Verifies its checksum.
    ///
    /// # Errors
    /// The checksum is wrong, or the codec is not defined.
    pub fn new(bytes: impl AsRef<[u8]> + Send + 'a) -> Result<Self, PartitionError> {
        let batch = Batch::parse(bytes.as_ref()).map_err(|_| PartitionError::CorruptBatch)?;
        let header = batch.header;
        let reader =
            compress::reader(header.compression(), RecordBytes(bytes)).map_err(|error| match error {
                compress::Error::Unsupported(_) => PartitionError::UnsupportedCompression,
                error => PartitionError::rule(error.to_string()),
            })?;
        Ok(Self {
            reader,
            header,
            window: vec![0; WINDOW_BYTES].into_boxed_slice(),
            unparsed: 0..0,
            decompressed: 0,
            bytes_max: DECOMPRESSED_BYTES_MAX,
            records: 0,
            field: Field::Record,
            skip: 0,
            left: 0,
            // The topic is not known here.
            summary: RecordSummary::new(true),
        })
    }

    /// Decompresses and parses about `bytes` more. Returns the summary after the last record.
    ///
    /// # Errors
    /// The bytes do not decompress, or a record is malformed.
    pub fn step(&mut self, bytes: usize) -> Result<Option<RecordSummary>, PartitionError> {
        let stop = self.decompressed.saturating_add(bytes);
        while self.decompressed < stop {
            if self.skip > 0 {
                self.skip_some()?;
            } else if matches!(self.field, Field::Record) && self.records == self.header.records {
                return self.finish().map(Some);
            } else {
                self.parse_field()?;
            }
        }
        Ok(None)
    }

    /// Bytes decompressed so far.
    pub fn decompressed(&self) -> usize {
        self.decompressed
    }

    fn parse_field(&mut self) -> Result<(), PartitionError> {
        match self.field {
            Field::Record => self.begin_record()?,
            Field::Value => {
                self.skip_part(Nullable::Yes)?;
                self.field = Field::Headers;
            }
            Field::Headers => {
                let count = u64::try_from(self.varint()?).map_err(|_| PartitionError::rule(MALFORMED))?;
                self.begin_header(count)?;
            }
            Field::HeaderKey(left) => {
                self.skip_part(Nullable::No)?;
                self.field = Field::HeaderValue(left);
            }
            Field::HeaderValue(left) => {
                self.skip_part(Nullable::Yes)?;
                self.begin_header(left - 1)?;
            }
        }
        Ok(())
    }

    fn begin_record(&mut self) -> Result<(), PartitionError> {
        let malformed = || PartitionError::rule(MALFORMED);
        self.left = u64::MAX;
        self.left = u64::try_from(self.varint()?).map_err(|_| malformed())?;
        let _attributes = self.byte()?;
        let timestamp_delta = self.varint()?;
        if self.varint()? != i64::from(self.records) {
            return Err(PartitionError::rule(GAP));
        }
        let key_len = self.varint()?;
        self.skip = part_len(key_len, Nullable::Yes).ok_or_else(malformed)?;
        let timestamp_ms =
            self.header.base_timestamp_ms.checked_add(timestamp_delta).ok_or_else(malformed)?;
        self.summary.add(self.records, timestamp_ms, key_len >= 0);
        self.records += 1;
        self.field = Field::Value;
        Ok(())
    }

    /// Continues with the next of `left` headers, or ends the record.
    fn begin_header(&mut self, left: u64) -> Result<(), PartitionError> {
        if left > 0 {
            self.field = Field::HeaderKey(left);
            return Ok(());
        }
        self.field = Field::Record;
        // The last value is skipped later.
        if self.left == self.skip { Ok(()) } else { Err(PartitionError::rule(MALFORMED)) }
    }

    fn skip_part(&mut self, nullable: Nullable) -> Result<(), PartitionError> {
        let len = self.varint()?;
        self.skip = part_len(len, nullable).ok_or_else(|| PartitionError::rule(MALFORMED))?;
        Ok(())
    }

    fn skip_some(&mut self) -> Result<(), PartitionError> {
        self.fill(1)?;
        let count = self.skip.min(self.unparsed.len() as u64);
        if count == 0 {
            return Err(PartitionError::rule(MALFORMED));
        }
        self.skip -= count;
        self.advance(count as usize)
    }

    fn byte(&mut self) -> Result<u8, PartitionError> {
        self.fill(1)?;
        let byte = self.window[self.unparsed.clone()].first().copied();
        let byte = byte.ok_or_else(|| PartitionError::rule(MALFORMED))?;
        self.advance(1)?;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<i64, PartitionError> {
        self.fill(VARINT_BYTES)?;
        let mut rest = &self.window[self.unparsed.clone()];
        let before = rest.len();
        let value = varint::take(&mut rest).ok_or_else(|| PartitionError::rule(MALFORMED))?;
        let count = before - rest.len();
        self.advance(count)?;
        Ok(value)
    }

    /// Takes bytes of the record.
    fn advance(&mut self, count: usize) -> Result<(), PartitionError> {
        self.unparsed.start += count;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| PartitionError::rule(MALFORMED))?;
        Ok(())
    }

    /// Decompresses until there are `count` unparsed bytes, or the stream ends.
    fn fill(&mut self, count: usize) -> Result<(), PartitionError> {
        while self.unparsed.len() < count {
            if self.window.len() - self.unparsed.start < count {
                self.window.copy_within(self.unparsed.clone(), 0);
                self.unparsed = 0..self.unparsed.len();
            }
            let read = self.reader.read(&mut self.window[self.unparsed.end..]);
            let read =
                read.map_err(|error| PartitionError::rule(compress::Error::from(&error).to_string()))?;
            if read == 0 {
                break;
            }
            self.unparsed.end += read;
            self.decompressed += read;
            if self.decompressed > self.bytes_max {
                return Err(PartitionError::rule(compress::Error::TooLarge.to_string()));
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<RecordSummary, PartitionError> {
        self.fill(1)?;
        if self.unparsed.is_empty() {
            Ok(std::mem::take(&mut self.summary))
        } else {
            Err(PartitionError::rule(LEFT_OVER))
        }
    }
}

impl std::fmt::Debug for RecordsCheck<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { header, decompressed, records, .. } = self;
        f.debug_struct("RecordsCheck")
            .field("header", header)
            .field("decompressed", decompressed)
            .field("records", records)
            .finish_non_exhaustive()
    }
}

/// The records of a batch, without its header.
pub(crate) struct RecordBytes<T>(pub(crate) T);

impl<T: AsRef<[u8]>> AsRef<[u8]> for RecordBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_BYTES..]
    }
}

/// The range of valid timestamps; unlimited if the broker sets them.
pub(crate) struct TimestampLimits {
    latest_ms: i64,
    earliest_ms: i64,
}

impl TimestampLimits {
    pub(crate) fn of(config: &PartitionConfig, unix_ms: u64) -> Self {
        if config.timestamp_type == TimestampType::LogAppend {
            return Self { latest_ms: i64::MAX, earliest_ms: i64::MIN };
        }
        let now_ms = unix_ms.cast_signed();
        let is_bounded = config.timestamp_before_max_ms != i64::MAX;
        Self {
            latest_ms: now_ms.saturating_add(config.timestamp_after_max_ms),
            earliest_ms: if is_bounded {
                now_ms.saturating_sub(config.timestamp_before_max_ms)
            } else {
                i64::MIN
            },
        }
    }

    pub(crate) fn check(&self, timestamp_ms: i64) -> Result<(), PartitionError> {
        if timestamp_ms == NO_TIMESTAMP || (self.earliest_ms..=self.latest_ms).contains(&timestamp_ms) {
            return Ok(());
        }
        let Self { earliest_ms, latest_ms } = self;
        let range = if *earliest_ms == i64::MIN {
            format!("after {latest_ms} (message.timestamp.after.max.ms)")
        } else {
            format!(
                "outside {earliest_ms} to {latest_ms} (message.timestamp.before.max.ms, \
                 message.timestamp.after.max.ms)"
            )
        };
        Err(PartitionError::InvalidTimestamp(format!("timestamp {timestamp_ms} is out of range: {range}")))
    }
}

#[cfg(test)]
mod tests {
    use mainstem_compress::Compression;
    use mainstem_log::{BatchBuilder, Header, put_headers, repack};
    use proptest::prelude::*;

    use super::*;

    const CODECS: [Compression; 4] =
        [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// Timestamp, key, value, number of headers.
    type TestRecord = (i64, Option<Vec<u8>>, Vec<u8>, usize);

    fn plain(records: &[TestRecord]) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        for (timestamp_ms, key, value, headers) in records {
            let mut encoded = Vec::new();
            let header = |_| Header { key: "name", value: Some(value) };
            put_headers((0..*headers).map(header), &mut encoded);
            builder.push_with_headers(*timestamp_ms, key.as_deref(), Some(value), &encoded);
        }
        builder.finish().to_vec()
    }

    /// The batch `plain` with these bytes as its compressed records.
    fn with_payload(plain: &[u8], codec: Compression, compressed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        repack(&Batch::parse(plain).unwrap().header, codec, compressed, &mut bytes);
        bytes
    }

    fn compressed(plain: &[u8], codec: Compression, records: &[u8]) -> Vec<u8> {
        with_payload(plain, codec, &compress::compress(codec, None, records).unwrap())
    }

    fn check(bytes: &[u8], step: usize) -> Result<RecordSummary, PartitionError> {
        let mut check = RecordsCheck::new(bytes.to_vec())?;
        loop {
            if let Some(summary) = check.step(step)? {
                return Ok(summary);
            }
        }
    }

    proptest! {
        /// Whatever the size of the steps, and wherever the bytes are damaged, a compressed batch gets the result
        /// that it gets uncompressed.
        #[test]
        fn compressed_records_are_checked_like_plain_ones(
            records in prop::collection::vec(
                (-1..50_i64, prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
                 prop::collection::vec(0..2_u8, 0..3000), 0..3_usize),
                1..20,
            ),
            codec in prop::sample::select(CODECS.as_slice()),
            step in 1..100_000_usize,
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let plain = plain(&records);
            let mut content = plain[HEADER_BYTES..].to_vec();
            if let Some((at, value)) = damage {
                let at = at.index(content.len());
                content[at] = value;
            }
            if let Some(cut) = cut {
                content.truncate(cut.index(content.len()));
            }
            let expected = with_payload(&plain, Compression::None, &content);
            let expected = check_plain(&Batch::parse(&expected).unwrap(), true);
            let found = check(&compressed(&plain, codec, &content), step);
            match (found, expected) {
                (Ok(found), Ok(expected)) => prop_assert_eq!(found, expected),
                (Err(_), Err(_)) => {}
                (found, expected) => prop_assert!(false, "{:?}, but {:?}", found, expected),
            }
        }
    }

    #[test]
    fn bytes_that_do_not_decompress_or_hold_no_records_are_rejected() {
        let plain = plain(&[(1, None, b"value".to_vec(), 0)]);
        let records = &plain[HEADER_BYTES..];
        for codec in CODECS {
            assert!(check(&compressed(&plain, codec, records), 1).is_ok());
            let garbage = [
                with_payload(&plain, codec, b"not compressed"),
                with_payload(&plain, codec, b""),
                compressed(&plain, codec, b"\x7F no record"),
                compressed(&plain, codec, b""),
                compressed(&plain, codec, &[records, records].concat()),
            ];
            for bytes in garbage {
                assert!(matches!(check(&bytes, 7), Err(PartitionError::InvalidRecord { .. })), "{codec:?}");
            }
            let mut corrupt = compressed(&plain, codec, records);
            *corrupt.last_mut().unwrap() ^= 1;
            assert_eq!(check(&corrupt, 7), Err(PartitionError::CorruptBatch), "{codec:?}");
        }
        let unknown = with_payload(&plain, Compression::Unknown(5), records);
        assert_eq!(check(&unknown, 7), Err(PartitionError::UnsupportedCompression));
    }

    #[test]
    fn a_step_decompresses_a_bounded_part() {
        let plain = plain(&[(1, None, vec![0; 8 << 20], 0)]);
        for codec in [Compression::Gzip, Compression::Lz4, Compression::Zstd] {
            let bytes = compressed(&plain, codec, &plain[HEADER_BYTES..]);
            let mut check = RecordsCheck::new(&bytes[..]).unwrap();
            let mut before = 0;
            while check.step(64 * 1024).unwrap().is_none() {
                assert!(check.decompressed() - before <= 64 * 1024 + WINDOW_BYTES);
                before = check.decompressed();
            }
            assert!(before > 7 << 20, "{codec:?}");
        }
    }

    #[test]
    fn a_decompression_bomb_is_rejected() {
        let plain = plain(&[(1, None, vec![0; 4 << 20], 0)]);
        for codec in CODECS {
            let bomb = compressed(&plain, codec, &plain[HEADER_BYTES..]);
            let mut check = RecordsCheck::new(&bomb[..]).unwrap();
            check.bytes_max = 1 << 20;
            let too_large = PartitionError::rule(compress::Error::TooLarge.to_string());
            assert_eq!(check.step(usize::MAX), Err(too_large), "{codec:?}");
            assert!(check.decompressed() <= (1 << 20) + WINDOW_BYTES);
        }
    }
}
