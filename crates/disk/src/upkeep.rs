//! What maintenance remembers of one log between two visits.

/// Times of the maintenance of one log, Unix time in ms.
#[derive(Debug)]
pub(crate) struct Upkeep {
    /// Time of the next attempt after a failure.
    retry_ms: u64,
    /// When maintenance first saw a record in the newest segment; 0 for a segment that was there when the log was
    /// opened.
    newest_since_ms: Option<u64>,
}

impl Upkeep {
    /// For a log whose newest segment has records, or not.
    pub(crate) fn new(has_records: bool) -> Self {
        Self { retry_ms: 0, newest_since_ms: has_records.then_some(0) }
    }

    /// Time before which there is no further attempt.
    pub(crate) fn retry_ms(&self) -> u64 {
        self.retry_ms
    }

    /// An attempt has failed.
    pub(crate) fn retry_at(&mut self, retry_ms: u64) {
        self.retry_ms = retry_ms;
    }

    /// The newest segment has no records.
    pub(crate) fn newest_is_empty(&mut self) {
        self.newest_since_ms = None;
    }

    /// Maintenance sees records in the newest segment. Returns since when it does.
    pub(crate) fn see_newest(&mut self, unix_ms: u64) -> u64 {
        *self.newest_since_ms.get_or_insert(unix_ms)
    }

    /// Since when maintenance sees records in the newest segment.
    pub(crate) fn newest_since_ms(&self) -> Option<u64> {
        self.newest_since_ms
    }
}
