//! How far key compaction of one log has come, and the compaction in progress.
//!
//! Two offsets outlive the process, in the checkpoint: what compaction has processed, and below which segments may have
//! offset gaps. The second is recorded before the first segment is rewritten, so that recovery never takes a gap that
//! compaction made for damage.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::deferred::SyncOutcome;
use crate::fs::File;
use crate::index::Index;
use crate::keys::Keys;
use crate::scan::{Gaps, Place};

/// State of key compaction of one log.
#[derive(Default)]
pub(crate) struct Cleaning {
    /// Offset up to which compaction has processed the log.
    cleaned: u64,
    /// Segments with a base below this offset may have offset gaps.
    sparse: u64,
    /// End of the range of the last compaction. The next one starts when closed segments go beyond it.
    compacted_to: u64,
    compaction: Option<Box<Compaction>>,
    /// Number of the checkpoint that the next step waits for, and when it was requested, Unix time in ms.
    awaited: Option<(u64, u64)>,
    replacing: Option<Box<Replacing>>,
}

/// A compaction in progress.
pub(crate) struct Compaction {
    /// Start time, Unix time in ms.
    pub(crate) unix_ms: u64,
    /// Base offset of the first segment that it leaves out.
    pub(crate) end: u64,
    pub(crate) keys: Keys,
    pub(crate) phase: Phase,
}

pub(crate) enum Phase {
    /// Collects keys from new segments; the position is the next batch to read.
    Collect(Place),
    /// Rewrites these groups of segments.
    Rewrite(VecDeque<Vec<u64>>, Option<Box<Output>>),
}

/// A group that its output replaces, as soon as the committer has done so.
pub(crate) struct Replacing {
    pub(crate) bases: Vec<u64>,
    /// The output.
    pub(crate) file: Arc<dyn File>,
    pub(crate) bytes: u64,
    pub(crate) index: Index,
}

/// The segment that replaces a group.
pub(crate) struct Output {
    pub(crate) bases: Vec<u64>,
    /// Index in `bases` of the segment being read.
    pub(crate) at: usize,
    pub(crate) place: Place,
    pub(crate) file: Arc<dyn File>,
    pub(crate) bytes: u64,
    pub(crate) index: Index,
    /// Base offset of each producer's last batch in the segment being read. It is retained for its sequence number.
    pub(crate) last_of: BTreeMap<i64, u64>,
    /// How far `last_of` is collected; `None` once it is complete.
    pub(crate) survey: Option<Place>,
    /// Bytes whose sync was requested.
    pub(crate) syncing_bytes: u64,
    /// How the sync of the complete output went.
    pub(crate) synced: Option<SyncOutcome>,
}

impl Cleaning {
    /// As a checkpoint has it.
    pub(crate) fn restored(cleaned: u64, sparse: u64) -> Self {
        Self { cleaned, sparse, ..Self::default() }
    }

    pub(crate) fn cleaned(&self) -> u64 {
        self.cleaned
    }

    pub(crate) fn sparse(&self) -> u64 {
        self.sparse
    }

    /// Whether the segment with base offset `base` may have offset gaps.
    pub(crate) fn gaps(&self, base: u64) -> Gaps {
        if base < self.sparse { Gaps::Allowed } else { Gaps::None }
    }

    /// Whether a range that ends at `end` goes beyond that of the last compaction.
    pub(crate) fn is_beyond_last(&self, end: u64) -> bool {
        end > self.compacted_to
    }

    pub(crate) fn is_running(&self) -> bool {
        self.compaction.is_some()
    }

    /// Starts a compaction.
    pub(crate) fn start(&mut self, compaction: Compaction) {
        self.compacted_to = compaction.end;
        self.compaction = Some(Box::new(compaction));
    }

    /// Takes the compaction for one step. It ends unless it is [put back](Self::put_back).
    pub(crate) fn take(&mut self) -> Option<Box<Compaction>> {
        self.compaction.take()
    }

    pub(crate) fn put_back(&mut self, compaction: Box<Compaction>) {
        self.compaction = Some(compaction);
    }

    /// The next step waits for the checkpoint `number`, which is requested now.
    pub(crate) fn await_checkpoint(&mut self, number: u64, unix_ms: u64) {
        self.awaited = Some((number, unix_ms));
    }

    /// Number of the checkpoint that the next step waits for, unless `stored` is it or a later one, and when it was
    /// requested.
    pub(crate) fn awaited_checkpoint(&mut self, stored: u64) -> Option<(u64, u64)> {
        self.awaited.take_if(|(number, _)| *number <= stored);
        self.awaited
    }

    /// The committer is given a group to replace.
    pub(crate) fn begin_replacing(&mut self, replacing: Replacing) {
        self.replacing = Some(Box::new(replacing));
    }

    /// The committer has replaced a group, or could not.
    pub(crate) fn end_replacing(&mut self) -> Option<Box<Replacing>> {
        self.replacing.take()
    }

    /// Whether a group is being replaced.
    pub(crate) fn has_replacing(&self) -> bool {
        self.replacing.is_some()
    }

    /// Whether the segment with base offset `base` is being replaced: it can neither be removed, nor get an index.
    pub(crate) fn is_replacing(&self, base: u64) -> bool {
        self.replacing.as_ref().is_some_and(|replacing| replacing.bases.contains(&base))
    }

    /// The compaction in progress reaches only up to `offset`. The next one continues there.
    pub(crate) fn cut_range(&mut self, offset: u64) {
        self.compacted_to = offset;
    }

    /// Abandons the compaction in progress. The same range may be compacted again.
    pub(crate) fn stop(&mut self) {
        self.awaited = None;
        if self.compaction.take().is_some() {
            self.compacted_to = 0;
        }
    }

    /// The compaction in progress has failed. The same range may be compacted again.
    pub(crate) fn fail(&mut self) {
        (self.compaction, self.compacted_to, self.awaited) = (None, 0, None);
    }

    /// Segments before `offset` are about to be rewritten, which leaves gaps.
    pub(crate) fn allow_gaps_before(&mut self, offset: u64) {
        self.sparse = self.sparse.max(offset);
    }

    /// Everything that may have gaps has been processed.
    pub(crate) fn complete(&mut self) {
        self.cleaned = self.cleaned.max(self.sparse);
    }

    /// The log ends at `offset` now.
    pub(crate) fn truncate(&mut self, offset: u64) {
        self.stop();
        self.cleaned = self.cleaned.min(offset);
    }
}
