//! How fields of kept records become bytes, and come back: numbers of seven bits to a byte, and lengths before texts.

use std::fmt;

/// Bytes that are no record of ours, or one of a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(
    /// What is wrong with them.
    pub &'static str,
);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed record: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Writes fields behind each other.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn starting_with(byte: u8) -> Self {
        Self(vec![byte])
    }

    /// Unsigned, seven bits to a byte, low bits first.
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

    /// 0 for none, otherwise 1 more than the length, and the text.
    pub(crate) fn maybe_text(&mut self, value: Option<&str>) -> &mut Self {
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

/// Reads what [`Writer`] has written.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(CUT_SHORT)?;
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
        Err(Malformed("a number of more than 64 bits"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A signed number that fits 32 bits.
    pub(crate) fn signed_32(&mut self) -> Result<i32, Malformed> {
        self.signed()?.try_into().map_err(|_| Malformed("a number of more than 32 bits"))
    }

    /// A number of things of which each takes at least one byte, so that no more can follow than there are bytes.
    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).map_err(|_| CUT_SHORT)?;
        if count > self.0.len() { Err(CUT_SHORT) } else { Ok(count) }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.count()?;
        Ok(self.take(length))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.bytes()?).map_err(|_| NO_TEXT)
    }

    pub(crate) fn maybe_text(&mut self) -> Result<Option<&'a str>, Malformed> {
        let Some(length) = self.number()?.checked_sub(1) else { return Ok(None) };
        let length =
            usize::try_from(length).ok().filter(|length| *length <= self.0.len()).ok_or(CUT_SHORT)?;
        str::from_utf8(self.take(length)).map(Some).map_err(|_| NO_TEXT)
    }

    /// # Errors
    /// If anything is left.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes are left over")) }
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }
}

const CUT_SHORT: Malformed = Malformed("it is cut short");
const NO_TEXT: Malformed = Malformed("a text is not UTF-8");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_back() {
        let mut writer = Writer::starting_with(7);
        for value in [0, 1, -1, 63, 64, -64, -65, i64::from(i32::MIN), i64::MAX, i64::MIN] {
            writer.signed(value);
        }
        writer.number(u64::MAX).text("größe").maybe_text(None).maybe_text(Some("")).bytes(&[0xff]);
        let mut reader = Reader::new(&writer.0);
        assert_eq!(reader.byte(), Ok(7));
        for value in [0, 1, -1, 63, 64, -64, -65, i64::from(i32::MIN), i64::MAX, i64::MIN] {
            assert_eq!(reader.signed(), Ok(value));
        }
        assert_eq!(reader.number(), Ok(u64::MAX));
        assert_eq!(reader.text(), Ok("größe"));
        assert_eq!(reader.maybe_text(), Ok(None));
        assert_eq!(reader.maybe_text(), Ok(Some("")));
        assert_eq!(reader.bytes(), Ok(&[0xff][..]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Reader::new(&[]).number(), Err(CUT_SHORT));
        assert_eq!(Reader::new(&[0x80]).number(), Err(CUT_SHORT));
        let long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(Reader::new(&long).number().is_err());
        assert_eq!(Reader::new(&[3, b'a', b'b']).text(), Err(CUT_SHORT));
        assert_eq!(Reader::new(&[4, b'a', b'b']).maybe_text(), Err(CUT_SHORT));
        assert_eq!(Reader::new(&[1, 0xff]).text(), Err(NO_TEXT));
        assert_eq!(Reader::new(&[2, 0xff]).maybe_text(), Err(NO_TEXT));
        assert!(Reader::new(&[0x80, 0x80, 0x80, 0x80, 0x20]).signed_32().is_err());
        assert!(Reader::new(&[0]).end().is_err());
    }
}
