//! Work on the records of a batch before it can be appended: a check, and compression with the topic's codec.
//!
//! A batch of a client may take seconds of both. A [`RecordsWork`] does it in steps that a caller spreads over turns.
//! Small batches are prepared at once, when they are appended.

use std::io::Read;
use std::sync::Arc;

use mainstem_compress as compress;
use mainstem_compress::{Compression, Encoder, compression_ns_per_kib};
use mainstem_log::{Batch, HEADER_BYTES};

use crate::error::PartitionError;
use crate::records::{DECOMPRESSED_BYTES_MAX, RecordBytes, RecordSummary, RecordsCheck};

/// Time that one step of work should take, ns.
const STEP_NS: u64 = 200_000;
/// Longest work that is done at once when a batch is appended, estimated, ns.
const AT_ONCE_NS: u64 = 500_000;
/// Decompressed bytes of one step: at least, because the codecs work on blocks, and at most.
const STEP_BYTES_MIN: usize = 16 * 1024;
const STEP_BYTES_MAX: usize = 256 * 1024;
/// Decompressing and parsing one KiB of records, ns.
pub const CHECK_NS_PER_KIB: u64 = 1_500;
/// How much larger records are assumed to be than they are compressed, to estimate costs.
const ASSUMED_RATIO: u64 = 4;
/// Size of the window through which records are copied.
const WINDOW_BYTES: usize = 16 * 1024;

/// What must be done with the records of a batch before it can be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Decompress and check them.
    Check,
    /// Compress them with this codec and level.
    Recompress(Compression, Option<i32>),
}

/// What has been done with the records of a batch.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    pub(crate) checked: Option<RecordSummary>,
    pub(crate) recompressed: Option<Arc<Recompressed>>,
}

impl Prepared {
    /// Bytes of the records that replace those of the batch.
    pub fn bytes(&self) -> usize {
        self.recompressed.as_ref().map_or(0, |recompressed| recompressed.records.len())
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.checked.is_none() && self.recompressed.is_none()
    }
}

/// The records of a batch, compressed with another codec.
#[derive(Debug)]
pub(crate) struct Recompressed {
    codec: (Compression, Option<i32>),
    pub(crate) records: Vec<u8>,
}

impl Recompressed {
    /// Whether the records are what a topic with this codec and level stores.
    pub(crate) fn is_for(&self, codec: (Compression, Option<i32>)) -> bool {
        self.codec == codec
    }
}

/// Work on the records of a batch, in progress.
#[derive(Debug)]
pub enum RecordsWork<'a> {
    /// [`Preparation::Check`].
    Check(Box<RecordsCheck<'a>>),
    /// [`Preparation::Recompress`].
    Recompress(Box<Recompression<'a>>),
}

impl<'a> RecordsWork<'a> {
    /// Starts the work on a whole batch, for which `bytes` holds nothing else. Verifies its checksum.
    ///
    /// # Errors
    /// The checksum is wrong, or a codec is not defined.
    pub fn new(
        preparation: Preparation,
        bytes: impl AsRef<[u8]> + Send + 'a,
    ) -> Result<Self, PartitionError> {
        Ok(match preparation {
            Preparation::Check => Self::Check(Box::new(RecordsCheck::new(bytes)?)),
            Preparation::Recompress(codec, level) => {
                Self::Recompress(Box::new(Recompression::new(bytes, (codec, level))?))
            }
        })
    }

    /// Does a part of the work. Returns whether it is done, and then adds the result to `prepared`.
    ///
    /// # Errors
    /// The bytes do not decompress, or a record is malformed.
    pub fn step(&mut self, prepared: &mut Prepared) -> Result<bool, PartitionError> {
        let bytes = self.step_bytes();
        match self {
            Self::Check(check) => {
                let Some(summary) = check.step(bytes)? else { return Ok(false) };
                prepared.checked = Some(summary);
            }
            Self::Recompress(work) => {
                let Some(recompressed) = work.step(bytes)? else { return Ok(false) };
                prepared.recompressed = Some(Arc::new(recompressed));
            }
        }
        Ok(true)
    }

    /// Estimated time of a step, ns.
    pub fn step_ns(&self) -> u64 {
        work_ns(self.ns_per_kib(), self.step_bytes())
    }

    fn ns_per_kib(&self) -> u64 {
        match self {
            Self::Check(_) => CHECK_NS_PER_KIB,
            Self::Recompress(work) => recompression_ns_per_kib(work.codec),
        }
    }

    fn step_bytes(&self) -> usize {
        let bytes = STEP_NS * 1024 / self.ns_per_kib();
        (bytes as usize).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
    }
}

fn work_ns(ns_per_kib: u64, bytes: usize) -> u64 {
    ns_per_kib * bytes as u64 / 1024
}

fn recompression_ns_per_kib((codec, level): (Compression, Option<i32>)) -> u64 {
    CHECK_NS_PER_KIB + u64::from(compression_ns_per_kib(codec, level))
}

/// Most decompressed bytes that are compressed at once with a codec.
fn at_once_bytes(codec: (Compression, Option<i32>)) -> usize {
    (AT_ONCE_NS * 1024 / recompression_ns_per_kib(codec)) as usize
}

/// Estimated time of the work on a batch that is done when it is appended, ns.
pub(crate) fn at_once_ns(
    compression: Compression,
    bytes: usize,
    must_decompress: bool,
    recompress: Option<(Compression, Option<i32>)>,
) -> u64 {
    let ratio = if compression == Compression::None { 1 } else { ASSUMED_RATIO };
    let decompressed = bytes.saturating_mul(ratio as usize);
    let check = if must_decompress { work_ns(CHECK_NS_PER_KIB, decompressed) } else { 0 };
    let compress = recompress.map_or(0, |codec| work_ns(recompression_ns_per_kib(codec), decompressed));
    check.min(AT_ONCE_NS) + compress.min(AT_ONCE_NS)
}

/// Whether the records of a batch may be too many to be compressed at once.
pub(crate) fn is_long(batch: &Batch<'_>, codec: (Compression, Option<i32>)) -> bool {
    let is_compressed = batch.header.compression() != Compression::None;
    is_compressed || batch.bytes().len() > at_once_bytes(codec)
}

/// How much may be done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What takes no longer than an append may.
    Short,
    /// Everything.
    Whole,
}

/// The records of a batch, compressed with another codec; `None` if that takes too long to be done at once.
///
/// # Errors
/// As for [`RecordsWork`].
pub(crate) fn recompress_at_once(
    bytes: &[u8],
    codec: (Compression, Option<i32>),
    extent: Extent,
) -> Result<Option<Recompressed>, PartitionError> {
    let bytes_max = if extent == Extent::Short { at_once_bytes(codec) } else { DECOMPRESSED_BYTES_MAX };
    Recompression::new(bytes, codec)?.step(bytes_max)
}

/// The records of a batch, while they are decompressed and compressed with another codec.
pub struct Recompression<'a> {
    reader: Box<dyn Read + Send + 'a>,
    encoder: Option<Encoder>,
    codec: (Compression, Option<i32>),
    /// Bytes decompressed so far.
    decompressed: usize,
}

impl<'a> Recompression<'a> {
    fn new(
        bytes: impl AsRef<[u8]> + Send + 'a,
        codec: (Compression, Option<i32>),
    ) -> Result<Self, PartitionError> {
        let batch = Batch::parse(bytes.as_ref()).map_err(|_| PartitionError::CorruptBatch)?;
        debug_assert!(batch.bytes().len() >= HEADER_BYTES);
        let reader = compress::reader(batch.header.compression(), RecordBytes(bytes)).map_err(codec_error)?;
        let encoder = Some(Encoder::new(codec.0, codec.1).map_err(codec_error)?);
        Ok(Self { reader, encoder, codec, decompressed: 0 })
    }

    /// Works on about `bytes` more. Returns the compressed records after the last part.
    fn step(&mut self, bytes: usize) -> Result<Option<Recompressed>, PartitionError> {
        let stop = self.decompressed.saturating_add(bytes);
        let mut window = [0; WINDOW_BYTES];
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        // A batch that ends exactly there must not wait for another step.
        while self.decompressed <= stop {
            let read = self.reader.read(&mut window);
            let read = read.map_err(|error| codec_error(compress::Error::from(&error)))?;
            if read == 0 {
                let records = self.encoder.take().map(Encoder::finish).transpose().map_err(codec_error)?;
                return Ok(records.map(|records| Recompressed { codec: self.codec, records }));
            }
            self.decompressed += read;
            if self.decompressed > DECOMPRESSED_BYTES_MAX {
                return Err(codec_error(compress::Error::TooLarge));
            }
            encoder.write(&window[..read]).map_err(codec_error)?;
        }
        Ok(None)
    }
}

fn codec_error(error: compress::Error) -> PartitionError {
    match error {
        compress::Error::Unsupported(_) => PartitionError::UnsupportedCompression,
        error => PartitionError::rule(error.to_string()),
    }
}

impl std::fmt::Debug for Recompression<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { codec, decompressed, .. } = self;
        f.debug_struct("Recompression")
            .field("codec", codec)
            .field("decompressed", decompressed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use mainstem_compress::batch::{decompress_records, recompress};
    use mainstem_log::BatchBuilder;

    use super::*;

    const CODECS: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// A batch whose records do not compress much.
    fn batch(value_bytes: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 26) as u8
        };
        let value: Vec<u8> = (0..value_bytes).map(|_| noise()).collect();
        let mut builder = BatchBuilder::default();
        builder.push(1, Some(b"key"), Some(&value));
        builder.finish().to_vec()
    }

    #[test]
    fn a_batch_is_recompressed_in_steps_and_keeps_its_records() {
        let plain = batch(1024 * 1024);
        let records = &plain[HEADER_BYTES..];
        for from in CODECS {
            let sent = recompress(&Batch::parse(&plain).unwrap(), from, None, usize::MAX).unwrap();
            for to in CODECS {
                let levels =
                    if to == Compression::Zstd { vec![None, Some(-5), Some(12)] } else { vec![None] };
                for level in levels {
                    let mut work = RecordsWork::new(Preparation::Recompress(to, level), &sent).unwrap();
                    let (mut prepared, mut steps) = (Prepared::default(), 1);
                    while !work.step(&mut prepared).unwrap() {
                        assert!(work.step_ns() <= 10 * STEP_NS);
                        steps += 1;
                    }
                    assert!(steps > 3, "{from:?} to {to:?}: {steps} steps");
                    let recompressed = prepared.recompressed.unwrap();
                    assert!(recompressed.is_for((to, level)));
                    let mut stored = Vec::new();
                    let header = Batch::parse(&sent).unwrap().header;
                    mainstem_log::repack(&header, to, &recompressed.records, &mut stored);
                    let stored = Batch::parse(&stored).unwrap();
                    assert_eq!(decompress_records(&stored, usize::MAX).unwrap(), records);
                }
            }
        }
    }

    #[test]
    fn small_batches_are_recompressed_at_once_and_large_ones_are_not() {
        for (codec, level, is_small) in [
            (Compression::Gzip, None, 8 * 1024),
            (Compression::Zstd, None, 64 * 1024),
            (Compression::Zstd, Some(19), 512),
        ] {
            let at_once =
                |bytes| recompress_at_once(&batch(bytes), (codec, level), Extent::Short).unwrap().is_some();
            assert!(at_once(is_small) && !at_once(is_small * 16), "{codec:?} at {level:?}");
        }
    }

    #[test]
    fn a_bomb_and_damaged_records_are_rejected_while_they_are_recompressed() {
        let plain = batch(512 * 1024);
        let sent = recompress(&Batch::parse(&plain).unwrap(), Compression::Gzip, None, usize::MAX).unwrap();
        let mut damaged = Vec::new();
        let records = &sent[HEADER_BYTES..sent.len() - 9];
        mainstem_log::repack(&Batch::parse(&sent).unwrap().header, Compression::Gzip, records, &mut damaged);
        let mut work = RecordsWork::new(Preparation::Recompress(Compression::Lz4, None), &damaged).unwrap();
        let mut prepared = Prepared::default();
        let error = loop {
            match work.step(&mut prepared) {
                Ok(is_done) => assert!(!is_done),
                Err(error) => break error,
            }
        };
        assert_eq!(error, PartitionError::rule("malformed compressed data"));
        let mut corrupt = sent;
        corrupt[HEADER_BYTES + 5] ^= 1;
        let preparation = Preparation::Recompress(Compression::Lz4, None);
        let refused = RecordsWork::new(preparation, &corrupt).unwrap_err();
        assert_eq!(refused, PartitionError::CorruptBatch);
    }
}
