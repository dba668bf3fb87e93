//! Making record batches.

use crate::batch::{Batch, HEADER_BYTES};
use crate::varint;

/// Puts records together to one batch, uncompressed. Reuses its memory from one batch to the next.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    records: u32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
}

impl BatchBuilder {
    /// Records put in since the batch was last taken.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes that the batch takes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a record without headers. Its offset is that of the batch, and one more for each record before it.
    pub fn push(&mut self, timestamp_ms: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        if self.records == 0 {
            self.bytes.clear();
            self.bytes.resize(HEADER_BYTES, 0);
            self.base_timestamp_ms = timestamp_ms;
            self.max_timestamp_ms = timestamp_ms;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        let timestamp_delta = timestamp_ms - self.base_timestamp_ms;
        let offset_delta = i64::from(self.records);
        let part_len = |part: Option<&[u8]>| varint::len(signed_len(part)) + part.map_or(0, <[u8]>::len);
        // Attributes before, the count of headers behind: a byte each.
        let total = 1
            + varint::len(timestamp_delta)
            + varint::len(offset_delta)
            + part_len(key)
            + part_len(value)
            + 1;
        varint::put(total.cast_signed() as i64, &mut self.bytes);
        self.bytes.push(0);
        varint::put(timestamp_delta, &mut self.bytes);
        varint::put(offset_delta, &mut self.bytes);
        for part in [key, value] {
            varint::put(signed_len(part), &mut self.bytes);
            self.bytes.extend_from_slice(part.unwrap_or_default());
        }
        self.bytes.push(0);
        self.records += 1;
    }

    /// The finished batch, at base offset 0; the builder begins the next with the next record.
    pub fn finish(&mut self) -> &[u8] {
        let length = (self.bytes.len() - 12) as u32;
        let header = &mut self.bytes[..HEADER_BYTES];
        header[8..12].copy_from_slice(&length.to_be_bytes());
        header[16] = 2;
        header[21..23].fill(0);
        header[23..27].copy_from_slice(&(self.records - 1).to_be_bytes());
        header[27..35].copy_from_slice(&self.base_timestamp_ms.to_be_bytes());
        header[35..43].copy_from_slice(&self.max_timestamp_ms.to_be_bytes());
        // No producer: identifier, epoch and sequence are -1.
        header[43..57].fill(0xFF);
        header[57..61].copy_from_slice(&self.records.to_be_bytes());
        let checksum = crc32c::crc32c(&self.bytes[21..]);
        self.bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
        Batch::place(&mut self.bytes, 0, 0);
        self.records = 0;
        &self.bytes
    }
}

/// Length as the format has it: -1 for what is not there.
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
        fn what_is_built_is_read(all in prop::collection::vec(parts(), 1..40), base in 0_u64..1 << 60) {
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
        fn no_bit_can_flip_unseen(at in 0_usize..200, bit in 0_u8..8, cut in 0_usize..200) {
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
    fn other_versions_and_lengths_that_lie_are_refused() {
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
