//! Small contents that share an object, so that ten thousand small files are not as many requests.

use crate::content::CHUNK_BYTES;

/// Contents below this size share objects, bytes.
pub(crate) const PACKED_BYTES: usize = 1 << 20;

/// An object in the making.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    pub(crate) bytes: Vec<u8>,
    /// The chunks in it: number of the file, and of the chunk in it.
    pub(crate) chunks: Vec<(usize, usize)>,
}

impl Pack {
    /// Whether another content of this size fits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= CHUNK_BYTES
    }

    /// Adds a content, which is that of these chunks. Returns its position.
    pub(crate) fn add(&mut self, content: &[u8], chunk: (usize, usize)) -> u32 {
        let position = self.bytes.len() as u32;
        self.bytes.extend_from_slice(content);
        self.chunks.push(chunk);
        position
    }

    /// Notes that a content that is in it already is also that of another chunk.
    pub(crate) fn share(&mut self, chunk: (usize, usize)) {
        self.chunks.push(chunk);
    }

    /// Takes it; `None` if there is nothing in it.
    pub(crate) fn take(&mut self) -> Option<Self> {
        let taken = std::mem::take(self);
        (!taken.bytes.is_empty()).then_some(taken)
    }
}
