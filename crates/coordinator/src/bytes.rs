//! Encoding of record fields: LEB128 varints, zigzag for signed numbers, length-prefixed strings.
//!
//! The reader never trusts a length or a count: neither can exceed the bytes that are left, so malformed input yields
//! [`Malformed`] without a large allocation.

use std::fmt;

/// A record that this version cannot read: damaged, or written by a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(
    /// The reason.
    pub &'static str,
);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed record: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn starting_with(byte: u8) -> Self {
        Self(vec![byte])
    }

    /// Unsigned LEB128.
    pub(crate) fn number(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    /// Zigzag: 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4.
    pub(crate) fn signed(&mut self, value: i64) -> &mut Self {
        self.number(((value << 1) ^ (value >> 63)).cast_unsigned())
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.number(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// 0 for `None`; otherwise the length plus 1, then the string.
    pub(crate) fn optional_text(&mut self, value: Option<&str>) -> &mut Self {
        match value {
            None => self.number(0),
            Some(text) => {
                self.number(text.len() as u64 + 1);
                self.0.extend_from_slice(text.as_bytes());
                self
            }
        }
    }
}

/// Reads what [`Writer`] wrote.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a varint exceeds 64 bits"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A signed number of at most 32 bits.
    pub(crate) fn signed_32(&mut self) -> Result<i32, Malformed> {
        self.signed()?.try_into().map_err(|_| Malformed("a varint exceeds 32 bits"))
    }

    /// Number of elements to follow. Each takes at least one byte, so the count cannot exceed the remaining bytes.
    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).map_err(|_| TRUNCATED)?;
        if count > self.0.len() { Err(TRUNCATED) } else { Ok(count) }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.count()?;
        Ok(self.take(length))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.bytes()?).map_err(|_| NOT_UTF8)
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<&'a str>, Malformed> {
        let Some(length) = self.number()?.checked_sub(1) else { return Ok(None) };
        let length =
            usize::try_from(length).ok().filter(|length| *length <= self.0.len()).ok_or(TRUNCATED)?;
        str::from_utf8(self.take(length)).map(Some).map_err(|_| NOT_UTF8)
    }

    /// # Errors
    /// [`Malformed`] if bytes are left.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("trailing bytes after the record")) }
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }
}

const TRUNCATED: Malformed = Malformed("the record is truncated");
const NOT_UTF8: Malformed = Malformed("a string is not UTF-8");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_fields_read_back() {
        let mut writer = Writer::starting_with(7);
        for value in [0, 1, -1, 63, 64, -64, -65, i64::from(i32::MIN), i64::MAX, i64::MIN] {
            writer.signed(value);
        }
        writer.number(u64::MAX).text("größe").optional_text(None).optional_text(Some("")).bytes(&[0xff]);
        let mut reader = Reader::new(&writer.0);
        assert_eq!(reader.byte(), Ok(7));
        for value in [0, 1, -1, 63, 64, -64, -65, i64::from(i32::MIN), i64::MAX, i64::MIN] {
            assert_eq!(reader.signed(), Ok(value));
        }
        assert_eq!(reader.number(), Ok(u64::MAX));
        assert_eq!(reader.text(), Ok("größe"));
        assert_eq!(reader.optional_text(), Ok(None));
        assert_eq!(reader.optional_text(), Ok(Some("")));
        assert_eq!(reader.bytes(), Ok(&[0xff][..]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn rejects_malformed_fields() {
        assert_eq!(Reader::new(&[]).number(), Err(TRUNCATED));
        assert_eq!(Reader::new(&[0x80]).number(), Err(TRUNCATED));
        let long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(Reader::new(&long).number().is_err());
        assert_eq!(Reader::new(&[3, b'a', b'b']).text(), Err(TRUNCATED));
        assert_eq!(Reader::new(&[4, b'a', b'b']).optional_text(), Err(TRUNCATED));
        assert_eq!(Reader::new(&[1, 0xff]).text(), Err(NOT_UTF8));
        assert_eq!(Reader::new(&[2, 0xff]).optional_text(), Err(NOT_UTF8));
        assert!(Reader::new(&[0x80, 0x80, 0x80, 0x80, 0x20]).signed_32().is_err());
        assert!(Reader::new(&[0]).end().is_err());
    }
}
