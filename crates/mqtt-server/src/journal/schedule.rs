//! When snapshots are written, and how far the current one has come.
//!
//! Without snapshots a journal would grow for ever, and a start would read all of it. A snapshot is due when the
//! entries since the last one exceed twice its size, and a minimum, so that snapshots cost less than the entries. It is
//! written over many turns, a few sessions each, while new entries go between its parts.
//!
//! A few old messages in long queues must not keep the beginning of the log: the snapshot writes them again and
//! remembers their new offsets. If the disk fails, the snapshot is abandoned, and references go back to the old
//! offsets, which are still there. The log is truncated only after the whole snapshot is on disk.

use hashbrown::HashMap;
use mainstem_log::Ticket;

/// Messages that one snapshot moves at most, besides those that were lost. They are remembered, so that sessions that
/// share one move it once, and so that moves can be undone.
const MOVED_MAX: usize = 256 * 1024;

/// The state of a journal's snapshots.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Least bytes of entries between two snapshots.
    interval_bytes_min: u64,
    /// Bytes of entries so far.
    written: u64,
    written_at_begin: u64,
    written_at_end: u64,
    /// Size of the last snapshot, bytes.
    cost: u64,
    /// Where the last complete snapshot begins.
    last: Option<u64>,
    stage: Stage,
    /// It makes up for entries that were lost.
    heals: bool,
    /// New offsets of moved messages.
    moved: HashMap<u64, u64, foldhash::fast::RandomState>,
    /// Old offsets of messages by their new ones, if the snapshot was abandoned: what was written there may be lost.
    undone: HashMap<u64, u64, foldhash::fast::RandomState>,
    /// The oldest message that a session written so far refers to.
    oldest: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// Sessions from this slot on are to be written.
    Writing { begins: u64, slot: usize },
    /// All are written; the last entry is not on disk yet.
    Written { begins: u64, end: u64 },
    /// The hint that names its beginning is not on disk yet.
    Noted { begins: u64, ticket: Ticket },
}

impl Schedule {
    pub(super) fn new(interval_bytes_min: u64) -> Self {
        Self { interval_bytes_min, ..Self::default() }
    }

    /// The log has been read: it has `bytes`, and this snapshot.
    pub(super) fn restore(&mut self, snapshot: Option<u64>, bytes: u64) {
        self.last = snapshot;
        self.written = bytes;
    }

    pub(super) fn add_written(&mut self, bytes: u64) {
        self.written += bytes;
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Whether enough has been written since the last snapshot.
    pub(super) fn is_due(&self) -> bool {
        self.written - self.written_at_end >= self.interval_bytes_min.max(2 * self.cost)
    }

    pub(super) fn begin(&mut self, begins: u64, heals: bool) {
        self.stage = Stage::Writing { begins, slot: 0 };
        self.heals = heals;
        self.moved = HashMap::default();
        if !heals {
            self.forget_undone();
        }
        self.oldest = begins;
        self.written_at_begin = self.written;
    }

    /// The snapshot that begins there is complete. Returns the oldest offset that is still needed, and whether the
    /// snapshot made up for lost entries.
    pub(super) fn complete(&mut self, begins: u64) -> (u64, bool) {
        self.moved = HashMap::default();
        self.last = Some(begins);
        self.cost = self.written - self.written_at_begin;
        self.written_at_end = self.written;
        (self.oldest, std::mem::take(&mut self.heals))
    }

    /// Whether the current snapshot makes up for lost entries.
    pub(crate) fn is_healing(&self) -> bool {
        self.heals && self.stage != Stage::Idle
    }

    /// Abandons the current snapshot.
    pub(super) fn abandon(&mut self) {
        self.stage = Stage::Idle;
        self.undone.extend(self.moved.drain().map(|(from, to)| (to, from)));
    }

    /// The old offset of a message that an abandoned snapshot moved. It is still there.
    pub(super) fn undone(&self, offset: u64) -> Option<u64> {
        self.undone.get(&offset).copied()
    }

    /// Nothing refers any more to where an abandoned snapshot moved messages.
    pub(super) fn forget_undone(&mut self) {
        self.undone = HashMap::default();
    }

    /// The new offset of a message that the current snapshot has moved.
    pub(super) fn moved(&self, offset: u64) -> Option<u64> {
        self.moved.get(&offset).copied()
    }

    /// Whether a message may be moved. One whose entry was lost must be, however many there are.
    pub(super) fn can_move(&self, is_lost: bool) -> bool {
        self.is_writing() && (is_lost || self.moved.len() < MOVED_MAX)
    }

    /// Whether sessions are being written. False after the snapshot was abandoned.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.stage, Stage::Writing { .. })
    }

    /// A message has been written again. False if the snapshot was abandoned meanwhile, because the disk failed: then
    /// nothing may refer to the new offset, which may be lost.
    #[must_use]
    pub(super) fn set_moved(&mut self, from: u64, to: u64) -> bool {
        if self.is_writing() {
            self.moved.insert(from, to);
        }
        self.is_writing()
    }

    /// Where the last complete snapshot begins.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// The slot to continue at, while sessions are to be written.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self.stage {
            Stage::Writing { slot, .. } => Some(slot),
            _ => None,
        }
    }

    /// Sessions up to this slot have been written.
    pub(crate) fn set_slot(&mut self, next: usize) {
        if let Stage::Writing { slot, .. } = &mut self.stage {
            *slot = next;
        }
    }

    /// A session that was written refers to this message.
    pub(crate) fn refer_to(&mut self, offset: u64) {
        self.oldest = self.oldest.min(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_snapshot_moves_nothing_more() {
        let mut schedule = Schedule::new(0);
        schedule.begin(100, false);
        assert!(schedule.can_move(false) && schedule.set_moved(7, 101));
        // The disk fails while the next message is written.
        schedule.abandon();
        assert!(!schedule.set_moved(8, 102) && !schedule.can_move(true));
        assert_eq!((schedule.moved(8), schedule.undone(102)), (None, None));
        assert_eq!((schedule.moved(7), schedule.undone(101)), (None, Some(7)));
    }
}
