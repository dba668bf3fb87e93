//! A queue written as a whole, some of it at a time, while it goes on.
//!
//! First it is said which groups there are, then each part says anew what is so of some messages at that moment. What
//! happens to a message before its part comes is said by the part, what happens later by later events: so parts say
//! nothing that is not so, and once all have come, what was there before the first is of no use any more.

use std::ops::Range;

use crate::event::Event;
use crate::group::{Gone, Group, State};
use crate::machine::Queue;
use crate::recorder::Recorder;
use crate::runs::Runs;

/// How far a queue has been written: [`Queue::begin_walk`].
#[derive(Debug)]
pub struct Walk {
    /// Messages below this offset are spoken of; what comes behind is told by events.
    to: u64,
    /// Identifiers, by how many there were before.
    ids: Range<u64>,
    /// Duplicates from this offset on are to come.
    dropped: u64,
    /// Groups from this number on are to come, also those that are opened until then: what a new one is given is told by
    /// what others have, and of those not all may have been said.
    group: u32,
    /// Messages of the first of them from this offset on.
    from: u64,
}

impl Queue {
    /// Whether a snapshot speaks of no more things than this.
    pub fn is_brief(&self, most: usize) -> bool {
        self.runs().saturating_add(self.dropped.count() + self.seen.ids_len()) <= most
    }

    /// Appends a batch to `into` that stands for all that were flushed, together with the [parts](Self::walk) that follow, once
    /// these have all come. Nothing may have happened since the last flush.
    pub fn begin_walk(&self, into: &mut Vec<u8>) -> Walk {
        // An identifier that is told before its message makes that a duplicate of itself.
        debug_assert!(self.shared.recorder.is_empty(), "what is recorded is flushed before a snapshot");
        let to = self.shared.recorder.said();
        let mut recorder = Recorder::default();
        recorder.record(&Event::Numbers { last: self.last_number });
        for (who, number) in self.seen.movers() {
            recorder.record(&Event::Moved { who, number });
        }
        self.record_lack_of_default(&mut recorder);
        for group in self.groups.values() {
            let Group { id, ref name, last_number, .. } = *group;
            recorder.record(&Event::Group { group: id, name, last_number });
        }
        recorder.flush(to, into);
        Walk { to, ids: self.seen.places(), dropped: 0, group: 0, from: 0 }
    }

    /// Appends the next part to `into`, of about `most` things. Other batches may come in between; wherever it is
    /// replayed among them, it says nothing new. Appends nothing for as long as the next group is
    /// [listing](Queue::is_listing). Nothing if there is none: all has been said. Nothing may have happened since the
    /// last flush that somebody waits for.
    pub fn walk(&self, walk: &mut Walk, most: usize, into: &mut Vec<u8>) -> Option<()> {
        debug_assert!(!self.flush_is_due(), "what is recorded is flushed before a snapshot");
        let mut recorder = Recorder::default();
        // It is no news that something is registered.
        while recorder.flush(walk.to, into).is_none() {
            if !walk.ids.is_empty() {
                let ids = walk.ids.start..walk.ids.end.min(walk.ids.start + most as u64);
                walk.ids.start = ids.end;
                for (id, timestamp_ms) in self.seen.ids_at(ids) {
                    recorder.record(&Event::Known { id, timestamp_ms });
                }
            } else if walk.dropped < walk.to {
                let end = self.dropped.end_of(walk.dropped..walk.to, most);
                for offsets in self.dropped.runs_within(walk.dropped..end) {
                    recorder.record(&Event::Dropped { offsets });
                }
                walk.dropped = end;
            } else {
                let (&id, group) = self.groups.range(walk.group..).next()?;
                if self.shared.pool.is_unlisted(id) {
                    break;
                }
                self.walk_group(group, walk, most, &mut recorder);
            }
        }
        Some(())
    }

    fn walk_group(&self, group: &Group, walk: &mut Walk, most: usize, recorder: &mut Recorder) {
        if walk.group < group.id {
            // The one before has been removed.
            (walk.group, walk.from) = (group.id, 0);
        }
        if walk.from < walk.to {
            let late = self.shared.pool.late(group.id).map(|late| &late.listed);
            walk.from = group.restate(late, walk.from..walk.to, most, recorder);
        } else {
            (walk.group, walk.from) = (group.id + 1, 0);
        }
    }
}

impl Group {
    /// Says what is so of the first messages of a range, about `most`. Returns where those end.
    fn restate(&self, late: Option<&Runs>, range: Range<u64>, most: usize, recorder: &mut Recorder) -> u64 {
        let group = self.id;
        let end = self.end_of(late, range.clone(), most);
        let range = range.start..end;
        recorder.record(&Event::Settled { group, offsets: range.clone() });
        let late = late.into_iter().flat_map(|late| late.runs_within(range.clone()));
        let unknown = self.unknown.runs_within(range.clone());
        for offsets in self.pending.runs_within(range.clone()).chain(unknown).chain(late) {
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
                && let Some(&Gone { reason, since_ms, .. }) = self.leaving.get(&number)
            {
                recorder.record(&Event::Leaving { group, offset, number, reason, since_ms });
            }
        }
        end
    }
}
