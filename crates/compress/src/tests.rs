//! Interoperability vectors from other implementations, round trips, limits, and damaged input.

use mainstem_log::{Batch, BatchBuilder, Record, Records};
use proptest::prelude::*;

use super::*;

const CODECS: [Compression; 4] =
    [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
/// Limit that is large enough for all valid input here.
const LIMIT: usize = 1 << 20;

/// The uncompressed content of all [`VECTORS`].
const TEXT: &[u8] = b"mainstem mainstem mainstem mainstem mainstem mainstem end";

/// Created with Python's `gzip`, and its packages `cramjam` 2.14, `lz4` 4.4 and `zstandard` 0.25.
const VECTORS: [(&str, Compression, &str); 12] = [
    ("gzip", Compression::Gzip, "1f8b08000000000002ffcb4dcccc2b2e49cd55c82585919a970200a41b351639000000"),
    (
        "gzip of two members",
        Compression::Gzip,
        "1f8b0800000000000203cb4dcccc2b2e49cd55c845300085513bb314000000\
         1f8b0800000000000203cbcc2b2e49cd55c84dccc4c548cd4b010072c1457c25000000",
    ),
    ("raw snappy", Compression::Snappy, "39206d61696e7374656d20b2090008656e64"),
    (
        "framed snappy",
        Compression::Snappy,
        "82534e415050590000000001000000010000000e1e206d61696e7374656d205209\
         00000000121b206e7374656d206d61693a090008656e64",
    ),
    (
        "framed snappy, twice",
        Compression::Snappy,
        "82534e415050590000000001000000010000000e1e206d61696e7374656d20520900\
         82534e41505059000000000100000001000000121b206e7374656d206d61693a090008656e64",
    ),
    (
        "lz4 with its size",
        Compression::Lz4,
        "04224d1868403900000000000000f0130000009f6d61696e7374656d20090018506d20656e6400000000",
    ),
    (
        "lz4 with checksums",
        Compression::Lz4,
        "04224d187440bd130000009f6d61696e7374656d20090018506d20656e64b2f612f400000000458eecbd",
    ),
    (
        "lz4 of linked blocks",
        Compression::Lz4,
        "04224d18604082130000009f6d61696e7374656d20090018506d20656e6400000000",
    ),
    (
        "zstd with size and checksum",
        Compression::Zstd,
        "28b52ffd2439950000606d61696e7374656d20656e640100d22c47f0344882",
    ),
    (
        "zstd, streamed at level 19",
        Compression::Zstd,
        "28b52ffd0068950000606d61696e7374656d20656e640100d22c47",
    ),
    (
        "zstd, streamed at level 22: a window of 128 MiB",
        Compression::Zstd,
        "28b52ffd0088950000606d61696e7374656d20656e640100d22c47",
    ),
    (
        "zstd of two frames",
        Compression::Zstd,
        "28b52ffd20147d0000486d61696e7374656d20010034ca11\
         28b52ffd202595000060696e7374656d206d61656e6401005cca11",
    ),
];

fn hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn reads_output_of_other_implementations() {
    for (name, compression, digits) in VECTORS {
        assert_eq!(decompress(compression, &hex(digits), TEXT.len()).as_deref(), Ok(TEXT), "{name}");
    }
}

#[test]
fn limit_is_exact() {
    for (name, compression, digits) in VECTORS {
        for max_bytes in [0, 1, TEXT.len() - 1] {
            let outcome = decompress(compression, &hex(digits), max_bytes);
            assert_eq!(outcome, Err(Error::TooLarge), "{name}, {max_bytes}");
        }
    }
    assert_eq!(decompress(Compression::None, TEXT, TEXT.len()).as_deref(), Ok(TEXT));
    assert_eq!(decompress(Compression::None, TEXT, TEXT.len() - 1), Err(Error::TooLarge));
}

#[test]
fn rejects_truncated_streams() {
    for (name, compression, digits) in VECTORS {
        let whole = hex(digits);
        // Input that ends between two parts is valid, but shorter.
        let in_parts = name.contains("two") || name.contains("framed");
        for end in 1..whole.len() {
            match decompress(compression, &whole[..end], LIMIT) {
                Err(Error::Malformed) => {}
                Ok(part) if in_parts => assert!(part.len() < TEXT.len() && TEXT.starts_with(&part), "{name}"),
                outcome => panic!("{name} truncated to {end}: {outcome:?}"),
            }
        }
    }
}

#[test]
fn decompression_bomb_stops_at_the_limit() {
    let zeros = vec![0; 8 * LIMIT];
    for compression in CODECS {
        let bomb = compress(compression, None, &zeros).unwrap();
        assert!(bomb.len() < zeros.len() / 15, "{compression:?}: {}", bomb.len());
        assert_eq!(decompress(compression, &bomb, LIMIT), Err(Error::TooLarge), "{compression:?}");
    }
}

#[test]
fn does_not_trust_claimed_sizes() {
    // Raw snappy that claims 4 GiB less one byte, and has a single literal byte.
    assert_eq!(decompress(Compression::Snappy, &hex("ffffffff0f0041"), usize::MAX), Err(Error::Malformed));
    // A frame whose first block claims 2 GiB less one byte, or a negative length.
    for len in ["7fffffff", "80000000"] {
        let framed = hex(&format!("82534e41505059000000000100000001{len}00"));
        assert_eq!(decompress(Compression::Snappy, &framed, usize::MAX), Err(Error::Malformed));
    }
    // A zstd frame that claims 2^40 bytes and a window of the same size.
    assert_eq!(
        decompress(Compression::Zstd, &hex("28b52ffde00000000000010000010000"), 1 << 50),
        Err(Error::Malformed)
    );
}

#[test]
fn snappy_framing_matches_java() {
    let compressed = compress(Compression::Snappy, None, &vec![7; 40_000]).unwrap();
    assert_eq!(compressed[..16], hex("82534e41505059000000000100000001"));
    let first = u32::from_be_bytes(compressed[16..20].try_into().unwrap()) as usize;
    assert_eq!(snap::raw::decompress_len(&compressed[20..20 + first]), Ok(32 * 1024));
}

#[test]
fn lz4_framing_matches_java() {
    let compressed = compress(Compression::Lz4, None, TEXT).unwrap();
    // Magic; version 1, independent blocks, no checksums, no size; blocks of up to 64 KiB.
    assert_eq!(compressed[..6], hex("04224d186040"));
}

#[test]
fn accepts_exactly_the_levels_of_the_codec() {
    let text: Vec<u8> = (0..20_000_u32).flat_map(|n| (n * n).to_string().into_bytes()).collect();
    for compression in CODECS {
        let Some(levels) = levels(compression) else {
            assert_eq!(compress(compression, Some(1), TEXT), Err(Error::Level(1)));
            continue;
        };
        for level in [*levels.start(), -1, 1, 9, *levels.end()] {
            let compressed = compress(compression, Some(level), &text);
            if levels.contains(&level) {
                assert_eq!(decompress(compression, &compressed.unwrap(), LIMIT).as_ref(), Ok(&text));
            } else {
                assert_eq!(compressed, Err(Error::Level(level)));
            }
        }
        let beyond = levels.end() + 1;
        assert_eq!(compress(compression, Some(beyond), TEXT), Err(Error::Level(beyond)));
    }
    for compression in [Compression::Gzip, Compression::Zstd] {
        let len = |level| compress(compression, Some(level), &text).unwrap().len();
        assert_ne!(len(9), len(1), "{compression:?}");
    }
}

#[test]
fn unknown_codec_error_has_its_number() {
    let unknown = Compression::Unknown(5);
    assert_eq!(decompress(unknown, TEXT, LIMIT), Err(Error::Unsupported(5)));
    assert_eq!(compress(unknown, None, TEXT), Err(Error::Unsupported(5)));
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // A small alphabet, so that the input compresses; long inputs for more than one block.
    let alphabet = || prop_oneof![Just(255_u8), Just(3)].prop_flat_map(|top| 0..=top);
    prop_oneof![
        prop::collection::vec(alphabet(), 0..500),
        (prop::collection::vec(alphabet(), 1..50), 1..5_000_usize)
            .prop_map(|(part, times)| part.repeat(times)),
    ]
}

fn codec() -> impl Strategy<Value = Compression> {
    prop::sample::select(CODECS.as_slice())
}

proptest! {
    #[test]
    fn round_trips(compression in codec(), bytes in bytes()) {
        let compressed = compress(compression, None, &bytes).unwrap();
        prop_assert_eq!(decompress(compression, &compressed, bytes.len()), Ok(bytes));
    }

    #[test]
    fn a_reader_decompresses_like_the_whole(
        compression in codec(),
        bytes in bytes(),
        step in 1..5000_usize,
        flip in prop::option::of((any::<prop::sample::Index>(), 0..8)),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut compressed = compress(compression, None, &bytes).unwrap();
        if let Some((at, bit)) = flip {
            let at = at.index(compressed.len());
            compressed[at] ^= 1_u8 << bit;
            compressed.truncate(cut.index(compressed.len()) + 1);
        }
        let mut out = Vec::new();
        let mut reader = reader(compression, compressed.clone()).unwrap();
        let mut part = vec![0; step];
        let outcome = loop {
            match reader.read(&mut part) {
                Ok(0) => break Ok(out),
                Ok(count) => out.extend_from_slice(&part[..count]),
                Err(error) => break Err(Error::from(&error)),
            }
        };
        prop_assert_eq!(outcome, decompress(compression, &compressed, usize::MAX / 2));
    }

    #[test]
    fn reads_raw_snappy(bytes in bytes()) {
        let compressed = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
        prop_assert_eq!(decompress(Compression::Snappy, &compressed, bytes.len()), Ok(bytes));
    }

    #[test]
    fn damaged_input_never_panics_or_exceeds_the_limit(
        compression in codec(),
        bytes in bytes(),
        max_bytes in 0..LIMIT,
        cut in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8), 0..4),
    ) {
        let mut compressed = compress(compression, None, &bytes).unwrap();
        for (at, bit) in flips {
            let at = at.index(compressed.len());
            compressed[at] ^= 1_u8 << bit;
        }
        let cut = cut.index(compressed.len() + 1);
        for damaged in [&compressed[..], &compressed[..cut], &compressed[cut..]] {
            if let Ok(out) = decompress(compression, damaged, max_bytes) {
                prop_assert!(out.len() <= max_bytes);
            }
        }
    }

    #[test]
    fn noise_never_panics_or_exceeds_the_limit(compression in codec(), noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let start = match compression {
            Compression::Gzip => hex("1f8b08000000000002ff"),
            Compression::Snappy => hex("82534e41505059000000000100000001"),
            Compression::Lz4 => hex("04224d18604082"),
            _ => hex("28b52ffd"),
        };
        for bytes in [noise.clone(), [start, noise].concat()] {
            if let Ok(out) = decompress(compression, &bytes, 4096) {
                prop_assert!(out.len() <= 4096);
            }
        }
    }

    /// Whatever the parts, and at the levels with small blocks too.
    #[test]
    fn data_that_arrives_in_parts_is_compressed(
        compression in codec(),
        slow in any::<bool>(),
        data in prop::collection::vec(any::<u8>(), 0..100_000),
        parts in prop::collection::vec(1..40_000_usize, 1..9),
    ) {
        let level = (compression == Compression::Zstd).then_some(if slow { 12 } else { 1 });
        let mut encoder = Encoder::new(compression, level).unwrap();
        let (mut rest, mut sizes) = (&data[..], parts.iter().cycle());
        while !rest.is_empty() {
            let (part, next) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            encoder.write(part).unwrap();
            rest = next;
        }
        let compressed = encoder.finish().unwrap();
        prop_assert_eq!(decompress(compression, &compressed, data.len()), Ok(data));
    }

    #[test]
    fn recompression_preserves_records(
        from in prop::sample::select([Compression::None].into_iter().chain(CODECS).collect::<Vec<_>>()),
        to in prop::sample::select([Compression::None].into_iter().chain(CODECS).collect::<Vec<_>>()),
        values in prop::collection::vec(bytes(), 1..8),
        base_offset in 0_u64..1 << 60,
    ) {
        let mut builder = BatchBuilder::default();
        for (index, value) in (0_u8..).zip(&values) {
            builder.push(1_700_000_000_000 + i64::from(index), Some(&[index]), Some(value));
        }
        let mut original = builder.finish().to_vec();
        Batch::place(&mut original, base_offset, 7);
        let first = batch::recompress(&Batch::parse(&original).unwrap(), from, None, usize::MAX).unwrap();
        let first = Batch::parse(&first).unwrap();
        prop_assert_eq!(first.header.compression(), from);

        let second = batch::recompress(&first, to, None, 4 * LIMIT).unwrap();
        let second = Batch::parse(&second).unwrap();
        prop_assert_eq!(second.header.compression(), to);
        prop_assert_eq!(second.header.base_offset, base_offset);
        prop_assert_eq!(second.header.leader_epoch, 7);
        let plain = batch::decompress_records(&second, 4 * LIMIT).unwrap();
        let read: Result<Vec<Record<'_>>, _> = Records::of(second.header, &plain).collect();
        let expected: Result<Vec<Record<'_>>, _> = Batch::parse(&original).unwrap().records().collect();
        prop_assert_eq!(read, expected);

        // Without a codec it is the original batch again.
        let back = batch::recompress(&second, Compression::None, None, 4 * LIMIT).unwrap();
        prop_assert_eq!(back, original);
    }
}

#[test]
fn rejects_a_batch_with_a_decompression_bomb() {
    let mut builder = BatchBuilder::default();
    builder.push(0, None, Some(&vec![0; 2 * LIMIT]));
    let plain = builder.finish().to_vec();
    for compression in CODECS {
        let bomb = batch::recompress(&Batch::parse(&plain).unwrap(), compression, None, usize::MAX).unwrap();
        let bomb = Batch::parse(&bomb).unwrap();
        assert_eq!(batch::decompress_records(&bomb, LIMIT), Err(Error::TooLarge));
        assert_eq!(batch::recompress(&bomb, Compression::None, None, LIMIT), Err(Error::TooLarge));
    }
}
