//! Building record batches: from single records, from a subset of a batch, or from recompressed records.
//!
//! All three write the 61-byte header last, in place in front of the records, because its length, count and checksum
//! depend on them. The builder reuses its buffer and assembles each record's varints on the stack, so that a record
//! costs two or three `extend_from_slice` calls.

use crate::batch::{Batch, BatchHeader, Compression, HEADER_BYTES, INTERNAL_ATTRIBUTES, Record, ValidBatch};
use crate::varint;

/// Attribute bits of the compression codec.
const COMPRESSION: i16 = 7;

/// Encoded headers of a record that has none: count 0.
const NO_HEADERS: &[u8] = &[0];

/// Producer identity and kind of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Producer id; -1 if none.
    pub producer_id: i64,
    /// Producer epoch; -1 if the producer has no id.
    pub producer_epoch: i16,
    /// Producer sequence number of the first record; -1 if the records have none.
    pub base_sequence: i32,
    /// Kind of the records.
    pub kind: BatchKind,
}

/// Kind of the records of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchKind {
    /// Data outside a transaction.
    #[default]
    Plain,
    /// Data inside a transaction.
    Transactional,
    /// A transaction marker (commit or abort).
    Control,
    /// Data of a component of the broker, marked with these [`INTERNAL_ATTRIBUTES`].
    Internal(i16),
}

impl BatchKind {
    const fn attributes(self) -> i16 {
        match self {
            Self::Plain => 0,
            Self::Transactional => 0x10,
            Self::Control => 0x30,
            Self::Internal(mark) => mark & INTERNAL_ATTRIBUTES,
        }
    }
}

/// A batch without producer id.
impl Default for Origin {
    fn default() -> Self {
        Self { producer_id: -1, producer_epoch: -1, base_sequence: -1, kind: BatchKind::Plain }
    }
}

/// Builds uncompressed batches record by record. Reuses its buffer for the next batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    records: u32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
}

impl BatchBuilder {
    /// Number of records in the current batch.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Whether the current batch has no records.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Size of the current batch, bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a record without headers. Its offset is the base offset plus the number of records before it.
    pub fn push(&mut self, timestamp_ms: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.push_with_headers(timestamp_ms, key, value, NO_HEADERS);
    }

    /// Adds a record with encoded headers, count first, as in [`Record::headers`].
    pub fn push_with_headers(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[u8],
    ) {
        if self.records == 0 {
            self.bytes.clear();
            self.bytes.resize(HEADER_BYTES, 0);
            self.base_timestamp_ms = timestamp_ms;
            self.max_timestamp_ms = timestamp_ms;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        let timestamp_delta = timestamp_ms - self.base_timestamp_ms;
        let offset_delta = i64::from(self.records);
        put_record(timestamp_delta, offset_delta, [key, value], headers, &mut self.bytes);
        self.records += 1;
    }

    /// Finishes the batch at base offset 0 and returns its bytes. The next record starts a new batch.
    pub fn finish(&mut self) -> &[u8] {
        self.finish_valid().bytes()
    }

    /// Finishes the batch without a producer id.
    pub fn finish_valid(&mut self) -> ValidBatch<'_> {
        self.finish_as(&Origin::default())
    }

    /// Finishes the batch with the producer fields and kind of `origin`.
    pub fn finish_as(&mut self, origin: &Origin) -> ValidBatch<'_> {
        let mut header = BatchHeader {
            base_offset: 0,
            total_bytes: self.bytes.len(),
            leader_epoch: 0,
            checksum: 0,
            attributes: origin.kind.attributes(),
            last_offset_delta: self.records - 1,
            base_timestamp_ms: self.base_timestamp_ms,
            max_timestamp_ms: self.max_timestamp_ms,
            producer_id: origin.producer_id,
            producer_epoch: origin.producer_epoch,
            base_sequence: origin.base_sequence,
            records: self.records,
        };
        header.checksum = put_header(&header, &mut self.bytes);
        self.records = 0;
        ValidBatch::made(header, &self.bytes)
    }
}

/// Appends to `into` an uncompressed batch with the fields of `header` and only the given `records`, possibly none.
/// Timestamps are encoded relative to the base timestamp of `header`.
pub fn rebuild<'a>(header: &BatchHeader, records: impl Iterator<Item = Record<'a>>, into: &mut Vec<u8>) {
    let begin = into.len();
    into.resize(begin + HEADER_BYTES, 0);
    let mut header = BatchHeader { records: 0, attributes: header.attributes & !COMPRESSION, ..*header };
    for record in records {
        header.records += 1;
        let timestamp_delta = record.timestamp_ms - header.base_timestamp_ms;
        let offset_delta = (record.offset - header.base_offset).cast_signed();
        put_record(timestamp_delta, offset_delta, [record.key, record.value], record.headers, into);
    }
    put_header(&header, &mut into[begin..]);
}

/// Appends to `into` the batch of `header` with its record section replaced by `records`: the same records,
/// compressed with `compression`.
pub fn repack(header: &BatchHeader, compression: Compression, records: &[u8], into: &mut Vec<u8>) {
    let begin = into.len();
    into.resize(begin + HEADER_BYTES, 0);
    into.extend_from_slice(records);
    let attributes = header.attributes & !COMPRESSION | i16::from(compression.number());
    put_header(&BatchHeader { attributes, ..*header }, &mut into[begin..]);
}

/// Appends one record. `headers` starts with the header count.
fn put_record(
    timestamp_delta: i64,
    offset_delta: i64,
    key_and_value: [Option<&[u8]>; 2],
    headers: &[u8],
    into: &mut Vec<u8>,
) {
    let part_len = |part: Option<&[u8]>| varint::len(signed_len(part)) + part.map_or(0, <[u8]>::len);
    let parts: usize = key_and_value.into_iter().map(part_len).sum();
    // The attributes take one byte.
    let total = 1 + varint::len(timestamp_delta) + varint::len(offset_delta) + parts + headers.len();
    // Collect varints on the stack: appending them to the vector one by one costs more than copying the value.
    let mut numbers = varint::Numbers::default();
    numbers.put(total.cast_signed() as i64);
    numbers.put(0);
    numbers.put(timestamp_delta);
    numbers.put(offset_delta);
    let [key, value] = key_and_value;
    numbers.put(signed_len(key));
    into.reserve(varint::LEN_MAX + total);
    if let Some(key) = key {
        into.extend_from_slice(numbers.bytes());
        into.extend_from_slice(key);
        numbers.clear();
    }
    numbers.put(signed_len(value));
    into.extend_from_slice(numbers.bytes());
    into.extend_from_slice(value.unwrap_or_default());
    match headers {
        // The common case: no headers.
        [none] => into.push(*none),
        some => into.extend_from_slice(some),
    }
}

/// Writes the header into the first 61 bytes of a batch and returns its checksum.
fn put_header(header: &BatchHeader, bytes: &mut [u8]) -> u32 {
    let length = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    bytes[21..23].copy_from_slice(&header.attributes.to_be_bytes());
    bytes[23..27].copy_from_slice(&header.last_offset_delta.to_be_bytes());
    bytes[27..35].copy_from_slice(&header.base_timestamp_ms.to_be_bytes());
    bytes[35..43].copy_from_slice(&header.max_timestamp_ms.to_be_bytes());
    bytes[43..51].copy_from_slice(&header.producer_id.to_be_bytes());
    bytes[51..53].copy_from_slice(&header.producer_epoch.to_be_bytes());
    bytes[53..57].copy_from_slice(&header.base_sequence.to_be_bytes());
    bytes[57..61].copy_from_slice(&header.records.to_be_bytes());
    let checksum = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    Batch::place(bytes, header.base_offset, header.leader_epoch);
    checksum
}

/// Encoded length of an optional byte string: -1 for `None`.
fn signed_len(part: Option<&[u8]>) -> i64 {
    part.map_or(-1, |bytes| bytes.len().cast_signed() as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::{HEADER_BYTES, Malformed};

    type Parts = (i64, Option<Vec<u8>>, Option<Vec<u8>>);

    fn parts() -> impl Strategy<Value = Parts> {
        let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..300));
        (0_i64..1 << 45, bytes(), bytes())
    }

    proptest! {
        #[test]
        fn built_batches_round_trip(all in prop::collection::vec(parts(), 1..40), base in 0_u64..1 << 60) {
            let mut builder = BatchBuilder::default();
            for round in 0..2 {
                for (timestamp_ms, key, value) in &all {
                    builder.push(*timestamp_ms, key.as_deref(), value.as_deref());
                }
                let len = builder.len();
                let mut bytes = builder.finish().to_vec();
                prop_assert_eq!(len, bytes.len(), "round {}", round);
                Batch::place(&mut bytes, base, 7);
                let batch = Batch::parse(&bytes).unwrap();
                prop_assert_eq!(batch.header.end_offset(), base + all.len() as u64);
                prop_assert_eq!(batch.header.leader_epoch, 7);
                let read: Vec<_> = batch.records().map(Result::unwrap).collect();
                prop_assert_eq!(read.len(), all.len());
                for (index, (record, (timestamp_ms, key, value))) in read.iter().zip(&all).enumerate() {
                    prop_assert_eq!(record.offset, base + index as u64);
                    prop_assert_eq!(record.timestamp_ms, *timestamp_ms);
                    prop_assert_eq!(record.key, key.as_deref());
                    prop_assert_eq!(record.value, value.as_deref());
                }
            }
        }

        #[test]
        fn carries_producer_fields_and_kind(
            producer_id in 0_i64.., producer_epoch in 0_i16.., base_sequence in 0_i32..,
            kind in prop::sample::select(vec![BatchKind::Plain, BatchKind::Transactional, BatchKind::Control]),
        ) {
            let origin = Origin { producer_id, producer_epoch, base_sequence, kind };
            let mut builder = BatchBuilder::default();
            builder.push_with_headers(1, None, None, b"\x02\x02k\x02v");
            let made = builder.finish_as(&origin);
            let header = ValidBatch::parse(made.bytes()).unwrap().header();
            prop_assert_eq!(made.header(), header, "the builder returns the header that a parser reads");
            prop_assert_eq!(header.producer_id, producer_id);
            prop_assert_eq!(header.producer_epoch, producer_epoch);
            prop_assert_eq!(header.base_sequence, base_sequence);
            prop_assert_eq!(header.is_transactional(), kind != BatchKind::Plain);
            prop_assert_eq!(header.is_control(), kind == BatchKind::Control);
            builder.push(1, None, None);
            let batch = Batch::parse(builder.finish()).unwrap();
            prop_assert_eq!((batch.header.producer_id, batch.header.attributes), (-1, 0));
            prop_assert_eq!(batch.records().next().unwrap().unwrap().headers, NO_HEADERS);
        }

        #[test]
        fn rebuild_retains_the_chosen_records(
            all in prop::collection::vec((parts(), any::<bool>()), 1..40),
            base in 0_u64..1 << 60,
            later_ms in -1000_i64..1000,
        ) {
            let mut builder = BatchBuilder::default();
            for ((timestamp_ms, key, value), _) in &all {
                builder.push(*timestamp_ms, key.as_deref(), value.as_deref());
            }
            let mut bytes = builder.finish().to_vec();
            Batch::place(&mut bytes, base, 0);
            let batch = Batch::parse(&bytes).unwrap();
            let chosen = || batch.records().map(Result::unwrap).zip(&all).filter(|(_, (_, stays))| *stays);
            let header = BatchHeader {
                base_timestamp_ms: batch.header.base_timestamp_ms + later_ms,
                producer_id: 5,
                ..batch.header
            };
            let mut rebuilt = vec![1];
            rebuild(&header, chosen().map(|(record, _)| record), &mut rebuilt);
            let rebuilt = Batch::parse(&rebuilt[1..]).unwrap();
            let expected = BatchHeader {
                records: chosen().count() as u32,
                total_bytes: rebuilt.bytes().len(),
                checksum: rebuilt.header.checksum,
                ..header
            };
            prop_assert_eq!(rebuilt.header, expected);
            let read: Vec<_> = rebuilt.records().map(Result::unwrap).collect();
            prop_assert_eq!(read, chosen().map(|(record, _)| record).collect::<Vec<_>>());
            if later_ms == 0 && expected.records == batch.header.records {
                prop_assert_eq!(rebuilt.bytes().len(), bytes.len());
            }
        }

        #[test]
        fn detects_flipped_bits_and_truncation(at in 0_usize..200, bit in 0_u8..8, cut in 0_usize..200) {
            let mut builder = BatchBuilder::default();
            builder.push(1, Some(b"key"), Some(&[7; 200]));
            let whole = builder.finish().to_vec();
            let mut flipped = whole.clone();
            let at = at + 16;
            flipped[at] ^= 1 << bit;
            prop_assert!(Batch::parse(&flipped).is_err());
            prop_assert_eq!(Batch::parse(&whole[..HEADER_BYTES + cut]).unwrap_err(), Malformed::Length);
        }
    }

    #[test]
    fn rejects_other_versions_and_inconsistent_lengths() {
        let mut builder = BatchBuilder::default();
        builder.push(1, None, Some(b"x"));
        let whole = builder.finish().to_vec();
        for (at, value, expected) in
            [(16, 1, Malformed::Magic(1)), (8, 0x80, Malformed::Length), (23, 0x80, Malformed::Inconsistent)]
        {
            let mut bytes = whole.clone();
            bytes[at] = value;
            assert_eq!(Batch::parse(&bytes).unwrap_err(), expected);
        }
    }
}
