//! Decompresses arbitrary bytes with each codec: the output respects its limit and survives a round trip.
//!
//! Input: a byte whose low bits are the codec's number in a batch, then the compressed bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstem_compress::{Compression, compress, decompress};

const BYTES_MAX: usize = 64 * 1024;

fuzz_target!(|input: &[u8]| {
    let Some((first, compressed)) = input.split_first() else { return };
    let codec = match first & 7 {
        0 => Compression::None,
        1 => Compression::Gzip,
        2 => Compression::Snappy,
        3 => Compression::Lz4,
        4 => Compression::Zstd,
        other => Compression::Unknown(other),
    };
    let Ok(plain) = decompress(codec, compressed, BYTES_MAX) else { return };
    assert!(plain.len() <= BYTES_MAX);
    let again = compress(codec, None, &plain).expect("a codec that reads also writes");
    assert_eq!(decompress(codec, &again, BYTES_MAX).as_ref(), Ok(&plain));
});
