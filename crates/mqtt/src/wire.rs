//! The primitive data types of MQTT (MQTT 5, 1.5): a reader, and two sinks that measure and write them.
//!
//! [`Reader`] checks every length before it reads, so a truncated packet is an error and never a panic. A packet is
//! described once as calls on a [`Sink`]; running the description on [`Measure`] and then on a `Vec<u8>` cannot produce
//! different lengths.

use crate::error::{DecodeError, EncodeError};

/// Maximum value of a Variable Byte Integer (1.5.5), and so of the Remaining Length.
pub(crate) const VARINT_MAX: u32 = 268_435_455;

/// Reads the data types of 1.5 from the start of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the unread bytes.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// Two Byte Integer (1.5.2).
    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four Byte Integer (1.5.3).
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Variable Byte Integer (1.5.5), which must use the minimum number of bytes [MQTT-1.5.5-1].
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u32, DecodeError> {
        match varint(self.rest)? {
            Some((value, len)) if len == varint_len(value) => {
                self.rest = &self.rest[len..];
                Ok(value)
            }
            Some(_) => Err(DecodeError::malformed("variable byte integer longer than needed [MQTT-1.5.5-1]")),
            None => Err(TOO_SHORT),
        }
    }

    /// Binary Data (1.5.6): a two-byte length, then that many bytes.
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// UTF-8 Encoded String (1.5.4): well formed [MQTT-1.5.4-1] and without U+0000 [MQTT-1.5.4-2]. A byte order mark is
    /// an ordinary character [MQTT-1.5.4-3].
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let bytes = self.binary()?;
        if has_nul(bytes) {
            return Err(DecodeError::malformed("string with U+0000 [MQTT-1.5.4-2]"));
        }
        std::str::from_utf8(bytes).map_err(|_| DecodeError::malformed("string is not UTF-8 [MQTT-1.5.4-1]"))
    }

    /// A packet identifier, which is never 0 [MQTT-2.2.1-3].
    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<u16, DecodeError> {
        match self.u16()? {
            0 => Err(DecodeError::protocol("packet identifier 0 [MQTT-2.2.1-3]")),
            id => Ok(id),
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(TOO_SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Checks that nothing follows the last field.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::malformed("bytes after the last field")) }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(TOO_SHORT)?;
        self.rest = rest;
        Ok(*array)
    }
}

const TOO_SHORT: DecodeError = DecodeError::malformed("packet ends inside a field");

/// Returns the Variable Byte Integer at the start of `bytes` and its length; `None` if it is incomplete.
#[inline]
pub(crate) fn varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() < 4 {
        return Ok(None);
    }
    Err(DecodeError::malformed("variable byte integer of more than four bytes (1.5.5)"))
}

/// Returns whether a byte is 0. Has no early exit, so that the compiler can vectorize it: most strings are too short
/// for the search of the standard library to pay off, and a hit is an error.
#[inline]
fn has_nul(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |found, byte| found | u8::from(*byte == 0)) != 0
}

/// Returns the number of bytes of `value` as a Variable Byte Integer.
#[inline]
pub(crate) const fn varint_len(value: u32) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

/// Receives the fields of a packet in order, either to measure them ([`Measure`]) or to write them (`Vec<u8>`).
pub(crate) trait Sink {
    fn raw(&mut self, bytes: &[u8]);

    /// A property section: its length as a Variable Byte Integer, then the properties. The length includes `omitted`
    /// bytes of further properties, which are not written.
    fn section_without(&mut self, properties: &impl Section, omitted: usize);

    /// A whole property section.
    fn section(&mut self, properties: &impl Section) {
        self.section_without(properties, 0);
    }

    /// Binary Data (1.5.6).
    fn binary(&mut self, bytes: &[u8]);

    /// UTF-8 Encoded String (1.5.4).
    fn string(&mut self, string: &str);

    #[inline]
    fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    #[inline]
    fn u16(&mut self, value: u16) {
        self.raw(&value.to_be_bytes());
    }

    #[inline]
    fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    /// Variable Byte Integer (1.5.5) of at most [`VARINT_MAX`].
    #[inline]
    fn varint(&mut self, mut value: u32) {
        while value > 0x7F {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }
}

/// The properties of one packet.
pub(crate) trait Section {
    fn write<S: Sink>(&self, sink: &mut S);
}

/// Sums up the length of the fields, and detects fields that cannot be represented.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    len: usize,
    error: Option<EncodeError>,
}

impl Measure {
    /// Returns the number of bytes so far.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the total length, or an error if a field or the packet cannot be represented.
    pub(crate) fn finish(self) -> Result<usize, EncodeError> {
        match self.error {
            Some(error) => Err(error),
            None if self.len > VARINT_MAX as usize => Err(EncodeError::PacketTooLarge),
            None => Ok(self.len),
        }
    }
}

impl Sink for Measure {
    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
    }

    fn section_without(&mut self, properties: &impl Section, omitted: usize) {
        let before = self.len;
        properties.write(self);
        // A length beyond u32 exceeds the maximum packet size, which `finish` reports.
        self.len += varint_len(u32::try_from(self.len - before + omitted).unwrap_or(u32::MAX));
    }

    #[inline]
    fn binary(&mut self, bytes: &[u8]) {
        if bytes.len() > usize::from(u16::MAX) {
            self.error = Some(EncodeError::FieldTooLong);
        }
        self.len += 2 + bytes.len();
    }

    #[inline]
    fn string(&mut self, string: &str) {
        if has_nul(string.as_bytes()) {
            self.error = Some(EncodeError::Invalid("string with U+0000 [MQTT-1.5.4-2]"));
        }
        self.binary(string.as_bytes());
    }
}

/// Writes fields that [`Measure`] has accepted.
impl Sink for Vec<u8> {
    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn section_without(&mut self, properties: &impl Section, omitted: usize) {
        let mut measure = Measure::default();
        properties.write(&mut measure);
        self.varint((measure.len + omitted) as u32);
        // Most packets have no properties.
        if measure.len > 0 {
            properties.write(self);
        }
    }

    #[inline]
    fn binary(&mut self, bytes: &[u8]) {
        self.u16(bytes.len() as u16);
        self.raw(bytes);
    }

    #[inline]
    fn string(&mut self, string: &str) {
        self.binary(string.as_bytes());
    }
}
