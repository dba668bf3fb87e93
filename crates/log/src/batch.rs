//! Kafka's record batch, format version 2 (KIP-98): a header of 61 bytes, then records.
//!
//! ```text
//!  0 base offset      i64   ┐ patched in place: outside the checksum
//!  8 length           i32   │ bytes after this field
//! 12 leader epoch     i32   ┘
//! 16 magic            i8    2
//! 17 checksum         u32   CRC-32C of everything after it
//! 21 attributes       i16   bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 8-14 internal
//! 23 last offset delta i32
//! 27 base timestamp   i64   ms since 1970
//! 35 max timestamp    i64
//! 43 producer id i64 · 51 producer epoch i16 · 53 base sequence i32
//! 57 record count     i32
//! 61 records
//! ```
//! All integers are big-endian.
//!
//! The base offset and leader epoch lie outside the checksum, so that a store places a batch in its log without
//! recomputing the CRC. Readers borrow the bytes; nothing is copied until a caller needs it.

use std::fmt;

use crate::varint;

/// Length of a batch header, bytes.
pub const HEADER_BYTES: usize = 61;
/// End of the `length` field. The length counts the bytes after this position.
const LENGTH_END: usize = 12;
/// First byte covered by the checksum.
const CHECKED_FROM: usize = 21;
const MAGIC: u8 = 2;

/// Attribute bits 8 to 14. Kafka leaves them undefined, and its clients ignore them. Components of the broker mark
/// their own batches with them; a server must refuse them in batches of clients.
pub const INTERNAL_ATTRIBUTES: i16 = 0x7f00;

/// Why a byte sequence is not a valid record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The input ends before the batch does, or the batch is shorter than its header.
    Length,
    /// Unsupported format version (not 2).
    Magic(u8),
    /// Checksum mismatch.
    Checksum,
    /// Counts, offsets or lengths contradict each other.
    Inconsistent,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("wrong length"),
            Self::Magic(magic) => write!(f, "format version {magic}"),
            Self::Checksum => f.write_str("wrong checksum"),
            Self::Inconsistent => f.write_str("fields contradict each other"),
        }
    }
}

/// Compression codec of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the codecs' own names")]
pub enum Compression {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
    /// A codec number that the format does not define.
    Unknown(u8),
}

impl Compression {
    /// Codec number in the batch attributes, 0 to 7.
    pub fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
            Self::Unknown(number) => number & 7,
        }
    }
}

/// The fields of a batch's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the format's own names")]
pub struct BatchHeader {
    pub base_offset: u64,
    /// Size of the whole batch, bytes.
    pub total_bytes: usize,
    pub leader_epoch: i32,
    pub checksum: u32,
    pub attributes: i16,
    pub last_offset_delta: u32,
    pub base_timestamp_ms: i64,
    pub max_timestamp_ms: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub records: u32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

impl BatchHeader {
    /// Parses the header at the start of `bytes`, which need not contain the rest of the batch.
    ///
    /// # Errors
    /// Any [`Malformed`] except [`Malformed::Checksum`], which requires the whole batch.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < HEADER_BYTES {
            return Err(Malformed::Length);
        }
        if bytes[16] != MAGIC {
            return Err(Malformed::Magic(bytes[16]));
        }
        let length = i32::from_be_bytes(field(bytes, 8));
        let total_bytes = usize::try_from(length).map_err(|_| Malformed::Length)? + LENGTH_END;
        if total_bytes < HEADER_BYTES {
            return Err(Malformed::Length);
        }
        let last_offset_delta = i32::from_be_bytes(field(bytes, 23));
        let records = i32::from_be_bytes(field(bytes, 57));
        let base_offset = i64::from_be_bytes(field(bytes, 0));
        let (Ok(base_offset), Ok(last_offset_delta), Ok(records)) =
            (u64::try_from(base_offset), u32::try_from(last_offset_delta), u32::try_from(records))
        else {
            return Err(Malformed::Inconsistent);
        };
        Ok(Self {
            base_offset,
            total_bytes,
            leader_epoch: i32::from_be_bytes(field(bytes, 12)),
            checksum: u32::from_be_bytes(field(bytes, 17)),
            attributes: i16::from_be_bytes(field(bytes, 21)),
            last_offset_delta,
            base_timestamp_ms: i64::from_be_bytes(field(bytes, 27)),
            max_timestamp_ms: i64::from_be_bytes(field(bytes, 35)),
            producer_id: i64::from_be_bytes(field(bytes, 43)),
            producer_epoch: i16::from_be_bytes(field(bytes, 51)),
            base_sequence: i32::from_be_bytes(field(bytes, 53)),
            records,
        })
    }

    /// One past the last record's offset.
    pub fn end_offset(&self) -> u64 {
        self.base_offset + u64::from(self.last_offset_delta) + 1
    }

    /// Compression codec.
    pub fn compression(&self) -> Compression {
        match self.attributes & 7 {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Snappy,
            3 => Compression::Lz4,
            4 => Compression::Zstd,
            other => Compression::Unknown(other.cast_unsigned() as u8),
        }
    }

    /// Whether the records are transaction markers, not data.
    pub fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }

    /// The [`INTERNAL_ATTRIBUTES`] that are set.
    pub fn internal_attributes(&self) -> i16 {
        self.attributes & INTERNAL_ATTRIBUTES
    }

    /// Whether the batch is part of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }
}

/// A complete batch in memory.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Parsed header.
    pub header: BatchHeader,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Parses the batch at the start of `bytes` and verifies its checksum.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_unchecked(bytes)?.verify().map(|valid| valid.batch())
    }

    /// Verifies the checksum of a batch that [`Batch::parse_unchecked`] returned, without parsing the header again.
    ///
    /// # Errors
    /// [`Malformed::Checksum`].
    pub fn verify(self) -> Result<ValidBatch<'a>, Malformed> {
        let checksum = crc32c::crc32c(&self.bytes[CHECKED_FROM..]);
        if checksum == self.header.checksum { Ok(ValidBatch(self)) } else { Err(Malformed::Checksum) }
    }

    /// Like [`Batch::parse`] without verifying the checksum, for bytes that were checked before.
    ///
    /// # Errors
    /// [`Malformed`], but never [`Malformed::Checksum`].
    pub fn parse_unchecked(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = BatchHeader::parse(bytes)?;
        let bytes = bytes.get(..header.total_bytes).ok_or(Malformed::Length)?;
        Ok(Self { header, bytes })
    }

    /// Bytes of the whole batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Iterates over the records. The batch must be uncompressed.
    pub fn records(&self) -> Records<'a> {
        debug_assert_eq!(self.header.compression(), Compression::None);
        Records { header: self.header, rest: &self.bytes[HEADER_BYTES..], left: self.header.records }
    }

    /// Sets the base offset and leader epoch. The checksum does not cover them.
    pub fn place(bytes: &mut [u8], base_offset: u64, leader_epoch: i32) {
        bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        bytes[LENGTH_END..16].copy_from_slice(&leader_epoch.to_be_bytes());
    }

    /// Sets the latest timestamp in the header and updates the checksum.
    pub fn set_max_timestamp(bytes: &mut [u8], unix_ms: i64) {
        bytes[35..43].copy_from_slice(&unix_ms.to_be_bytes());
        let checksum = crc32c::crc32c(&bytes[CHECKED_FROM..]);
        bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Sets the timestamp of all records to the arrival time `unix_ms` (Kafka's `LogAppendTime`) and updates the
    /// checksum.
    pub fn set_append_time(bytes: &mut [u8], unix_ms: i64) {
        let attributes = i16::from_be_bytes(field(bytes, 21)) | 8;
        bytes[21..23].copy_from_slice(&attributes.to_be_bytes());
        Self::set_max_timestamp(bytes, unix_ms);
    }
}

/// A complete batch whose checksum was verified or just computed.
#[derive(Clone, Copy, Debug)]
pub struct ValidBatch<'a>(Batch<'a>);

impl<'a> ValidBatch<'a> {
    /// Parses `bytes`, which must hold exactly one batch.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let batch = Batch::parse(bytes)?;
        if batch.bytes.len() == bytes.len() { Ok(Self(batch)) } else { Err(Malformed::Length) }
    }

    /// Wraps a freshly built batch with a correct checksum.
    pub(crate) fn made(header: BatchHeader, bytes: &'a [u8]) -> Self {
        Self(Batch { header, bytes })
    }

    /// The batch without the validity guarantee.
    pub fn batch(&self) -> Batch<'a> {
        self.0
    }

    /// Parsed header.
    pub fn header(&self) -> BatchHeader {
        self.0.header
    }

    /// Bytes of the whole batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.0.bytes
    }
}

/// Iterates over consecutive batches in `bytes` without verifying checksums. Ends at the first incomplete batch.
pub fn batches(bytes: &[u8]) -> impl Iterator<Item = Batch<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let batch = Batch::parse_unchecked(rest).ok()?;
        rest = &rest[batch.bytes.len()..];
        Some(batch)
    })
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset in the log.
    pub offset: u64,
    /// Timestamp, Unix time in ms.
    pub timestamp_ms: i64,
    /// Compaction retains the newest record of each key.
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone: compaction removes the key.
    pub value: Option<&'a [u8]>,
    /// Encoded headers, starting with their count.
    pub headers: &'a [u8],
}

/// Iterator over the records of a batch.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    header: BatchHeader,
    rest: &'a [u8],
    left: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let record = self.record();
        if record.is_none() {
            self.left = 0;
        }
        Some(record.ok_or(Malformed::Inconsistent))
    }
}

impl<'a> Records<'a> {
    /// Reads the records of a compressed batch from their decompressed `bytes`.
    pub fn of(header: BatchHeader, bytes: &'a [u8]) -> Self {
        Self { header, rest: bytes, left: header.records }
    }

    /// Resumes an iteration from the values of [`Records::rest`] and [`Records::left`].
    pub fn resume(header: BatchHeader, rest: &'a [u8], left: u32) -> Self {
        Self { header, rest, left }
    }

    /// Number of records not yet read.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let len = usize::try_from(varint::take(&mut self.rest)?).ok()?;
        let (mut rest, after) = self.rest.split_at_checked(len)?;
        self.rest = after;
        let (_attributes, fields) = rest.split_first()?;
        rest = fields;
        let timestamp_delta = varint::take(&mut rest)?;
        let offset_delta = u64::try_from(varint::take(&mut rest)?).ok()?;
        if offset_delta > u64::from(self.header.last_offset_delta) {
            return None;
        }
        let key = nullable(&mut rest).ok()?;
        let value = nullable(&mut rest).ok()?;
        Some(Record {
            offset: self.header.base_offset + offset_delta,
            timestamp_ms: self.header.base_timestamp_ms.checked_add(timestamp_delta)?,
            key,
            value,
            headers: rest,
        })
    }
}

/// Reads a length-prefixed byte string. A negative length encodes `None`.
fn nullable<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let len = varint::take(rest).ok_or(Malformed::Inconsistent)?;
    let Ok(len) = usize::try_from(len) else { return Ok(None) };
    let (bytes, after) = rest.split_at_checked(len).ok_or(Malformed::Inconsistent)?;
    *rest = after;
    Ok(Some(bytes))
}
