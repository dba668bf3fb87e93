//! Producer ids, allocated in blocks.
//!
//! The end of a block is persisted before its first id is handed out, so no id is ever used twice. A restart loses at
//! most the rest of one block.

/// Ids per block.
const BLOCK: i64 = 1000;

#[derive(Debug, Default)]
pub(super) struct ProducerIds {
    next: i64,
    end: i64,
    /// End of all blocks whose reservation was started.
    reserved_end: i64,
}

impl ProducerIds {
    /// Returns an unused id; `None` until there is a new block.
    pub(super) fn take(&mut self) -> Option<i64> {
        let id = self.next;
        if id == self.end {
            return None;
        }
        self.next += 1;
        Some(id)
    }

    /// Returns the id that was taken last.
    pub(super) fn put_back(&mut self, id: i64) {
        debug_assert_eq!(id + 1, self.next);
        self.next = id;
    }

    /// Starts the reservation of the next block; returns its end, which must be persisted.
    pub(super) fn reserve_block(&mut self) -> i64 {
        self.reserved_end += BLOCK;
        self.reserved_end
    }

    /// The block that ends at `end` is durable.
    pub(super) fn block_persisted(&mut self, end: i64) {
        debug_assert_eq!(self.next, self.end);
        (self.next, self.end) = (end - BLOCK, end);
    }

    /// Replays the reservation of the block that ends at `end`.
    pub(super) fn restore(&mut self, end: i64) {
        self.reserved_end = self.reserved_end.max(end);
    }
}
