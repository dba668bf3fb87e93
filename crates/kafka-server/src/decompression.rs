//! Decompression of a batch in steps, for a shard that serves others between them.

use std::fmt;
use std::io::Read;

use mainstem_compress::{Compression, Error, reader};
use mainstem_partition::CHECK_NS_PER_KIB;

/// Largest decompressed batch, bytes.
const DECOMPRESSED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Decompressed bytes of one step: about 200 us of a core.
const STEP_BYTES: usize = 128 * 1024;
/// Time that a unit of [`mainstem_runtime::Io::charge`] stands for, ns.
const UNIT_NS: u64 = 100;

/// Units for decompressing and reading so many bytes of records.
pub(crate) fn record_units(bytes: usize) -> u32 {
    (bytes as u64 * CHECK_NS_PER_KIB / 1024 / UNIT_NS) as u32
}

/// The records of a batch that is being decompressed.
pub(crate) struct Decompression {
    reader: Box<dyn Read + Send>,
    bytes: Vec<u8>,
}

impl Decompression {
    /// Begins to decompress the records of a batch.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::OutOfMemory`].
    pub(crate) fn begin(compression: Compression, records: &[u8]) -> Result<Self, Error> {
        Ok(Self { reader: reader(compression, records.to_vec())?, bytes: Vec::new() })
    }

    /// Decompresses more, and adds its cost to `units`. Returns whether all is decompressed.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::TooLarge`], [`Error::OutOfMemory`].
    pub(crate) fn step(&mut self, units: &mut u32) -> Result<bool, Error> {
        let mut part = (&mut self.reader).take(STEP_BYTES as u64);
        let count = part.read_to_end(&mut self.bytes).map_err(|error| Error::from(&error))?;
        *units += record_units(count);
        if self.bytes.len() > DECOMPRESSED_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        Ok(count < STEP_BYTES)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl fmt::Debug for Decompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompression").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
