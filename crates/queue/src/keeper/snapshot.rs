//! Snapshots: what has become of all messages, so that events before need not be kept. A brief one is one record. A long one
//! is written in parts, one with each commit, and counts when its end is there.

use std::ops::Bound;

use mainstem_log::{Appended, Store};

use super::{BEGIN, END, Flight, Keeper, PART, SNAPSHOT, SNAPSHOT_FACTOR, Written, aside};
use crate::ask::Payload;
use crate::restate::Walk;

/// Copies of old messages that are written at once.
const ASIDES_AT_ONCE: usize = 32;

/// A snapshot that is being written.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Where it begins in the state's log.
    begin: u64,
    /// The last old message that has been copied behind that.
    aside: Option<u64>,
    walk: Walk,
}

impl Keeper {
    /// Whether one is to be begun.
    pub(super) fn snapshot_is_due(&self) -> bool {
        let due = self.tuning.snapshot_bytes.max(self.snapshot_bytes.saturating_mul(SNAPSHOT_FACTOR));
        self.events_bytes > due && self.unfinished.is_none()
    }

    /// Writes a snapshot if one is due, or the next part of one. Nothing may have happened that is not written.
    pub(super) fn go_on_with_snapshot(&mut self, store: &mut dyn Store, now_ms: u64) {
        if self.unfinished.is_some() {
            return self.go_on_with_parts(store, now_ms);
        }
        // What has been seen without anybody waiting for it may not have been written yet.
        if !self.snapshot_is_due() || !self.queue.is_flushed() {
            return;
        }
        if self.queue.is_brief(self.tuning.at_once) {
            self.store_snapshot(store, now_ms);
        } else {
            self.begin_snapshot(store, now_ms);
        }
    }

    /// What is being written is of no use. To be begun again.
    pub(super) fn give_up_snapshot(&mut self) {
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
        store.append_sound(self.state, self.builder.finish_sound()).ok()
    }

    fn store_snapshot(&mut self, store: &mut dyn Store, now_ms: u64) {
        let mut snapshot = Vec::new();
        self.queue.snapshot(&mut snapshot);
        let Some(appended) = self.append_keyed(store, SNAPSHOT, &snapshot, now_ms) else { return };
        let what = Written::Snapshot(appended.base_offset);
        self.in_flight.push_back(Flight { ticket: appended.ticket, what });
        // What it stands for goes from the disk then: loss of power must not take both.
        store.sync_next(self.state);
        (self.events_bytes, self.snapshot_bytes) = (0, snapshot.len());
        // Behind a snapshot stands all that is needed besides the log of messages.
        self.forget_asides();
        for payload in self.asides.values() {
            aside::append(store, self.state, payload, false, &mut self.in_flight);
        }
    }

    fn begin_snapshot(&mut self, store: &mut dyn Store, now_ms: u64) {
        let mut head = Vec::new();
        let walk = self.queue.begin_walk(&mut head);
        let Some(appended) = self.append_keyed(store, BEGIN, &head, now_ms) else { return };
        self.in_flight.push_back(Flight { ticket: appended.ticket, what: Written::Part });
        (self.events_bytes, self.snapshot_bytes) = (0, head.len());
        self.forget_asides();
        self.unfinished = Some(Unfinished { begin: appended.base_offset, aside: None, walk });
    }

    fn go_on_with_parts(&mut self, store: &mut dyn Store, now_ms: u64) {
        let Some(mut unfinished) = self.unfinished.take() else { return };
        if self.copy_asides(store, &mut unfinished) {
            self.unfinished = Some(unfinished);
            return;
        }
        let mut part = Vec::new();
        if self.queue.walk(&mut unfinished.walk, self.tuning.at_once, &mut part).is_some() {
            if part.is_empty() {
                // It is to come later.
                self.unfinished = Some(unfinished);
                return;
            }
            match self.append_keyed(store, PART, &part, now_ms) {
                Some(Appended { ticket, .. }) => {
                    self.in_flight.push_back(Flight { ticket, what: Written::Part });
                    self.snapshot_bytes += part.len();
                    self.unfinished = Some(unfinished);
                }
                // To be begun again.
                None => self.events_bytes = usize::MAX / 2,
            }
            return;
        }
        // All that is before the end is durable before that is written: none of it can be missing.
        let is_part = |flight: &Flight| matches!(flight.what, Written::Part | Written::Aside(_));
        if !self.in_flight.iter().any(is_part)
            && let Some(Appended { ticket, .. }) = self.append_keyed(store, END, &[], now_ms)
        {
            self.in_flight.push_back(Flight { ticket, what: Written::Snapshot(unfinished.begin) });
            store.sync_next(self.state);
        } else {
            self.unfinished = Some(unfinished);
        }
    }

    /// Copies the next old messages behind where the snapshot begins. False if all are there.
    fn copy_asides(&mut self, store: &mut dyn Store, unfinished: &mut Unfinished) -> bool {
        let behind = unfinished.aside.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.asides.range((behind, Bound::Unbounded));
        let rest: Vec<(u64, Payload)> =
            rest.take(ASIDES_AT_ONCE).map(|(&offset, payload)| (offset, payload.clone())).collect();
        for (offset, payload) in &rest {
            if aside::append(store, self.state, payload, false, &mut self.in_flight).is_none() {
                break;
            }
            unfinished.aside = Some(*offset);
        }
        !rest.is_empty()
    }
}
