//! Snapshots: the state of all messages, so that older events can be deleted. A small snapshot is one record. A large
//! one, or one of a queue with copies of old messages, is written in parts, one per commit, and is valid once its end
//! record is in the log.

use std::ops::Bound;

use mainstem_log::{Appended, Store};

use super::{BEGIN, DurableQueue, END, InFlight, PART, SNAPSHOT, SNAPSHOT_FACTOR, Written, relocate};
use crate::machine::SnapshotCursor;
use crate::request::Payload;

/// Old messages copied per call.
const RELOCATED_AT_ONCE: usize = 32;

#[derive(Debug)]
pub(super) struct SnapshotInProgress {
    /// Offset of its first record in the state log.
    begin: u64,
    /// The last old message that was copied after `begin`.
    relocated: Option<u64>,
    cursor: SnapshotCursor,
}

impl DurableQueue {
    /// Whether to start a snapshot.
    pub(super) fn snapshot_is_due(&self) -> bool {
        let due = self.tuning.snapshot_bytes.max(self.snapshot_bytes.saturating_mul(SNAPSHOT_FACTOR));
        self.events_bytes > due && self.unfinished.is_none()
    }

    /// Writes a snapshot if one is due, or its next part. All events that somebody waits for must be written.
    pub(super) fn continue_snapshot(&mut self, store: &mut dyn Store, now_ms: u64) {
        if self.unfinished.is_some() {
            return self.continue_parts(store, now_ms);
        }
        // Events that nobody waits for may not be written yet.
        if !self.snapshot_is_due() || !self.queue.is_flushed() {
            return;
        }
        // A snapshot in one record is valid at once, and copies before it do not count any more. So no copy may follow
        // it, because a loss of power could take the copy alone.
        self.drop_relocated();
        if self.relocated.is_empty() && self.queue.is_brief(self.tuning.at_once) {
            self.store_snapshot(store, now_ms);
        } else {
            self.begin_snapshot(store, now_ms);
        }
    }

    /// Discards the snapshot in progress, and schedules another one.
    pub(super) fn abandon_snapshot(&mut self) {
        if self.unfinished.take().is_some() {
            self.events_bytes = usize::MAX / 2;
        }
    }

    fn append_keyed(
        &mut self,
        store: &mut dyn Store,
        key: &[u8],
        value: &[u8],
        now_ms: u64,
    ) -> Option<Appended> {
        self.builder.push(now_ms.cast_signed(), Some(key), Some(value));
        store.append_valid(self.state, self.builder.finish_valid()).ok()
    }

    fn store_snapshot(&mut self, store: &mut dyn Store, now_ms: u64) {
        let mut snapshot = Vec::new();
        self.queue.snapshot(&mut snapshot);
        let Some(appended) = self.append_keyed(store, SNAPSHOT, &snapshot, now_ms) else { return };
        let kind = Written::Snapshot(appended.base_offset);
        self.in_flight.push_back(InFlight { ticket: appended.ticket, kind });
        // What the snapshot replaces is deleted once it is written: a loss of power must not take both.
        store.force_sync(self.state);
        (self.events_bytes, self.snapshot_bytes) = (0, snapshot.len());
    }

    fn begin_snapshot(&mut self, store: &mut dyn Store, now_ms: u64) {
        let mut head = Vec::new();
        let cursor = self.queue.begin_snapshot(&mut head);
        let Some(appended) = self.append_keyed(store, BEGIN, &head, now_ms) else { return };
        self.in_flight.push_back(InFlight { ticket: appended.ticket, kind: Written::Part });
        (self.events_bytes, self.snapshot_bytes) = (0, head.len());
        self.unfinished = Some(SnapshotInProgress { begin: appended.base_offset, relocated: None, cursor });
    }

    fn continue_parts(&mut self, store: &mut dyn Store, now_ms: u64) {
        let Some(mut unfinished) = self.unfinished.take() else { return };
        if self.copy_relocated(store, &mut unfinished) {
            self.unfinished = Some(unfinished);
            return;
        }
        let mut part = Vec::new();
        if self.queue.snapshot_part(&mut unfinished.cursor, self.tuning.at_once, &mut part).is_some() {
            if part.is_empty() {
                // The next group is not ready for it.
                self.unfinished = Some(unfinished);
                return;
            }
            match self.append_keyed(store, PART, &part, now_ms) {
                Some(Appended { ticket, .. }) => {
                    self.in_flight.push_back(InFlight { ticket, kind: Written::Part });
                    self.snapshot_bytes += part.len();
                    self.unfinished = Some(unfinished);
                }
                // Start again.
                None => self.events_bytes = usize::MAX / 2,
            }
            return;
        }
        // Everything before the end record is durable before that is written, so no part can be missing.
        let is_part = |flight: &InFlight| matches!(flight.kind, Written::Part | Written::Relocated(_));
        if !self.in_flight.iter().any(is_part)
            && let Some(Appended { ticket, .. }) = self.append_keyed(store, END, &[], now_ms)
        {
            self.in_flight.push_back(InFlight { ticket, kind: Written::Snapshot(unfinished.begin) });
            store.force_sync(self.state);
        } else {
            self.unfinished = Some(unfinished);
        }
    }

    /// Copies the next old messages after the beginning of the snapshot. Returns false if all are copied.
    fn copy_relocated(&mut self, store: &mut dyn Store, unfinished: &mut SnapshotInProgress) -> bool {
        let behind = unfinished.relocated.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.relocated.range((behind, Bound::Unbounded));
        let rest: Vec<(u64, Payload)> =
            rest.take(RELOCATED_AT_ONCE).map(|(&offset, payload)| (offset, payload.clone())).collect();
        for (offset, payload) in &rest {
            if relocate::append(store, self.state, payload, false, &mut self.in_flight).is_none() {
                break;
            }
            unfinished.relocated = Some(*offset);
        }
        !rest.is_empty()
    }
}
