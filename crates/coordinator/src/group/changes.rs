//! Undo information for offset records whose write has not been confirmed.
//!
//! Offsets are updated in memory before their records are durable. If the log rejects a write, the offsets in it revert
//! to their previous values. Several writes can be in flight for one offset, so a failed write hands its previous value
//! to the next write of that offset, and a confirmed write discards the undo information of earlier ones.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Groups;
use super::offsets::Offset;

/// Identifies a write of records that are persisted together. Later writes have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// The change of one offset, which exactly one record describes.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) group_id: Arc<str>,
    /// The producer whose transaction the offset belongs to; `None` for a committed offset.
    pub(super) producer_id: Option<i64>,
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    /// Previous value; `None` if there was none.
    pub(super) before: Option<Offset>,
}

impl Change {
    fn is_same_offset(&self, other: &Self) -> bool {
        self.partition == other.partition
            && self.producer_id == other.producer_id
            && self.topic == other.topic
            && self.group_id == other.group_id
    }
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Changes whose records have not been handed out, in the order of the records.
    unassigned: VecDeque<Change>,
    /// Changes by write, oldest first.
    in_flight: VecDeque<(WriteId, Vec<Change>)>,
    last_write: u64,
    failed_writes: u64,
    /// The last write that was reported has failed.
    is_failing: bool,
}

impl Changes {
    pub(super) fn push(&mut self, change: Change) {
        self.unassigned.push_back(change);
    }

    /// Assigns the next `records` changes to a new write.
    pub(super) fn assign_write(&mut self, records: usize) -> WriteId {
        self.last_write += 1;
        let keep = WriteId(self.last_write);
        let count = records.min(self.unassigned.len());
        if count > 0 {
            self.in_flight.push_back((keep, self.unassigned.drain(..count).collect()));
        }
        keep
    }

    /// Number of writes that have failed.
    pub(super) fn failed_writes(&self) -> u64 {
        self.failed_writes
    }

    /// Whether the last write that was reported has failed.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Removes the changes of a write, and returns them with its position among the writes in flight.
    fn take(&mut self, keep: WriteId) -> Option<(usize, Vec<Change>)> {
        let at = self.in_flight.binary_search_by_key(&keep, |(known, _)| *known).ok()?;
        self.in_flight.remove(at).map(|(_, changes)| (at, changes))
    }
}

impl Groups {
    /// The write is durable.
    pub fn write_succeeded(&mut self, keep: WriteId) {
        self.effects.changes.is_failing = false;
        self.configurations.write_succeeded(keep);
        self.repeat_tombstones(keep);
        let Some((at, changes)) = self.effects.changes.take(keep) else { return };
        // An earlier write of the same offset no longer matters if it fails later.
        for (_, earlier) in self.effects.changes.in_flight.iter_mut().take(at) {
            earlier.retain(|earlier| changes.iter().all(|change| !change.is_same_offset(earlier)));
        }
    }

    /// The write failed and will never be durable: its offsets revert to their previous values, unless a later write
    /// has changed them again.
    ///
    /// If several writes failed, report the newest first.
    pub fn write_failed(&mut self, keep: WriteId) {
        self.effects.changes.failed_writes += 1;
        self.effects.changes.is_failing = true;
        self.note_lost_tombstones(keep);
        self.configurations.write_failed(keep);
        let Some((at, mut changes)) = self.effects.changes.take(keep) else { return };
        while let Some(change) = changes.pop() {
            let later_changes =
                self.effects.changes.in_flight.iter_mut().skip(at).flat_map(|(_, changes)| changes);
            match later_changes.into_iter().find(|later| later.is_same_offset(&change)) {
                Some(later) => later.before = change.before,
                None => self.revert(change),
            }
        }
    }

    fn revert(&mut self, change: Change) {
        let Change { group_id, producer_id, topic, partition, before } = change;
        match before {
            Some(offset) => {
                self.group_or_insert(&group_id);
                self.put_offset(&group_id, producer_id, &topic, partition, offset);
            }
            None => self.remove_offset(&group_id, producer_id, &topic, partition),
        }
    }
}
