//! Where a log starts, and which removed segments may come back.

/// Start of one log.
#[derive(Debug)]
pub(crate) struct LogStart {
    offset: u64,
    /// Base offsets of removed segments, oldest first, whose removal may not be durable. They may reappear after a
    /// crash.
    removing: Vec<u64>,
    /// Whether the committer could not remove them.
    is_stalled: bool,
}

impl LogStart {
    pub(crate) fn new(offset: u64) -> Self {
        Self { offset, removing: Vec::new(), is_stalled: false }
    }

    /// Offset of the first record.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Advances the start. It never goes back.
    pub(crate) fn advance_to(&mut self, offset: u64) {
        self.offset = self.offset.max(offset);
    }

    /// Base offset of the first removed segment that may reappear after a crash.
    pub(crate) fn removing(&self) -> Option<u64> {
        self.removing.first().copied()
    }

    /// The committer is given the segment with base offset `base` to remove.
    pub(crate) fn remove(&mut self, base: u64) {
        self.removing.push(base);
    }

    /// The removal of the segment with base offset `base`, and of those before, is durable.
    pub(crate) fn confirm_removal(&mut self, base: u64) {
        self.removing.retain(|removing| *removing > base);
    }

    /// The committer could not remove a segment.
    pub(crate) fn stall(&mut self) {
        self.is_stalled = true;
    }

    /// Segments that the committer has to be given once more, oldest first.
    pub(crate) fn take_stalled(&mut self) -> &[u64] {
        if std::mem::take(&mut self.is_stalled) { &self.removing } else { &[] }
    }

    /// Lowest offset at which the log may start after a crash, if `oldest` is the base of its first segment.
    pub(crate) fn after_crash(&self, oldest: u64) -> u64 {
        self.removing().unwrap_or(oldest).min(self.offset)
    }
}
