//! The default partitioner of Kafka clients for records with a key.
//!
//! Other protocols write records with keys too. Records with the same key must go to the same partition whichever
//! protocol writes them, so the broker computes the same hash as Kafka's Java client.

/// The partition for records with `key` in a topic of `partitions` partitions.
pub fn partition_for_key(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & 0x7FFF_FFFF).cast_signed() % partitions.max(1)
}

/// `MurmurHash2` by Austin Appleby, 32 bits, with the seed of Kafka's clients.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_B28C;
    const M: u32 = 0x5BD1_E995;
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ k >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !tail.is_empty() {
        let rest = tail.iter().rev().fold(0, |rest, byte| rest << 8 | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_match_kafkas_java_client() {
        // Computed with the Java client's `Utils.murmur2`.
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
            assert_eq!(partition_for_key(key.as_bytes(), 12), (hash & i32::MAX) % 12, "{key}");
        }
    }
}
