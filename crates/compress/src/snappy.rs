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

use std::io::{self, Read};

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

/// Decompresses all of `bytes`. The output is at most `max_bytes` long.
pub(crate) fn decompress(bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let (mut out, mut at) = (Vec::new(), 0);
    while next_block(bytes, &mut at, max_bytes, &mut out)? {}
    Ok(out)
}

/// Decompresses block by block.
pub(crate) struct SnappyReader<T> {
    bytes: T,
    at: usize,
    block: Vec<u8>,
    /// Bytes of the block that were read.
    taken: usize,
}

impl<T: AsRef<[u8]>> SnappyReader<T> {
    pub(crate) fn new(bytes: T) -> Self {
        Self { bytes, at: 0, block: Vec::new(), taken: 0 }
    }
}

impl<T: AsRef<[u8]>> Read for SnappyReader<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.block.len() {
            self.block.clear();
            self.taken = 0;
            let has_next = next_block(self.bytes.as_ref(), &mut self.at, usize::MAX, &mut self.block);
            if !has_next.map_err(|_| io::ErrorKind::InvalidData)? {
                return Ok(0);
            }
        }
        let count = (&self.block[self.taken..]).read(into)?;
        self.taken += count;
        Ok(count)
    }
}

/// Appends the block at `at` to `out`, which may grow to `max_bytes`. Returns false at the end. Input without the magic
/// is one block.
fn next_block(bytes: &[u8], at: &mut usize, max_bytes: usize, out: &mut Vec<u8>) -> Result<bool, Error> {
    if *at > 0 && *at == bytes.len() {
        return Ok(false);
    }
    if !bytes.starts_with(&MAGIC) {
        *at = bytes.len();
        return decompress_block(bytes, max_bytes, out).map(|()| true);
    }
    let mut rest = &bytes[*at..];
    while rest.starts_with(&MAGIC) {
        rest = rest.get(HEADER_BYTES..).ok_or(Error::Malformed)?;
    }
    if rest.is_empty() {
        return Ok(false);
    }
    let (len, rest) = rest.split_first_chunk().ok_or(Error::Malformed)?;
    let len = usize::try_from(i32::from_be_bytes(*len)).map_err(|_| Error::Malformed)?;
    let (block, rest) = rest.split_at_checked(len).ok_or(Error::Malformed)?;
    *at = bytes.len() - rest.len();
    decompress_block(block, max_bytes, out).map(|()| true)
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

/// Compresses in the framing, block by block.
pub(crate) struct SnappyWriter {
    encoder: Encoder,
    /// The start of the next block.
    partial: Vec<u8>,
    out: Vec<u8>,
}

impl SnappyWriter {
    pub(crate) fn new() -> Self {
        let out = [MAGIC, VERSIONS].concat();
        Self { encoder: Encoder::new(), partial: Vec::new(), out }
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if !self.partial.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.partial.len()));
            self.partial.extend_from_slice(part);
            bytes = rest;
            if self.partial.len() < BLOCK_BYTES {
                return Ok(());
            }
            let block = std::mem::take(&mut self.partial);
            self.write_block(&block)?;
        }
        let mut blocks = bytes.chunks_exact(BLOCK_BYTES);
        for block in blocks.by_ref() {
            self.write_block(block)?;
        }
        self.partial.extend_from_slice(blocks.remainder());
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Vec<u8>, Error> {
        let rest = std::mem::take(&mut self.partial);
        if !rest.is_empty() {
            self.write_block(&rest)?;
        }
        Ok(self.out)
    }

    fn write_block(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // The library only rejects input larger than 4 GiB.
        let block = self.encoder.compress_vec(bytes).map_err(|_| Error::OutOfMemory)?;
        self.out.extend_from_slice(&(block.len() as u32).to_be_bytes());
        self.out.extend_from_slice(&block);
        Ok(())
    }
}
