//! Where a log starts, and which removed segment may come back.

/// Start of one log.
#[derive(Debug)]
pub(crate) struct LogStart {
    offset: u64,
    /// Base of the last removed segment if the directory was not synced since. It may reappear after a crash.
    removed: Option<u64>,
}

impl LogStart {
    pub(crate) fn new(offset: u64) -> Self {
        Self { offset, removed: None }
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

    /// Base of a removed segment that may reappear after a crash.
    pub(crate) fn removed(&self) -> Option<u64> {
        self.removed
    }

    /// A segment is about to be removed.
    pub(crate) fn remove(&mut self, base: u64) {
        self.removed = Some(base);
    }

    /// The directory was synced after the removal of the segment with base offset `base`.
    pub(crate) fn confirm_removal(&mut self, base: u64) {
        self.removed.take_if(|removed| *removed == base);
    }

    /// Lowest offset at which the log may start after a crash, if `oldest` is the base of its first segment.
    pub(crate) fn after_crash(&self, oldest: u64) -> u64 {
        self.removed.unwrap_or(oldest).min(self.offset)
    }
}
