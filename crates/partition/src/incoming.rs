//! Validation of incoming batches (Kafka's `LogValidator`).
//!
//! A batch from a client may be corrupt, violate the format, or break a rule of its topic. No such batch may reach the
//! log, because consumers read batches as they are stored.
//!
//! [`IncomingBatch::parse`] parses the header once. Routing, producer state, validation and the store use that parsed
//! header. The store verifies the checksum of plain batches last, so that rejecting a batch for its header costs no
//! pass over its records; that of a compressed batch is verified before it is decompressed.

use mainstem_coordinator::Error as ProducerError;
use mainstem_coordinator::producer::BatchInfo;
use mainstem_coordinator::transaction::Producer;
use mainstem_log::{Batch, BatchHeader, Compression, HEADER_BYTES, Malformed, repack};

use crate::config::{PartitionConfig, TimestampType};
use crate::error::PartitionError;
use crate::preparation::{Extent, Preparation, Prepared, at_once_ns, is_long, recompress_at_once};
use crate::records::{RecordsCheck, TimestampLimits, check_plain};

/// Most decompressed bytes that are checked at once. Batches of most clients are smaller.
const CHECKED_AT_ONCE: usize = 256 * 1024;
/// Bit of a batch's attributes: the broker set the timestamp when it appended the batch (`LogAppendTime`).
pub const LOG_APPEND_TIME: i16 = 8;
/// Position of the format version, the same in all formats.
const MAGIC_AT: usize = 16;

/// A parsed record batch that is not validated against its topic yet.
#[derive(Clone, Debug)]
pub struct IncomingBatch<'a> {
    batch: Batch<'a>,
    is_from_client: bool,
    prepared: Prepared,
}

/// The batch that the topic stores.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// The one that the producer sent.
    Unchanged,
    To(Vec<u8>),
    /// This must be done first.
    Needs(Preparation),
}

/// Result of validating a batch.
pub(crate) enum Validity {
    /// The batch is valid. Kafka stores the latest timestamp of the records, which may differ from that in the header.
    Valid { max_timestamp_ms: i64 },
    /// The records decompress to more than is checked at once.
    Unchecked,
}

impl<'a> IncomingBatch<'a> {
    /// Parses the batch of a client. `bytes` must hold exactly one batch.
    ///
    /// # Errors
    /// The bytes are not one record batch of format version 2, or it has a producer id or attributes that are reserved.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PartitionError> {
        let incoming = Self::parse_internal(bytes)?;
        if incoming.header().producer_id < -1 {
            return Err(PartitionError::rule("producer ids below -1 are reserved"));
        }
        if incoming.is_marked() {
            return Err(PartitionError::rule("attribute bits 8 to 14 are reserved"));
        }
        Ok(Self { is_from_client: true, ..incoming })
    }

    /// Parses the batch of a component of the broker, which may mark it with internal attributes. A marked batch is
    /// exempt from the size limit: its records passed the limit when clients sent them, and no client would get the
    /// error.
    ///
    /// # Errors
    /// The bytes are not one record batch of format version 2.
    pub fn parse_internal(bytes: &'a [u8]) -> Result<Self, PartitionError> {
        match bytes.get(MAGIC_AT) {
            None => return Err(PartitionError::rule("no record batch")),
            Some(2) => {}
            Some(_) => {
                return Err(PartitionError::rule("only record batches of format version 2 are accepted"));
            }
        }
        let batch = Batch::parse_unchecked(bytes).map_err(|_| PartitionError::CorruptBatch)?;
        if batch.bytes().len() < bytes.len() {
            return Err(PartitionError::rule("more than one record batch"));
        }
        Ok(Self { batch, is_from_client: false, prepared: Prepared::default() })
    }

    /// The same batch, with what a [`RecordsWork`](crate::RecordsWork) has done with its records.
    #[must_use]
    pub fn with_prepared(self, prepared: Prepared) -> Self {
        Self { prepared, ..self }
    }

    /// The header.
    pub fn header(&self) -> &BatchHeader {
        &self.batch.header
    }

    /// The bytes of the whole batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.batch.bytes()
    }

    /// The producer that the batch names.
    pub fn producer(&self) -> Producer {
        Producer { id: self.batch.header.producer_id, epoch: self.batch.header.producer_epoch }
    }

    /// What has been done with its records.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    pub(crate) fn batch(&self) -> Batch<'a> {
        self.batch
    }

    pub(crate) fn is_from_client(&self) -> bool {
        self.is_from_client
    }

    /// Whether a component of the broker has marked the batch.
    fn is_marked(&self) -> bool {
        self.header().internal_attributes() != 0
    }

    /// Checks the batch against the format and the topic, except its checksum and the state of its producer.
    pub(crate) fn validate(
        &self,
        config: &PartitionConfig,
        unix_ms: u64,
    ) -> Result<Validity, PartitionError> {
        let header = self.header();
        let (bytes, bytes_max) = (header.total_bytes, config.message_bytes_max);
        if bytes > bytes_max && !self.is_marked() {
            return Err(PartitionError::BatchTooLarge { bytes, bytes_max });
        }
        if header.records == 0 || header.records - 1 != header.last_offset_delta {
            return Err(PartitionError::rule("the offsets of the batch do not fit its number of records"));
        }
        if header.is_control() {
            return Err(PartitionError::rule("clients must not send control batches"));
        }
        if header.producer_id < 0 && header.is_transactional() {
            return Err(PartitionError::Producer(ProducerError::InvalidProducerIdMapping));
        }
        if header.producer_id >= 0 && (header.producer_epoch < 0 || header.base_sequence < 0) {
            return Err(PartitionError::rule("a producer id requires an epoch and a base sequence"));
        }
        if header.attributes & LOG_APPEND_TIME != 0 {
            let message = "clients must not set the timestamp type LogAppendTime";
            return Err(PartitionError::InvalidTimestamp(message.into()));
        }
        self.validate_records(config, unix_ms)
    }

    /// Checks layout, keys and timestamps of the records.
    fn validate_records(&self, config: &PartitionConfig, unix_ms: u64) -> Result<Validity, PartitionError> {
        let header = self.header();
        let read;
        let summary = match header.compression() {
            Compression::None => {
                read = check_plain(&self.batch, config.is_compacted)?;
                &read
            }
            Compression::Unknown(_) => return Err(PartitionError::UnsupportedCompression),
            _ if !self.must_decompress(config) => {
                TimestampLimits::of(config, unix_ms).check(header.max_timestamp_ms)?;
                return Ok(Validity::Valid { max_timestamp_ms: header.max_timestamp_ms });
            }
            _ => match &self.prepared.checked {
                Some(summary) => summary,
                None => match RecordsCheck::new(self.bytes())?.step(CHECKED_AT_ONCE)? {
                    Some(summary) => {
                        read = summary;
                        &read
                    }
                    None => return Ok(Validity::Unchecked),
                },
            },
        };
        summary.validate(config, unix_ms)?;
        Ok(Validity::Valid { max_timestamp_ms: summary.max_timestamp_ms })
    }

    /// Whether the records of a compressed batch must be read.
    fn must_decompress(&self, config: &PartitionConfig) -> bool {
        let is_bounded =
            config.timestamp_type == TimestampType::Create && config.timestamp_before_max_ms != i64::MAX;
        self.is_from_client && (config.checks_compressed_records || config.is_compacted || is_bounded)
    }

    /// The codec and level that the topic wants the records compressed with, if the producer used another codec.
    fn wanted_codec(&self, config: &PartitionConfig) -> Option<(Compression, Option<i32>)> {
        config.recompress.filter(|(codec, _)| *codec != self.header().compression())
    }

    /// Whether the records may take too long to be compressed with the topic's codec at once.
    pub(crate) fn needed_recompression(&self, config: &PartitionConfig) -> Option<Preparation> {
        let codec = self.wanted_codec(config)?;
        let is_done = self.prepared.recompressed.as_ref().is_some_and(|done| done.is_for(codec));
        (!is_done && is_long(&self.batch, codec)).then_some(Preparation::Recompress(codec.0, codec.1))
    }

    /// Estimated time of the work on the records when the batch is appended, ns.
    pub(crate) fn at_once_ns(&self, config: &PartitionConfig) -> u64 {
        let recompress = self.wanted_codec(config);
        let compression = self.header().compression();
        let must_decompress = compression != Compression::None && self.must_decompress(config);
        if recompress.is_none() && !must_decompress || !self.prepared.is_empty() {
            return 0;
        }
        at_once_ns(compression, self.header().total_bytes, must_decompress, recompress)
    }

    /// The batch as the topic stores it, if that differs from what the producer sent. `max_timestamp_ms` is the latest
    /// timestamp of the records.
    pub(crate) fn rewrite(
        &self,
        config: &PartitionConfig,
        unix_ms: u64,
        max_timestamp_ms: i64,
    ) -> Result<Rewrite, PartitionError> {
        let recompress = self.wanted_codec(config);
        let has_right_time = max_timestamp_ms == self.header().max_timestamp_ms;
        if recompress.is_none() && config.timestamp_type == TimestampType::Create && has_right_time {
            return Ok(Rewrite::Unchanged);
        }
        // The new batch gets a new checksum, so the original checksum must be verified first.
        let mut bytes = match recompress {
            Some(codec) => match self.recompressed(codec)? {
                Some(bytes) => bytes,
                None => return Ok(Rewrite::Needs(Preparation::Recompress(codec.0, codec.1))),
            },
            None => self.batch.verify().map_err(|_| PartitionError::CorruptBatch)?.bytes().to_vec(),
        };
        if config.timestamp_type == TimestampType::LogAppend {
            Batch::set_append_time(&mut bytes, unix_ms.cast_signed());
        } else if !has_right_time {
            Batch::set_max_timestamp(&mut bytes, max_timestamp_ms);
        }
        Ok(Rewrite::To(bytes))
    }

    /// The batch with its records compressed with another codec; `None` if that takes too long to be done at once.
    /// Components of the broker cannot wait; their batches are bounded by what they gather in a turn.
    fn recompressed(&self, codec: (Compression, Option<i32>)) -> Result<Option<Vec<u8>>, PartitionError> {
        let at_once;
        let done = match &self.prepared.recompressed {
            Some(done) if done.is_for(codec) => done,
            _ => {
                let extent = if self.is_from_client { Extent::Short } else { Extent::Whole };
                let Some(done) = recompress_at_once(self.bytes(), codec, extent)? else { return Ok(None) };
                at_once = done;
                &at_once
            }
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + done.records.len());
        repack(self.header(), codec.0, &done.records, &mut bytes);
        Ok(Some(bytes))
    }
}

/// The fields of a header that the producer state needs.
pub(crate) fn batch_info(header: &BatchHeader) -> BatchInfo {
    BatchInfo {
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        last_offset_delta: header.last_offset_delta,
        max_timestamp_ms: header.max_timestamp_ms,
        is_transactional: header.is_transactional(),
    }
}

/// The error for a batch with a wrong checksum.
pub(crate) fn checksum_error(malformed: Malformed) -> PartitionError {
    PartitionError::Store(mainstem_log::Error::Malformed(malformed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_compress as compress;
    use mainstem_log::{BatchBuilder, BatchKind, Origin};

    const NOW_MS: u64 = 1_000_000;

    fn batch(records: &[(i64, Option<&[u8]>)], origin: &Origin) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        for (timestamp_ms, key) in records {
            builder.push(*timestamp_ms, *key, Some(b"value"));
        }
        builder.finish_as(origin).bytes().to_vec()
    }

    fn validate(bytes: &[u8], config: &PartitionConfig) -> Result<(), PartitionError> {
        IncomingBatch::parse(bytes)?.validate(config, NOW_MS).map(drop)
    }

    #[test]
    fn bytes_other_than_one_batch_are_rejected() {
        let whole = batch(&[(1, None)], &Origin::default());
        let refused = |bytes: &[u8]| IncomingBatch::parse(bytes).unwrap_err();
        assert!(IncomingBatch::parse(&whole).is_ok());
        assert_eq!(refused(&[]), PartitionError::rule("no record batch"));
        assert_eq!(refused(&whole[..whole.len() - 1]), PartitionError::CorruptBatch);
        assert_eq!(
            refused(&[&whole[..], &whole].concat()),
            PartitionError::rule("more than one record batch")
        );
        let mut old = whole;
        old[MAGIC_AT] = 1;
        assert_eq!(
            refused(&old),
            PartitionError::rule("only record batches of format version 2 are accepted")
        );
    }

    #[test]
    fn marks_and_oversized_batches_are_internal_only() {
        let config = PartitionConfig { message_bytes_max: 50, ..PartitionConfig::default() };
        let client = batch(&[(1, None)], &Origin::default());
        let bytes = client.len();
        assert_eq!(validate(&client, &config), Err(PartitionError::BatchTooLarge { bytes, bytes_max: 50 }));
        let reserved = batch(&[(1, None)], &Origin { producer_id: -7, ..Origin::default() });
        let refused = Err(PartitionError::rule("producer ids below -1 are reserved"));
        assert_eq!(validate(&reserved, &config), refused);
        for bit in 8..15 {
            let kind = BatchKind::Internal(1 << bit);
            let marked = batch(&[(1, None)], &Origin { kind, ..Origin::default() });
            let refused = Err(PartitionError::rule("attribute bits 8 to 14 are reserved"));
            assert_eq!(validate(&marked, &config), refused, "bit {bit}");
            assert!(IncomingBatch::parse_internal(&marked).unwrap().validate(&config, NOW_MS).is_ok());
        }
        let unmarked = IncomingBatch::parse_internal(&client).unwrap().validate(&config, NOW_MS);
        assert_eq!(unmarked.map(drop), Err(PartitionError::BatchTooLarge { bytes, bytes_max: 50 }));
    }

    #[test]
    fn compacted_topic_reports_the_records_without_key() {
        let config = PartitionConfig { is_compacted: true, ..PartitionConfig::default() };
        let bytes = batch(&[(1, Some(b"a")), (1, None), (1, Some(b"b")), (1, None)], &Origin::default());
        let Err(PartitionError::InvalidRecord { records, .. }) = validate(&bytes, &config) else {
            panic!("records without key were accepted")
        };
        assert_eq!(records, [1, 3]);
    }

    #[test]
    fn timestamps_outside_the_configured_range_are_rejected() {
        let now_ms = NOW_MS.cast_signed();
        let config = PartitionConfig {
            timestamp_before_max_ms: 10,
            timestamp_after_max_ms: 10,
            ..PartitionConfig::default()
        };
        for (timestamp_ms, is_valid) in [
            (now_ms, true),
            (now_ms - 10, true),
            (now_ms - 11, false),
            (now_ms + 10, true),
            (now_ms + 11, false),
            (-1, true),
            (-2, false),
        ] {
            let bytes = batch(&[(timestamp_ms, None)], &Origin::default());
            assert_eq!(validate(&bytes, &config).is_ok(), is_valid, "{timestamp_ms}");
            let set_by_broker =
                PartitionConfig { timestamp_type: TimestampType::LogAppend, ..config.clone() };
            assert_eq!(validate(&bytes, &set_by_broker), Ok(()));
        }
    }

    #[test]
    fn rewrite_happens_only_if_the_topic_requires_it_and_verifies_the_checksum() {
        let mut bytes = batch(&[(1, None)], &Origin { kind: BatchKind::Plain, ..Origin::default() });
        let unchanged = PartitionConfig::default();
        let gzip = PartitionConfig { recompress: Some((Compression::Gzip, None)), ..unchanged.clone() };
        let append_time = PartitionConfig { timestamp_type: TimestampType::LogAppend, ..unchanged.clone() };
        let incoming = IncomingBatch::parse(&bytes).unwrap();
        assert_eq!(incoming.rewrite(&unchanged, NOW_MS, 1), Ok(Rewrite::Unchanged));
        let rewritten = |config| match incoming.rewrite(config, NOW_MS, 1) {
            Ok(Rewrite::To(bytes)) => bytes,
            other => panic!("{other:?}"),
        };
        let zipped = rewritten(&gzip);
        assert_eq!(Batch::parse(&zipped).unwrap().header.compression(), Compression::Gzip);
        let stamped = rewritten(&append_time);
        assert_eq!(Batch::parse(&stamped).unwrap().header.max_timestamp_ms, NOW_MS.cast_signed());
        *bytes.last_mut().unwrap() ^= 1;
        let damaged = IncomingBatch::parse(&bytes).unwrap();
        assert_eq!(damaged.rewrite(&gzip, NOW_MS, 1), Err(PartitionError::CorruptBatch));
        assert_eq!(damaged.rewrite(&append_time, NOW_MS, 1), Err(PartitionError::CorruptBatch));
    }

    /// Searches by time and retention rely on the latest timestamp in the header.
    #[test]
    fn a_header_with_a_wrong_latest_timestamp_is_corrected() {
        let plain = batch(&[(5, None), (9, None), (7, None)], &Origin::default());
        let zipped =
            compress::batch::recompress(&Batch::parse(&plain).unwrap(), Compression::Zstd, None, 1 << 20);
        let config = PartitionConfig::default();
        for right in [plain, zipped.unwrap()] {
            let mut wrong = right.clone();
            Batch::set_max_timestamp(&mut wrong, 2);
            let incoming = IncomingBatch::parse(&wrong).unwrap();
            let Ok(Validity::Valid { max_timestamp_ms }) = incoming.validate(&config, NOW_MS) else {
                panic!("a valid batch")
            };
            assert_eq!(max_timestamp_ms, 9);
            assert_eq!(incoming.rewrite(&config, NOW_MS, max_timestamp_ms), Ok(Rewrite::To(right)));
        }
    }

    #[test]
    fn records_of_compressed_batches_are_read_unless_the_topic_turns_it_off() {
        let plain = batch(&[(1, None)], &Origin::default());
        let mut garbage = Vec::new();
        mainstem_log::repack(
            &Batch::parse(&plain).unwrap().header,
            Compression::Zstd,
            b"garbage",
            &mut garbage,
        );
        let unchecked = PartitionConfig { checks_compressed_records: false, ..PartitionConfig::default() };
        let invalid = |config: &PartitionConfig| {
            matches!(validate(&garbage, config), Err(PartitionError::InvalidRecord { .. }))
        };
        assert!(invalid(&PartitionConfig::default()));
        assert!(!invalid(&unchecked));
        // Checks that the topic asks for need the records.
        assert!(invalid(&PartitionConfig { is_compacted: true, ..unchecked.clone() }));
        assert!(invalid(&PartitionConfig { timestamp_before_max_ms: 10, ..unchecked }));
    }

    #[test]
    fn large_compressed_batches_are_checked_in_steps_first() {
        let mut builder = BatchBuilder::default();
        builder.push(1, None, Some(&vec![0; 3 << 20]));
        let plain = builder.finish().to_vec();
        let zipped =
            compress::batch::recompress(&Batch::parse(&plain).unwrap(), Compression::Zstd, None, 1 << 30)
                .unwrap();
        let config = PartitionConfig::default();
        let incoming = IncomingBatch::parse(&zipped).unwrap();
        assert!(matches!(incoming.validate(&config, NOW_MS), Ok(Validity::Unchecked)));
        let mut check = RecordsCheck::new(zipped.clone()).unwrap();
        let summary = loop {
            if let Some(summary) = check.step(100_000).unwrap() {
                break summary;
            }
        };
        let checked = incoming.with_prepared(Prepared { checked: Some(summary), ..Prepared::default() });
        assert!(matches!(checked.validate(&config, NOW_MS), Ok(Validity::Valid { max_timestamp_ms: 1 })));
        let compacted = PartitionConfig { is_compacted: true, ..config };
        let Err(PartitionError::InvalidRecord { records, .. }) = checked.validate(&compacted, NOW_MS) else {
            panic!("a record without key was accepted")
        };
        assert_eq!(records, [0]);
    }
}
