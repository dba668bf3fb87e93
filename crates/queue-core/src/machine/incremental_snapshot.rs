//! Incremental snapshot: each call writes a range of messages while the queue keeps serving.
//!
//! Group headers come first; each part then snapshots a range of messages. What happens to a message before its part
//! is covered by the part. What happens later appears as events after it. So replaying parts and events in the order
//! of the log rebuilds the queue, and once the last part is written, entries before the first one are obsolete.

use std::ops::Range;

use super::Queue;
use crate::event::Event;
use crate::event_recorder::Recorder;
use crate::group::Group;

/// Position of an incremental snapshot: see [`Queue::begin_snapshot`].
#[derive(Debug)]
pub struct SnapshotCursor {
    /// The snapshot covers messages below this offset; later ones appear as events.
    to: u64,
    /// Identifiers to write, by their position in [`DedupIndex`](crate::dedup::DedupIndex).
    ids: Range<u64>,
    /// Duplicates from this offset on are still to be written.
    dropped: u64,
    /// The next group. Groups that are created during the snapshot are included: the event of a new group refers to
    /// what other groups have, and their parts may not have been written.
    group: u32,
    /// The next offset of that group.
    from: u64,
}

impl Queue {
    /// Whether a snapshot has no more entries than this.
    pub fn is_brief(&self, most: usize) -> bool {
        self.snapshot_entries().saturating_add(self.duplicates.entries()) <= most
    }

    /// Appends the first batch of a snapshot to `into`. Together with all [parts](Self::snapshot_part) that follow,
    /// it replaces all batches that were flushed before. Everything that has happened must be flushed.
    pub fn begin_snapshot(&self, into: &mut Vec<u8>) -> SnapshotCursor {
        // An identifier that is written before its message would make the message a duplicate of itself.
        debug_assert!(self.shared.recorder.is_empty(), "events are flushed before a snapshot");
        let to = self.shared.recorder.registered_to();
        let mut recorder = Recorder::default();
        recorder.record(&Event::Numbers { last: self.groups.last_number() });
        for (who, number) in self.duplicates.index().movers() {
            recorder.record(&Event::Moved { who, number });
        }
        self.record_default_group_removed(&mut recorder);
        for group in self.groups.values() {
            group.snapshot_header(&mut recorder);
        }
        recorder.flush(to, into);
        SnapshotCursor { to, ids: self.duplicates.index().positions(), dropped: 0, group: 0, from: 0 }
    }

    /// Appends the next part of about `most` entries to `into`. Other batches may come between parts. Appends nothing
    /// while the next group is [listing](Queue::is_listing). Returns `None` when everything is written. All events
    /// that somebody waits for must be flushed.
    pub fn snapshot_part(&self, cursor: &mut SnapshotCursor, most: usize, into: &mut Vec<u8>) -> Option<()> {
        debug_assert!(!self.flush_is_due(), "events are flushed before a snapshot");
        let mut recorder = Recorder::default();
        // An event of registration alone is no part.
        while recorder.flush(cursor.to, into).is_none() {
            if !cursor.ids.is_empty() {
                let ids = cursor.ids.start..cursor.ids.end.min(cursor.ids.start + most as u64);
                cursor.ids.start = ids.end;
                for (id, timestamp_ms) in self.duplicates.index().ids_at(ids) {
                    recorder.record(&Event::Known { id, timestamp_ms });
                }
            } else if cursor.dropped < cursor.to {
                let end = self.duplicates.dropped().end_of(cursor.dropped..cursor.to, most);
                for offsets in self.duplicates.dropped().ranges_within(cursor.dropped..end) {
                    recorder.record(&Event::Dropped { offsets });
                }
                cursor.dropped = end;
            } else {
                let group = self.groups.first_from(cursor.group)?;
                if self.shared.messages.is_unlisted(group.id()) {
                    break;
                }
                self.snapshot_group(group, cursor, most, &mut recorder);
            }
        }
        Some(())
    }

    fn snapshot_group(
        &self,
        group: &Group,
        cursor: &mut SnapshotCursor,
        most: usize,
        recorder: &mut Recorder,
    ) {
        if cursor.group < group.id() {
            // The group before it has been removed.
            (cursor.group, cursor.from) = (group.id(), 0);
        }
        if cursor.from < cursor.to {
            let joining = self.shared.messages.joining(group.id()).map(|joining| &joining.listed);
            cursor.from = group.snapshot_messages(joining, cursor.from..cursor.to, most, recorder);
        } else {
            (cursor.group, cursor.from) = (group.id() + 1, 0);
        }
    }
}
