//! Whole batches: decompress their records, or compress them with another codec.
//!
//! Only the record part of a batch is compressed, so the header stays readable and recompression changes nothing in it
//! but codec, length and checksum.

use std::borrow::Cow;

use mainstem_log::{Batch, Compression, HEADER_BYTES, repack};

use crate::{Error, compress, decompress};

/// The decompressed records of `batch` for [`mainstem_log::Records::of`], at most `max_bytes` if they are compressed.
/// They are not validated; that happens when they are read.
///
/// # Errors
/// Same as [`decompress`].
pub fn decompress_records<'a>(batch: &Batch<'a>, max_bytes: usize) -> Result<Cow<'a, [u8]>, Error> {
    let records = &batch.bytes()[HEADER_BYTES..];
    match batch.header.compression() {
        Compression::None => Ok(Cow::Borrowed(records)),
        compression => decompress(compression, records, max_bytes).map(Cow::Owned),
    }
}

/// Recompresses `batch` with another codec; offsets, timestamps and producer fields stay the same.
///
/// # Errors
/// Same as [`decompress`] and [`compress`].
pub fn recompress(
    batch: &Batch<'_>,
    compression: Compression,
    level: Option<i32>,
    max_bytes: usize,
) -> Result<Vec<u8>, Error> {
    let plain = decompress_records(batch, max_bytes)?;
    let records = match compression {
        Compression::None => plain,
        compression => Cow::Owned(compress(compression, level, &plain)?),
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + records.len());
    repack(&batch.header, compression, &records, &mut bytes);
    Ok(bytes)
}
