//! An encoded response.

use mainstem_runtime::{MemoryMeter, Output, SharedBytes};

/// Size of a response from which on it is sent without being copied into the output.
const LARGE_BYTES: usize = 256 * 1024;

/// A response in its frame. It may be in pieces, so that no long one has to be copied or freed at once.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) head: Vec<u8>,
    pub(crate) pieces: Vec<SharedBytes>,
    pub(crate) tail: Vec<u8>,
}

impl From<Vec<u8>> for Answer {
    fn from(head: Vec<u8>) -> Self {
        Self { head, ..Self::default() }
    }
}

impl Answer {
    /// Whether nothing is to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// Appends the response to an output. A large one is charged to `meter`.
    pub(crate) fn send(self, output: &mut Output, meter: Option<&MemoryMeter>) {
        let Self { head, pieces, tail } = self;
        match meter.filter(|_| head.len() >= LARGE_BYTES) {
            Some(meter) => output.push_shared(SharedBytes::new(head.into_boxed_slice(), meter)),
            None => output.buffer().extend_from_slice(&head),
        }
        for piece in pieces {
            output.push_shared(piece);
        }
        output.buffer().extend_from_slice(&tail);
    }

    /// All bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let pieces = self.pieces.iter().flat_map(|piece| piece.iter());
        self.head.iter().chain(pieces).chain(&self.tail).copied().collect()
    }
}
