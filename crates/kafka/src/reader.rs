//! Reads primitive values from the front of received bytes.
//!
//! The reader also enforces a memory budget for all arrays of a message, because elements can be much larger in memory
//! than on the wire.

use std::fmt;

/// Why decoding failed. In either case the connection must be closed: the next frame could still be found, but client
/// and broker disagree about the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ends before the message does, or a length exceeds the remaining bytes.
    Truncated,
    /// The input violates a rule of the protocol, described by the text.
    Malformed(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the message is truncated"),
            Self::Malformed(rule) => f.write_str(rule),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Limit on the memory of all array elements of one message. An element can take some twenty times more memory than
/// wire bytes, and a frame may be as long as the longest record batch; no legitimate message comes near this.
pub(crate) const ARRAY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most tagged fields of a struct, and of a header. The protocol defines three at most; unknown ones are skipped one by
/// one, and take two bytes each.
const TAGGED_FIELDS_MAX: u32 = 1_000;

/// The unread rest of a message.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Memory that further array elements may take, bytes.
    array_budget: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, array_budget: ARRAY_BYTES_MAX }
    }

    /// Continues at the beginning of `bytes`, within the budget for arrays that is left.
    pub(crate) const fn resume(bytes: &'a [u8], array_budget: Option<usize>) -> Self {
        match array_budget {
            Some(array_budget) => Self { rest: bytes, array_budget },
            None => Self::new(bytes),
        }
    }

    /// Memory that further array elements may take, bytes.
    pub(crate) const fn array_budget(&self) -> usize {
        self.array_budget
    }

    /// The unread bytes.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Number of unread bytes.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether everything has been read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads an unsigned LEB128 varint.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`]; [`DecodeError::Malformed`] if it exceeds 32 bits.
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
        Err(DecodeError::Malformed("a varint exceeds 32 bits"))
    }

    /// Reads the number of tagged fields.
    ///
    /// # Errors
    /// [`DecodeError`] if it is truncated or malformed, or above [`TAGGED_FIELDS_MAX`].
    pub(crate) fn tag_count(&mut self) -> Result<u32, DecodeError> {
        match self.uvarint()? {
            count @ ..=TAGGED_FIELDS_MAX => Ok(count),
            _ => Err(DecodeError::Malformed("a struct has more than 1,000 tagged fields")),
        }
    }

    /// Reads a tagged field (KIP-482): its tag, and a reader for its value. Pass that reader to [`Self::end_tagged`]
    /// afterwards.
    pub(crate) fn tagged(&mut self) -> Result<(u32, Self), DecodeError> {
        let tag = self.uvarint()?;
        let len = self.uvarint()? as usize;
        Ok((tag, Self { rest: self.bytes(len)?, array_budget: self.array_budget }))
    }

    pub(crate) fn end_tagged(&mut self, value: &Self) {
        self.array_budget = value.array_budget;
    }

    /// Charges `count` elements of `size` bytes each to the array budget.
    pub(crate) fn charge_array(&mut self, count: usize, size: usize) -> Result<(), DecodeError> {
        let left = count.checked_mul(size).and_then(|bytes| self.array_budget.checked_sub(bytes));
        self.array_budget =
            left.ok_or(DecodeError::Malformed("the arrays of the message exceed 64 MiB in memory"))?;
        Ok(())
    }

    /// Skips a section of tagged fields.
    ///
    /// # Errors
    /// [`DecodeError`] if the section is truncated or malformed.
    pub fn skip_tags(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.tag_count()? {
            self.tagged()?;
        }
        Ok(())
    }
}

/// Appends a varint that [`Reader::uvarint`] reads.
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
        fn varints_round_trip(value in any::<u32>(), shift in 0_u32..32) {
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
    fn rejects_varints_over_32_bits() {
        for bytes in [[0xFF, 0xFF, 0xFF, 0xFF, 0x10], [0xFF, 0xFF, 0xFF, 0xFF, 0x8F]] {
            assert!(matches!(Reader::new(&bytes).uvarint(), Err(DecodeError::Malformed(_))));
        }
        assert_eq!(Reader::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]).uvarint(), Ok(u32::MAX));
    }

    #[test]
    fn tagged_fields_share_the_array_budget() {
        let mut reader = Reader::new(&[7, 1, 0]);
        let (_, mut value) = reader.tagged().unwrap();
        assert_eq!(value.charge_array(ARRAY_BYTES_MAX / 2, 1), Ok(()));
        reader.end_tagged(&value);
        assert!(matches!(reader.charge_array(ARRAY_BYTES_MAX / 2 + 1, 1), Err(DecodeError::Malformed(_))));
        let mut reader = Reader::new(&[]);
        assert_eq!(reader.charge_array(1, ARRAY_BYTES_MAX), Ok(()));
        assert!(matches!(reader.charge_array(1, 1), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn rejects_malformed_tag_sections() {
        assert_eq!(Reader::new(&[0]).skip_tags(), Ok(()));
        assert_eq!(Reader::new(&[1, 9, 2, 0, 0]).skip_tags(), Ok(()));
        assert_eq!(Reader::new(&[1, 9, 3, 0, 0]).skip_tags(), Err(DecodeError::Truncated));
        let most = [0xE8, 0x07, 9, 0];
        assert_eq!(Reader::new(&most).skip_tags(), Err(DecodeError::Truncated));
        let many = [0xE9, 0x07, 9, 0];
        assert!(matches!(Reader::new(&many).skip_tags(), Err(DecodeError::Malformed(_))));
    }
}
