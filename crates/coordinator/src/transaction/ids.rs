//! Producer ids, given out in blocks: where a block ends is kept before its first id is given out.

/// Ids in a block. So many at most are lost by a restart.
const BLOCK: i64 = 1000;

#[derive(Debug, Default)]
pub(super) struct ProducerIds {
    next: i64,
    end: i64,
    /// End of all blocks that were ever begun.
    begun: i64,
}

impl ProducerIds {
    /// An id that nobody has; nothing until there is a new block.
    pub(super) fn take(&mut self) -> Option<i64> {
        let id = self.next;
        if id == self.end {
            return None;
        }
        self.next += 1;
        Some(id)
    }

    /// Puts back what was taken last.
    pub(super) fn put_back(&mut self, id: i64) {
        debug_assert_eq!(id + 1, self.next);
        self.next = id;
    }

    /// Where the next block will end, which is to be kept.
    pub(super) fn block_end(&mut self) -> i64 {
        self.begun += BLOCK;
        self.begun
    }

    /// The block that ends there has been kept.
    pub(super) fn block_kept(&mut self, end: i64) {
        debug_assert_eq!(self.next, self.end);
        (self.next, self.end) = (end - BLOCK, end);
    }

    /// A block up to there was begun in an earlier life.
    pub(super) fn restore(&mut self, end: i64) {
        self.begun = self.begun.max(end);
    }
}
