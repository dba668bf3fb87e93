//! The mask on payloads from the peer (RFC 6455, section 5.3): XOR with a key of four bytes, repeated.

/// Bytes at a time: a register of the baseline of x86-64 and ARM64. The compiler makes one instruction of each step.
const BLOCK_BYTES: usize = 16;

/// The key of a frame, turned to the position of the next byte of its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask([u8; 4]);

impl Mask {
    pub(crate) fn new(key: [u8; 4]) -> Self {
        Self(key)
    }

    /// Appends the next bytes of a payload to `into`, unmasked.
    pub(crate) fn unmask(&mut self, masked: &[u8], into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(masked);
        let mut block = [0; BLOCK_BYTES];
        for part in block.chunks_exact_mut(4) {
            part.copy_from_slice(&self.0);
        }
        let (blocks, rest) = into[start..].as_chunks_mut::<BLOCK_BYTES>();
        for bytes in blocks {
            for (byte, key) in bytes.iter_mut().zip(block) {
                *byte ^= key;
            }
        }
        for (byte, key) in rest.iter_mut().zip(block) {
            *byte ^= key;
        }
        self.0.rotate_left(masked.len() % 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cut_anywhere_it_is_the_definition_byte_by_byte(
            key: [u8; 4],
            payload in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(0_usize..50, 0..20),
        ) {
            let (mut mask, mut unmasked, mut at) = (Mask::new(key), vec![7], 0);
            for cut in cuts.into_iter().chain([payload.len()]) {
                let end = (at + cut).min(payload.len());
                mask.unmask(&payload[at..end], &mut unmasked);
                at = end;
            }
            let expected = payload.iter().enumerate().map(|(index, byte)| byte ^ key[index % 4]);
            prop_assert_eq!(unmasked.split_off(1), expected.collect::<Vec<u8>>());
        }
    }
}
