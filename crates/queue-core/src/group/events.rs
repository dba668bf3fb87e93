//! Events of a group: their replay, and the snapshots that replace them.
//!
//! During a replay `pending` has the offsets that the events leave pending, and none of them is in memory.

use std::ops::Range;

use super::{Entry, Group, State};
use crate::event::{Delivered, Event};
use crate::event_recorder::Recorder;
use crate::joining_group::JoiningGroup;
use crate::offset_ranges::OffsetRanges;
use crate::outgoing_transfers::LeavingMessage;

impl Group {
    /// Offsets that are pending by the events are not in memory before they are registered.
    pub(crate) fn swap_pending_and_unknown(&mut self) {
        std::mem::swap(&mut self.pending, &mut self.unknown);
    }

    /// During a replay: offsets that are pending and do not leave.
    pub(crate) fn replayed_staying(&self) -> OffsetRanges {
        let mut staying = self.pending.clone();
        for (_, leaving) in self.transfers.iter() {
            staying.remove(leaving.offset);
        }
        staying
    }

    /// During a replay: these new offsets are pending.
    pub(crate) fn replay_registered(&mut self, offsets: Range<u64>) {
        self.pending.insert_range(offsets);
    }

    /// During a replay: these offsets are pending, whatever earlier events said of them.
    pub(crate) fn replay_pending(&mut self, offsets: Range<u64>) {
        self.forget(offsets.clone());
        self.pending.insert_range(offsets);
    }

    /// Removes offsets that are no longer messages. None of them is in memory.
    pub(crate) fn forget(&mut self, offsets: Range<u64>) {
        self.pending.remove_range(offsets.clone());
        self.unknown.remove_range(offsets.clone());
        while let Some((&offset, _)) = self.entries.range(offsets.clone()).next() {
            self.cancel_leaving(offset);
            self.entries.remove(&offset);
        }
    }

    /// The offset does not leave the queue, whatever earlier events said.
    fn cancel_leaving(&mut self, offset: u64) {
        if let Some(entry) = self.entries.get_mut(&offset)
            && let State::Leaving { number } = entry.state
        {
            entry.state = State::Idle;
            self.transfers.remove(number);
        }
    }

    /// Replays an event of this group.
    pub(crate) fn replay(&mut self, event: &Event<'_>) {
        match *event {
            Event::Settled { ref offsets, .. } => self.forget(offsets.clone()),
            Event::Pending { ref offsets, .. } => self.replay_pending(offsets.clone()),
            Event::Delivered { ref offsets, how, .. } => {
                let Delivered { count, incarnation, first_ms } = how;
                for offset in offsets.clone() {
                    if self.pending.contains(offset) {
                        self.cancel_leaving(offset);
                        self.entries.insert(offset, Entry { count, incarnation, first_ms, ..Entry::NEW });
                    }
                }
            }
            Event::Delayed { offset, until_ms, .. } if self.pending.contains(offset) => {
                self.entries.entry(offset).or_insert(Entry::NEW).not_before_ms = until_ms;
            }
            Event::Leaving { offset, number, reason, since_ms, .. } => {
                self.transfers.skip_to(number);
                if self.pending.contains(offset) && self.transfers.get(number).is_none() {
                    self.cancel_leaving(offset);
                    self.entries.entry(offset).or_insert(Entry::NEW).state = State::Leaving { number };
                    self.transfers.restore(number, LeavingMessage { offset, reason, since_ms });
                }
            }
            _ => {}
        }
    }

    /// Records the group without its messages.
    pub(crate) fn snapshot_header(&self, recorder: &mut Recorder) {
        let last_number = self.transfers.last_number();
        recorder.record(&Event::Group { group: self.id, name: &self.name, last_number });
    }

    /// Records the whole group, with the messages that it takes over.
    pub(crate) fn snapshot(&self, joining: Option<&JoiningGroup>, recorder: &mut Recorder) {
        let group = self.id;
        self.snapshot_header(recorder);
        let joining = joining.into_iter().flat_map(|joining| joining.listed.ranges());
        for offsets in self.pending.ranges().chain(self.unknown.ranges()).chain(joining) {
            recorder.record(&Event::Pending { group, offsets });
        }
        for (&offset, entry) in self.entries.iter().filter(|(_, entry)| entry.count > 0) {
            recorder.delivered(group, offset, entry.delivered());
        }
        for (&offset, entry) in self.entries.iter().filter(|(_, entry)| entry.not_before_ms > 0) {
            recorder.record(&Event::Delayed { group, offset, until_ms: entry.not_before_ms });
        }
        for (number, gone) in self.transfers.iter() {
            let LeavingMessage { offset, reason, since_ms } = *gone;
            recorder.record(&Event::Leaving { group, offset, number, reason, since_ms });
        }
    }

    /// Records the state of the first messages of a range, about `most`. Returns the end of those messages.
    pub(crate) fn snapshot_messages(
        &self,
        joining: Option<&OffsetRanges>,
        range: Range<u64>,
        most: usize,
        recorder: &mut Recorder,
    ) -> u64 {
        let group = self.id;
        let end = self.end_of(joining, range.clone(), most);
        let range = range.start..end;
        recorder.record(&Event::Settled { group, offsets: range.clone() });
        let joining = joining.into_iter().flat_map(|joining| joining.ranges_within(range.clone()));
        let unknown = self.unknown.ranges_within(range.clone());
        for offsets in self.pending.ranges_within(range.clone()).chain(unknown).chain(joining) {
            recorder.record(&Event::Pending { group, offsets });
        }
        for (&offset, entry) in self.entries.range(range.clone()).filter(|(_, entry)| entry.count > 0) {
            recorder.delivered(group, offset, entry.delivered());
        }
        for (&offset, entry) in self.entries.range(range) {
            if entry.not_before_ms > 0 {
                recorder.record(&Event::Delayed { group, offset, until_ms: entry.not_before_ms });
            }
            if let State::Leaving { number } = entry.state
                && let Some(&LeavingMessage { reason, since_ms, .. }) = self.transfers.get(number)
            {
                recorder.record(&Event::Leaving { group, offset, number, reason, since_ms });
            }
        }
        end
    }
}
