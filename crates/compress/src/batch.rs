//! Whole batches: their records as they are without compression, and the same records under another codec.

use std::borrow::Cow;

use mainstem_log::{Batch, Compression, HEADER_BYTES, repack};

use crate::{Error, compress, decompress};

/// The records of `batch` for [`mainstem_log::Records::of`], at most `max_bytes` of them if they are compressed.
/// Whether they make sense shows when they are read.
///
/// # Errors
/// As [`decompress`].
pub fn plain<'a>(batch: &Batch<'a>, max_bytes: usize) -> Result<Cow<'a, [u8]>, Error> {
    let records = &batch.bytes()[HEADER_BYTES..];
    match batch.header.compression() {
        Compression::None => Ok(Cow::Borrowed(records)),
        compression => decompress(compression, records, max_bytes).map(Cow::Owned),
    }
}

/// `batch` with its records compressed by `compression`; offsets, timestamps and producer stay what they are.
///
/// # Errors
/// As [`decompress`] and [`compress`].
pub fn recompress(
    batch: &Batch<'_>,
    compression: Compression,
    level: Option<i32>,
    max_bytes: usize,
) -> Result<Vec<u8>, Error> {
    let plain = plain(batch, max_bytes)?;
    let records = match compression {
        Compression::None => plain,
        compression => Cow::Owned(compress(compression, level, &plain)?),
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + records.len());
    repack(&batch.header, compression, &records, &mut bytes);
    Ok(bytes)
}
