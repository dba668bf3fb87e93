//! Snappy, raw or in the framing of xerial's `snappy-java`.
//!
//! ```text
//!  0 magic               82 'S' 'N' 'A' 'P' 'P' 'Y' 00
//!  8 version             i32, 1
//! 12 compatible version  i32, 1
//! 16 blocks: length i32, then that many bytes of raw snappy
//! ```
//! All integers are big-endian. In concatenated streams the header is repeated. The uncompressed length in a block is
//! checked against the best possible ratio before anything is allocated.

use snap::raw::{Decoder, Encoder, decompress_len};

use crate::Error;

const MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
const HEADER_BYTES: usize = 16;
/// Version and compatible version.
const VERSIONS: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 1];
/// Uncompressed bytes per block, as in Java.
const BLOCK_BYTES: usize = 32 * 1024;
/// Maximum expansion of raw snappy: three bytes can encode 64.
const RATIO_MAX: usize = 22;

pub(crate) fn decompress(bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    if !bytes.starts_with(&MAGIC) {
        decompress_block(bytes, max_bytes, &mut out)?;
        return Ok(out);
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        if rest.starts_with(&MAGIC) {
            rest = rest.get(HEADER_BYTES..).ok_or(Error::Malformed)?;
            continue;
        }
        let (len, rest_after) = rest.split_first_chunk().ok_or(Error::Malformed)?;
        let len = usize::try_from(i32::from_be_bytes(*len)).map_err(|_| Error::Malformed)?;
        let (block, rest_after) = rest_after.split_at_checked(len).ok_or(Error::Malformed)?;
        decompress_block(block, max_bytes, &mut out)?;
        rest = rest_after;
    }
    Ok(out)
}

/// Appends one decompressed block to `out`, which may grow to `max_bytes`.
fn decompress_block(block: &[u8], max_bytes: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    let len = decompress_len(block).map_err(|_| Error::Malformed)?;
    if len > block.len().saturating_mul(RATIO_MAX) {
        return Err(Error::Malformed);
    }
    let before = out.len();
    if len > max_bytes - before {
        return Err(Error::TooLarge);
    }
    out.resize(before + len, 0);
    match Decoder::new().decompress(block, &mut out[before..]) {
        Ok(written) if written == len => Ok(()),
        Ok(_) | Err(_) => Err(Error::Malformed),
    }
}

pub(crate) fn compress(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut encoder = Encoder::new();
    let mut out = Vec::with_capacity(HEADER_BYTES + bytes.len() / 2);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSIONS);
    for chunk in bytes.chunks(BLOCK_BYTES) {
        // The library only rejects input larger than 4 GiB.
        let block = encoder.compress_vec(chunk).map_err(|_| Error::OutOfMemory)?;
        out.extend_from_slice(&(block.len() as u32).to_be_bytes());
        out.extend_from_slice(&block);
    }
    Ok(out)
}
