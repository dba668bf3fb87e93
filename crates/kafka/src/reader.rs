//! Takes values off the front of received bytes.

use std::fmt;

/// Why bytes are no message. Either way the connection cannot go on: where the next frame begins is not in doubt, but
/// the two sides do not mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// They end before the message does, or a length speaks of more bytes than there are.
    Truncated,
    /// They break a rule of the protocol; here it is.
    Malformed(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the message ends too early"),
            Self::Malformed(rule) => f.write_str(rule),
        }
    }
}

impl std::error::Error for DecodeError {}

/// What the elements of all arrays of one message may take in memory. An element can be larger in memory than on the
/// wire, up to some twenty times, and a frame may be as long as the longest batch of records; no message that means
/// anything comes near this.
const ELEMENTS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What is left of a message's bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// What further elements may take in memory.
    allowance: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their beginning.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, allowance: ELEMENTS_BYTES_MAX }
    }

    /// The bytes not taken yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// How many bytes are left.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether all is taken.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes `N` bytes, for a number.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Takes an unsigned number of seven bits to a byte, low bits first.
    ///
    /// # Errors
    /// [`DecodeError`] also if it has more than 32 bits.
    pub fn uvarint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            if shift == 28 && byte > 0x0F {
                break;
            }
            value |= u32::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Malformed("a variable-length number has more than 32 bits"))
    }

    /// Takes a tagged field (KIP-482): its tag, and its value by itself. When that is read, it is handed to
    /// [`Self::end_tagged`].
    pub(crate) fn tagged(&mut self) -> Result<(u32, Self), DecodeError> {
        let tag = self.uvarint()?;
        let len = self.uvarint()? as usize;
        Ok((tag, Self { rest: self.bytes(len)?, allowance: self.allowance }))
    }

    pub(crate) fn end_tagged(&mut self, value: &Self) {
        self.allowance = value.allowance;
    }

    /// Makes sure that so many elements of so many bytes each may be kept.
    pub(crate) fn allow(&mut self, count: usize, size: usize) -> Result<(), DecodeError> {
        let left = count.checked_mul(size).and_then(|bytes| self.allowance.checked_sub(bytes));
        self.allowance = left.ok_or(DecodeError::Malformed("the arrays of a message are too long"))?;
        Ok(())
    }

    /// Takes a section of tagged fields none of which means anything here.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn skip_tags(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.uvarint()? {
            self.tagged()?;
        }
        Ok(())
    }
}

/// Appends what [`Reader::uvarint`] reads.
pub(crate) fn put_uvarint(value: u32, into: &mut Vec<u8>) {
    let mut rest = value;
    while rest >= 0x80 {
        into.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_put(value in any::<u32>(), shift in 0_u32..32) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put_uvarint(value, &mut bytes);
            bytes.push(0xAB);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.uvarint(), Ok(value));
            prop_assert_eq!(reader.rest(), [0xAB]);
            bytes.truncate(bytes.len() - 2);
            prop_assert_eq!(Reader::new(&bytes).uvarint(), Err(DecodeError::Truncated));
        }
    }

    #[test]
    fn a_number_of_more_than_32_bits_is_refused() {
        for bytes in [[0xFF, 0xFF, 0xFF, 0xFF, 0x10], [0xFF, 0xFF, 0xFF, 0xFF, 0x8F]] {
            assert!(matches!(Reader::new(&bytes).uvarint(), Err(DecodeError::Malformed(_))));
        }
        assert_eq!(Reader::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]).uvarint(), Ok(u32::MAX));
    }

    #[test]
    fn a_tagged_field_and_what_follows_share_one_allowance() {
        let mut reader = Reader::new(&[7, 1, 0]);
        let (_, mut value) = reader.tagged().unwrap();
        assert_eq!(value.allow(ELEMENTS_BYTES_MAX / 2, 1), Ok(()));
        reader.end_tagged(&value);
        assert!(matches!(reader.allow(ELEMENTS_BYTES_MAX / 2 + 1, 1), Err(DecodeError::Malformed(_))));
        let mut reader = Reader::new(&[]);
        assert_eq!(reader.allow(1, ELEMENTS_BYTES_MAX), Ok(()));
        assert!(matches!(reader.allow(1, 1), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn a_section_of_tags_that_lies_is_refused() {
        assert_eq!(Reader::new(&[0]).skip_tags(), Ok(()));
        assert_eq!(Reader::new(&[1, 9, 2, 0, 0]).skip_tags(), Ok(()));
        assert_eq!(Reader::new(&[1, 9, 3, 0, 0]).skip_tags(), Err(DecodeError::Truncated));
        let many = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 9, 0];
        assert_eq!(Reader::new(&many).skip_tags(), Err(DecodeError::Truncated));
    }
}
