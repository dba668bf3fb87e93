//! Kafka's record batch, format version 2 (KIP-98): a header of 61 bytes, then records.
//!
//! ```text
//!  0 base offset      i64   ┐ patched in place: outside the checksum
//!  8 length           i32   │ of what follows this field
//! 12 leader epoch     i32   ┘
//! 16 magic            i8    2
//! 17 checksum         u32   CRC-32C of everything behind it
//! 21 attributes       i16   bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control
//! 23 last offset delta i32
//! 27 base timestamp   i64   ms since 1970
//! 35 max timestamp    i64
//! 43 producer id i64 · 51 producer epoch i16 · 53 base sequence i32
//! 57 record count     i32
//! 61 records
//! ```
//! All integers are big-endian.

use std::fmt;

use crate::varint;

/// Length of a batch's header.
pub const HEADER_BYTES: usize = 61;
/// Where the field `length` ends: what it does not count.
const LENGTH_END: usize = 12;
/// Where the bytes under the checksum begin.
const CHECKED_FROM: usize = 21;
const MAGIC: u8 = 2;

/// Why bytes are no record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They end before the batch does, or it is shorter than its header.
    Length,
    /// Another format version than 2; here it is.
    Magic(u8),
    /// The checksum differs.
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

/// How the records of a batch are compressed, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the codecs' own names")]
pub enum Compression {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
    /// A number that means nothing yet.
    Unknown(u8),
}

impl Compression {
    /// Its number in the attributes of a batch.
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
    /// Of the whole batch, bytes.
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
    /// Reads the header that `bytes` begin with. The rest of the batch need not be there.
    ///
    /// # Errors
    /// All of [`Malformed`] but the checksum, which only the whole batch can tell.
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

    /// Offset behind the last record.
    pub fn end_offset(&self) -> u64 {
        self.base_offset + u64::from(self.last_offset_delta) + 1
    }

    /// How its records are compressed.
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

    /// Whether its records are markers of transactions, not data.
    pub fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }

    /// Whether it is part of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }
}

/// One whole batch in memory.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Its header.
    pub header: BatchHeader,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The batch that `bytes` begin with, its checksum compared.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let batch = Self::parse_unchecked(bytes)?;
        let checksum = crc32c::crc32c(&batch.bytes[CHECKED_FROM..]);
        if checksum != batch.header.checksum {
            return Err(Malformed::Checksum);
        }
        Ok(batch)
    }

    /// The same without comparing the checksum: for bytes that have been checked before.
    ///
    /// # Errors
    /// [`Malformed`], but never for the checksum.
    pub fn parse_unchecked(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = BatchHeader::parse(bytes)?;
        let bytes = bytes.get(..header.total_bytes).ok_or(Malformed::Length)?;
        Ok(Self { header, bytes })
    }

    /// All its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its records, which must not be compressed.
    pub fn records(&self) -> Records<'a> {
        debug_assert_eq!(self.header.compression(), Compression::None);
        Records { header: self.header, rest: &self.bytes[HEADER_BYTES..], left: self.header.records }
    }

    /// Sets where the batch stands in its log. The checksum does not cover that.
    pub fn place(bytes: &mut [u8], base_offset: u64, leader_epoch: i32) {
        bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        bytes[LENGTH_END..16].copy_from_slice(&leader_epoch.to_be_bytes());
    }

    /// Lets all records of a whole batch count as of `unix_ms`, the time of its arrival (Kafka's
    /// `LogAppendTime`), and renews its checksum.
    pub fn set_append_time(bytes: &mut [u8], unix_ms: i64) {
        let attributes = i16::from_be_bytes(field(bytes, 21)) | 8;
        bytes[21..23].copy_from_slice(&attributes.to_be_bytes());
        bytes[35..43].copy_from_slice(&unix_ms.to_be_bytes());
        let checksum = crc32c::crc32c(&bytes[CHECKED_FROM..]);
        bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// One whole batch of which the checksum is known to be right.
#[derive(Clone, Copy, Debug)]
pub struct Sound<'a>(Batch<'a>);

impl<'a> Sound<'a> {
    /// The batch that `bytes` are, nothing behind it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let batch = Batch::parse(bytes)?;
        if batch.bytes.len() == bytes.len() { Ok(Self(batch)) } else { Err(Malformed::Length) }
    }

    /// A batch that has just been made, with its checksum.
    pub(crate) fn made(header: BatchHeader, bytes: &'a [u8]) -> Self {
        Self(Batch { header, bytes })
    }

    /// The batch.
    pub fn batch(&self) -> Batch<'a> {
        self.0
    }

    /// Its header.
    pub fn header(&self) -> BatchHeader {
        self.0.header
    }

    /// All its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.0.bytes
    }
}

/// The batches in `bytes`, one behind the other, unchecked. Ends at the first that is not whole.
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
    /// Its place in the log.
    pub offset: u64,
    /// Ms since 1970.
    pub timestamp_ms: i64,
    /// What compaction keeps one of.
    pub key: Option<&'a [u8]>,
    /// Nothing removes the key.
    pub value: Option<&'a [u8]>,
    /// Headers as they are encoded, behind their count.
    pub headers: &'a [u8],
}

/// Reads the records of a batch, one after the other.
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
    /// Records of `header` that stood compressed; `bytes` is what came out.
    pub fn of(header: BatchHeader, bytes: &'a [u8]) -> Self {
        Self { header, rest: bytes, left: header.records }
    }

    /// The last `left` of them, which `rest` begins with: where [`Records::left`] and [`Records::rest`] said so.
    pub fn resume(header: BatchHeader, rest: &'a [u8], left: u32) -> Self {
        Self { header, rest, left }
    }

    /// Number of those to come.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Their bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let len = usize::try_from(varint::take(&mut self.rest)?).ok()?;
        let (mut rest, behind) = self.rest.split_at_checked(len)?;
        self.rest = behind;
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

/// A length and so many bytes; a length below zero stands for nothing.
fn nullable<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let len = varint::take(rest).ok_or(Malformed::Inconsistent)?;
    let Ok(len) = usize::try_from(len) else { return Ok(None) };
    let (bytes, behind) = rest.split_at_checked(len).ok_or(Malformed::Inconsistent)?;
    *rest = behind;
    Ok(Some(bytes))
}
