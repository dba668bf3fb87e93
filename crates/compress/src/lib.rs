//! The four codecs of Kafka's record batches, with a limit on decompressed size.
//!
//! The broker passes compressed batches through unchanged. Only code that must look into a batch, or a topic's
//! `compression.type`, needs this crate: [`decompress`] and [`compress`] for the record part of a batch, [`reader`] and
//! [`Encoder`] for a part of it at a time, [`batch`] for whole batches.
//!
//! | codec | read | written | library |
//! |---|---|---|---|
//! | gzip | one or more members | one member | `flate2` on `zlib-rs` |
//! | snappy | raw, or in the framing of xerial's `snappy-java` | framed, in blocks of 32 KiB, like Java | `snap` |
//! | lz4 | one frame | one frame of independent blocks of 64 KiB, the only ones that Java reads | `lz4_flex` |
//! | zstd | one or more frames, windows up to 128 MiB | one frame | `zstd`, the reference library |
//!
//! All but zstd are pure Rust. There is a zstd decoder in Rust, but no encoder that has the levels.
//!
//! # What this crate must never know
//! The contents of a record.
//!
//! # Invariants
//! - No allocation is based on a size that the input claims: output grows as it is produced, up to the limit and not
//!   beyond. A decoder's own memory is bounded too, and freed before the call returns.
//! - No input causes a panic.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `codecs.rs` | gzip, lz4 and zstd |
//! | `snappy.rs` | raw and framed snappy |
//! | `encoder.rs` | compression of data that arrives in parts |
//! | `batch.rs` | whole record batches |

pub mod batch;
mod codecs;
mod encoder;
mod snappy;

use std::fmt;
use std::io::{self, Read};
use std::ops::RangeInclusive;

pub use encoder::{Encoder, compression_ns_per_kib};
pub use mainstem_log::Compression;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The input is not valid for the codec, or is truncated.
    Malformed,
    /// The output would exceed the limit.
    TooLarge,
    /// No codec has this number.
    Unsupported(u8),
    /// The codec does not have this level.
    Level(i32),
    /// The codec could not allocate memory.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("malformed compressed data"),
            Self::TooLarge => f.write_str("too large when decompressed"),
            Self::Unsupported(number) => write!(f, "unknown compression {number}"),
            Self::Level(level) => write!(f, "invalid compression level {level}"),
            Self::OutOfMemory => f.write_str("out of memory in the codec"),
        }
    }
}

impl std::error::Error for Error {}

impl From<&io::Error> for Error {
    /// The error of a [`reader`].
    fn from(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::OutOfMemory { Self::OutOfMemory } else { Self::Malformed }
    }
}

/// Decompresses `bytes`. The output is at most `max_bytes` long.
///
/// # Errors
/// [`Error::Malformed`], [`Error::TooLarge`], [`Error::Unsupported`], [`Error::OutOfMemory`].
pub fn decompress(compression: Compression, bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    match compression {
        Compression::None if bytes.len() > max_bytes => Err(Error::TooLarge),
        Compression::None => Ok(bytes.to_vec()),
        Compression::Snappy => snappy::decompress(bytes, max_bytes),
        _ => codecs::read_to_limit(reader(compression, bytes)?, bytes.len(), max_bytes),
    }
}

/// Decompresses `bytes` as the output is read, for a caller that can stop early. The caller limits the output. Errors
/// of the reader convert to [`Error`].
///
/// # Errors
/// [`Error::Unsupported`], [`Error::OutOfMemory`].
pub fn reader<'a>(
    compression: Compression,
    bytes: impl AsRef<[u8]> + Send + 'a,
) -> Result<Box<dyn Read + Send + 'a>, Error> {
    Ok(match compression {
        Compression::None => Box::new(codecs::Input::new(bytes)),
        Compression::Gzip => Box::new(codecs::gunzip(codecs::Input::new(bytes))),
        Compression::Snappy => Box::new(snappy::SnappyReader::new(bytes)),
        Compression::Lz4 => Box::new(codecs::unlz4(codecs::Input::new(bytes))),
        Compression::Zstd => Box::new(codecs::unzstd(codecs::Input::new(bytes))?),
        Compression::Unknown(number) => return Err(Error::Unsupported(number)),
    })
}

/// Compresses `bytes`; without a level, at the codec's default.
///
/// See [`levels`] for the valid levels, which are Kafka's (KIP-390). lz4 accepts a level but ignores it: the library
/// only has the fast mode.
///
/// # Errors
/// [`Error::Level`], [`Error::Unsupported`], [`Error::OutOfMemory`].
pub fn compress(compression: Compression, level: Option<i32>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    if compression == Compression::Zstd {
        check_level(compression, level)?;
        return codecs::zstd(level, bytes);
    }
    let mut encoder = Encoder::new(compression, level)?;
    encoder.write(bytes)?;
    encoder.finish()
}

fn check_level(compression: Compression, level: Option<i32>) -> Result<(), Error> {
    match level {
        Some(level) if !levels(compression).is_some_and(|levels| levels.contains(&level)) => {
            Err(Error::Level(level))
        }
        _ => Ok(()),
    }
}

/// The levels of a codec; `None` if it has none.
pub fn levels(compression: Compression) -> Option<RangeInclusive<i32>> {
    match compression {
        // -1 is the default level.
        Compression::Gzip => Some(-1..=9),
        Compression::Lz4 => Some(1..=17),
        Compression::Zstd => Some(codecs::zstd_levels()),
        Compression::None | Compression::Snappy | Compression::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests;
