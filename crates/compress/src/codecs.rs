//! The codecs whose libraries read and write streams.

use std::io::{self, Read, Write};
use std::ops::RangeInclusive;

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

use crate::Error;

/// Largest window of a zstd frame, as an exponent of two: what zstd's own tools and `zstd-jni` accept. The library
/// reserves address space for it, and touches no more than what comes out.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// What compressed records are guessed to grow to. Only a first size of the output.
const USUAL_RATIO: usize = 4;

pub(crate) fn gunzip(bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    drain(MultiGzDecoder::new(bytes), bytes.len(), max_bytes)
}

pub(crate) fn gzip(level: Option<i32>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let level = level.and_then(|level| u32::try_from(level).ok());
    let level = level.map_or_else(flate2::Compression::default, flate2::Compression::new);
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(bytes).and_then(|()| encoder.finish()).map_err(|_| Error::OutOfMemory)
}

pub(crate) fn unlz4(bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut decoder = FrameDecoder::new(Watched { rest: bytes, starved: false });
    let out = drain(&mut decoder, bytes.len(), max_bytes)?;
    if decoder.get_ref().starved {
        return Err(Error::Malformed);
    }
    Ok(out)
}

/// Input that notes when it was asked for more than there is: the lz4 decoder takes a frame without its end mark for
/// one that is over.
struct Watched<'a> {
    rest: &'a [u8],
    starved: bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.rest.read(into)?;
        self.starved |= count < into.len();
        Ok(count)
    }
}

pub(crate) fn lz4(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let frame = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
    encoder.write_all(bytes).map_err(|_| Error::OutOfMemory)?;
    encoder.finish().map_err(|_| Error::OutOfMemory)
}

pub(crate) fn unzstd(bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut decoder = zstd::Decoder::with_buffer(bytes).map_err(|_| Error::OutOfMemory)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| Error::OutOfMemory)?;
    drain(decoder, bytes.len(), max_bytes)
}

pub(crate) fn zstd(level: Option<i32>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    zstd::bulk::compress(bytes, level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL))
        .map_err(|_| Error::OutOfMemory)
}

pub(crate) fn zstd_levels() -> RangeInclusive<i32> {
    zstd::compression_level_range()
}

/// All that `decoder` gives, if it is no more than the bound.
fn drain(decoder: impl Read, compressed_bytes: usize, max_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(compressed_bytes.saturating_mul(USUAL_RATIO).min(max_bytes));
    // One byte more than is allowed tells what is too large from what just fits.
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    match decoder.take(limit).read_to_end(&mut out) {
        Ok(_) if out.len() > max_bytes => Err(Error::TooLarge),
        Ok(_) => Ok(out),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(Error::OutOfMemory),
        Err(_) => Err(Error::Malformed),
    }
}
