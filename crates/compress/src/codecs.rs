//! Gzip, lz4 and zstd, whose libraries have a streaming interface.
//!
//! The decoders write into an output that grows as needed and is capped at one byte more than the limit, so a
//! decompression bomb costs no more memory than a valid batch.

use std::io::{self, Read};
use std::ops::RangeInclusive;

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

use crate::Error;

/// Largest zstd window, as an exponent of two: what zstd's own tools and `zstd-jni` accept. The library reserves
/// address space for it, but touches only what the output needs.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Window of what an [`Encoder`](crate::Encoder) writes: 1 MiB.
const ZSTD_WRITTEN_WINDOW_LOG: u32 = 20;
/// Assumed compression ratio; only determines the initial capacity of the output.
const EXPECTED_RATIO: usize = 4;

/// Input that a decoder owns or borrows.
pub(crate) type Input<T> = io::Cursor<T>;

pub(crate) fn gunzip<T: AsRef<[u8]>>(input: Input<T>) -> impl Read + use<T> {
    MultiGzDecoder::new(input)
}

pub(crate) fn gzip_encoder(level: Option<i32>) -> GzEncoder<Vec<u8>> {
    let level = level.and_then(|level| u32::try_from(level).ok());
    let level = level.map_or_else(flate2::Compression::default, flate2::Compression::new);
    GzEncoder::new(Vec::new(), level)
}

pub(crate) fn unlz4<T: AsRef<[u8]>>(input: Input<T>) -> impl Read + use<T> {
    Lz4Reader {
        decoder: FrameDecoder::new(TruncationCheck { input, read_past_end: false }),
        has_ended: false,
    }
}

/// Rejects truncated frames.
struct Lz4Reader<T: AsRef<[u8]>> {
    decoder: FrameDecoder<TruncationCheck<T>>,
    /// After the end, the decoder would look for another frame.
    has_ended: bool,
}

impl<T: AsRef<[u8]>> Read for Lz4Reader<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.has_ended || into.is_empty() {
            return Ok(0);
        }
        let count = self.decoder.read(into)?;
        self.has_ended = count == 0;
        if self.has_ended && self.decoder.get_ref().read_past_end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }
}

/// Input that records whether the decoder tried to read past the end. The lz4 decoder treats a frame without an end
/// mark as complete, so this is how truncation is detected.
struct TruncationCheck<T> {
    input: Input<T>,
    read_past_end: bool,
}

impl<T: AsRef<[u8]>> Read for TruncationCheck<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(into)?;
        self.read_past_end |= count < into.len();
        Ok(count)
    }
}

pub(crate) fn lz4_encoder() -> FrameEncoder<Vec<u8>> {
    let frame = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
    FrameEncoder::with_frame_info(frame, Vec::new())
}

pub(crate) fn unzstd<T: AsRef<[u8]>>(input: Input<T>) -> Result<impl Read + use<T>, Error> {
    let mut decoder = zstd::Decoder::with_buffer(input).map_err(|_| Error::OutOfMemory)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| Error::OutOfMemory)?;
    Ok(decoder)
}

pub(crate) fn zstd(level: Option<i32>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    zstd::bulk::compress(bytes, level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL))
        .map_err(|_| Error::OutOfMemory)
}

/// An encoder for input of unknown size, whose window and tables are small also at the highest levels.
pub(crate) fn zstd_encoder(level: i32) -> Result<zstd::Encoder<'static, Vec<u8>>, Error> {
    let mut encoder = zstd::Encoder::new(Vec::new(), level).map_err(|_| Error::OutOfMemory)?;
    encoder.window_log(ZSTD_WRITTEN_WINDOW_LOG).map_err(|_| Error::OutOfMemory)?;
    Ok(encoder)
}

pub(crate) fn zstd_levels() -> RangeInclusive<i32> {
    zstd::compression_level_range()
}

/// Reads all output of `decoder`, up to the limit.
pub(crate) fn read_to_limit(
    decoder: impl Read,
    compressed_bytes: usize,
    max_bytes: usize,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(compressed_bytes.saturating_mul(EXPECTED_RATIO).min(max_bytes));
    // One byte more than the limit distinguishes too large from just fitting.
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    match decoder.take(limit).read_to_end(&mut out) {
        Ok(_) if out.len() > max_bytes => Err(Error::TooLarge),
        Ok(_) => Ok(out),
        Err(error) => Err((&error).into()),
    }
}
