//! Variable-length integers of record batches: zigzag, seven bits per byte, low bits first.

/// Maximum encoded length of a 64-bit value, bytes.
pub(crate) const LEN_MAX: usize = 10;

/// Appends the encoding of `value`.
pub fn put(value: i64, into: &mut Vec<u8>) {
    let mut numbers = Numbers::default();
    numbers.put(value);
    into.extend_from_slice(numbers.bytes());
}

/// Stack buffer for up to six consecutive varints.
#[derive(Debug)]
pub(crate) struct Numbers {
    bytes: [u8; 64],
    len: usize,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { bytes: [0; 64], len: 0 }
    }
}

impl Numbers {
    #[inline]
    pub(crate) fn put(&mut self, value: i64) {
        let mut rest = (value << 1 ^ value >> 63).cast_unsigned();
        while rest >= 0x80 {
            self.bytes[self.len] = rest as u8 | 0x80;
            rest >>= 7;
            self.len += 1;
        }
        self.bytes[self.len] = rest as u8;
        self.len += 1;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

/// Takes one off the front of `bytes`; `None` if it is cut off, or has more than 64 bits.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<i64> {
    // Fast path: most varints of a record take one byte, the lengths of small values two.
    let value = match **bytes {
        [one, ..] if one < 0x80 => {
            *bytes = &bytes[1..];
            u64::from(one)
        }
        [low, high, ..] if high < 0x80 => {
            *bytes = &bytes[2..];
            u64::from(low & 0x7F) | u64::from(high) << 7
        }
        _ => take_long(bytes)?,
    };
    Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

/// Decodes a value of any length, before the zigzag step.
fn take_long(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(LEN_MAX).enumerate() {
        let part = u64::from(byte & 0x7F);
        if index == LEN_MAX - 1 && part > 1 {
            return None;
        }
        value |= part << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

/// Encoded length of `value`, bytes.
pub fn len(value: i64) -> usize {
    let zigzag = (value << 1 ^ value >> 63).cast_unsigned();
    (70 - (zigzag | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_round_trip(value in any::<i64>(), shift in 0_u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put(value, &mut bytes);
            prop_assert_eq!(bytes.len(), len(value));
            bytes.push(0xAB);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(take(&mut rest), Some(value));
            prop_assert_eq!(rest, [0xAB]);
        }
    }

    #[test]
    fn rejects_truncated_and_overlong_values() {
        assert_eq!(take(&mut [0x80, 0x80].as_slice()), None);
        assert_eq!(take(&mut [0x80; 11].as_slice()), None);
        assert_eq!(take(&mut [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02].as_slice()), None);
        assert_eq!(take(&mut [].as_slice()), None);
    }
}
