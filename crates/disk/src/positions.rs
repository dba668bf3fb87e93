//! How far a log has come: the ends of what is appended, written, submitted, committed and synced.
//!
//! ```text
//!  start           committed      submitted      written        head
//!    │  on disk        │  committer    │  file        │  memory    │
//!  ──┴─────────────────┴───────────────┴──────────────┴────────────┘
//! ```
//! The positions stay in this order. An append advances `head`, a flush advances `written`, a commit advances
//! `submitted`, and a report of the committer advances `committed`. What is synced is written; it may be beyond
//! `submitted`, because a closed segment is synced whether or not its last appends were submitted.

use mainstem_log::BatchHeader;

use crate::scan::Place;

/// The positions of one log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions {
    /// End of what is as durable as the options require.
    committed: Place,
    /// End of what is known to be on disk.
    synced: Place,
    submitted: Place,
    written: Place,
    head: Place,
}

impl Positions {
    /// Of a log that is on disk up to `end`.
    pub(crate) fn new(end: Place) -> Self {
        Self { committed: end, synced: end, submitted: end, written: end, head: end }
    }

    #[inline]
    pub(crate) fn head(&self) -> Place {
        self.head
    }

    #[inline]
    pub(crate) fn written(&self) -> Place {
        self.written
    }

    pub(crate) fn submitted(&self) -> Place {
        self.submitted
    }

    pub(crate) fn committed(&self) -> Place {
        self.committed
    }

    pub(crate) fn synced(&self) -> Place {
        self.synced
    }

    /// Appends a batch. Returns where it begins.
    #[inline]
    pub(crate) fn append(&mut self, header: &BatchHeader) -> Place {
        let begin = self.head;
        assert_eq!(header.base_offset, begin.offset, "a batch begins where the log ends");
        self.head = begin.after(header);
        debug_assert!(self.head.offset > begin.offset, "a batch has at least one offset");
        begin
    }

    /// All appends are in their segment files.
    pub(crate) fn mark_written(&mut self) {
        self.written = self.head;
        self.check();
    }

    /// The next append starts a segment. Returns its first position.
    pub(crate) fn start_segment(&mut self) -> Place {
        assert_eq!(self.written, self.head, "a segment is closed when all of it is written");
        self.head = Place::beginning(self.head.offset);
        self.written = self.head;
        self.check();
        self.head
    }

    /// Everything written is submitted to the committer.
    pub(crate) fn mark_submitted(&mut self) {
        self.submitted = self.written;
        self.check();
    }

    /// Everything submitted is durable without a report of the committer.
    pub(crate) fn mark_committed(&mut self) {
        self.committed = self.submitted;
        self.check();
    }

    /// Everything written is on disk.
    pub(crate) fn mark_synced(&mut self) {
        self.synced = self.written;
    }

    /// A report of the committer: everything up to `end` is on disk as far as it was asked. What was rolled back since
    /// does not count.
    pub(crate) fn on_report(&mut self, end: Place, is_committed: bool, is_synced: bool) {
        let end = end.min(self.written);
        if is_committed {
            self.committed = self.committed.max(end);
        }
        if is_synced {
            self.synced = self.synced.max(end);
        }
        self.check();
    }

    /// Nothing beyond `place` counts as synced from now on: it is about to be removed.
    pub(crate) fn limit_synced(&mut self, place: Place) {
        self.synced = self.synced.min(place);
    }

    /// Ends the log at `place`, which is not beyond its end.
    pub(crate) fn end_at(&mut self, place: Place) {
        debug_assert!(place <= self.head, "{place:?} is beyond {self:?}");
        self.head = place;
        self.written = self.written.min(place);
        self.submitted = self.submitted.min(place);
        self.committed = self.committed.min(place);
        self.synced = self.synced.min(place);
        self.check();
    }

    /// Asserts the order of the positions.
    #[inline]
    fn check(&self) {
        let Self { committed, synced, submitted, written, head } = self;
        debug_assert!(committed <= submitted && submitted <= written && written <= head, "{self:?}");
        debug_assert!(synced <= written, "{self:?}");
    }
}
