//! Compression of data that arrives in parts, so that a large batch need not be compressed at once.
//!
//! The memory of an encoder is bounded whatever the level: zstd gets a window of at most 1 MiB, which most batches do
//! not exceed. Its slow levels would compress 128 KiB at a time, which takes tens of milliseconds. They get smaller
//! blocks.

use std::io::{self, Write};

use flate2::write::GzEncoder;
use lz4_flex::frame::FrameEncoder;

use crate::snappy::SnappyWriter;
use crate::{Compression, Error, check_level, codecs};

/// First level of zstd that is slow.
const SLOW_ZSTD_LEVEL: i32 = 10;
/// Most bytes of a block at the slow levels of zstd.
const SLOW_BLOCK_BYTES: usize = 16 * 1024;

/// Compresses what is written to it, into memory.
pub struct Encoder(Codec);

enum Codec {
    None(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
    Snappy(Box<SnappyWriter>),
    Lz4(Box<FrameEncoder<Vec<u8>>>),
    Zstd {
        encoder: zstd::Encoder<'static, Vec<u8>>,
        /// Bytes of the current block; `None` if the library decides where blocks end.
        block_bytes: Option<usize>,
    },
}

impl Encoder {
    /// An encoder; without a level, at the codec's default.
    ///
    /// # Errors
    /// As for [`compress`](crate::compress).
    pub fn new(compression: Compression, level: Option<i32>) -> Result<Self, Error> {
        check_level(compression, level)?;
        Ok(Self(match compression {
            Compression::None => Codec::None(Vec::new()),
            Compression::Gzip => Codec::Gzip(codecs::gzip_encoder(level)),
            Compression::Snappy => Codec::Snappy(Box::new(SnappyWriter::new())),
            Compression::Lz4 => Codec::Lz4(Box::new(codecs::lz4_encoder())),
            Compression::Zstd => {
                let level = level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL);
                let encoder = codecs::zstd_encoder(level)?;
                Codec::Zstd { encoder, block_bytes: (level >= SLOW_ZSTD_LEVEL).then_some(0) }
            }
            Compression::Unknown(number) => return Err(Error::Unsupported(number)),
        }))
    }

    /// Compresses more.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.0 {
            Codec::None(out) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Codec::Gzip(encoder) => encoder.write_all(bytes),
            Codec::Snappy(writer) => return writer.write(bytes),
            Codec::Lz4(encoder) => encoder.write_all(bytes),
            Codec::Zstd { encoder, block_bytes: None } => encoder.write_all(bytes),
            Codec::Zstd { encoder, block_bytes: Some(block_bytes) } => {
                write_blocks(encoder, block_bytes, bytes)
            }
        }
        .map_err(|_| Error::OutOfMemory)
    }

    /// Ends the stream and returns it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        match self.0 {
            Codec::None(out) => Ok(out),
            Codec::Gzip(encoder) => encoder.finish().map_err(|_| Error::OutOfMemory),
            Codec::Snappy(writer) => writer.finish(),
            Codec::Lz4(encoder) => encoder.finish().map_err(|_| Error::OutOfMemory),
            Codec::Zstd { encoder, .. } => encoder.finish().map_err(|_| Error::OutOfMemory),
        }
    }
}

fn write_blocks(encoder: &mut impl Write, block_bytes: &mut usize, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (part, rest) = bytes.split_at(bytes.len().min(SLOW_BLOCK_BYTES - *block_bytes));
        encoder.write_all(part)?;
        *block_bytes += part.len();
        if *block_bytes == SLOW_BLOCK_BYTES {
            encoder.flush()?;
            *block_bytes = 0;
        }
        bytes = rest;
    }
    Ok(())
}

/// About how long it takes to compress one KiB, in nanoseconds, on a core of a few years ago. It estimates costs and
/// promises nothing.
pub fn compression_ns_per_kib(compression: Compression, level: Option<i32>) -> u32 {
    match (compression, level) {
        (Compression::None | Compression::Unknown(_), _) => 100,
        (Compression::Snappy | Compression::Lz4, _) => 3_000,
        (Compression::Gzip, Some(0..=3)) => 12_000,
        (Compression::Gzip, Some(7..)) => 70_000,
        (Compression::Gzip, _) => 30_000,
        (Compression::Zstd, Some(19..)) => 400_000,
        (Compression::Zstd, Some(13..19)) => 150_000,
        (Compression::Zstd, Some(SLOW_ZSTD_LEVEL..13)) => 40_000,
        (Compression::Zstd, Some(5..SLOW_ZSTD_LEVEL)) => 15_000,
        (Compression::Zstd, _) => 5_000,
    }
}
