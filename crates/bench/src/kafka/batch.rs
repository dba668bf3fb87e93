//! The produced record batch, and iteration over fetched batches.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_compress::batch::recompress;
use mainstem_log::{Batch, BatchBuilder, BatchHeader, Compression, HEADER_BYTES};

use super::options::Shape;
use crate::error::BenchError;

/// Builds the batch. Records have no key, and JSON values that compress about as well as telemetry.
///
/// # Errors
/// If the records exceed one batch, or cannot be compressed.
pub(super) fn build(shape: Shape) -> Result<Rc<[u8]>, BenchError> {
    /// Maximum request size; brokers allow less.
    const BATCH_BYTES_MAX: usize = 100 << 20;
    if shape.records == 0 || shape.records as usize * (shape.record_bytes + 16) > BATCH_BYTES_MAX {
        return Err(BenchError::Options("a batch must have at least 1 record and at most 100 MiB".into()));
    }
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let mut builder = BatchBuilder::default();
    let mut value = Vec::with_capacity(shape.record_bytes + 64);
    for number in 0..shape.records {
        fill_value(number, shape.record_bytes, &mut value);
        builder.push(now_ms, None, Some(&value));
    }
    let plain = builder.finish();
    if shape.compression == Compression::None {
        return Ok(plain.into());
    }
    let reject =
        |error: &dyn std::fmt::Display| BenchError::Options(format!("{:?}: {error}", shape.compression));
    let plain = Batch::parse(plain).map_err(|error| reject(&error))?;
    let packed = recompress(&plain, shape.compression, None, usize::MAX).map_err(|error| reject(&error))?;
    Ok(packed.into())
}

/// Fills `value` with `bytes` bytes of text that depends on the record number.
fn fill_value(number: u32, bytes: usize, value: &mut Vec<u8>) {
    value.clear();
    let mut state = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while value.len() < bytes {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (device, value_c) = (state % 100_000, (state >> 32) % 10_000);
        value.extend_from_slice(format!("{{\"device\":\"d-{device:05}\",\"c\":{value_c:04}}}").as_bytes());
    }
    value.truncate(bytes);
}

/// Calls `f` with the header of each complete batch. The last batch of a Fetch response may be truncated.
///
/// # Errors
/// If the bytes are not record batches.
pub(super) fn for_each_header(records: &[u8], mut f: impl FnMut(&BatchHeader)) -> Result<(), BenchError> {
    let mut rest = records;
    while rest.len() >= HEADER_BYTES {
        let header = BatchHeader::parse(rest).map_err(|error| {
            BenchError::Broken(format!("the broker sent an invalid record batch: {error}"))
        })?;
        if header.total_bytes > rest.len() {
            break;
        }
        f(&header);
        rest = &rest[header.total_bytes..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(compression: Compression) -> Shape {
        Shape { records: 150, record_bytes: 100, compression }
    }

    #[test]
    fn batches_are_valid_with_every_compression() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Gzip] {
            let bytes = build(shape(compression)).unwrap();
            let batch = Batch::parse(&bytes).unwrap();
            assert_eq!((batch.header.records, batch.header.compression()), (150, compression));
        }
        let plain = build(shape(Compression::None)).unwrap();
        assert!(
            Batch::parse(&plain).unwrap().records().all(|record| record.unwrap().value.unwrap().len() == 100)
        );
        assert!(build(shape(Compression::Zstd)).unwrap().len() < plain.len() / 2);
    }

    #[test]
    fn skips_a_truncated_batch() {
        let batch = build(shape(Compression::None)).unwrap();
        let two = [&batch[..], &batch[..]].concat();
        let count = |bytes: &[u8]| {
            let mut records = 0;
            for_each_header(bytes, |header| records += header.records).unwrap();
            records
        };
        assert_eq!([count(&two), count(&two[..two.len() - 1]), count(&batch[..60])], [300, 150, 0]);
        assert!(for_each_header(&[0; 200], |_| {}).is_err());
    }
}
