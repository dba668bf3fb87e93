//! The four codecs of Kafka's record batches, behind one bound on what comes out.
//!
//! The broker passes compressed batches through as they came. Only what must look into a batch, or what a topic's
//! `compression.type` asks for, comes here: [`decompress`] and [`compress`] for the record part of a batch,
//! [`batch`] for whole ones.
//!
//! | codec | read | written | library |
//! |---|---|---|---|
//! | gzip | one member or several | one member | `flate2` on `zlib-rs` |
//! | snappy | raw, and in the framing of xerial's `snappy-java` | framed, in blocks of 32 KiB, as Java does | `snap` |
//! | lz4 | one frame | one frame of independent blocks of 64 KiB, the only ones that Java reads | `lz4_flex` |
//! | zstd | one frame or several, windows up to 128 MiB | one frame | `zstd`, the reference library |
//!
//! All but zstd are Rust. For zstd there is a decoder in Rust, but no encoder that has the levels.
//!
//! # What this crate must never know
//! What is in a record.
//!
//! # Invariants
//! - Nothing is set aside because the bytes claim a size: output grows as it comes, up to the bound and not beyond.
//!   What a decoder needs for itself is bounded too, and given back before the call returns.
//! - No bytes make it panic.
//!
//! # Files
//! `codecs` gzip, lz4 and zstd · `snappy` both forms · `batch` whole batches.

pub mod batch;
mod codecs;
mod snappy;

use std::fmt;
use std::ops::RangeInclusive;

pub use mainstem_log::Compression;

/// Why nothing came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not what the codec makes, or end too early.
    Malformed,
    /// More would come out than the bound allows.
    TooLarge,
    /// No such codec; here is its number.
    Unsupported(u8),
    /// The codec has no such level.
    Level(i32),
    /// The codec got no memory to work in.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("malformed compressed data"),
            Self::TooLarge => f.write_str("too large when decompressed"),
            Self::Unsupported(number) => write!(f, "unknown compression {number}"),
            Self::Level(level) => write!(f, "no compression level {level}"),
            Self::OutOfMemory => f.write_str("no memory to compress in"),
        }
    }
}

impl std::error::Error for Error {}

/// What `bytes` were before they were compressed, which may be at most `max_bytes` long.
///
/// # Errors
/// [`Error::Malformed`], [`Error::TooLarge`], [`Error::Unsupported`].
pub fn decompress(compression: Compression, bytes: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    match compression {
        Compression::None if bytes.len() > max_bytes => Err(Error::TooLarge),
        Compression::None => Ok(bytes.to_vec()),
        Compression::Gzip => codecs::gunzip(bytes, max_bytes),
        Compression::Snappy => snappy::decompress(bytes, max_bytes),
        Compression::Lz4 => codecs::unlz4(bytes, max_bytes),
        Compression::Zstd => codecs::unzstd(bytes, max_bytes),
        Compression::Unknown(number) => Err(Error::Unsupported(number)),
    }
}

/// Compresses `bytes`; without a level, at the codec's usual one.
///
/// The levels are those of [`levels`], by which Kafka knows them too (KIP-390). That of lz4 changes nothing: there
/// is only the fast one.
///
/// # Errors
/// [`Error::Level`], [`Error::Unsupported`], [`Error::OutOfMemory`].
pub fn compress(compression: Compression, level: Option<i32>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    if let Some(level) = level
        && !levels(compression).is_some_and(|levels| levels.contains(&level))
    {
        return Err(Error::Level(level));
    }
    match compression {
        Compression::None => Ok(bytes.to_vec()),
        Compression::Gzip => codecs::gzip(level, bytes),
        Compression::Snappy => snappy::compress(bytes),
        Compression::Lz4 => codecs::lz4(bytes),
        Compression::Zstd => codecs::zstd(level, bytes),
        Compression::Unknown(number) => Err(Error::Unsupported(number)),
    }
}

/// The levels that a codec has, if it has any.
pub fn levels(compression: Compression) -> Option<RangeInclusive<i32>> {
    match compression {
        // -1 stands for the usual one.
        Compression::Gzip => Some(-1..=9),
        Compression::Lz4 => Some(1..=17),
        Compression::Zstd => Some(codecs::zstd_levels()),
        Compression::None | Compression::Snappy | Compression::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests;
