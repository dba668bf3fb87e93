//! A scan of the records of an uncompressed batch for a check of their layout.
//!
//! A broker checks each record that a client produces. [`Records`](crate::Records) returns whole records; the check
//! needs a few facts of each, and finds them with a position in the batch instead of a slice for each field, in less
//! than half of the instructions. Both accept the same records, which a test verifies.

use crate::batch::{Batch, HEADER_BYTES};
use crate::varint;

/// What the validity of a record depends on, besides its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFacts<'a> {
    /// Its offset less the base offset of its batch.
    pub offset_delta: u64,
    /// Timestamp, ms since 1970.
    pub timestamp_ms: i64,
    /// Whether it has a key.
    pub has_key: bool,
    /// Encoded headers.
    pub headers: &'a [u8],
}

/// A scan of the records of a batch.
#[derive(Clone, Debug)]
pub struct RecordScan<'a> {
    bytes: &'a [u8],
    at: usize,
    base_timestamp_ms: i64,
}

impl<'a> RecordScan<'a> {
    /// Begins with the first record of an uncompressed batch.
    pub fn new(batch: &Batch<'a>) -> Self {
        let base_timestamp_ms = batch.header.base_timestamp_ms;
        Self { bytes: batch.bytes(), at: HEADER_BYTES, base_timestamp_ms }
    }

    /// The next record; `None` if it is malformed. The caller knows how many there are.
    #[inline]
    pub fn next_record(&mut self) -> Option<RecordFacts<'a>> {
        let len = usize::try_from(take_varint(self.bytes, &mut self.at)?).ok()?;
        let record = self.bytes.get(..self.at.checked_add(len)?)?;
        // Behind the attributes, which have no meaning yet.
        let mut at = self.at + 1;
        let timestamp_delta = take_varint(record, &mut at)?;
        let offset_delta = u64::try_from(take_varint(record, &mut at)?).ok()?;
        let key_len = take_varint(record, &mut at)?;
        skip(key_len, &mut at)?;
        let value_len = take_varint(record, &mut at)?;
        skip(value_len, &mut at)?;
        let headers = record.get(at..)?;
        self.at = record.len();
        Some(RecordFacts {
            offset_delta,
            timestamp_ms: self.base_timestamp_ms.checked_add(timestamp_delta)?,
            has_key: key_len >= 0,
            headers,
        })
    }

    /// Whether nothing follows the last record.
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// Skips a part of a record; a negative length means that it is absent. Whoever reads on finds out if it is too long.
#[inline]
fn skip(len: i64, at: &mut usize) -> Option<()> {
    if len > 0 {
        *at = at.checked_add(usize::try_from(len).ok()?)?;
    }
    Some(())
}

/// Reads the varint at a position, and moves behind it.
#[inline]
fn take_varint(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let low = *bytes.get(*at)?;
    if low < 0x80 {
        *at += 1;
        return Some(zigzag(u32::from(low)));
    }
    let high = *bytes.get(*at + 1)?;
    if high < 0x80 {
        *at += 2;
        return Some(zigzag(u32::from(low & 0x7F) | u32::from(high) << 7));
    }
    take_long(bytes, at)
}

#[inline]
fn zigzag(value: u32) -> i64 {
    i64::from((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

#[inline(never)]
fn take_long(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let mut rest = bytes.get(*at..)?;
    let value = varint::take(&mut rest)?;
    *at = bytes.len() - rest.len();
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BatchBuilder, Records};

    /// What [`Records`] finds: the facts of the records before the first malformed one, and whether there is one.
    fn expected<'a>(batch: &Batch<'a>) -> (Vec<RecordFacts<'a>>, bool) {
        let mut facts = Vec::new();
        // Its limit on offsets is left to the caller of the scan.
        let header = crate::BatchHeader { last_offset_delta: u32::MAX, base_offset: 0, ..batch.header };
        for record in Records::of(header, &batch.bytes()[HEADER_BYTES..]) {
            let Ok(record) = record else { return (facts, true) };
            facts.push(RecordFacts {
                offset_delta: record.offset,
                timestamp_ms: record.timestamp_ms,
                has_key: record.key.is_some(),
                headers: record.headers,
            });
        }
        (facts, false)
    }

    proptest! {
        #[test]
        fn a_scan_finds_what_the_iterator_finds(
            records in prop::collection::vec(
                (any::<i32>(), prop::option::of(0..200_usize), prop::option::of(0..20_000_usize)),
                1..20,
            ),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut builder = BatchBuilder::default();
            let text = vec![7; 20_000];
            for (timestamp_ms, key_len, value_len) in &records {
                let (key, value) = (key_len.map(|len| &text[..len]), value_len.map(|len| &text[..len]));
                builder.push(i64::from(*timestamp_ms), key, value);
            }
            let mut bytes = builder.finish().to_vec();
            for (index, byte) in changes {
                let at = HEADER_BYTES + index.index(bytes.len() - HEADER_BYTES);
                bytes[at] = byte;
            }
            let batch = Batch::parse_unchecked(&bytes).unwrap();
            let (facts, is_malformed) = expected(&batch);
            let mut scan = RecordScan::new(&batch);
            for expected in &facts {
                prop_assert_eq!(scan.next_record(), Some(*expected));
            }
            if is_malformed {
                prop_assert_eq!(scan.next_record(), None);
            }
        }
    }

    #[test]
    fn every_truncated_record_is_malformed() {
        let mut builder = BatchBuilder::default();
        builder.push(1_000, Some(&[1; 100]), Some(&[2; 300]));
        let bytes = builder.finish().to_vec();
        let batch = Batch::parse_unchecked(&bytes).unwrap();
        let mut scan = RecordScan::new(&batch);
        assert!(scan.next_record().is_some() && scan.is_at_end());
        for len in HEADER_BYTES..bytes.len() {
            let mut scan = RecordScan { bytes: &bytes[..len], at: HEADER_BYTES, base_timestamp_ms: 0 };
            assert_eq!(scan.next_record(), None, "{len} bytes");
        }
    }
}
